"""The databases of a process: what they have in common, and that they do not grow with its age."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.storage import engine
from lakebed.storage.engine import connect
from tests.waiting import wait_until, work_of

LIMITS = 64 << 20


def test_a_process_that_asks_again_and_again_gets_a_new_database(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(engine, "CURSORS_MAX", 3)
    own_limits = (LIMITS, 1, tmp_path)  # no other test has had a cursor of this database
    cursors = [connect(*own_limits) for _ in range(4)]
    cursors[0].execute("create table t as select 1 as a")
    assert [table_is_there(each) for each in cursors] == [True, True, True, False]


def test_who_has_a_cursor_of_the_old_database_can_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CURSORS_MAX", 1)
    old = connect(LIMITS + 1, threads=1)
    old.execute("create temp table t as select range as a from range(1000)")
    for _ in range(3):
        connect(LIMITS + 1, threads=1).close()
    gc.collect()
    assert old.execute("select sum(a) from t").fetchall() == [(499_500,)]
    with old.cursor() as another:
        assert another.execute("select current_setting('threads')").fetchall() == [(1,)]


def test_the_old_database_is_closed_with_its_last_cursor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "CURSORS_MAX", 1)
    file = tmp_path / "attached.duckdb"
    old = connect(LIMITS + 2, threads=1)
    old.execute(f"attach '{file}' as other")
    connect(LIMITS + 2, threads=1).close()
    assert is_open(file)
    old.close()
    del old
    assert not is_open(file)


def test_a_database_keeps_nothing_of_files_that_it_read(tmp_path: Path) -> None:
    for number in range(20):
        pq.write_table(pa.table({"a": range(100)}), tmp_path / f"{number}.parquet")
        with connect(LIMITS + 3, threads=1) as cursor:
            cursor.execute(f"select sum(a) from read_parquet('{tmp_path / f'{number}.parquet'}')").fetchall()
    with connect(LIMITS + 3, threads=1) as cursor:
        kept = cursor.execute("select tag, memory_usage_bytes from duckdb_memory() where memory_usage_bytes > 0")
        assert kept.fetchall() == []


def test_a_forked_child_leaves_the_cursors_of_its_parent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "CURSORS_MAX", 1)
    cursors = [connect(LIMITS + 4, threads=2)]
    connect(LIMITS + 4, threads=2).close()  # so that only the cursor holds the first database
    child = os.fork()
    if child == 0:
        cursors.clear()  # would wait for threads that the fork did not copy
        gc.collect()
        with connect(LIMITS + 4, threads=2) as own:
            os._exit(0 if own.execute("select sum(range) from range(10)").fetchall() == [(45,)] else 1)
    assert status_of(child) == 0
    assert cursors[0].execute("select 1").fetchall() == [(1,)]


def table_is_there(cursor: duckdb.DuckDBPyConnection) -> bool:
    return bool(cursor.execute("select 1 from duckdb_tables() where table_name = 't'").fetchall())


def is_open(file: Path) -> bool:
    return any(os.path.realpath(link) == str(file) for link in Path("/proc/self/fd").iterdir())


def status_of(child: int) -> int:
    """How the child ended; one that hangs is killed."""
    try:
        _, status = wait_until(lambda: (ended := os.waitpid(child, os.WNOHANG))[0] and ended, moving=work_of(child))
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return int(status)


LONG_QUERY = "select sum(a.range * b.range) from range(10_000_000) a, range(100_000) b"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "work",
    [
        pytest.param(f"cursor.execute({LONG_QUERY!r})", id="a cursor"),
        pytest.param(f"cursor_of(cursor).execute({LONG_QUERY!r})", id="a cursor of a cursor"),
        pytest.param(f"alone.execute({LONG_QUERY!r})", id="a database of its own"),
        pytest.param("while True: connect().execute('select sum(range) from range(1_000_000)')", id="ever new cursors"),
    ],
)
def test_a_process_ends_in_order_while_a_daemon_thread_is_in_a_call(work: str) -> None:
    code = (
        "import contextlib, threading, time\n"
        "from lakebed.storage.engine import connect, connect_alone, cursor_of\n"
        "cursor, alone = connect(threads=1), connect_alone()\n"
        "def work():\n"
        "    with contextlib.suppress(Exception):\n"
        f"        {work}\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        "time.sleep(0.5)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stderr


def test_all_cursors_are_made_by_the_engine() -> None:
    made = re.compile(r"(= |with |^ +)\w+\.cursor\(", re.M)
    files = Path(lakebed.__file__).parent.rglob("*.py")
    assert [file for file in files if made.search(file.read_text())] == [Path(engine.__file__)]
