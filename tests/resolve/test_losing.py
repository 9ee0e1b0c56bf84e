"""Which changes would lose by their sequence if they were committed now: what ``losing`` says, against what becomes of them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.log.actions import Part
from lakebed.operations.commit_changes import losing
from lakebed.parts.changes import OP_COLUMN, prepare, stored_rows, write_spec_of
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.resolve.locate import KeyLocator, ScanLocator
from lakebed.storage.engine import connect
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.oracle import Oracle
from tests.worlds import seeds

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64()), ("seq", pa.int64())])

pytestmark = pytest.mark.usefixtures("own_cache")


def changes(rows: Sequence[Mapping[str, Any]], hidden: bool) -> pa.Table:
    schema = SCHEMA.append(pa.field(OP_COLUMN, pa.string()))
    given = [{**one, OP_COLUMN: one["op"], "lsn": one["seq"]} for one in rows]
    return pa.Table.from_pylist(given, schema.append(pa.field("lsn", pa.int64())) if hidden else schema)


def written(table: lakebed.Table, rows: pa.Table) -> list[WrittenPart]:
    """The rows as parts that no commit lists."""
    spec = write_spec_of(log_of(table).refresh())
    prepared = stored_rows(prepare(rows, spec.incoming, connect()), spec)
    return list(write_parts(prepared, spec, storage_of(table)))


def lost(table: lakebed.Table, parts: Sequence[WrittenPart], locator: KeyLocator | None = None) -> list[Any]:
    snapshot, storage = log_of(table).refresh(), storage_of(table)
    found = losing(
        snapshot, parts, storage, deletion_vectors_of(table), locator or ScanLocator(write_spec_of(snapshot), storage)
    )
    assert found.column_names == ["id"]
    keys: list[Any] = sorted(found["id"].to_pylist())
    assert len(set(keys)) == len(keys), "each key once"
    return keys


@pytest.mark.few(3)
@seeds(6)
def test_a_change_loses_against_a_newer_row_or_delete(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    hidden = rng.random() < 0.5
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by="lsn" if hidden else "seq")
    oracle = Oracle(("id",), tuple(SCHEMA.names), "seq")

    def some(count: int) -> list[dict[str, Any]]:
        keys = rng.sample(range(30), count)
        return [{"id": id, "value": 1, "seq": rng.randrange(20), "op": rng.choice("uud")} for id in keys]

    for _ in range(12):
        rows = some(rng.randrange(1, 9))
        parts = written(table, changes(rows, hidden))
        known = {key: sequence for (key,), (sequence, _) in oracle.newest.items()}
        assert lost(table, parts) == sorted(
            one["id"] for one in rows if one["id"] in known and known[one["id"]] > one["seq"]
        )
        rows = some(rng.randrange(1, 9))
        table.apply(changes(rows, hidden))
        oracle.apply(rows)
        match rng.randrange(4):
            case 0:
                table.settle()
            case 1:
                table.maintenance.compact()


def test_of_tables_without_an_order_nothing_loses(tmp_path: Path) -> None:
    for name, options in {
        "plain": {},
        "first": {"sequence_by": "seq", "properties": {"lakebed.keep": "first"}},
    }.items():
        table = lakebed.create(tmp_path / name, SCHEMA, keys=["id"], **options)
        table.apply([{"id": 1, "value": 1, "seq": 9}])
        assert lost(table, written(table, changes([{"id": 1, "value": 2, "seq": 1, "op": "u"}], hidden=False))) == []


def test_of_groups_each_loses_by_its_own_order(tmp_path: Path) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("a", pa.int64()), ("seq", pa.int64()), ("b", pa.int64()), ("b_seq", pa.int64())]
    )
    schema = schema.append(pa.field("total", pa.int64()))
    groups = {"b": {"columns": ["b"], "sequence_by": "b_seq"}}
    properties = {"lakebed.groups": groups, "lakebed.aggregate.total": "sum"}
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], sequence_by="seq", properties=properties)

    def rows(*given: tuple[int, int, int | None]) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {"id": id, "a": 0, "seq": seq, "b": None if b_seq is None else 0, "b_seq": b_seq, "total": 1}
                for id, seq, b_seq in given
            ],
            schema,
        )

    table.apply(rows((1, 5, 5), (2, 5, 5), (3, 5, None)))
    for _ in range(2):
        ours = rows((1, 5, 4), (2, 6, None), (3, 6, 1), (4, 0, 0))
        assert lost(table, written(table, ours)) == [1]
        assert lost(table, written(table, rows((1, 5, 5), (2, 4, None), (3, 4, 9)))) == [2, 3]
        table.settle()


def test_only_what_is_of_the_keys_is_looked_up(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by="seq")
    table.apply(changes([{"id": id, "value": 0, "seq": 5, "op": "u"} for id in range(3000)], hidden=False))
    table.settle()
    for first in (0, 1):  # a long tail
        table.apply(
            changes([{"id": id, "value": 0, "seq": 6, "op": "u"} for id in range(first, 3000, 2)], hidden=False)
        )
    asked = list[int]()

    class Counting(ScanLocator):
        def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
            asked.append(len(keys))
            return super().lookup(base, keys)

    parts = written(table, changes([{"id": id, "value": 1, "seq": 5, "op": "u"} for id in (7, 8, 9999)], hidden=False))
    assert lost(table, parts, Counting(write_spec_of(log_of(table).refresh()), storage_of(table))) == [7, 8]
    assert asked == [3]
