"""The command as its users meet it: its output, its exit code, and a process where one shows more than a call."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.cli.exit_codes import exit_code_of
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.errors import (
    Contention,
    Corrupt,
    DataLoss,
    InvalidChanges,
    MissingPrerequisite,
    TableNotFound,
    UnsafeStore,
)
from lakebed.sources.generator import COLUMNS, OrderStream
from tests.waiting import outcome, ran, wait_until, work_of

ORDERS = Path(__file__).resolve().parents[2] / "examples" / "orders.yml"
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("price", pa.decimal128(20, 4)),
        ("at", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("raw", pa.binary()),
        ("ratio", pa.float64()),
        ("tags", pa.map_(pa.string(), pa.int32())),
    ]
)
ROW = {
    "id": 2**62 + 1,
    "price": Decimal("1234567890123456.7890"),
    "at": datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC),
    "day": datetime(2026, 1, 31, tzinfo=UTC).date(),
    "raw": b"\x00\xff",
    "ratio": float("nan"),
    "tags": [("größe", 3)],
}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", "import sys; from lakebed.cli import main; sys.exit(main())", *arguments]


def lakebed_command(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    return ran(command(*arguments), cwd=cwd, env=os.environ | (env or {}))


def lakebed_here(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The same in this process: a second less, for what the process has no part in."""
    out, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
        patch.dict(os.environ, env or {}),
    ):
        code: Any
        try:
            code = main(arguments)
        except SystemExit as ended:
            code = ended.code
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), errors.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table ``prices`` of one row, settled, and one more in the tail."""
    folder = tmp_path_factory.mktemp("cli")
    table = lakebed.create(folder / "prices", SCHEMA, keys=["id"])
    table.apply(pa.Table.from_pylist([ROW], SCHEMA))
    table.settle()
    table.apply(pa.Table.from_pylist([{"id": 1}], SCHEMA))
    (folder / "misspelt.yml").write_text("")
    return folder


@pytest.mark.slow
def test_json_lines_keep_every_digit(folder: Path) -> None:
    done = lakebed_command("query", "prices", "select * from prices where id > 1", "--format", "json", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {
        "id": 4611686018427387905,
        "price": "1234567890123456.7890",
        "at": "2026-01-31T12:00:00.000001Z",
        "day": "2026-01-31",
        "raw": "AP8=",
        "ratio": "NaN",
        "tags": {"größe": 3},
    }


def test_a_query_sees_the_tail_and_prints_a_table(folder: Path) -> None:
    done = lakebed_here("query", "prices", "select count(*) as n from p", "--name", "p", cwd=folder)
    assert done.returncode == 0
    assert [line.strip() for line in done.stdout.splitlines()] == ["n", "─", "2"]


def test_parts_timeline_and_detail_tell_what_is_there(folder: Path) -> None:
    parts = lakebed_here("show", "parts", "prices", "--format", "json", cwd=folder)
    assert sorted(json.loads(line)["state"] for line in parts.stdout.splitlines()) == ["base", "tail"]
    timeline = lakebed_here("show", "commits", "prices", "--format", "json", "--last", "2", cwd=folder)
    assert [json.loads(line)["operation"] for line in timeline.stdout.splitlines()] == ["APPLY", "SETTLE"]
    detail = json.loads(lakebed_here("show", "figures", "prices", "--format", "json", cwd=folder).stdout)
    assert (detail["keys"], detail["tail_rows"], detail["rows"]) == (["id"], 1, 1)


def test_a_table_is_reclustered_and_sorted_by_another_key_from_the_command_line(folder: Path) -> None:
    table = lakebed.create(folder / "lots", SCHEMA, sort_key=["id"])
    for number in range(4):
        rows = pa.Table.from_pylist([ROW | {"id": place} for place in range(number, 40, 4)], SCHEMA)
        table.apply(rows)
    predicted = json.loads(
        lakebed_here("recluster", "lots", "--dry-run", "--final", "--format", "json", cwd=folder).stdout
    )
    assert (predicted["plans"], predicted["estimated"], predicted["depth_before"]) == (1, True, [[0, 4.0]])
    done = json.loads(lakebed_here("recluster", "lots", "--format", "json", cwd=folder).stdout)
    assert (done["parts_in"], done["parts_out"], done["depth_after"]) == (4, 1, [[1, 1.0]])
    said = lakebed_here("alter", "lots", "--sort-key", "price, id", cwd=folder).stderr
    assert "sorts the 1 parts by it" in said
    assert "1" in lakebed_here("recluster", "lots", "--final", cwd=folder).stdout
    detail = json.loads(lakebed_here("show", "figures", "lots", "--format", "json", cwd=folder).stdout)
    assert (detail["sort_key"], detail["sort_key_version"], detail["unsorted_parts"]) == (["price", "id"], 2, 0)


def test_clustering_is_shown_by_level_and_drawn(folder: Path) -> None:
    done = lakebed_here("show", "clustering", "prices", "--format", "json", "--png", "prices.png", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert [json.loads(line)["level"] for line in done.stdout.splitlines()] == [None, 0]
    assert (folder / "prices.png").stat().st_size > 0
    assert "deepest" not in lakebed_here("show", "clustering", "prices", cwd=folder).stdout


def test_settle_settles(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1, 2]}))
    done = lakebed_here("compact", "--only", "settle", "t", "--format", "json", cwd=tmp_path)
    assert json.loads(done.stdout)["rows"] == 2
    assert table.inspect.detail()["tail_parts"].to_pylist() == [0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["query", "nowhere", "select 1"], "nowhere; create it with lakebed create"),
        (["query", "prices", "selct 1"], "the query is not valid SQL: Parser Error"),
        (["query", "prices", "select nix from prices"], "nix"),
        (["show", "parts", "prices", "--at-version", "99"], "99"),
        (["run", "nowhere.yml"], "there is no pipeline file nowhere.yml"),
        (["run", str(ORDERS), "--duration", "0"], "--duration"),
        (["run", str(ORDERS), "--metrics-port", "x"], "neither a port"),
        (["quary"], "there is no command 'quary'; did you mean query?"),
        (["optimize", "t"], "`lakebed optimize` is `lakebed compact`"),
        (["show", "parts", "prices", "--formt", "json"], "there is no option --formt; did you mean --format?"),
        (["show", "parts", "prices", "--format", "jsno"], "'jsno' is none of table, json; did you mean json?"),
        (["show", "parts", "prices", "lots"], "'lots' is one argument too many"),
        (["verify"], "required: PATH (see lakebed verify --help)"),
        (["verify", "shop", "--self", "x"], "'x' is one argument too many: --self and --against take one path"),
        (
            ["show", "parts", "prcies"],
            "there is no table at prcies; create it with lakebed create; did you mean prices?",
        ),
        (["show", "parts", "."], "there are tables below it: "),
        (["query", "prices", "select * from price"], 'Did you mean "prices"'),
        (["run", "mispelt.yml"], "did you mean misspelt.yml?"),
        (
            ["delete", "--all", "prices"],
            "delete --all takes all 1 rows and 1 changes in the tail out of prices; give --yes",
        ),
        (["restore", "prices", "--version", "0"], "prices what it was at version 0, "),
        (["restore", "prices"], "--version"),
        (["delete", "prices", "--where", "1 = 1"], "names no column"),
        (["partition", "drop", "prices", "x"], "give --yes"),
        (["show"], "name one of figures, parts, "),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(folder: Path, arguments: Sequence[str], said: str) -> None:
    done = lakebed_here(*arguments, cwd=folder)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("lakebed: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataLoss("x"), 1), (Corrupt("x"), 1), (InvalidChanges("x"), 2), (TableNotFound("x"), 2), (UnsafeStore("x"), 2),
        (MissingPrerequisite("x"), 3), (Contention("x"), 4),
    ],
)  # fmt: skip
def test_exit_codes_say_what_the_caller_must_do(error: lakebed.errors.LakebedError, code: int) -> None:
    assert exit_code_of(error) == code


def test_help_is_printed_without_a_command_too_and_the_version_is_the_package_s(tmp_path: Path) -> None:
    assert lakebed_here("--help", cwd=tmp_path).returncode == 0
    assert lakebed_here(cwd=tmp_path).stdout == lakebed_here("--help", cwd=tmp_path).stdout
    assert "try again later" in lakebed_here("help", "exit-codes", cwd=tmp_path).stdout
    assert lakebed_here("--version", cwd=tmp_path).stdout == f"lakebed {lakebed.__version__}\n"


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(folder: Path) -> None:
    sql = "select range as n from range(300000)"
    reading = subprocess.Popen(
        command("query", "prices", sql, "--format", "json"), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert reading.stdout is not None
    assert reading.stderr is not None
    reading.stdout.readline()
    reading.stdout.close()
    _, errors = outcome(reading)
    assert (reading.returncode, errors) == (0, b"")


@pytest.mark.slow
def test_queries_do_not_import_spark(folder: Path) -> None:
    program = (
        "import sys; from lakebed.cli import main; code = main(['query', 'prices', 'select 1']);"
        "sys.exit(code or 'pyspark.sql.session' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, check=False).returncode == 0


def test_validate_says_what_the_file_means_and_shows_no_secret(tmp_path: Path) -> None:
    text = ORDERS.parent.joinpath("pgbench.yml").read_text()
    text = text.replace("    # sasl.", "    sasl.")
    (tmp_path / "p.yml").write_text(text)
    env = {"KAFKA_USER": "the-user", "KAFKA_PASSWORD": "the-password"}
    done = lakebed_here("validate", "p.yml", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    assert "sasl.password: '***'" in done.stdout
    assert "the table at ./lake/pgbench_accounts will be created" in done.stdout
    assert "the-user" not in done.stdout + done.stderr
    assert "the-password" not in done.stdout + done.stderr
    assert not (tmp_path / "lake").exists()


@pytest.mark.slow
def test_a_missing_java_is_reported_with_what_to_install(tmp_path: Path) -> None:
    env = {"JAVA_HOME": str(tmp_path)}
    (tmp_path / "orders.yml").write_text(ORDERS.read_text() + "\npage: {port: null}\n")
    done = lakebed_command("run", "orders.yml", "--metrics-port", "off", cwd=tmp_path, env=env)
    assert done.returncode == 3
    assert "install Java 17" in done.stderr
    assert done.stderr.count("\n") == 1


def committed_events(table: Path) -> int:
    """The number of events that the table has read."""
    return sum(lakebed.open(table).inspect.positions()["next_offset"].to_pylist())


def recomputed(events: int) -> dict[int, dict[str, object]]:
    """Order id to row, from nothing but the generator's settings. Times depend on the clock and are left out."""
    stream = OrderStream(events_per_second=2000.0, inserts=0.25, deletes=0.05, skew=0.8)
    decoder = DebeziumJson(DecoderSchema(COLUMNS, ("order_id",), "source.lsn"))
    rows: dict[int, dict[str, object]] = {}
    for row in decoder.decode(stream.events(0, events, 0)).changes.to_pylist():
        if row["_lakebed_op"] == "d":
            rows.pop(row["order_id"], None)
        else:
            rows[row["order_id"]] = {name: row[name] for name in ("customer_id", "region", "status", "amount", "note")}
    return rows


def found(table: Path) -> dict[int, dict[str, object]]:
    names = ["order_id", "customer_id", "region", "status", "amount", "note"]
    rows = lakebed.open(table).to_arrow(names)
    out = {row.pop("order_id"): row for row in rows.to_pylist()}
    assert len(out) == len(rows), "a key is there twice"
    return out


@pytest.mark.long
@pytest.mark.slow
def test_what_spark_refuses_when_a_query_starts_is_reported_in_its_words(tmp_path: Path) -> None:
    table = "table: {path: t, keys: [id], schema: {id: long not null}}\n"
    (tmp_path / "p.yml").write_text(table + "source: {kind: generator}\ncheckpoint: 'nowhere://x/checkpoint'\n")
    done = lakebed_command("run", "p.yml", "--metrics-port", "off", cwd=tmp_path)
    assert done.returncode == 1
    assert 'No FileSystem for scheme "nowhere"' in done.stderr
    assert "Spark's log is" in done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_ctrl_c_stops_a_run_in_order_and_a_second_run_carries_on_each_event_once(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path / "out.txt"
    with log.open("w") as out:
        running = subprocess.Popen(
            command("run", str(ORDERS), "--rate", "2000", "--metrics-port", str(port)),
            cwd=tmp_path,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: _rows_ingested(port) > 0, log.read_text, moving=work_of(running.pid))
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to the whole group
        outcome(running)
        assert running.returncode == 0, log.read_text()
    finally:
        running.kill()
    text = log.read_text()
    assert "stopping" in text
    assert "Traceback" not in text
    table = tmp_path / "lake" / "orders"
    events_before = committed_events(table)
    assert found(table) == recomputed(events_before)
    with socket.socket() as again:
        assert again.connect_ex(("127.0.0.1", port)) != 0

    (tmp_path / "again.yml").write_text(
        ORDERS.read_text() + "\npage: {port: 0}\n"
    )  # another test may use the usual port
    run = ["run", "again.yml", "--rate", "2000", "--duration", "3", "--metrics-port", "0"]
    done = lakebed_command(*run, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(" level=info event=" in line for line in done.stderr.splitlines()), done.stderr
    assert "event=batch_committed" not in done.stderr
    assert done.stdout.count(" rows in (") == 1, "a line with the first rows, and then one a minute"
    phases = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line[2:3] == ":"]
    assert phases[:3] == ["starting Java", "starting Spark", "first batch"] and phases[3].startswith("running; ")
    assert "lakebed ran for" in done.stdout
    assert "quarantine" not in done.stdout
    events = committed_events(table)
    assert events > events_before
    assert lakebed.open(table).inspect.detail()["tail_parts"].to_pylist() == [0]
    assert found(table) == recomputed(events)


def _rows_ingested(port: int) -> float:
    """What a scrape says; zero as long as nothing answers."""
    try:
        body = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()
    except OSError:
        return 0.0
    counters = [line for line in body.splitlines() if line.startswith("lakebed_ingested_rows_total{")]
    return sum(float(line.rsplit(" ", 1)[1]) for line in counters)


@pytest.mark.slow
def test_jars_that_can_t_be_fetched_are_one_line(tmp_path: Path) -> None:
    text = ORDERS.read_text() + (
        "page: {port: null}\nspark:\n  conf:\n    spark.jars.packages: org.example:none:1.0\n"
        f"    spark.jars.ivy: {tmp_path / 'ivy'}\n    spark.jars.ivySettings: {tmp_path / 'ivy.xml'}\n"
    )
    (tmp_path / "ivy.xml").write_text(
        '<ivysettings><settings defaultResolver="none"/><resolvers><filesystem name="none">'
        f'<artifact pattern="{tmp_path}/empty/[artifact]"/></filesystem></resolvers></ivysettings>'
    )
    (tmp_path / "p.yml").write_text(text)
    done = lakebed_command("run", "p.yml", "--metrics-port", "off", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Spark's jars can't be downloaded (org.example#none" in done.stderr
    assert done.stderr.count("\n") == 1


def test_rows_are_mutated_and_partitions_come_and_go(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    schema = pa.schema([("id", pa.int64()), ("day", pa.string()), ("value", pa.int64())])
    table = lakebed.create(path, schema, keys=["id"], partition_by=["day"])
    table.apply(pa.table([[1, 2, 3], ["a", "a", "b"], [1, 2, 3]], schema=schema))
    commands = (
        (["delete", path, "--where", "value = 2"], 0),
        (["update", path, "--set", "value = value * 10", "--where", "true", "--format", "json"], 0),
        (["update", path, "--set", "value", "--where", "true"], exit_code_of(InvalidChanges(""))),
        (["partition", "detach", path, "day=a"], 0),
        (["partition", "list", path], 0),
    )
    for arguments, code in commands:
        assert main(arguments) == code
    name = table.inspect.detached()["name"][0].as_py()
    assert main(["partition", "attach", path, name, "--format", "json"]) == 0
    assert sorted(table.to_arrow(["value"])["value"].to_pylist()) == [10, 30]
    assert main(["partition", "detach", path, "day=b"]) == 0
    assert main(["partition", "drop", path, table.inspect.detached()["name"][0].as_py(), "--yes"]) == 0
    assert main(["clean", "--only", "expire-rows", path]) == 2, "the table has no lakebed.ttl"
    before = table.version
    assert main(["delete", "--all", path, "--yes"]) == 0
    assert table.to_arrow().num_rows == 0
    assert main(["restore", path, "--version", str(before), "--yes"]) == 0
    assert (
        table.to_arrow(["value"])["value"].to_pylist() == table.to_arrow(["value"], version=before)["value"].to_pylist()
    )
    assert main(["delete", "--all", path, "--yes"]) == 0
