"""Long commands tell how far they are on stderr, and leave stdout alone."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import exit_codes, main
from lakebed.cli import logs as module
from lakebed.cli.commands.health import _watch
from lakebed.cli.logs import progress
from lakebed.errors import StoreUnavailable
from lakebed.health.status import Status
from tests.waiting import Patience, wait_until, whole_lines, work_of

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINE_SECONDS", 0.001)


def a_table(tmp_path: Path, batches: int = 6) -> lakebed.Table:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
    for number in range(batches):
        table.apply(pa.table({"id": [number, 1000 - number], "v": ["a", "b"]}, SCHEMA))
        table.settle()
    return table


def test_what_ends_soon_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working") as report:
        report("rows", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_without_a_terminal_there_is_a_line_now_and_then(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stderr", err)

    def lines() -> list[str]:
        return [re.sub(r", \d+ s$", "", line) for line in whole_lines(err.getvalue())]

    def says(last: str) -> bool:
        return lines()[-1:] == [last]

    with progress("working") as report:
        wait_until(lambda: says("lakebed: working"))
        report("rows", 1_000, 20_000)
        wait_until(lambda: says("lakebed: rows: 1,000 of 20,000"))
        report("rows", 3_000, None)
        wait_until(lambda: says("lakebed: rows: 3,000"))
    assert capsys.readouterr().out == ""
    said = list(dict.fromkeys(lines()))
    assert said == ["lakebed: working", "lakebed: rows: 1,000 of 20,000", "lakebed: rows: 3,000"]


def test_an_error_ends_the_progress_too(quick: None) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError), progress("working"):
        raise ValueError
    assert threading.active_count() == before


def on_a_terminal(program: str, shown: str, kind: str = "xterm") -> tuple[str, str]:
    """What a program writes to stdout, a pipe, and to stderr, a terminal. Its stdin has a line as soon as ``shown`` is seen."""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": kind, "COLUMNS": "100"}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as run:
        os.close(theirs)
        patience, seen = Patience(work_of(run.pid)), b""
        while (piece := read_within(ours, seconds=1)) != b"":
            seen += piece or b""
            if run.stdin and not run.stdin.closed and re.search(shown, seen.decode(errors="replace")):
                run.stdin.close()
            if patience.is_over():
                run.kill()
                raise AssertionError(f"{shown} was not shown: {seen!r}")
        assert run.stdout is not None
        out = run.stdout.read().decode()
    os.close(ours)
    assert run.returncode == 0, seen
    return out, seen.decode()


def read_within(terminal: int, seconds: float) -> bytes | None:
    """What comes, b"" when the program has ended and with it the terminal, None if nothing comes."""
    if not select.select([terminal], [], [], seconds)[0]:
        return None
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


def test_on_a_terminal_a_bar_is_drawn_and_taken_away_again() -> None:
    out, seen = on_a_terminal(
        "import sys; from lakebed.cli import logs as module\n"
        "module.FIRST_SECONDS = 0.05\n"
        "with module.progress('working') as report:\n"
        "    report('rows', 250, 1000); sys.stdin.read()\n"
        "print('done')",
        "250 of 1,000",
    )
    assert out == "done\n"
    assert "rows" in seen and "━" in seen
    assert seen.rstrip().endswith(("\x1b[2K", "\x1b[?25h")), "nothing of it is left"


def test_a_terminal_that_can_t_draw_is_given_lines() -> None:
    _, seen = on_a_terminal(
        "import sys; from lakebed.cli import logs as module\n"
        "module.LINE_SECONDS = 0.05\n"
        "with module.progress('working'): sys.stdin.read()",
        r"lakebed: working, \d s",
        "dumb",
    )
    assert "\x1b" not in seen


def test_what_is_given_is_drawn_as_it_is() -> None:
    _, seen = on_a_terminal(
        "import sys; from lakebed.cli import logs as module\n"
        "module.FIRST_SECONDS = 0.05\n"
        "with module.progress('working') as report:\n"
        "    report('rows of [/x] and [red]', 1, 2); sys.stdin.read()",
        re.escape("rows of [/x] and [red]"),
    )
    assert "Error" not in seen


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["compact"], r"(looking for parts to merge|merging \d+ parts, .* for level \d: merge)"),
        (["recluster", "--final"], r"(looking for parts to recluster|round \d+, merge \d+ of about \d+.*: rows)"),
        (["clean", "--only", "vacuum"], "listing files to delete"),
        (["clean", "--only", "vacuum", "--no-dry-run"], "deleting files"),
        (["clean"], "listing files to delete"),
        (["clean", "--only", "remove-orphan-files"], "listing files to delete"),
        (["compact", "--only", "settle"], "settling"),
        (["verify", "--self", "--deep"], ".+"),
    ],
)
def test_long_commands_tell_how_far_they_are_beside_their_json(
    quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], said: str
) -> None:
    table = a_table(tmp_path)
    table.apply(pa.table({"id": [1], "v": ["c"]}, SCHEMA))
    assert main([*command, table.path, "--format", "json"]) == 0
    told = capsys.readouterr()
    for line in told.out.splitlines():
        json.loads(line)
    pattern = rf"lakebed: {said}(: [\d,]+( of [\d,]+)?)?, \d+ s"
    lines = [line for line in told.err.splitlines() if re.fullmatch(pattern, line)]
    assert lines, told.err


def test_a_simulation_tells_how_far_it_is(quick: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--days", "0.1", "--format", "json"]) == 0
    assert re.search(r"^lakebed: simulating batches: [\d,]+ of 144, \d+ s$", capsys.readouterr().err, re.MULTILINE)


def test_with_a_log_progress_is_a_line_of_it(quick: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--self", "--deep", a_table(tmp_path).path, "--log-format", "json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {"progress"} == {line["event"] for line in said}


# -- watching and listing --------------------------------------------------------------------------------------------


def looks(*outcomes: Status | Exception) -> Callable[[], Status]:
    left = iter([*outcomes, KeyboardInterrupt()])

    def look() -> Status:
        outcome = next(left)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return look


def test_a_watch_goes_on_over_a_store_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lakebed.cli.commands.health.WATCH_SECONDS", 0.0)
    status = a_table(tmp_path, batches=1).status()
    away = StoreUnavailable("list of s3://lake failed 5 times")
    assert _watch(looks(status, away, status), "json") == exit_codes.OK
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 2
    assert "the store did not answer, trying again: list of s3://lake failed 5 times" in told.err
    assert _watch(looks(status, away), "json") == exit_codes.TRY_AGAIN


@pytest.mark.parametrize("kind", ["commits", "merges"])
@pytest.mark.parametrize("last", ["0", "-3"])
def test_no_commits_can_not_be_asked_for(
    kind: str, last: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["show", kind, str(tmp_path), "--last", last])
    assert ended.value.code == 2
    assert f"{last} is not above 0" in capsys.readouterr().err
