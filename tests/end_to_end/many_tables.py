"""A database of many tables, hot and quiet, that clients change and whose schema moves, and Debezium to capture it.

A transfer moves an amount from an account of one table to one of another, and is written down in a third. So at every moment of
the source the sum of both tables is the same, and their difference follows from the third.
"""

from __future__ import annotations

import json
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.end_to_end.changing_database import Client, as_mariadb_json
from tests.end_to_end.source_database import as_json, value_of
from tests.infra.connect import ConnectWorker
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import SUPERUSER, PostgresServer, binaries
from tests.infra.server import HOST, ServerFailed
from tests.waiting import wait_until

ROWS, ACCOUNTS, BALANCE = 20, 50, 1000
BANK = ("debits", "credits", "transfers")
COLUMNS = "id int primary key, turn int not null default 0, qty int, note text, amount numeric(10, 2)"
SETTINGS = {
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.partitions": "1",
}
"""For all tables, also those that are created later, and for the topic of transactions."""
SIGNALS = "debezium_signal"


class ManyTables(ABC):
    """``hot_0`` …, ``quiet_0`` … and the bank; ``tables``: those that are there now, without those of the bank.

    ``schema``: what the tables are in, as in the names of their topics.
    """

    kinds: tuple[str, ...]
    """Types of columns that are added."""
    series: str
    """Rows with the numbers ``n`` from 1 to ``{}``."""
    has_signals = False
    """Whether there is a table for signals, so that rows can be sent again."""
    url = ""
    """The address of the database, where it can be compared with tables by it."""
    ends_truncates = True
    """Whether the connector sends the end of a transaction that truncates. Without it the table waits for minutes."""

    def __init__(self, name: str, schema: str, debezium: ConnectWorker, *, hot: int, quiet: int) -> None:
        self.name, self.schema = name, schema
        self._debezium = debezium
        self._connector = ""
        self._made = 0
        self._hot = hot
        self.tables = [f"hot_{n}" for n in range(hot)] + [f"quiet_{n}" for n in range(quiet)]
        self.create_database()
        for table in self.tables:
            self.sql(f"create table {table} ({COLUMNS}); {self._filled(table)}")
        self.sql(
            f"create table debits (id int primary key, balance bigint not null); "
            f"create table credits (id int primary key, balance bigint not null); "
            f"insert into debits select n, {BALANCE} from {self.series.format(ACCOUNTS)}; "
            f"insert into credits select n, {BALANCE} from {self.series.format(ACCOUNTS)}"
        )

    @abstractmethod
    def create_database(self) -> None:
        """An empty one, but for ``transfers``."""

    @abstractmethod
    def sql(self, statements: str) -> list[list[str]]: ...

    # -- Debezium ------------------------------------------------------------------------------------------------------

    def capture(self, settings: Mapping[str, object]) -> None:
        tables = [rf"{self.schema}\..*"]
        self._connector = self._debezium.capture(self.name, tables, self.name, {**SETTINGS, **settings})

    def kill_debezium(self) -> None:
        self._debezium.kill()
        self._debezium.start()

    def wait_until_sent(self) -> None:
        self._debezium.wait_until_sent(self._connector)

    def release(self) -> None:
        self._debezium.release(self._connector)

    # -- changes -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def load(self, folder: Path, per_second: int) -> AbstractContextManager[Any]:
        """Clients that change hot tables and make transfers until they are ended."""

    @abstractmethod
    def wait_until_idle(self) -> None:
        """Returns when nothing of what the clients began goes on, after they were ended."""

    @abstractmethod
    def widen(self) -> str:
        """``qty`` becomes bigint, and ``amount`` has more digits."""

    @abstractmethod
    def make_impossible(self, table: str) -> None:
        """``qty`` becomes text, of which some is no number."""

    def alter_something(self, chance: random.Random) -> str:
        """One change of the schema, and of all rows that it concerns; returns what was done."""
        table, number = chance.choice(self.tables), self._made
        self._made += 1
        match chance.choice(["add", "add", "widen", "drop", "rename", "create", "drop table", "truncate"]):
            case "widen":
                return self._altered(table, self.widen(), "qty = 3000000000 + id")
            case "drop" if extra := self._extra(table):
                return self._altered(table, f"drop column {extra}")
            case "rename" if extra := self._extra(table):
                return self._altered(table, f"rename column {extra} to extra_{number}")
            case "create":
                return self.create_table(f"new_{number}", f"extra_{number} text")
            case "drop table" if table.startswith("new_"):
                self.tables.remove(table)
                self.sql(f"drop table {table}")
                return f"drop {table}"
            case "truncate" if table.startswith("quiet_") and self.ends_truncates:
                return self.truncate(table)
            case _:
                return self._altered(table, f"add extra_{number} {chance.choice(self.kinds)}")

    def create_table(self, table: str, more: str) -> str:
        self.tables.append(table)
        self.sql(f"create table {table} ({COLUMNS}, {more}); {self._filled(table)}")
        return f"create {table}"

    def truncate(self, table: str) -> str:
        self.sql(f"truncate table {table}; insert into {table} (id, note) values (1000, 'after the truncate')")
        return f"truncate {table}"

    def change_all(self, table: str, also: str = "") -> None:
        """Every row of a table is changed, so that its event has all columns."""
        self.sql(f"update {table} set turn = turn + 1{', ' * bool(also)}{also}")

    def _altered(self, table: str, how: str, also: str = "") -> str:
        self.sql(f"alter table {table} {how}")
        self.change_all(table, also)
        return f"{table}: {how}"

    def _extra(self, table: str) -> str | None:
        return next((name for name in self.columns(table) if name.startswith("extra")), None)

    def _filled(self, table: str) -> str:
        chosen = f"select n, n, concat('note ', n), n / 4.0 from {self.series.format(ROWS)}"
        return f"insert into {table} (id, qty, note, amount) {chosen};"

    # -- what there is -------------------------------------------------------------------------------------------------

    def columns(self, table: str) -> list[str]:
        """The columns that a table has now."""
        found = self.sql(
            f"select column_name from information_schema.columns where table_schema = '{self.schema}' "
            f"and table_name = '{table}' order by ordinal_position"
        )
        return [name for (name,) in found]

    def rows(self, table: str, schema: pa.Schema) -> pa.Table:
        """All rows of a table in the types of the schema."""
        lines = [json.loads(line) for (line,) in self.sql(self.as_lines(table, schema))]
        arrays = [pa.array([value_of(row[field.name], field.type) for row in lines], field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)

    @abstractmethod
    def as_lines(self, table: str, schema: pa.Schema) -> str:
        """The query whose rows are those of a table as JSON."""


class ManyPostgresTables(ManyTables):
    """Under pgbench."""

    kinds = ("text", "int", "double precision", "timestamptz", "numeric(12, 3)", "text[]")
    series = "generate_series(1, {}) n"

    def __init__(self, name: str, postgres: PostgresServer, debezium: DebeziumServer, *, hot: int, quiet: int) -> None:
        self._postgres = postgres
        self.url = f"postgresql://{SUPERUSER}@{HOST}:{postgres.port}/{name}"
        super().__init__(name, "public", debezium, hot=hot, quiet=quiet)

    def create_database(self) -> None:
        self._postgres.create_database(self.name)
        self.sql("create table transfers (id bigserial primary key, amount int not null)")

    def sql(self, statements: str) -> list[list[str]]:
        return self._postgres.sql(statements, self.name)

    def capture(self, settings: Mapping[str, object]) -> None:
        super().capture({"publication.autocreate.mode": "all_tables", **settings})

    def load(self, folder: Path, per_second: int) -> Client:
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

    def widen(self) -> str:
        return "alter qty type bigint, alter amount type numeric(24, 4)"

    def make_impossible(self, table: str) -> None:
        self.sql(f"alter table {table} alter qty type text using 'seven'")
        self.change_all(table)

    def as_lines(self, table: str, schema: pa.Schema) -> str:
        columns = ", ".join(f'{as_json(field)} as "{field.name}"' for field in schema)
        return f"select row_to_json(r)::text from (select {columns} from {table}) r"


class ManyMariaDbTables(ManyTables):
    """Under clients that call procedures."""

    has_signals = True
    ends_truncates = False

    kinds = ("text", "int", "double", "timestamp(6) null", "decimal(12, 3)", "datetime(6)")
    series = "(select seq as n from seq_1_to_{}) as numbers"

    def __init__(self, name: str, mariadb: MariaDbServer, debezium: DebeziumMariaDb, *, hot: int, quiet: int) -> None:
        self._mariadb = mariadb
        super().__init__(name, name, debezium, hot=hot, quiet=quiet)

    def create_database(self) -> None:
        self._mariadb.sql(f"create database {self.name}")
        self.sql(
            "create table transfers (id bigint primary key auto_increment, amount int not null); "
            f"create table {SIGNALS} (id varchar(42) primary key, type varchar(32) not null, data text)"
        )

    def sql(self, statements: str) -> list[list[str]]:
        return self._mariadb.sql(f"set time_zone = '+00:00';\n{statements}", self.name)

    def capture(self, settings: Mapping[str, object]) -> None:
        super().capture({"signal.data.collection": f"{self.name}.{SIGNALS}", **settings})

    def load(self, folder: Path, per_second: int) -> ExitStack:
        pause = 2 / per_second
        hot = "".join(
            f"when {n} then insert into hot_{n} (id, qty, note) values (@id, @what, concat('note ', @what)) "
            "on duplicate key update turn = turn + 1, qty = @what; "
            f"delete from hot_{n} where id = @id and @what = 0;\n"
            for n in range(self._hot)
        )
        self.sql(
            "delimiter //\n"
            # Of a deadlock the whole transaction is undone, so none of its statements may follow.
            "create procedure transfer() begin\n"
            "declare exit handler for sqlexception rollback;\n"
            f"set @amount = 1 + floor(rand() * 9), @from = 1 + floor(rand() * {ACCOUNTS});\n"
            f"set @to = 1 + floor(rand() * {ACCOUNTS});\n"
            "start transaction;\nupdate debits set balance = balance - @amount where id = @from;\n"
            "update credits set balance = balance + @amount where id = @to;\n"
            "insert into transfers (amount) values (@amount);\ncommit;\nend//\n"
            "create procedure churn() begin\n"
            "declare continue handler for sqlexception begin end;\n"
            "while true do\n"
            f"set @id = 1 + floor(rand() * {ROWS}), @what = floor(rand() * 10);\n"
            f"case floor(rand() * {self._hot}) {hot}end case;\n"
            f"do sleep({pause}); call transfer(); do sleep({pause});\n"
            "end while; end//\n"
        )
        command, environment = self._mariadb.client(self.name), self._mariadb.environment()
        clients = ExitStack()
        for number in range(2):
            clients.enter_context(Client(command, "call churn();", environment, folder / f"client{number}.log"))
        return clients

    def wait_until_idle(self) -> None:
        self._mariadb.wait_until_idle(self.name)

    def widen(self) -> str:
        return "modify qty bigint, modify amount decimal(24, 4)"

    def make_impossible(self, table: str) -> None:
        self.sql(f"alter table {table} modify qty text")
        self.change_all(table, "qty = 'seven'")

    def change_all(self, table: str, also: str = "") -> None:
        while True:
            try:
                return super().change_all(table, also)
            except ServerFailed as failure:
                if "Deadlock" not in str(failure):
                    raise

    def as_lines(self, table: str, schema: pa.Schema) -> str:
        members = ", ".join(f"'{field.name}', {as_mariadb_json(field)}" for field in schema)
        return f"select json_object({members}) from {table}"
