"""A database is read as it was at one position, with real servers; no slot and no transaction outlives the reading."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing

import psycopg
import pytest

from lakebed.errors import InvalidInput, Retry
from lakebed.verify import mariadb as of_mariadb
from lakebed.verify import postgres as of_postgres
from lakebed.verify.canonical import Shape
from lakebed.verify.comparing import Span
from lakebed.verify.source import Limit
from tests.clock import Clock
from tests.end_to_end.meanwhile import meanwhile
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import HOST
from tests.waiting import wait_until

NAME = "frozen"
ALL = Span(after=None, upto=None)
ROWS = "select id, v from accounts order by id"
TABLES = "create table accounts (id int primary key, v bigint);"


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> PostgresServer:
    postgres.create_database(NAME)
    postgres.sql(
        f"{TABLES} insert into accounts select n, 100 from generate_series(1, 50) n; create role plain login; "
        "create role copying login replication; grant select on accounts to plain, copying; create table closed (id int)",
        NAME,
    )
    return postgres


@pytest.fixture(scope="module")
def maria(mariadb: MariaDbServer) -> MariaDbServer:
    mariadb.sql(f"create database {NAME}")
    mariadb.sql(f"{TABLES} insert into accounts values (1, 0); create table loose (id int) engine = Aria", NAME)
    return mariadb


def url(server: PostgresServer, user: str = "copying") -> str:
    return f"postgresql://{user}@{HOST}:{server.port}/{NAME}"


def maria_url(server: MariaDbServer) -> str:
    return f"mariadb://root@{HOST}:{server.port}/{NAME}"


def transfers(server: PostgresServer) -> Callable[[int], None]:
    """Moves money from one account to another, so that their sum is what it was."""
    connection = psycopg.connect(url(server, "postgres"), autocommit=True)

    def step(number: int) -> None:
        with connection.transaction():
            for account, change in sorted(((number * 7 % 50 + 1, -5), (number * 11 % 50 + 1, 5))):
                connection.execute(f"update accounts set v = v + {change} where id = {account}".encode())

    return step


def slots(server: PostgresServer) -> list[list[str]]:
    return server.sql("select slot_name from pg_replication_slots where slot_name like 'lakebed_verify%'")


def test_what_is_read_is_what_was_committed_below_the_position(server: PostgresServer) -> None:
    """Another slot, which stands for that of a connector, tells which transactions were."""
    server.sql("select pg_create_logical_replication_slot('beside', 'test_decoding')", NAME)
    rows = {int(id): int(v) for id, v in server.sql(ROWS, NAME)}
    seen: list[tuple[int, dict[int, int]]] = []
    try:
        with ExitStack() as clients, closing(of_postgres.Database(url(server))) as live:
            for _ in range(3):
                clients.enter_context(meanwhile(transfers(server)))
            for _ in range(8):
                with closing(live.frozen(60)) as frozen:
                    there = dict(frozen.all(ROWS.replace("accounts", "public.accounts")))
                    wait_until(lambda there=there: dict(live.all(ROWS.replace("accounts", "public.accounts"))) != there)
                    assert dict(frozen.all(ROWS.replace("accounts", "public.accounts"))) == there
                    wait_until(lambda: not slots(server))  # it is needed for a moment only
                    seen.append((frozen.position(), there))
        query = "select (lsn - '0/0')::bigint, data from pg_logical_slot_get_changes('beside', null, null)"
        changes = server.sql(query, NAME)
    finally:
        server.sql("select pg_drop_replication_slot('beside')")
    assert all(sum(there.values()) == 5000 for _, there in seen)
    assert seen == [(position, rows | committed(changes, position)) for position, _ in seen]


def committed(changes: list[list[str]], position: int) -> dict[int, int]:
    """What transactions that ended up to a position made of rows."""
    rows, pending = dict[int, int](), dict[int, int]()
    for end, what in changes:
        if found := re.search(r"id\[integer\]:(\d+) v\[bigint\]:(-?\d+)", what):
            pending[int(found[1])] = int(found[2])
        elif what.startswith("COMMIT"):
            rows |= pending if int(end) <= position else {}
            pending = {}
    return rows


def test_a_snapshot_of_mariadb_has_the_position_of_its_binary_log(maria: MariaDbServer) -> None:
    """Each transaction counts one up, so the number of a position's transaction tells what there was."""

    def count(_: int) -> None:
        maria.sql("; ".join(["update accounts set v = v + 1"] * 10), NAME)

    with closing(of_mariadb.Database(maria_url(maria))) as live:

        def number(position: int) -> int:
            file, place = live.file_of(position)
            [(found,)] = live.all(f"select binlog_gtid_pos('{file}', {place})")
            return int(str(found).rpartition("-")[2])

        before = number(live.position())
        with meanwhile(count):
            for _ in range(8):
                with closing(live.frozen(60)) as frozen:
                    [(counted,)] = frozen.all("select v from accounts")
                    wait_until(lambda counted=counted: live.all("select v from accounts") != [(counted,)])
                    assert frozen.all("select v from accounts") == [(counted,)]
                    assert counted == number(frozen.position()) - before


def test_tables_of_mariadb_without_snapshots_are_refused(maria: MariaDbServer) -> None:
    with closing(of_mariadb.Database(maria_url(maria)).frozen(60)) as frozen:
        with pytest.raises(InvalidInput, match=r"frozen.loose has the engine Aria, which has no snapshots"):
            frozen.table(NAME, "loose", Shape(keys=(), columns=()))
        maria.sql("alter table accounts modify v varchar(20), algorithm = copy", NAME)
        with pytest.raises(Retry, match="Table definition has changed"):
            frozen.all("select v from accounts")


def test_a_statement_that_is_refused_does_not_end_the_snapshot(server: PostgresServer) -> None:
    with closing(of_postgres.Database(url(server)).frozen(60)) as frozen:
        with pytest.raises(InvalidInput, match="permission denied for table closed"):
            frozen.all("select count(*) from public.closed")
        assert frozen.all("select count(*) from public.accounts") == [(50,)]


def test_a_snapshot_that_outlives_its_limit_is_not_read_any_more() -> None:
    clock = Clock()
    limit = Limit(seconds=90, clock=clock)
    clock.sleep(90)
    limit.require_time()
    clock.sleep(1)
    with pytest.raises(
        InvalidInput, match=r"open for 1.5 minutes, the limit, .*: raise database.verify.snapshot_minutes"
    ):
        limit.require_time()


def test_the_servers_end_a_snapshot_that_nobody_reads(server: PostgresServer, maria: MariaDbServer) -> None:
    """So a process that hangs holds back neither vacuum nor purge for good."""
    with closing(of_postgres.Database(url(server)).frozen(1)) as frozen:
        [(id,)] = frozen.all("select pg_backend_pid()")
        wait_until(lambda: not server.sql(f"select 1 from pg_stat_activity where pid = {id}"))
    with closing(of_mariadb.Database(maria_url(maria)).frozen(1)) as frozen:
        [(id,)] = frozen.all("select connection_id()")
        wait_until(lambda: not maria.sql(f"select 1 from information_schema.processlist where id = {id}"))


def test_what_a_database_lacks_is_said_in_one_sentence(server: PostgresServer) -> None:
    with (
        closing(of_postgres.Database(url(server, "plain"))) as live,
        pytest.raises(InvalidInput, match="needs a user that may make a replication slot: alter role NAME replication"),
    ):
        live.frozen(60)
    with (
        closing(of_postgres.Database(url(server, "plain"))) as live,
        closing(of_postgres.Database(url(server))) as other,
    ):
        assert live.name() == other.name(), "anybody may ask for it"
    used = [f"used_{number}" for number in range(int(server.sql("show max_replication_slots")[0][0]))]
    try:
        free = len(used) - int(server.sql("select count(*) from pg_replication_slots")[0][0])
        for name in used[:free]:
            server.sql(f"select pg_create_physical_replication_slot('{name}')")
        with (
            closing(of_postgres.Database(url(server))) as live,
            pytest.raises(InvalidInput, match="raise max_replication_slots"),
        ):
            live.frozen(60)
    finally:
        server.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name like 'used_%'")


def test_a_transaction_that_goes_on_is_waited_for_no_longer_than_said(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_postgres, "_TRANSACTIONS_SECONDS_MAX", 1)
    with closing(psycopg.connect(url(server, "postgres"))) as other:
        other.execute("update accounts set v = v")
        with (
            closing(of_postgres.Database(url(server))) as live,
            pytest.raises(Retry, match="one goes on for more than 1 seconds"),
        ):
            live.frozen(60)
    assert not slots(server)


WAITING = """
import sys
from lakebed.verify.postgres import Database
frozen = Database(sys.argv[1]).frozen(600)
print("there", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_waiting", [True, False])
def test_nothing_is_left_of_a_process_that_is_killed(server: PostgresServer, is_waiting: bool) -> None:
    """While it waits for its slot, and while it reads."""
    of_it = "from pg_stat_activity where application_name = 'lakebed verify'"
    command = [sys.executable, "-c", WAITING, url(server)]
    with closing(psycopg.connect(url(server, "postgres"))) as other:
        other.execute("update accounts set v = v" if is_waiting else "select 1")
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            if is_waiting:
                wait_until(lambda: bool(slots(server)))
            else:
                assert process.stdout and process.stdout.readline() == "there\n"
            process.send_signal(signal.SIGKILL)
        other.rollback()
    wait_until(lambda: not server.sql(f"select 1 {of_it}"))
    assert not slots(server)
