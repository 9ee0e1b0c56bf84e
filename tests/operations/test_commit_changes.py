"""What a statement that is not SQL of DuckDB may rely on: keys that it inserts, what it is asked again, and its checks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidChanges
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.operations.commit_changes import Check, Kind, Pending, PendingPart, commit_changes, refusing_losers
from lakebed.operations.mutation import MutationResult
from lakebed.parts.changes import OP_COLUMN, prepare, write_spec_of
from lakebed.parts.write import write_parts
from lakebed.resolve.locate import ScanLocator
from lakebed.storage.engine import connect
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.operations.interrupted import before_its_commits

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("seq", pa.int64())])

pytestmark = pytest.mark.usefixtures("own_cache")


@dataclass
class Merge:
    """Counts these keys up, inserts those that are not there, and deletes those that come to 0."""

    table: lakebed.Table
    more: dict[int, int]
    seq: int = 0
    asked: list[list[int] | None] = field(default_factory=list)

    def __call__(self, snapshot: Snapshot, among: pa.Table | None) -> Pending:
        keys = None if among is None else sorted(among["id"].to_pylist())
        self.asked.append(keys)
        rows = {one["id"]: one["n"] for one in self.table.to_arrow(version=snapshot.version).to_pylist()}
        out: dict[Kind, list[dict[str, Any]]] = {}
        for id, more in self.more.items():
            if keys is None or id in keys:
                n = rows.get(id, 0) + more
                kind: Kind = "inserted" if id not in rows else "updated" if n else "deleted"
                op = "d" if kind == "deleted" else "u"
                out.setdefault(kind, []).append({"id": id, "n": n, "seq": self.seq, OP_COLUMN: op})
        spec, parts = write_spec_of(snapshot), list[PendingPart]()
        for kind, changes in out.items():
            given = pa.Table.from_pylist(changes, SCHEMA.append(pa.field(OP_COLUMN, pa.string())))
            written = write_parts(prepare(given, spec, connect()), spec, storage_of(self.table))
            parts += [PendingPart(part, kind) for part in written]
        return Pending(tuple(parts), parts_read=1)


def run(merge: Merge, check: Check | None = None) -> MutationResult:
    table = merge.table
    return commit_changes(log_of(table), storage_of(table), Operation.UPDATE, merge, {"predicate": "true"}, check=check)


def made(path: Path, rows: Sequence[tuple[int, int]], **options: Any) -> lakebed.Table:
    table = lakebed.create(path / "t", SCHEMA, keys=["id"], **options)
    if rows:
        table.apply([{"id": id, "n": n, "seq": 5} for id, n in rows])
    return table


def counts(table: lakebed.Table) -> dict[int, int]:
    return {one["id"]: one["n"] for one in table.to_arrow().to_pylist()}


def test_rows_are_counted_by_what_becomes_of_them(tmp_path: Path) -> None:
    table = made(tmp_path, [(1, 1), (2, 2)])
    result = run(Merge(table, {1: 1, 2: -2, 3: 3, 4: 4}))
    assert (result.rows, result.inserted, result.updated, result.deleted) == (4, 2, 1, 1)
    assert (result.parts_added, result.parts_read) == (3, 1)
    assert counts(table) == {1: 2, 3: 3, 4: 4}


def test_a_key_that_others_insert_meanwhile_is_met(tmp_path: Path) -> None:
    table = made(tmp_path, [(1, 1)])
    other = lakebed.open(table.path)
    merge = Merge(table, {1: 1, 7: 7, 8: 8})
    with before_its_commits(
        table,
        lambda: other.apply([{"id": 7, "n": 70, "seq": 5}]),
        lambda: other.apply([{"id": 7, "n": -7, "seq": 5}, {"id": 99, "n": 0, "seq": 5}]),
        lambda: other.delete("id = 1"),
    ):
        result = run(merge)
    assert merge.asked == [None, [7], [7], [1]]
    assert (result.rows, result.inserted, result.updated, result.deleted, result.conflicts) == (3, 2, 0, 1, 3)
    assert counts(table) == {1: 1, 8: 8, 99: 0}


def test_a_key_that_comes_back_with_its_partition_is_met(tmp_path: Path) -> None:
    schema = SCHEMA.append(pa.field("day", pa.string()))
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], partition_by=["day"])
    table.apply([{"id": id, "n": id, "seq": 0, "day": day} for id, day in ((1, "a"), (2, "b"), (3, "b"))])
    name = table.detach_partition({"day": "a"})
    other = lakebed.open(table.path)

    class OfOneDay(Merge):
        def __call__(self, snapshot: Snapshot, among: pa.Table | None) -> Pending:
            keys = None if among is None else sorted(among["id"].to_pylist())
            self.asked.append(keys)
            rows = {one["id"]: one["n"] for one in self.table.to_arrow(version=snapshot.version).to_pylist()}
            changes = [{"id": id, "n": rows.get(id, 0) + more, "seq": 0, "day": "c"} for id, more in self.more.items()]
            spec = write_spec_of(snapshot)
            kept = [one for one in changes if keys is None or one["id"] in keys]
            prepared = prepare(pa.Table.from_pylist(kept, schema), spec, connect())
            return Pending(
                tuple(PendingPart(part, "inserted") for part in write_parts(prepared, spec, storage_of(self.table)))
            )

    merge = OfOneDay(table, {1: 10, 5: 50})
    with before_its_commits(table, lambda: other.attach_partition(name)):
        run(merge)
    assert merge.asked == [None, [1]]
    assert counts(table) == {1: 11, 2: 2, 3: 3, 5: 50}


def test_changes_that_would_lose_are_refused_and_named(tmp_path: Path) -> None:
    table = made(tmp_path, [(1, 1), (2, 2), (3, 3)], sequence_by="seq")
    table.settle()
    table.apply([{"id": 2, "n": 0, "seq": 8}], apply_as_deletes="true")
    other, version = lakebed.open(table.path), table.version

    def locator(spec: Any) -> ScanLocator:
        return ScanLocator(spec, storage_of(table))

    check = refusing_losers(storage_of(table), deletion_vectors_of(table), locator)
    with pytest.raises(
        InvalidChanges, match=r"row with id=2 would be lost: .* by 'seq' .* give the change a higher 'seq'"
    ):
        run(Merge(table, {1: 1, 2: 2}, seq=6), check)
    assert (table.version, counts(table)) == (version, {1: 1, 3: 3})
    assert {path.name for path in (tmp_path / "t" / "_lakebed").glob("*.parquet")} == {
        part["path"].rpartition("/")[2] for part in table.inspect.parts().to_pylist()
    }
    with (
        before_its_commits(table, lambda: other.apply([{"id": 3, "n": 30, "seq": 7}])),
        pytest.raises(InvalidChanges, match="id=3"),
    ):
        run(Merge(table, {1: 1, 3: 3}, seq=6), check)
    assert run(Merge(table, {1: 1, 2: 2, 3: 3}, seq=8), check).rows == 3
    assert counts(table) == {1: 2, 2: 2, 3: 33}


def test_parts_that_are_written_again_keep_what_no_reader_sees(tmp_path: Path) -> None:
    """What orders groups, and which columns a change says nothing of."""
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64()), ("seq", pa.int64()), ("name", pa.string())])
    groups = {"profile": {"columns": ["name"], "sequence_by": "lsn"}}
    table = lakebed.create(
        tmp_path / "t", schema, keys=["id"], sequence_by="seq", properties={"lakebed.groups": groups}
    )

    def changes(*ids: int, name: str, lsn: int) -> pa.Table:
        rows = [{"id": id, "n": 0, "seq": 1, "name": name, "lsn": lsn} for id in ids]
        return pa.Table.from_pylist(rows, schema.append(pa.field("lsn", pa.int64())))

    table.apply(changes(1, 2, 3, name="Ada", lsn=1))
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(changes(2, name="Eve", lsn=2))):
        assert table.update({"name": "upper(name)"}, "true").rows == 3
    with before_its_commits(table, lambda: other.apply(changes(1, name="Bob", lsn=3))):
        assert table.update({"n": "n + 1"}, "true").rows == 3
    table.settle()
    other.apply(changes(3, name="late", lsn=0).select(["id", "name", "lsn"]), columns="sent")
    rows = {one["id"]: (one["n"], one["name"]) for one in table.to_arrow().to_pylist()}
    assert rows == {1: (1, "Bob"), 2: (1, "EVE"), 3: (1, "ADA")}
