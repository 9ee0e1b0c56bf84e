"""What holds on a local disk holds on an S3 server, also when one request in a hundred fails."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.errors import UnsafeStore
from lakebed.log.claims import claims_of
from lakebed.storage.data_files import open_part_storage
from tests.infra.fault_proxy import Fault, FaultProxy, FaultRates
from tests.infra.s3 import S3Server, aws_environment
from tests.internals import log_of
from tests.log.unsafe_s3 import Behaviour, UnsafeS3
from tests.table.test_every_version_equals_the_oracle import World, check, make_world, step
from tests.worlds import seeds

ONE_PERCENT = FaultRates(before=0.004, reset=0.003, after=0.003)
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


pytestmark = pytest.mark.usefixtures("own_cache")


class Prefix(str):
    """A prefix in a bucket that is joined as a folder is."""

    def __truediv__(self, name: str) -> str:
        return f"{self}/{name}"


def run_world(seed: int, bucket: str, steps: int) -> World:
    """A table under random treatment, held against its oracle at every version that is kept."""
    root = Prefix(f"s3://{bucket}/lake")
    world = make_world(seed, cast("Path", root))
    for _ in range(steps):
        step(world, cast("Path", root))
    world.states[world.table.version] = world.oracle.rows()
    check(world)
    return world


@seeds(2)
def test_every_version_on_s3_equals_the_oracle(seed: int, s3: S3Server) -> None:
    run_world(seed, s3.create_bucket(), steps=12)


@seeds(2)
def test_failing_requests_cost_retries_and_nothing_else(seed: int, flaky_s3: FaultProxy, s3_server: S3Server) -> None:
    bucket = s3_server.create_bucket()
    flaky_s3.set_rates(ONE_PERCENT, seed=seed)
    world = run_world(seed, bucket, steps=12)
    table = world.table
    flaky_s3.set_rates(FaultRates())
    table.settle()
    assert parts_in(table.path) >= set(table.inspect.parts()["path"].to_pylist()), (
        "every part that the log names is there"
    )
    held = {one.claim.id for one in world.replica.held()} if world.replica else set()
    assert claims_of(log_of(table).refresh().domains).keys() == held, "a claim in the log is one that somebody works on"


def test_hundreds_of_faults_lose_no_batch_and_commit_none_twice(flaky_s3: FaultProxy, s3_server: S3Server) -> None:
    """Ten times as many faults as above, so that each kind meets each kind of request."""
    table = lakebed.create(f"s3://{s3_server.create_bucket()}/t", SCHEMA)  # without keys, a batch twice is rows twice
    flaky_s3.set_rates(FaultRates(before=0.04, reset=0.03, after=0.03), seed=7)
    flaky_s3.traffic(reset=True)
    for number in range(40):
        table.apply(pa.table({"id": [number], "v": [str(number)]}), batch_id=number)
        if number % 8 == 7:
            table = lakebed.open(table.path)
    assert sorted(table.to_arrow()["id"].to_pylist()) == list(range(40))
    assert table.version == 40
    assert sum(flaky_s3.traffic().faults.values()) >= 5


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_schema_is_altered_once_if_the_store_is_busy_or_its_answer_is_lost(
    fault: Fault, flaky_s3: FaultProxy, s3_server: S3Server, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names that are swapped twice would be as before."""
    table = lakebed.create(f"s3://{s3_server.create_bucket()}/t", SCHEMA.append(pa.field("w", pa.string())))
    table.apply(pa.table({"id": [1], "v": ["v"], "w": ["w"]}))
    flaky_s3.fail_next(fault, method="PUT", path_contains=f"_delta_log/{2:020}.json")
    assert main(["alter", table.path, "--rename", "v=w", "--rename", "w=v", "--yes"]) == 0
    assert flaky_s3.traffic().faults[fault] >= 1
    assert (table.version, table.to_arrow().to_pylist()) == (2, [{"id": 1, "v": "w", "w": "v"}])
    assert "2" in capsys.readouterr().out


@pytest.mark.parametrize("behaviour", [Behaviour.IGNORES, Behaviour.CHECKS_THEN_WRITES])
def test_a_store_whose_put_if_absent_is_unsafe_is_refused_before_anything_is_written(behaviour: Behaviour) -> None:
    with UnsafeS3(behaviour) as server, aws_environment(server.endpoint):
        with pytest.raises(UnsafeStore, match="s3://bucket/t"):
            lakebed.create("s3://bucket/t", SCHEMA, keys=["id"])
        assert not server.objects


def parts_in(root: str) -> set[str]:
    return {path for path, _, _ in open_part_storage(root).list("_lakebed/")}
