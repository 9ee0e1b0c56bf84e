"""A PostgreSQL database of many tables, hot and quiet, that clients change and whose schema moves, and Debezium to capture it.

A transfer moves an amount from an account of one table to one of another, and is written down in a third. So at every moment of
the source the sum of both tables is the same, and their difference follows from the third.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from tests.end_to_end.changing_database import Client
from tests.end_to_end.source_database import as_json, value_of
from tests.infra.debezium import DebeziumServer
from tests.infra.postgres import SUPERUSER, PostgresServer, binaries
from tests.infra.server import HOST
from tests.waiting import wait_until

ROWS, ACCOUNTS, BALANCE = 20, 50, 1000
BANK = ("debits", "credits", "transfers")
COLUMNS = "id int primary key, turn int not null default 0, qty int, note text, amount numeric(10, 2)"
TOPICS = {"topic.creation.default.replication.factor": "1", "topic.creation.default.partitions": "1"}
ALL_TABLES = {"publication.autocreate.mode": "all_tables", "skipped.operations": "none", **TOPICS}


class ManyTables:
    """``hot_0`` …, ``quiet_0`` … and the bank; ``tables``: those that are there now, without those of the bank."""

    def __init__(self, name: str, postgres: PostgresServer, debezium: DebeziumServer, *, hot: int, quiet: int) -> None:
        self.name = name
        self._postgres, self._debezium = postgres, debezium
        self._connector = ""
        self._made = 0
        self._hot = hot
        self.tables = [f"hot_{n}" for n in range(hot)] + [f"quiet_{n}" for n in range(quiet)]
        postgres.create_database(name)
        made = "".join(f"create table {table} ({COLUMNS});" + _filled(table) for table in self.tables)
        self.sql(
            f"begin; {made} create table transfers (id bigserial primary key, amount int not null); "
            f"create table debits (id int primary key, balance bigint not null); "
            f"create table credits (id int primary key, balance bigint not null); "
            f"insert into debits select n, {BALANCE} from generate_series(1, {ACCOUNTS}) n; "
            f"insert into credits select n, {BALANCE} from generate_series(1, {ACCOUNTS}) n; commit"
        )

    def sql(self, statements: str) -> list[list[str]]:
        return self._postgres.sql(statements, self.name)

    # -- Debezium ------------------------------------------------------------------------------------------------------

    def capture(self, settings: Mapping[str, object]) -> None:
        """All tables, also those that are created later. Transactions are told of too."""
        transactions = {"provide.transaction.metadata": "true"}
        self._connector = self._debezium.capture(
            self.name, [r"public\..*"], self.name, {**ALL_TABLES, **transactions, **settings}
        )

    def kill_debezium(self) -> None:
        self._debezium.kill()
        self._debezium.start()

    def wait_until_sent(self) -> None:
        self._debezium.wait_until_sent(self._connector)

    def release(self) -> None:
        self._debezium.release(self._connector)

    # -- changes -------------------------------------------------------------------------------------------------------

    def load(self, folder: Path, per_second: int) -> Client:
        """pgbench, which changes hot tables and makes transfers until it is ended."""
        changes, bank = folder / "changes.sql", folder / "bank.sql"
        changes.write_text(
            f"\\set t random(0, {self._hot - 1})\n\\set id random(1, {ROWS})\n\\set what random(0, 9)\n"
            "insert into hot_:t (id, qty, note) values (:id, :what, 'note :what') "
            "on conflict (id) do update set turn = hot_:t.turn + 1, qty = :what;\n"
            "delete from hot_:t where id = :id and :what = 0;\n"
        )
        bank.write_text(
            f"\\set from random(1, {ACCOUNTS})\n\\set to random(1, {ACCOUNTS})\n\\set amount random(1, 9)\n"
            "begin;\nupdate debits set balance = balance - :amount where id = :from;\n"
            "update credits set balance = balance + :amount where id = :to;\n"
            "insert into transfers (amount) values (:amount);\ncommit;\n"
        )
        options = ["-n", "-c", "2", "-T", "7200", "-R", str(per_second), "-f", f"{changes}@3", "-f", f"{bank}@1"]
        address = ["-h", HOST, "-p", str(self._postgres.port), "-U", SUPERUSER]
        return Client(
            [str(binaries() / "pgbench"), *address, *options, self.name], "", os.environ, folder / "pgbench.log"
        )

    def wait_until_idle(self) -> None:
        working = "select 1 from pg_stat_activity where datname = current_database() and application_name = 'pgbench'"
        wait_until(lambda: not self.sql(working), "pgbench is gone and its connections are not")

    def alter_something(self, chance: random.Random) -> str:
        """One change of the schema, and of all rows that it concerns; returns what was done."""
        table, number = chance.choice(self.tables), self._made
        self._made += 1
        match chance.choice(["add", "add", "widen", "drop", "rename", "create", "drop table", "truncate"]):
            case "widen":
                return self._altered(
                    table, "alter qty type bigint, alter amount type numeric(24, 4)", "qty = 3000000000 + id"
                )
            case "drop" if extra := self._extra(table):
                return self._altered(table, f"drop {extra}")
            case "rename" if extra := self._extra(table):
                return self._altered(table, f"rename {extra} to extra_{number}")
            case "create":
                self.tables.append(f"new_{number}")
                self.sql(f"create table new_{number} ({COLUMNS}, extra_{number} text); {_filled(f'new_{number}')}")
                return f"create new_{number}"
            case "drop table" if table.startswith("new_"):
                self.tables.remove(table)
                self.sql(f"drop table {table}")
                return f"drop {table}"
            case "truncate" if table.startswith("quiet_"):
                self.sql(f"truncate {table}; insert into {table} (id, note) values (1000, 'after the truncate')")
                return f"truncate {table}"
            case _:
                kind = chance.choice(["text", "int", "double precision", "timestamptz", "numeric(12, 3)", "text[]"])
                return self._altered(table, f"add extra_{number} {kind}")

    def change_all(self, table: str) -> None:
        """Every row of a table is changed, so that its event has all columns."""
        self.sql(f"update {table} set turn = turn + 1")

    def _altered(self, table: str, how: str, also: str = "") -> str:
        self.sql(f"alter table {table} {how}; update {table} set turn = turn + 1{', ' * bool(also)}{also}")
        return f"{table}: {how}"

    def _extra(self, table: str) -> str | None:
        names = self.sql(
            f"select column_name from information_schema.columns where table_name = '{table}' and column_name like 'extra%'"
        )
        return names[0][0] if names else None

    # -- what there is -------------------------------------------------------------------------------------------------

    def columns(self, table: str) -> list[str]:
        """The columns that a table has now."""
        found = self.sql(f"select column_name from information_schema.columns where table_name = '{table}'")
        return [name for (name,) in found]

    def rows(self, table: str, schema: pa.Schema) -> pa.Table:
        """All rows of a table in the types of the schema."""
        columns = ", ".join(f'{as_json(field)} as "{field.name}"' for field in schema)
        lines = [
            json.loads(line)
            for (line,) in self.sql(f"select row_to_json(r)::text from (select {columns} from {table}) r")
        ]
        arrays = [pa.array([value_of(row[field.name], field.type) for row in lines], field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


def _filled(table: str) -> str:
    return f"insert into {table} (id, qty, note, amount) select n, n, 'note ' || n, n / 4.0 from generate_series(1, {ROWS}) n;"
