"""Statements in SQL between ingest, settles, merges and each other, against a dictionary; and the same ones on a Delta table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed
from lakebed.log.actions import CommitInfo
from lakebed.log.entries import Operation
from lakebed.log.table_log import TableLog
from lakebed.sparks.versions import delta_package, spark_version
from tests.names.conftest import Sql
from tests.worlds import seeds

pytestmark = pytest.mark.slow
Row = tuple[str | None, int]
Rows = dict[int, Row]
KEYS = range(12)
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("region", pa.string()), ("n", pa.int64())])
STATEMENTS = {Operation.INSERT, Operation.DELETE, Operation.UPDATE, Operation.MERGE_INTO}


@dataclass(frozen=True)
class Statement:
    """Text with ``{}`` for the table, and what it makes of the row of a key, None for no row; the row itself: no change."""

    text: str
    effect: Callable[[int, Row | None], Row | None]


def insert(random: Random, among: range = KEYS) -> Statement:
    rows = {key: (random.choice("abc"), random.randrange(50)) for key in random.sample(among, random.randint(1, 4))}
    values = ", ".join(f"({key}L, '{region}', {n}L)" for key, (region, n) in rows.items())
    return Statement(f"insert into {{}} values {values}", lambda key, row: rows.get(key, row))


def delete(random: Random, _: range = KEYS) -> Statement:
    least, region = random.randrange(50), random.choice("abc")
    return Statement(
        f"delete from {{}} where n > {least} and region = '{region}'",
        lambda _, row: None if row is not None and row[1] > least and row[0] == region else row,
    )


def update(random: Random, _: range = KEYS) -> Statement:
    by, region = random.randint(1, 9), random.choice("abc")
    return Statement(
        f"update {{}} set n = n + {by} where region <= '{region}'",
        lambda _, row: (row[0], row[1] + by) if row is not None and str(row[0]) <= region else row,
    )


def merge(random: Random, among: range = KEYS) -> Statement:
    source = {key: random.randrange(4) for key in random.sample(among, random.randint(1, 5))}
    values = ", ".join(f"({key}L, {n}L)" for key, n in source.items())
    lacking = random.choice([None, 20])

    def effect(key: int, row: Row | None) -> Row | None:
        if key not in source:
            return (row[0], -1) if lacking is not None and row is not None and row[1] > lacking else row
        if row is None:
            return ("m", source[key])
        return None if source[key] == 0 else (row[0], row[1] + source[key])

    clause = "" if lacking is None else f" when not matched by source and t.n > {lacking} then update set n = -1"
    return Statement(
        f"merge into {{}} t using (select * from values {values} as v(id, n)) s on t.id = s.id "
        "when matched and s.n = 0 then delete when matched then update set n = t.n + s.n "
        f"when not matched then insert (id, region, n) values (s.id, 'm', s.n){clause}",
        effect,
    )


@dataclass
class World:
    """A table, and what its rows must be. ``waiting``: what others do before commits of the statement that runs."""

    table: lakebed.Table
    sql: Sql
    random: Random
    rows: Rows = field(default_factory=dict)
    waiting: list[Callable[[], set[int]]] = field(default_factory=list)

    def run(self, statement: Statement) -> None:
        """Run it, as others act before its commits: of rows that they changed, what they made of them counts."""
        pending = self._changes(statement, KEYS)

        def interrupted() -> None:
            if self.waiting and pending:
                touched = self.waiting.pop(0)()
                again = self._changes(statement, sorted(touched & pending.keys()))
                for key in touched & pending.keys():
                    del pending[key]
                pending.update(again)

        with before_commits_of_statements(interrupted):
            self.sql(statement.text.format("lake.shop.orders"))
        self._set(pending)

    def apply(self) -> set[int]:
        """What a stream brings."""
        changes: dict[int, Row | None] = {}
        for key in self.random.sample(KEYS, self.random.randint(1, 4)):
            changes[key] = (
                None if self.random.random() < 0.3 else (self.random.choice("abc"), self.random.randrange(50))
            )
        columns = {
            "id": list(changes),
            "region": [row[0] if row else None for row in changes.values()],
            "n": [row[1] if row else None for row in changes.values()],
            "op": ["d" if row is None else "u" for row in changes.values()],
        }
        lakebed.open(self.table.path).apply(
            pa.table(columns, pa.schema([*SCHEMA, pa.field("op", pa.string())])),
            apply_as_deletes="op = 'd'",
        )
        self._set(changes)
        return set(changes)

    def mutate(self) -> set[int]:
        """What another session does, without Spark."""
        touched = {key for key, row in self.rows.items() if row[1] > 10}
        lakebed.open(self.table.path).update({"n": "n + 100"}, "n > 10")
        self._set({key: (self.rows[key][0], self.rows[key][1] + 100) for key in touched})
        return touched

    def maintain(self) -> set[int]:
        """A settle, and perhaps a merge: no row changes."""
        other = lakebed.open(self.table.path)
        other.settle()
        if self.random.random() < 0.5:
            other.maintenance.compact()
        return set()

    def check(self) -> None:
        found = {row[0]: (row[1], row[2]) for row in self.sql("select id, region, n from lake.shop.orders")}
        assert found == self.rows

    def _changes(self, statement: Statement, keys: Any) -> dict[int, Row | None]:
        effects = {key: statement.effect(key, self.rows.get(key)) for key in keys}
        return {key: row for key, row in effects.items() if row is not self.rows.get(key)}

    def _set(self, changes: dict[int, Row | None]) -> None:
        for key, row in changes.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row


@contextmanager
def before_commits_of_statements(action: Callable[[], None]) -> Iterator[None]:
    """Each commit of a statement waits for the action, whose own commits wait for nothing."""
    commit, is_acting = TableLog.commit, False

    def interrupted(self: TableLog, read: Any, actions: Any, info: CommitInfo, *others: Any, **named: Any) -> Any:
        nonlocal is_acting
        if info.operation in STATEMENTS and not is_acting:
            is_acting = True
            try:
                action()
            finally:
                is_acting = False
        return commit(self, read, actions, info, *others, **named)

    TableLog.commit = interrupted  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        TableLog.commit = commit  # type: ignore[method-assign]


@seeds(1, quick=0)
def test_no_statement_loses_what_others_do_meanwhile(seed: int, sql: Sql, tmp_path: Path) -> None:
    random = Random(seed)
    world = World(lakebed.create(tmp_path / "shop" / "orders", SCHEMA, keys=["id"]), sql, random)
    world.apply()
    for _ in range(8):
        others = (world.apply, world.mutate, world.maintain, world.apply)
        world.waiting = [random.choice(others) for _ in range(random.randrange(3))]
        world.run(random.choice((insert, delete, update, update, merge, merge))(random))
        world.check()
        if random.random() < 0.3:
            world.maintain()
    assert sorted(row["id"] for row in lakebed.open(world.table.path).to_arrow().to_pylist()) == sorted(world.rows)


@pytest.mark.long
@pytest.mark.skipif(delta_package(spark_version()) is None, reason="Delta has no release for this Spark")
@seeds(1, quick=0)
def test_a_delta_table_has_the_same_rows_after_the_same_statements(
    seed: int, spark: SparkSession, sql: Sql, tmp_path: Path
) -> None:
    random = Random(seed)
    lakebed.create(tmp_path / "shop" / "orders", SCHEMA, keys=["id"])
    delta = f"delta.`{tmp_path}/delta`"
    spark.sql(f"create table {delta} (id bigint not null, region string, n bigint) using delta")
    sql("create table lake.shop.plain (id bigint not null, region string, n bigint) using lakebed")  # without keys
    for number in range(8):
        new = range(12 * number, 12 * number + 12)  # Delta has no keys: a second insert of one is a second row
        statement = (
            insert(random, new)
            if number % 2 == 0
            else random.choice((delete, update, merge))(random, range(12 * number))
        )
        wanted = []
        for target in (delta, "lake.shop.orders", "lake.shop.plain"):
            sql(statement.text.format(target))
            wanted = wanted or sql(f"select * from {delta} order by id")
            assert sql(f"select * from {target} order by id") == wanted, statement.text
