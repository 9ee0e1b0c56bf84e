"""A PostgreSQL database under pgbench: its tables, what changes them, and their rows as lakebed must show them."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from lakebed.far_times import INFINITY_DAY, INFINITY_MICROS, MINUS_INFINITY_DAY, MINUS_INFINITY_MICROS
from tests.infra.postgres import PostgresServer

STATEMENTS = Path(__file__).with_name("source_database.sql")
CLIENTS = 4
ACCOUNTS = 100_000  # pgbench's for each unit of its scale
# Columns of other types that Debezium sends as their text.
TEXT_OF = ("doc", "tag")
# pgbench's own transaction touches four tables; the others have scripts of their own.
SCRIPTS = {
    "awkward": "\\set what random(0, 99)\n\\set a random_zipfian(1, 300, 1.1)\n\\set b random(1, 300)\n"
    "select change_awkward(:what, :a, :b);\n",
    "prices": "\\set id random(1, 50)\n\\set what random(0, 9)\n"
    "insert into prices values (:id, 'price ' || :what) on conflict (id) do update set note = excluded.note;\n"
    "delete from prices where id = 50 - :id and :what = 0;\n",
}
WEIGHTS = {"tpcb-like": 5, "awkward": 4, "prices": 1}


@dataclass(frozen=True)
class SourceTable:
    """A table, and how lakebed keeps it. ``partitions`` are those of its topic; ``maintained``: settled all along."""

    name: str
    schema: pa.Schema
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    partitions: int = 1
    maintained: bool = False


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema(list(columns.items()))


# Topics of tables that are truncated have one partition: Debezium orders a truncate only within its own.
TABLES = (
    SourceTable(
        "pgbench_accounts",
        _schema(aid=pa.int32(), bid=pa.int32(), abalance=pa.int32(), filler=pa.string()),
        ("aid",),
        partitions=3,
        maintained=True,
    ),
    SourceTable(
        "pgbench_branches", _schema(bid=pa.int32(), bbalance=pa.int32(), filler=pa.string()), ("bid",), "source.lsn"
    ),
    SourceTable(
        "pgbench_tellers",
        _schema(tid=pa.int32(), bid=pa.int32(), tbalance=pa.int32(), filler=pa.string()),
        ("tid",),
        "source.lsn",
        partitions=2,
    ),
    SourceTable(
        "pgbench_history",
        _schema(
            tid=pa.int32(),
            bid=pa.int32(),
            aid=pa.int32(),
            delta=pa.int32(),
            mtime=pa.timestamp("us"),
            filler=pa.string(),
        ),
    ),
    SourceTable(
        "awkward",
        pa.schema(
            [
                ("region", pa.string()),
                ("number", pa.int32()),
                ("note", pa.string()),
                ("amount", pa.decimal128(20, 6)),
                ("at", pa.timestamp("us", "UTC")),
                ("day", pa.date32()),
                ("tag", pa.string()),
                ("doc", pa.string()),
                ("words", pa.list_(pa.string())),
                ("raw", pa.binary()),
                ("big", pa.string()),
                ("größe", pa.float64()),
                ("flag", pa.bool_()),
            ]
        ),
        ("region", "number"),
        partitions=3,
        maintained=True,
    ),
    SourceTable("prices", _schema(id=pa.int32(), note=pa.string()), ("id",)),
)


class SourceDatabase:
    """One database with ``TABLES``, filled by ``pgbench -i``; ``accounts``: how many of its 100,000 are left."""

    def __init__(self, postgres: PostgresServer, name: str, accounts: int = ACCOUNTS) -> None:
        self._postgres = postgres
        self.name = postgres.create_database(name)
        postgres.pgbench(name, "-i", "-q", "-s", "1")
        self.sql(f"delete from pgbench_accounts where aid > {accounts}")
        self.sql(STATEMENTS.read_text())
        self.change_awkward_rows(200)

    def sql(self, statements: str) -> list[list[str]]:
        return self._postgres.sql(statements, self.name)

    def rows(self, table: SourceTable) -> pa.Table:
        """The table's rows in the types that lakebed keeps them in."""
        columns = ", ".join(f'{as_json(field)} as "{field.name}"' for field in table.schema)
        lines = self.sql(f"select row_to_json(r)::text from (select {columns} from {table.name}) r")
        rows = [json.loads(line) for (line,) in lines]
        arrays = [
            pa.array([value_of(row[field.name], field.type) for row in rows], field.type) for field in table.schema
        ]
        return pa.Table.from_arrays(arrays, schema=table.schema)

    def change_awkward_rows(self, rows: int) -> None:
        self.sql(f"select change_awkward(0, n, 0) from generate_series(1, {rows}) n")

    def truncate_under_load(self) -> None:
        """Empties two tables that clients write to, one of them with rows before and after it in one transaction."""
        self.sql("truncate pgbench_history")
        self.sql(
            "begin; insert into prices values (-1, 'gone'), (-2, 'gone') on conflict do nothing; truncate prices; "
            "insert into prices values (-2, 'after the truncate'); commit"
        )


class Load:
    """pgbench with several clients in a thread; leaving the block waits for its end."""

    def __init__(
        self,
        postgres: PostgresServer,
        database: SourceDatabase,
        folder: Path,
        seconds: int,
        tps: int,
    ) -> None:
        options = ["-n", "-c", str(CLIENTS), "-T", str(seconds), "-R", str(tps)]
        options += ["-b", f"tpcb-like@{WEIGHTS['tpcb-like']}"]
        for name, text in SCRIPTS.items():
            script = folder / f"{name}.sql"
            script.write_text(text)
            options += ["-f", f"{script}@{WEIGHTS[name]}"]
        self._run = partial(postgres.pgbench, database.name, *options)
        self._thread = threading.Thread(target=self._main, name="pgbench")
        self._failure: BaseException | None = None
        self.seconds = seconds
        self.report = ""
        self.started = 0.0

    def __enter__(self) -> Self:
        self.started = time.monotonic()
        self._thread.start()
        return self

    def wait_until_share(self, share: float) -> None:
        """Returns when this share of the time is over."""
        time.sleep(max(0.0, self.started + share * self.seconds - time.monotonic()))

    def __exit__(self, *raised: object) -> None:
        self._thread.join()
        if self._failure is not None and raised[0] is None:
            raise self._failure

    def _main(self) -> None:
        try:
            self.report = self._run()
        except BaseException as failure:  # told by the thread that waits
            self._failure = failure


def as_json(field: pa.Field, name: str | None = None) -> str:
    """An expression whose JSON form is exact. ``name``: of the column, if it is not the field's."""
    name = f'"{name or field.name}"'
    if pa.types.is_timestamp(field.type) or pa.types.is_date(field.type):
        is_day = pa.types.is_date(field.type)
        plus, minus = (INFINITY_DAY, MINUS_INFINITY_DAY) if is_day else (INFINITY_MICROS, MINUS_INFINITY_MICROS)
        number = f"{name} - date '1970-01-01'" if is_day else f"(extract(epoch from {name}) * 1000000)::bigint"
        return f"case {name} when 'infinity' then {plus} when '-infinity' then {minus} else {number} end"
    if pa.types.is_binary(field.type):
        return f"encode({name}, 'hex')"
    return f"{name}::text" if field.name in TEXT_OF or pa.types.is_decimal(field.type) else name


def value_of(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_binary(kind):
        return bytes.fromhex(value)
    return Decimal(value) if pa.types.is_decimal(kind) else value
