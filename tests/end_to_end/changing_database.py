"""A table of a real database that is changed in every way while clients write to it: its statements, and its rows."""

from __future__ import annotations

import json
import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from tests.end_to_end.source_database import as_json, value_of
from tests.infra.connect import ConnectWorker
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import SUPERUSER, PostgresServer, binaries
from tests.infra.server import HOST, ServerFailed
from tests.waiting import wait_until

KEYS, CLIENTS, CHANGES_PER_SECOND = 300, 2, 150
COLUMNS = {
    "id": "integer not null",
    "region": "string not null",
    "turn": "integer",
    "qty": "integer",
    "amount": "decimal(10,2) not null",
    "code": "string",
    "note": "string",
    "legacy": "string",
    "weight": "float",
}
"""The table of the pipeline file, as the database's is before anything changes."""
NEW_NAMES = {"remark": "note"}


@dataclass(frozen=True, slots=True)
class Step:
    """``what``: in words; ``alter``: the statements; ``use``: changes of rows that show the new schema."""

    what: str
    alter: str
    use: str


TOUCH_ALL = "update orders set turn = turn + 1"


class ChangingDatabase(ABC):
    """One database with a table ``orders``, and Debezium to capture it."""

    steps: tuple[Step, ...]

    def __init__(self, name: str, debezium: ConnectWorker) -> None:
        self.name = name
        self.debezium = debezium
        self._connector = ""

    @property
    @abstractmethod
    def table(self) -> str:
        """The table's name with what it is in, as in the name of its topic."""

    @abstractmethod
    def sql(self, statements: str) -> list[list[str]]: ...

    @abstractmethod
    def clients(self, folder: Path) -> list[Client]:
        """Programs that change rows until they are ended."""

    @abstractmethod
    def wait_until_idle(self) -> None:
        """Returns when nothing of what the clients began goes on, after they were ended."""

    @abstractmethod
    def rows(self, schema: pa.Schema, names: Mapping[str, str]) -> pa.Table:
        """All rows in the types of the schema; ``names``: columns that have another name in the database."""

    def take(self, step: Step) -> None:
        self.sql(step.alter)
        self.sql(step.use)

    def capture(self, settings: Mapping[str, object]) -> None:
        self._connector = self.debezium.capture(self.name, [self.table], self.name, settings)

    def wait_until_sent(self) -> None:
        self.debezium.wait_until_sent(self._connector)

    def release(self) -> None:
        self.debezium.release(self._connector)


class Client:
    """A program that changes rows until the block ends. Raises AssertionError there if it ended by itself."""

    def __init__(self, command: Sequence[str], text: str, environment: Mapping[str, str], log: Path) -> None:
        self._command, self._text, self._environment, self._log = command, text, environment, log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        environment = {**os.environ, **self._environment}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
        assert self._process.stdin is not None
        self._process.stdin.write(self._text.encode())
        self._process.stdin.close()
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._process is not None
        code = self._process.poll()
        with suppress(ProcessLookupError):
            self._process.terminate()
        self._process.wait()
        assert code is None or raised[0] is not None, f"a client ended by itself: {self._log.read_text()}"


class ChangingPostgres(ChangingDatabase):
    """Under pgbench."""

    steps = (
        Step("a column is added", "alter table orders add coupon text",
             "update orders set coupon = 'c' || id where id % 3 = 0"),
        # Rows that are there get the default, and nobody is told; so all of them are changed.
        Step("a column with a default is added", "alter table orders add priority int default 5", TOUCH_ALL),
        Step("a column is dropped", "alter table orders drop legacy", TOUCH_ALL),
        Step("a column is renamed", "alter table orders rename note to remark",
             "update orders set remark = 'renamed ' || id where id % 4 = 0"),
        Step("int becomes bigint", "alter table orders alter qty type bigint",
             "update orders set qty = 3000000000 + id where id % 5 = 0"),
        Step("numeric grows", "alter table orders alter amount type numeric(24, 4)",
             "update orders set amount = 12345678901234567890.1234 where id % 6 = 0"),
        Step("varchar grows", "alter table orders alter code type varchar(200)",
             "update orders set code = repeat('ß', 150) where id % 7 = 0"),
        # Without its default too: Avro's converter would send it in place of null.
        Step("not null is dropped, and set",
             "alter table orders alter amount drop not null, alter amount drop default, alter turn set not null",
             "update orders set amount = null where id % 8 = 0"),
        Step("an enum, an array, a jsonb, a uuid and a timestamptz are added",
             "create type mood as enum ('sad', 'happy'); alter table orders add mood mood, add words text[], "
             "add doc jsonb, add tag uuid, add at timestamptz",
             "update orders set mood = 'happy', words = array['a', null, 'ß'], doc = jsonb_build_object('id', id), "
             "tag = gen_random_uuid(), at = timestamptz '2024-02-29 12:00:00.123456+02' where id % 9 = 0"),
        Step("a default changes", "alter table orders alter priority set default 9",
             f"insert into orders (id, turn) select n, 0 from generate_series({KEYS + 1}, {KEYS + 20}) n"),
        Step("a column joins the primary key", "alter table orders drop constraint orders_pkey, add primary key (region, id)",
             "delete from orders where id % 10 = 0"),
        Step("real becomes double precision", "alter table orders alter weight type double precision",
             "update orders set weight = 1e300 where id % 11 = 0"),
        Step("a column is dropped and added again", "alter table orders drop code; alter table orders add code text",
             f"{TOUCH_ALL}; update orders set code = 'again' where id % 12 = 0"),
    )  # fmt: skip

    def __init__(self, name: str, postgres: PostgresServer, debezium: DebeziumServer) -> None:
        super().__init__(name, debezium)
        self._postgres = postgres
        postgres.create_database(name)
        self.sql(
            "create table orders (id int primary key, region text not null default 'eu', turn int default 0, qty int, "
            "amount numeric(10, 2) not null default 1.50, code varchar(10), note text, legacy text, weight real); "
            "create unique index on orders (id)"
        )
        self.sql(
            "insert into orders (id, qty, code, note, legacy, weight) "
            f"select n, n, 'code', 'note ' || n, 'old', n / 10.0 from generate_series(1, {KEYS}, 2) n"
        )

    @property
    def table(self) -> str:
        return "public.orders"

    def sql(self, statements: str) -> list[list[str]]:
        return self._postgres.sql(statements, self.name)

    def clients(self, folder: Path) -> list[Client]:
        script = folder / "orders.sql"
        script.write_text(
            f"\\set id random(1, {KEYS})\n\\set what random(0, 9)\n"
            "insert into orders (id, qty) values (:id, :what) "
            "on conflict (id) do update set turn = orders.turn + 1, qty = :what;\n"
            "delete from orders where id = :id and :what = 0;\n"
        )
        options = ["-n", "-c", str(CLIENTS), "-T", "3600", "-R", str(CHANGES_PER_SECOND), "-f", str(script)]
        address = ["-h", HOST, "-p", str(self._postgres.port), "-U", SUPERUSER]
        return [Client([str(binaries() / "pgbench"), *address, *options, self.name], "", {}, folder / "pgbench.log")]

    def wait_until_idle(self) -> None:
        working = "select 1 from pg_stat_activity where datname = current_database() and application_name = 'pgbench'"
        wait_until(lambda: not self.sql(working), "pgbench is gone and its connections are not")

    def rows(self, schema: pa.Schema, names: Mapping[str, str]) -> pa.Table:
        columns = ", ".join(f'{as_json(field, names.get(field.name))} as "{field.name}"' for field in schema)
        lines = self.sql(f"select row_to_json(r)::text from (select {columns} from orders) r")
        return _table([line for (line,) in lines], schema)


class ChangingMariaDb(ChangingDatabase):
    """Under clients that call a procedure."""

    steps = (
        Step("a column is added", "alter table orders add coupon text",
             "update orders set coupon = concat('c', id) where id % 3 = 0"),
        Step("a column with a default is added", "alter table orders add priority int default 5", TOUCH_ALL),
        Step("a column is dropped", "alter table orders drop legacy", TOUCH_ALL),
        Step("a column is renamed", "alter table orders rename column note to remark",
             "update orders set remark = concat('renamed ', id) where id % 4 = 0"),
        Step("int becomes bigint", "alter table orders modify qty bigint",
             "update orders set qty = 3000000000 + id where id % 5 = 0"),
        Step("decimal grows", "alter table orders modify amount decimal(24, 4) not null default 1.5",
             "update orders set amount = 12345678901234567890.1234 where id % 6 = 0"),
        Step("varchar grows", "alter table orders modify code varchar(200)",
             "update orders set code = repeat('ß', 150) where id % 7 = 0"),
        Step("not null is dropped, and set",
             "alter table orders modify amount decimal(24, 4) default null, modify turn int not null default 0",
             "update orders set amount = null where id % 8 = 0"),
        Step("an enum, a set, a json, a uuid, a timestamp and a datetime are added",
             "alter table orders add mood enum('sad', 'happy'), add words set('a', 'b'), add doc json, add tag uuid, "
             "add at timestamp(6) null, add local datetime(6)",
             "update orders set mood = 'happy', words = 'a,b', doc = json_object('id', id), tag = uuid(), "
             "at = '2024-02-29 10:00:00.123456', local = '2024-02-29 10:00:00.654321' where id % 9 = 0"),
        Step("a default changes", "alter table orders alter priority set default 9",
             f"insert into orders (id, turn) select seq, 0 from seq_{KEYS + 1}_to_{KEYS + 20}"),
        Step("a column joins the primary key", "alter table orders drop primary key, add primary key (region, id)",
             "delete from orders where id % 10 = 0"),
        Step("float becomes double", "alter table orders modify weight double",
             "update orders set weight = 1e300 where id % 11 = 0"),
        Step("a column is dropped and added again", "alter table orders drop code; alter table orders add code text",
             f"{TOUCH_ALL}; update orders set code = 'again' where id % 12 = 0"),
        Step("the binary log begins a new file", "flush binary logs", TOUCH_ALL),
    )  # fmt: skip

    def __init__(self, name: str, mariadb: MariaDbServer, debezium: DebeziumMariaDb) -> None:
        super().__init__(name, debezium)
        self._mariadb = mariadb
        mariadb.sql(f"create database {name}")
        self.sql(
            "create table orders (id int unique, region varchar(20) not null default 'eu', turn int default 0, qty int, "
            "amount decimal(10, 2) not null default 1.5, code varchar(10), note text, legacy text, weight float, "
            "primary key (id))"
        )
        self.sql(
            "insert into orders (id, qty, code, note, legacy, weight) "
            f"select seq, seq, 'code', concat('note ', seq), 'old', seq / 8 from seq_1_to_{KEYS}_step_2"
        )
        self.sql(
            "delimiter //\n"
            "create procedure churn() begin\n"
            "declare continue handler for sqlexception begin end;\n"  # a deadlock, say
            "while true do\n"
            f"set @id = 1 + floor(rand() * {KEYS}), @what = floor(rand() * 10);\n"
            "insert into orders (id, qty) values (@id, @what) on duplicate key update turn = turn + 1, qty = @what;\n"
            "delete from orders where id = @id and @what = 0;\n"
            f"do sleep({CLIENTS / CHANGES_PER_SECOND});\n"
            "end while; end//\n"
        )

    @property
    def table(self) -> str:
        return f"{self.name}.orders"

    def sql(self, statements: str) -> list[list[str]]:
        return self._mariadb.sql(f"set time_zone = '+00:00';\n{statements}", self.name)

    def take(self, step: Step) -> None:
        self.sql(step.alter)
        for statement in step.use.split("; "):
            while True:
                try:
                    self.sql(statement)
                    break
                except ServerFailed as failure:
                    if "Deadlock" not in str(failure):
                        raise

    def clients(self, folder: Path) -> list[Client]:
        command, environment = self._mariadb.client(self.name), self._mariadb.environment()
        logs = [folder / f"client{number}.log" for number in range(CLIENTS)]
        return [Client(command, "call churn();", environment, log) for log in logs]

    def wait_until_idle(self) -> None:
        self._mariadb.wait_until_idle(self.name)

    def rows(self, schema: pa.Schema, names: Mapping[str, str]) -> pa.Table:
        members = ", ".join(f"'{field.name}', {as_mariadb_json(field, names.get(field.name))}" for field in schema)
        return _table([line for (line,) in self.sql(f"select json_object({members}) from orders")], schema)


def as_mariadb_json(field: pa.Field, name: str | None = None) -> str:
    """An expression whose JSON form is exact."""
    column = f"`{name or field.name}`"
    if pa.types.is_timestamp(field.type):
        return f"timestampdiff(microsecond, '1970-01-01', {column})"
    return f"cast({column} as char)" if pa.types.is_string(field.type) or pa.types.is_decimal(field.type) else column


def _table(lines: list[str], schema: pa.Schema) -> pa.Table:
    rows: list[dict[str, Any]] = [json.loads(line) for line in lines]
    arrays = [pa.array([value_of(row[field.name], field.type) for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
