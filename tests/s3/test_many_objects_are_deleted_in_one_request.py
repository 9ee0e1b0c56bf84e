"""Deleting in batches: what goes, what is told of each object that stays, and stores that have no such request."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidInput, StoreUnavailable
from lakebed.storage import s3_objects as s3_objects
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.s3_client import ATTEMPTS_MAX
from tests.infra.fault_proxy import Fault, FaultProxy
from tests.infra.s3 import S3Server, aws_environment
from tests.log.unsafe_s3 import Behaviour, UnsafeS3

TOO_LONG = "_lakebed/" + "x" * 300  # for the disk of the server


def filled(bucket: str, objects: int) -> tuple[PartStorage, list[str]]:
    storage = open_part_storage(f"s3://{bucket}/a täble")
    paths = [f"_lakebed/{number}.parquet" for number in range(objects)]
    for path in paths:
        storage.write_bytes(path, b"x")
    return storage, paths


def requests(storage: PartStorage) -> dict[str, int]:
    return {name: count.requests for name, count in storage.counters().operations.items() if "delete" in name}


def test_a_batch_of_objects_costs_one_request(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_objects, "DELETIONS_AT_ONCE", 10)
    storage, paths = filled(s3.create_bucket(), 25)
    assert storage.delete_many(paths[:24]) == {}
    assert [path for path, _, _ in storage.list()] == paths[24:]
    assert requests(storage) == {"delete_many": 3}
    assert not storage.exists(paths[0]), "also for a reader that had it in memory"


def test_an_object_that_cannot_be_deleted_is_named_and_the_others_go(s3: S3Server) -> None:
    storage, paths = filled(s3.create_bucket(), 3)
    failed = storage.delete_many([paths[0], TOO_LONG, *paths[1:]])
    assert list(failed) == [TOO_LONG]
    assert isinstance(failed[TOO_LONG], InvalidInput) and "KeyTooLongError" in str(failed[TOO_LONG])
    assert list(storage.list()) == []


def test_a_store_that_fails_is_asked_again_and_at_last_reported(flaky_s3: FaultProxy, s3_server: S3Server) -> None:
    storage, paths = filled(s3_server.create_bucket(), 3)
    flaky_s3.fail_next(Fault.AFTER, 1, method="POST")
    assert storage.delete_many(paths[:1]) == {}
    flaky_s3.fail_next(Fault.RESET, ATTEMPTS_MAX, method="POST")
    failed = storage.delete_many(paths[1:])
    assert list(failed) == paths[1:]
    assert all(isinstance(error, StoreUnavailable) for error in failed.values())


def test_where_the_store_has_no_such_request_objects_go_one_by_one() -> None:
    with UnsafeS3(Behaviour.IGNORES) as server, aws_environment(server.endpoint):
        storage, paths = filled("bucket", 3)
        assert storage.delete_many(paths[:2]) == {}
        assert storage.delete_many(paths[2:]) == {}
        assert not server.objects
        assert requests(storage) == {"delete_many": 1, "delete": 3}, "asked for once"
