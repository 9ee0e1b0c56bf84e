"""A disk that is full, a file that is damaged or gone: the error says which and what to do, and all the rest goes on.

The disk is full for real: the system refuses to write beyond a size that is set for this process (RLIMIT_FSIZE).
"""

from __future__ import annotations

import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_runner import MergeRunner
from lakebed.compaction.merge_values import MergeOutcome
from lakebed.compaction.volatile import VolatileMerger
from lakebed.errors import Corrupt, StoreUnavailable
from lakebed.log.claims import claims_of
from lakebed.planning.settling import UploadRules
from lakebed.storage.engine import is_out_of_memory, is_out_of_room
from lakebed.storage.s3_client import ATTEMPTS_MAX
from tests.infra.fault_proxy import Fault, FaultProxy
from tests.infra.s3 import S3Server
from tests.internals import compaction_of, deletion_vectors_of, log_of, storage_of
from tests.view.damage import UNVERIFIED

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
ROWS = 3000
PARTS = 3
ALL = UploadRules(age_seconds=0, local_bytes_max=0)


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    return three_parts(str(tmp_path / "table"))


def three_parts(root: str) -> lakebed.Table:
    """Base parts of some 60 KB each; ids from 0 on."""
    table = lakebed.create(root, SCHEMA, keys=["id"], properties={"lakebed.read_budget": "1"})
    for number in range(PARTS):
        table.apply(batch(range(number * ROWS, (number + 1) * ROWS)))
        table.settle()
    return table


def batch(ids: range) -> pa.Table:
    chance = random.Random(ids.start)
    return pa.table({"id": list(ids), "note": [chance.randbytes(20).hex() for _ in ids]}, SCHEMA)


@contextmanager
def disk_full_after(file_bytes: int) -> Iterator[None]:
    """No file may grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def paths(table: lakebed.Table) -> list[str]:
    """Of the base, in the order of the ids."""
    rows = table.inspect.parts().sort_by("min_block")
    return [
        path for path, state in zip(rows["path"].to_pylist(), rows["state"].to_pylist(), strict=True) if state == "base"
    ]


def files(table: lakebed.Table) -> set[str]:
    return {path for path, _, _ in storage_of(table).list("_lakebed/")}


def require_whole(table: lakebed.Table, rows: int = PARTS * ROWS) -> None:
    """All rows are there for a reader that knows nothing, and nobody claims anything."""
    again = lakebed.open(table.path)
    assert sorted(again.to_arrow()["id"].to_pylist()) == list(range(rows))
    assert not claims_of(log_of(again).refresh().domains)


def replica(table: lakebed.Table) -> VolatileMerger:
    return VolatileMerger(
        log_of(table), storage_of(table), deletion_vectors_of(table), compaction_of(table).volatile_base
    )


def merge(table: lakebed.Table, worker: Merger | VolatileMerger, inputs: list[str], level: int = 1) -> MergeOutcome:
    kernel = LocalKernel(storage_of(table), log_of(table).refresh)
    return worker.run(inputs, level, kernel).outcome


@pytest.mark.parametrize(
    ("bound", "is_room"),
    [("max_temp_directory_size='0KB'; set memory_limit='20MB'", True), ("memory_limit='3MB'", False)],
)
def test_a_full_disk_is_told_from_memory_that_is_too_small(tmp_path: Path, bound: str, is_room: bool) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"set threads=1; set temp_directory='{tmp_path}'; set {bound}")
        with pytest.raises(duckdb.Error) as caught:
            connection.execute(
                "create table t as select hash(i)::varchar || repeat('x', 99) v from range(500000) t(i) order by v"
            )
    assert (is_out_of_room(caught.value), is_out_of_memory(caught.value)) == (is_room, not is_room)


# -- full disks ------------------------------------------------------------------------------------------------------


def test_a_writer_on_a_full_disk_gets_an_error_that_says_so_and_may_try_again(table: lakebed.Table) -> None:
    before, version = files(table), table.version
    more = batch(range(PARTS * ROWS, (PARTS + 1) * ROWS))
    with disk_full_after(20_000), pytest.raises(StoreUnavailable, match=rf"{table.path}/_lakebed.* check the disk"):
        table.apply(more, batch_id=1)
    assert (files(table), table.version) == (before, version)
    table.apply(more, batch_id=1)
    require_whole(table, (PARTS + 1) * ROWS)


def test_settling_on_a_full_disk_says_so_and_the_tail_stays_readable(table: lakebed.Table) -> None:
    table.apply(batch(range(0, PARTS * ROWS)).take(random.Random(1).sample(range(PARTS * ROWS), PARTS * ROWS // 2)))
    with disk_full_after(1000), pytest.raises(StoreUnavailable, match=r"deletion_vector.* check the disk"):
        table.settle()
    require_whole(table)
    assert table.settle().commits == 1
    require_whole(table)


def test_a_merge_into_a_full_store_gives_everything_back_and_is_done_when_there_is_room(table: lakebed.Table) -> None:
    before = files(table)
    with disk_full_after(100_000), pytest.raises(StoreUnavailable, match=f"{table.path}/_lakebed"):
        table.maintenance.compact()
    assert files(table) == before
    require_whole(table)
    assert table.maintenance.compact().merges == 1
    require_whole(table)


def test_a_merge_onto_a_full_local_disk_gives_everything_back_and_is_done_when_there_is_room(
    table: lakebed.Table,
) -> None:
    worker = replica(table)
    local = compaction_of(table).volatile_base
    with disk_full_after(100_000), pytest.raises(StoreUnavailable, match=f"{local}.* check the disk"):
        merge(table, worker, paths(table))
    assert not list(local.rglob("*.parquet")) and worker.held() == []
    require_whole(table)
    assert merge(table, worker, paths(table)) is MergeOutcome.COMPLETED
    assert [result.outcome for result in worker.upload_due(ALL)] == [MergeOutcome.COMPLETED]
    require_whole(table)


def test_a_commit_on_a_full_disk_is_an_error_that_may_be_tried_again(table: lakebed.Table) -> None:
    log_of(table).sleep = lambda seconds: None
    with disk_full_after(100), pytest.raises(StoreUnavailable, match=r"_delta_log.* free space"):
        table.set_properties({"lakebed.read_budget": "2"})
    require_whole(table)
    table.set_properties({"lakebed.read_budget": "2"})
    assert table.properties["lakebed.read_budget"] == "2"


# -- damaged and missing files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_readers_go_round_a_local_part_that_is_damaged_and_its_replica_drops_it(
    table: lakebed.Table, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    worker = replica(table)
    first, second, third = paths(table)
    merge(table, worker, [first, second])
    [one] = worker.held()
    local = Path(one.local_path(one.parts[0]))
    local.unlink() if harm == "gone" else local.write_bytes(b"PAR1 rubbish PAR1")

    assert sorted(lakebed.open(table.path).to_arrow()["id"].to_pylist()) == list(range(PARTS * ROWS))
    assert lakebed.open(table.path).query("select count(note) from t", "t").to_pylist() == [
        {"count(note)": PARTS * ROWS}
    ]
    assert str(local) in caplog.text

    with pytest.raises(Corrupt, match=str(local)):
        merge(table, worker, [one.url(one.parts[0]), third], 2)
    assert worker.held() == []
    require_whole(table)
    assert merge(table, worker, paths(table)) is MergeOutcome.COMPLETED


@pytest.mark.parametrize("harm", ["damaged", "gone"])
def test_what_a_mutation_commits_never_comes_from_a_local_part(table: lakebed.Table, harm: str) -> None:
    wanted = notes(table)
    table.set_properties(UNVERIFIED)
    worker = replica(table)
    merge(table, worker, paths(table))
    [one] = worker.held()
    local = Path(one.local_path(one.parts[0]))
    mutating = lakebed.open(table.path)
    if harm == "gone":
        mutating.to_arrow()
        local.unlink()
    else:
        chunk = pq.read_metadata(local).row_group(0).column(1)
        flip_bit(local, chunk.data_page_offset + chunk.total_compressed_size // 2)
        assert notes(mutating) != wanted, "this reader does not look at checksums"

    assert mutating.update({"note": "note || 'x'"}, "id % 2 = 0").rows == PARTS * ROWS // 2
    assert mutating.delete("id = 1").rows == 1
    worker.close()
    shutil.rmtree(one.folder)
    del wanted[1]
    assert notes(lakebed.open(table.path)) == {id: note + "x" * (id % 2 == 0) for id, note in wanted.items()}


def notes(table: lakebed.Table) -> dict[int, str]:
    rows = table.to_arrow()
    return dict(zip(rows["id"].to_pylist(), rows["note"].to_pylist(), strict=True))


def flip_bit(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 4
    file.write_bytes(bytes(content))


def test_a_file_that_is_gone_is_named_by_all_who_need_it_and_by_nobody_else(table: lakebed.Table) -> None:
    second = paths(table)[1]
    Path(table.path, second).unlink()
    table = lakebed.open(table.path)
    gone = f"{second} can't be read .* missing or damaged: restore the file"
    with pytest.raises(Corrupt, match=gone):
        table.to_arrow()
    with pytest.raises(Corrupt, match=gone):
        table.query("select sum(id) from t", "t")
    with pytest.raises(Corrupt, match=gone):
        table.delete("note like 'x%'")
    assert table.to_arrow(where=f"id < {ROWS}").num_rows == ROWS, "what needs other files alone is read"


def test_a_merge_parks_a_part_whose_file_is_gone_and_merges_the_others(
    table: lakebed.Table, caplog: pytest.LogCaptureFixture
) -> None:
    second = paths(table)[1]
    Path(table.path, second).unlink()
    worker = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "r1")
    merge_runner = MergeRunner(table.path, log_of(table), worker, LocalKernel(storage_of(table), log_of(table).refresh))
    with pytest.raises(Corrupt, match=second):
        merge_runner.run_until_idle()
    assert merge_runner.parked() == {second} and second in caplog.text and "left alone for an hour" in caplog.text
    assert [result.parts_in for result in merge_runner.run_until_idle()] == [2]
    assert second in paths(table) and len(paths(table)) == 2


def test_an_object_that_is_gone_is_named_and_a_store_that_fails_is_no_damage(
    flaky_s3: FaultProxy, s3_server: S3Server
) -> None:
    table = three_parts(f"s3://{s3_server.create_bucket()}/table")
    second = paths(table)[1]
    storage_of(table).forget(second)  # a new part is in this process's memory
    flaky_s3.fail_next(Fault.RESET, ATTEMPTS_MAX, path_contains=second)
    with pytest.raises(StoreUnavailable, match=second):
        table.maintenance.compact()
    assert sum(flaky_s3.traffic().faults.values()) == ATTEMPTS_MAX
    storage_of(table).delete(second)
    with pytest.raises(Corrupt, match=f"{second} can't be read .there is no such object"):
        table.maintenance.compact()
    with pytest.raises(Corrupt, match=f"{second} can't be read .FileNotFoundError"):
        lakebed.open(table.path).to_arrow()
