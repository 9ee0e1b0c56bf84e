"""Damaged files: reads and writers name the file, or give what was written; the deep doctor finds what can be found."""

from __future__ import annotations

import datetime
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import lakebed
from lakebed.errors import Corrupt
from lakebed.health.examination import examine
from lakebed.operations.purge import files as purge_files
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN
from lakebed.view import arrow_scan as query_reads
from tests.internals import log_of
from tests.worlds import TIMES

FLIPS = 15 * TIMES
"""Damaged files a test."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string()), ("ratio", pa.float64())])


pytestmark = pytest.mark.usefixtures("own_cache")


def rows(ids: range) -> pa.Table:
    return pa.table([list(ids), [f"text {id % 7}" for id in ids], [id / 3 for id in ids]], schema=SCHEMA)


def flip(file: Path, rng: random.Random, in_footer: bool = False) -> bytes:
    """One bit; returns what the file was."""
    whole = file.read_bytes()
    data = bytearray(whole)
    first = len(data) - 8 - int.from_bytes(data[-8:-4], "little") if in_footer else 0
    data[rng.randrange(first, len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return whole


@pytest.mark.slow
def test_every_damaged_part_is_found(tmp_path: Path) -> None:
    settings = {"lakebed.read_budget": "1"}  # so that a part is merged
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sort_key=["text"], properties=settings)
    table.apply(rows(range(300)))
    table.settle()
    table.apply(rows(range(200, 400)))
    table.settle()
    table.maintenance.compact()
    table.apply(rows(range(350, 450)))
    table.settle()
    table.apply(rows(range(10)))
    parts, rng = table.inspect.parts()["path"].to_pylist(), random.Random(0)
    assert {part["level"] for part in table.inspect.parts().to_pylist()} == {0, 1}
    assert examine(table.path, deep=True).findings == ()
    for _ in range(FLIPS):
        path = rng.choice(parts)
        whole = flip(Path(table.path, path), rng)
        assert path in {finding.where for finding in examine(table.path, deep=True).findings}
        Path(table.path, path).write_bytes(whole)
    assert examine(table.path, deep=True).findings == ()


# -- nothing that was read wrongly is returned, or written again -------------------------------------------------------------

PARTITIONED = SCHEMA.append(pa.field("p", pa.string())).append(pa.field("at", pa.timestamp("us", "UTC")))


def everything(tmp_path: Path) -> tuple[lakebed.Table, str]:
    """A table with keys of which each part, base and tail, is read by what follows; and a partition that was detached."""
    table = lakebed.create(
        tmp_path / "t",
        PARTITIONED,
        keys=["id"],
        partition_by=["p"],
        properties={"lakebed.ttl": "at: 10000 days", "lakebed.read_budget": "1"},
    )

    def some(ids: range, partition: str) -> pa.Table:
        more = rows(ids).append_column("p", pa.array([partition] * len(ids)))
        moments = [datetime.datetime(1980 if id % 50 == 49 else 2020, 1, 1, tzinfo=datetime.UTC) for id in ids]
        return more.append_column("at", pa.array(moments, PARTITIONED.field("at").type))

    table.apply(some(range(100), "a"))
    table.apply(some(range(200, 400), "b"))
    table.settle()
    name = table.detach_partition({"p": "a"})
    unsent = some(range(300, 310), "b").append_column(OP_COLUMN, pa.array(["u"] * 10))
    unsent = unsent.set_column(2, "ratio", pa.nulls(10, pa.float64()))
    table.apply(unsent.append_column(UNAVAILABLE_COLUMN, pa.array([["ratio"]] * 10, pa.list_(pa.string()))))
    return table, name


NEW = [{"id": 9, "text": None, "ratio": None, "p": "c", "at": None}]
Action = Callable[[lakebed.Table, str], object]
READS: dict[str, Action] = {
    "to_arrow": lambda table, _: table.to_arrow(),
    "to_arrow where": lambda table, _: table.to_arrow(["ratio"], where="id < 250"),
    "query": lambda table, _: table.query("select sum(ratio), count(distinct text) from t", "t"),
    "query of some files": lambda table, _: table.query("select max(ratio), min(id) from t where id > 150", "t"),
    "query of footers": lambda table, _: table.query("select count(*), max(ratio) from t", "t"),
    "lookup": lambda table, _: table.lookup([305]),
    "changes": lambda table, _: pa.Table.from_batches(
        batch
        for each in versions_with_changes(table.path, 0, table.version)
        for batch in read_version(table.path, each)
    ),
}
WRITES: dict[str, Action] = {
    "update": lambda table, _: table.update({"text": "'new'"}, "id between 250 and 260"),
    "delete": lambda table, _: table.delete("ratio > 80"),
    "settle": lambda table, _: table.settle(),
    "attach": lambda table, name: table.attach_partition(name),
    "replace": lambda table, _: table.replace_partition({"p": "c"}, NEW),
    "purge": lambda table, _: table.purge("ratio > 80"),
    "expire": lambda table, _: table.maintenance.expire_rows(dry_run=False),
    "merge": lambda table, _: (table.settle(), table.maintenance.compact()),
}  # fmt: skip


@pytest.mark.few(6)
@pytest.mark.slow
@pytest.mark.parametrize("action", [*READS, *WRITES])
def test_a_flipped_bit_is_neither_returned_nor_written_again(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    monkeypatch.setattr(query_reads, "_PLANNED_BYTES_MIN", 0)
    whole_table, name = everything(tmp_path)
    files = sorted(Path(whole_table.path, "_lakebed").glob("*.parquet"))
    shutil.copytree(whole_table.path, tmp_path / "whole")
    run, rng, told = {**READS, **WRITES}[action], random.Random(action), 0
    expected = run(lakebed.open(whole_table.path), name) if action in READS else None
    if action in WRITES:
        run(lakebed.open(whole_table.path), name)
        expected = lakebed.open(whole_table.path).to_arrow().sort_by("id")
    for _ in range(max(6, FLIPS // 4)):
        shutil.rmtree(whole_table.path)
        shutil.copytree(tmp_path / "whole", whole_table.path)
        file = rng.choice(files)
        whole, table, found = flip(file, rng), lakebed.open(whole_table.path), None
        try:
            found = run(table, name)
        except Corrupt as error:
            assert file.name in str(error)
            told += 1
        file.write_bytes(whole) if file.exists() else None
        if action in READS:
            assert found is None or found == expected
        else:
            if found is None:
                run(table, name)  # it left nothing behind that stands in its way
            assert lakebed.open(whole_table.path).to_arrow().sort_by("id") == expected
    assert told or action == "replace"  # whose few keys are in no range of the others


def test_deletes_of_a_part_that_was_removed_are_not_read_from_a_flipped_bit(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA)
    table.apply(rows(range(1000)))
    [first] = [Path(table.path, path) for path in table.inspect.parts()["path"].to_pylist()]
    table.apply(rows(range(1000, 2000)))
    before = table.version
    table.delete("id < 1000")
    whole = first.read_bytes()
    at = pq.read_metadata(first).row_group(0).column(0).data_page_offset + 400

    def deletes() -> set[int]:
        return {
            row["id"]
            for each in versions_with_changes(table.path, before + 1, table.version)
            for batch in read_version(table.path, each)
            for row in batch.to_pylist()
            if row["_change_type"] == "delete"
        }

    assert deletes() == set(range(1000))
    first.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(Corrupt, match=first.name):
        deletes()


def converted(tmp_path: Path, **configuration: str) -> lakebed.Table:
    path = str(tmp_path / "t")
    for start in (0, 100, 200):
        more = rows(range(start, start + 100))
        write_deltalake(path, more, mode="append", configuration=configuration)
    DeltaTable(path).create_checkpoint()
    return lakebed.convert(path, keys=["id"])


@pytest.mark.slow
def test_damage_of_files_without_checksums_never_stops_the_doctor(tmp_path: Path) -> None:
    table, rng = converted(tmp_path), random.Random(0)
    parts, found = table.inspect.parts()["path"].to_pylist(), 0
    for turn in range(FLIPS):
        path = rng.choice(parts)
        whole = flip(Path(table.path, path), rng, in_footer=turn % 2 == 0)
        findings = examine(table.path, deep=True).findings
        found += any(path in finding.where + finding.what for finding in findings)
        Path(table.path, path).write_bytes(whole)
    assert found > FLIPS // 4


STATISTICS_AS_STRUCTS = {
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "false",
}


def test_a_whole_table_of_others_has_no_finding(tmp_path: Path) -> None:
    """With statistics as structs in its checkpoint, too, which say as much as the texts in the log."""
    table = converted(tmp_path, **STATISTICS_AS_STRUCTS)
    assert examine(table.path, deep=True).findings == ()
    stored = log_of(table).read_checkpoint(2)
    assert {part.rows for part in stored.parts.values()} == {100}
    assert stored.parts.keys() == log_of(table).at_version(2).parts.keys()
    text = stored.parts[min(stored.parts)].stats or ""
    assert '"minValues":{"id":' in text
    assert '"text":"text 0"' in text


def test_a_merge_says_which_file_is_damaged_and_leaves_the_table(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "1"})
    for start in (0, 50):
        table.apply(rows(range(start, start + 100)))
        table.settle()
    path, version = table.inspect.parts()["path"][0].as_py(), table.version
    whole = flip(Path(table.path, path), random.Random(0))
    with pytest.raises(Corrupt, match=path):
        table.maintenance.compact()
    Path(table.path, path).write_bytes(whole)
    assert table.inspect.parts() == table.inspect.parts(version)
    assert table.to_arrow().num_rows == 150
