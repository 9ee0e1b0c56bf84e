"""Settle up to a version: every reader of Delta then sees the rows that the table had at that version, and no later ones."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa

import lakebed
from lakebed.compaction.settler import Settler
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN
from lakebed.table import internals_of
from tests.foreign.readers import delta_rs, own
from tests.internals import log_of
from tests.worlds import seeds

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64()), ("seq", pa.int64())])


def table_of(folder: Path, keys: tuple[str, ...] = ("id",), sequence_by: str | None = None) -> lakebed.Table:
    properties = {"lakebed.read_budget": "2", "lakebed.checkpoint_interval": "5"}
    return lakebed.create(folder / "t", SCHEMA, keys=keys, sequence_by=sequence_by, properties=properties)


def settler_of(table: lakebed.Table) -> Settler:
    return internals_of(table).settler


def changes(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids), "v": list(ids), "seq": [0] * len(ids)}, SCHEMA)


@seeds(3)
def test_at_the_version_of_the_settle_delta_readers_see_the_table_as_it_was(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    table = table_of(tmp_path, sequence_by=rng.choice([None, "seq"]))
    settler, clock, target, seen = settler_of(table), 0, 0, 0
    for _ in range(25):
        match rng.choice(["apply"] * 6 + ["settle to"] * 4 + ["compact", "due", "delete", "reopen"]):
            case "apply":
                rows = []
                for _ in range(rng.choice([1, 3, 20])):
                    clock += 1
                    lacks = rng.random() < 0.2
                    rows.append({
                        "id": rng.randrange(12), "v": None if lacks else clock, "seq": clock - rng.choice([0, 0, 0, 9]),
                        OP_COLUMN: rng.choice("uuud"), UNAVAILABLE_COLUMN: ["v"] if lacks else None,
                    })  # fmt: skip
                    if rows[-1][OP_COLUMN] == "d":
                        rows[-1][UNAVAILABLE_COLUMN] = None
                apply(table, rows)
            case "settle to":
                target = rng.randint(target, table.version)
                at = settler.settle_to(target)
                assert at is not None, "nothing in the way: only this process settles, and only up to its bound"
                assert delta_rs(table, at) == own(table, target), f"settled to {target} at {at}"
                assert all(part.version > target for part in log_of(table).refresh().tail.values())
                seen += 1
            case "due":
                before = own(table)
                settler.settle_if_due()
                assert own(table) == before
            case "compact":
                table.maintenance.compact()
            case "delete":
                table.delete(f"id = {rng.randrange(12)}")
            case "reopen":
                table = lakebed.open(table.path)
                settler = settler_of(table)
                settler.until_version = target
    last = settler.settle_to(table.version)
    assert last is not None and delta_rs(table, last) == own(table) and not log_of(table).refresh().tail


def apply(table: lakebed.Table, rows: list[dict[str, object]]) -> None:
    fields = [*SCHEMA, pa.field(OP_COLUMN, pa.string()), pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string()))]
    table.apply(pa.Table.from_pylist(rows, pa.schema(fields)))


def test_later_changes_wait_in_the_tail_and_are_settled_later(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    for number in range(1, 5):
        table.apply(changes(number))
    at = settler_of(table).settle_to(2)
    assert at == 5 and delta_rs(table, 5) == own(table, 2) != own(table, 5) == own(table, 4)
    assert [part.version for part in log_of(table).refresh().tail_in_order()] == [3, 4]
    before = log_of(table).newest
    assert not settler_of(table).settle_if_due(looks=False) and log_of(table).newest is before, (
        "what is due stays behind it"
    )
    assert settler_of(table).settle_to(2) == 5, "asked again, there is nothing to do"
    table.settle()
    assert not log_of(table).refresh().tail and settler_of(table).settle_to(3) is None, "version 4 is in the base too"


def test_a_version_before_the_last_settle_is_refused_and_one_after_it_is_not(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.apply(changes(1))
    table.apply(changes(2))
    other = lakebed.open(table.path)
    other.settle()  # another process, which knows of no bound
    assert settler_of(table).settle_to(1) is None
    table.apply(changes(3))
    assert settler_of(table).settle_to(2) == 4 and delta_rs(table, 4) == own(table, 2)


def test_what_changes_rows_or_columns_beside_the_tail_is_seen(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    table.apply(changes(1))
    table.truncate()
    assert settler_of(table).settle_to(1) is None
    table.apply(changes(2))
    before = table.version
    table.alter(add={"w": "long"})
    assert settler_of(table).settle_to(before) is None
    table.apply(changes(3).append_column("w", pa.array([7], pa.int64())))
    now = table.version
    assert (at := settler_of(table).settle_to(now)) is not None and delta_rs(table, at) == own(table, now)


def test_a_table_without_keys_shows_every_version_as_it_is(tmp_path: Path) -> None:
    table = table_of(tmp_path, keys=())
    for number in range(1, 4):
        table.apply(changes(number))
    assert [settler_of(table).settle_to(version) for version in (1, 2, 3)] == [1, 2, 3]
    assert delta_rs(table, 2) == own(table, 2)
