"""What the command prints of data and errors: nothing that a terminal obeys, and JSON without loss."""

from __future__ import annotations

import argparse
import io
import json
import logging
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import lakebed
from lakebed.cli import exit_codes, logs, main
from lakebed.cli import run_display as display
from lakebed.cli.commands import health
from lakebed.cli.logs import shown, shown_lines
from lakebed.cli.output import json_lines
from lakebed.errors import InvalidInput
from lakebed.health.finding import critical
from lakebed.monitoring.progress import Ages, Figures
from lakebed.pipeline.run import Look, Phase
from lakebed.pipeline.settings import maintenance_of

HOSTILE = "\x1b]0;title\x07 \x1b[2J\x9b31m \r\b\n\t \u202etxt.exe\u202c \u2066x\u2069 \u200f \x7f\x00 \u2028"
OBEYED = set("\x1b\x07\x9b\r\b\u202e\u202c\u2066\u2069\u200f\x7f\x00\u2028")


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    made = lakebed.create(
        tmp_path / "t", pa.schema([pa.field("id", pa.int64(), False), ("s", pa.string())]), keys=["id"]
    )
    made.apply(pa.table({"id": [1], "s": [HOSTILE]}, schema=made.schema))
    return made


def run(*arguments: str) -> int:
    try:
        return main(arguments)
    except SystemExit as end:
        return int(str(end.code))


def harmless(text: str) -> bool:
    return not OBEYED & set(text)


def test_what_a_terminal_obeys_is_spelled_out_and_all_else_stays() -> None:
    assert shown("a\x1b[1m\n\t\x9b\u202e\ud800") == r"a\u001b[1m\u000a\u0009\u009b\u202e\ud800"
    assert shown_lines("a\n\tb\r") == "a\n\tb\\u000d"
    plain = "Zoë's 100 % – naïve 東京 👩‍👧 \u00a0 'x' \\"
    assert shown(plain) == shown_lines(plain) == plain


@pytest.mark.parametrize("form", ["table", "json"])
def test_values_and_names_of_columns_command_no_terminal(
    form: str, table: lakebed.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = "select s as \"na\x1bme\u202e\", [s] as l, {'f': s} as o, map {s: s} as m from t"
    assert run("query", table.path, sql, "--format", form) == exit_codes.OK
    out = capsys.readouterr().out
    assert harmless(out) and "\\u001b]0;title\\u0007" in out
    if form == "json":
        row = {"na\x1bme\u202e": HOSTILE, "l": [HOSTILE], "o": {"f": HOSTILE}, "m": {HOSTILE: HOSTILE}}
        assert json.loads(out) == row
    else:
        assert len(out.splitlines()) == 3


def test_errors_command_no_terminal(table: lakebed.Table, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (
        ["query", table.path, "select \x1b[31m\u202e"],
        ["query", table.path, "select s::int from t"],
        ["query", table.path, "select 1", "--name", "\udcff"],
        ["show", "parts", "no\x1bwhere\udcff"],
        ["delete", table.path, "--where", "s\u202e = 1"],
        ["detach-partition", table.path, "\x1b=1"],
        ["\x9bcommand"],
    ):
        assert run(*arguments) == exit_codes.WRONG_INPUT
        said = capsys.readouterr()
        assert said.out == "" and len(said.err.splitlines()) == 1
        assert harmless(said.err), said.err
        said.err.encode()


def test_warnings_and_notes_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    for form in logs.FORMATS:
        record = logging.makeLogRecord({"msg": HOSTILE, "levelno": logging.WARNING, "levelname": "WARNING"})
        assert harmless(logs.complaint(HOSTILE, form))
    assert harmless(logs._Plain().format(record))
    logs.note(HOSTILE)
    assert harmless(capsys.readouterr().err)


def test_live_display_and_findings_command_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = Look("running", figures(HOSTILE), None, None)
    console = Console(file=io.StringIO(), width=200)
    with console.capture() as captured:
        console.print(display.panel(hostile, maintenance_of(str(tmp_path / "a\x1b\u202eb"))))
        console.print(health.finding_text(critical(HOSTILE, HOSTILE, HOSTILE, HOSTILE)))
    assert harmless(captured.get())
    plain = display.PlainDisplay()
    plain(hostile)
    plain._at = -display.LINE_SECONDS - 1e9
    plain(hostile)
    assert harmless(capsys.readouterr().out)


def figures(last_error: str) -> Figures:
    return Figures(
        seconds=0.0,
        rows=0,
        rows_per_second=0.0,
        batches=0,
        replayed=0,
        quarantined=0,
        lost=0,
        bytes_ingested=0,
        bytes_written=0,
        version=None,
        committed=Ages(),
        visible=Ages(),
        last_error=last_error,
    )


def test_two_columns_of_one_name_are_no_json(table: lakebed.Table, capsys: pytest.CaptureFixture[str]) -> None:
    sql = "select id as a, id + 1 as a from t"
    assert run("query", table.path, sql) == exit_codes.OK
    assert "1   2" in capsys.readouterr().out
    assert run("query", table.path, sql, "--format", "json") == exit_codes.WRONG_INPUT
    said = capsys.readouterr()
    assert said.out == "" and "two columns are named 'a'" in said.err
    with pytest.raises(InvalidInput):
        next(json_lines(pa.table([[], []], names=["a", "a"])))


def test_a_map_whose_keys_repeat_loses_none_in_json() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    rows = pa.table({"m": pa.array([[("a", 1), ("a", 2)], [("a", 1)], []], kind)})
    assert [json.loads(line)["m"] for line in json_lines(rows)] == [[["a", 1], ["a", 2]], {"a": 1}, {}]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["query", ""], "the query is empty"),
        (["query", "select 1", "--name", ""], "name in the query is empty"),
        (["query", "copy t to 'x.csv'"], "not one SELECT.*--allow-files"),
        (["query", "from read_csv('/etc/passwd')"], "read_csv.*--allow-files"),
        (["show", "clustering", "--png", "no/such/folder/x.png"], "no/such/folder/x.png"),
        (["show", "clustering", "--png", "/"], "picture can't be written"),
        (["delete", "--where", ""], "where='' is not one SQL expression"),
        (["update", "--where", "true", "--set", "s="], "set 's'='' is not one SQL expression"),
        (["recluster", "--where", "unnest([1])"], "'unnest', which makes several rows"),
        (["simulate", "--days", "1e300"], "--days"),
    ],
)
def test_odd_arguments_are_reported_in_one_line(
    arguments: list[str], said: str, table: lakebed.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = arguments
    kind = [rest.pop(0)] if command == "show" else []
    place = [] if command == "simulate" else [table.path]
    assert run(command, *kind, *place, *rest) == exit_codes.WRONG_INPUT
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert re.search(said, err)


def test_a_trusted_query_may_write_a_file(
    table: lakebed.Table, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.parquet"
    assert run("query", table.path, f"copy t to '{out}'", "--allow-files") == exit_codes.OK
    assert out.exists()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def look(phase: Phase, rows: int = 0) -> Look:
    return Look(phase, replace(figures(""), rows=rows), None, None)


def test_off_a_terminal_a_run_prints_a_line_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(display.time, "monotonic", lambda: now)
    plain = display.PlainDisplay()
    for second in range(300):
        now += 1
        phase: Phase = "starting Spark" if second < 100 else "running"
        plain(look(phase, rows=second if second > 110 else 0))
    plain(look("stopping"))
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert lines[:2] == ["starting Spark", "running"] and lines[-1] == "stopping"
    assert [line.split(" rows in")[0] for line in lines[2:-1]] == ["111", "171", "231", "291"]


def test_on_a_terminal_the_panel_is_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    pipeline = maintenance_of(str(tmp_path))
    with logs.logging_as(argparse.Namespace(log_format=None, log_level=None, runs_on=True)):
        shown_by = display.display(pipeline, "off")
        assert isinstance(shown_by, display.LiveDisplay)
        with shown_by:
            for number in range(50):
                logging.getLogger("lakebed.run").warning("trouble %d", number)
            shown_by(look("running"))
            assert err.getvalue() == ""
        lines = err.getvalue().splitlines()
    assert lines == [f"lakebed: trouble {number}" for number in range(30, 50)]
    assert "trouble 49" in out.getvalue() and "trouble 48" not in out.getvalue()
    assert isinstance(display.display(pipeline, "text"), display.PlainDisplay), (
        "a log on the terminal replaces the panel"
    )
    monkeypatch.setattr("sys.stderr", io.StringIO())
    assert isinstance(display.display(pipeline, "text"), display.LiveDisplay)
