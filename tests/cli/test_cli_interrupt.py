"""Ctrl-C ends a command at once with exit code 130 and without a trace, wherever it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.storage.engine import connect, interrupt_all
from tests.waiting import outcome, wait_until, work_of

ENDLESS = "select count(*) from range(1000000) a, range(1000000) b where a.range + b.range = -1"
COMMAND = "import sys; from lakebed.cli import main; sys.exit(main())"
SAYING_WHEN_IT_IS_IN = """
import sys
import {module}
real = {module}.{function}
def seen(*arguments, **named):
    print("now", flush=True)
    return real(*arguments, **named)
{module}.{function} = seen
from lakebed.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> lakebed.Table:
    made = lakebed.create(tmp_path_factory.mktemp("interrupt") / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    made.apply(pa.table({"id": list(range(1000))}))
    made.settle()
    return made


def started(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    """As a terminal's foreground job: a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def interrupted(process: subprocess.Popen[bytes]) -> str:
    """What it printed on stderr until Ctrl-C ended it."""
    os.killpg(process.pid, signal.SIGINT)
    _, errors = outcome(process)
    assert process.returncode == 130, errors.decode()
    return errors.decode()


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--allow-files"]])
def test_ctrl_c_ends_a_query_inside_duckdb(more: list[str], table: lakebed.Table) -> None:
    program = SAYING_WHEN_IT_IS_IN.format(module="lakebed.view.merge_on_read", function="TableView.query")
    query = started(program, "query", table.path, ENDLESS, *more)
    assert query.stdout is not None
    assert query.stdout.readline() == b"now\n"
    begun = cpu_seconds(query.pid)
    wait_until(lambda: cpu_seconds(query.pid) > begun + 1, lambda: "", moving=work_of(query.pid))
    assert interrupted(query) == ""


@pytest.mark.slow
def test_ctrl_c_ends_a_doctor_that_waits_for_ever(table: lakebed.Table) -> None:
    program = "import threading, lakebed.health.examination as module\n"
    program += "def stuck(*arguments):\n    print('now', flush=True)\n    threading.Event().wait()\n"
    program += "module.examine = stuck\n" + COMMAND
    doctor = started(program, "verify", "--self", table.path, "--deep")
    assert doctor.stdout is not None
    assert doctor.stdout.readline() == b"now\n"
    assert interrupted(doctor) == ""


@pytest.mark.slow
def test_what_neither_duckdb_nor_python_ends_is_ended(table: lakebed.Table) -> None:
    program = "import time, lakebed.health.examination as module\n"
    program += "def stuck(*arguments):\n    print('now', flush=True)\n"
    program += "    while True:\n        try:\n            time.sleep(9)\n        except KeyboardInterrupt:\n            pass\n"
    program += "module.examine = stuck\n" + COMMAND
    doctor = started(program, "verify", "--self", table.path)
    assert doctor.stdout is not None
    assert doctor.stdout.readline() == b"now\n"
    assert interrupted(doctor) == ""


@pytest.mark.parametrize(
    "module", ["lakebed.cli.command_line", "rich.cells", "pyarrow", "duckdb", "lakebed.pipeline.settings"]
)
def test_ctrl_c_during_imports_prints_no_trace(module: str, table: lakebed.Table, tmp_path: Path) -> None:
    program = (
        "import sys, importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            print('now', flush=True)\n"
        "            import time; time.sleep(60)\n"
        "sys.meta_path.insert(0, Finder())\n" + COMMAND
    )
    file = tmp_path / "p.yml"
    file.write_text(f"table: {{path: {tmp_path}/new, keys: [id], schema: {{id: long}}}}\nsource: {{kind: generator}}\n")
    arguments = ["run", str(file)] if module == "lakebed.pipeline.settings" else ["query", table.path, "select 1"]
    process = started(program, *arguments)
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    assert interrupted(process) == ""


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_while_spark_starts_prints_no_trace(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "p.yml").write_text(
        f"table: {{path: {tmp_path}/new, keys: [order_id], schema: {{order_id: long not null}}}}\n"
        f"source: {{kind: files, folder: {tmp_path}/in}}\nformat: json\npage: {{port: null}}\n"
    )
    process = started(COMMAND, "run", str(tmp_path / "p.yml"), "--metrics-port", "off", "--log-format", "off")
    assert process.stdout is not None
    while b"starting Spark" not in (line := process.stdout.readline()):
        assert line, outcome(process)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = outcome(process)
    assert (process.returncode, errors) == (0, b"")


def test_every_connection_is_interrupted() -> None:
    running, ended = threading.Event(), []

    def work() -> None:
        with connect() as connection:
            running.set()
            try:
                connection.sql(ENDLESS).fetchall()
            except Exception as error:
                ended.append(type(error).__name__)

    thread = threading.Thread(target=work)
    thread.start()
    running.wait()

    def is_over() -> bool:
        interrupt_all()
        return not thread.is_alive()

    wait_until(is_over, lambda: "the query runs on")
    assert ended == ["InterruptException"]
