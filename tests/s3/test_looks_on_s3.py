"""A fleet asks S3 whether there is a next version: by one request, and as surely as by reading it."""

from __future__ import annotations

import pytest

from lakebed.errors import InvalidInput
from lakebed.log.stores import has_object, open_store
from lakebed.storage.s3_objects import S3Objects
from tests.infra.fault_proxy import Fault, FaultProxy
from tests.infra.s3 import S3Server

pytestmark = pytest.mark.slow


def test_an_object_is_there_once_it_was_put_and_not_before(s3: S3Server) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/lake/a table")
    name = "_delta_log/00000000000000000007.json"
    assert not has_object(store, name)
    store.put_if_absent(name, b"1")
    assert has_object(store, name)
    store.delete(name)
    assert not has_object(store, name)
    assert isinstance(store, S3Objects) and store.counters().operations["head"].requests == 3, "one request each"


def test_who_may_not_ask_learns_why(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/lake")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InvalidInput, match="denied"):
        has_object(store, "x")


def test_a_server_that_fails_is_asked_again(s3_server: S3Server, flaky_s3: FaultProxy) -> None:
    store = open_store(f"s3://{s3_server.create_bucket()}/lake")
    for fault in Fault:
        flaky_s3.fail_next(fault, method="HEAD")
        assert not has_object(store, "x")
