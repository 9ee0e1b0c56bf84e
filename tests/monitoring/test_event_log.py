"""Every event is a log line with the ids that join with the timeline, whoever reads it."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.cli import main
from lakebed.monitoring.event_log import (
    JsonFormatter,
    LogfmtFormatter,
    fields_of,
    level_of,
    log_event,
    log_events,
    log_fields,
    name_of,
)
from tests.internals import log_of
from tests.monitoring.test_metrics import EVENTS, code_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])
LOGFMT = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|[^\s"=]+)(?: |$)')


class Heard:
    """What came out of the logger."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self.out = io.StringIO()
        self.handler = logging.StreamHandler(self.out)
        self.handler.setFormatter(formatter)

    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("lakebed")
    before = found.level, list(found.handlers), found.propagate
    found.propagate = False
    yield found
    found.setLevel(before[0])
    found.handlers[:] = before[1]
    found.propagate = before[2]


def listening(logger: logging.Logger, formatter: logging.Formatter, level: int = logging.DEBUG) -> Heard:
    heard = Heard(formatter)
    logger.addHandler(heard.handler)
    logger.setLevel(level)
    return heard


def parsed(line: str) -> dict[str, str]:
    """A logfmt line, read to its end."""
    found, at = {}, 0
    while at < len(line):
        match = LOGFMT.match(line, at)
        assert match, line[at:]
        found[match[1]] = json.loads(match[2]) if match[2].startswith('"') else match[2]
        at = match.end()
    return found


def test_every_class_of_events_gets_a_line_in_both_forms(logger: logging.Logger) -> None:
    text, objects = listening(logger, LogfmtFormatter()), listening(logger, JsonFormatter())
    assert {type(event) for event in EVENTS} == {
        one for one in events.Event.__subclasses__() if getattr(events, one.__name__) is one
    }
    for event in EVENTS:
        log_event(event)
    assert len(text.lines()) == len(objects.lines()) == len(EVENTS)
    for event, line, spelled in zip(EVENTS, text.lines(), objects.lines(), strict=True):
        said = json.loads(spelled)
        assert said["event"] == name_of(event) == parsed(line)["event"]
        assert said["level"] == logging.getLevelName(level_of(event)).lower()
        assert said.items() >= fields_of(event).items()
        assert said["table"] == "t"
        assert parsed(line).keys() == said.keys()


def test_at_info_there_is_no_line_for_what_happens_all_the_time(logger: logging.Logger) -> None:
    heard = listening(logger, JsonFormatter(), logging.INFO)
    for event in EVENTS:
        log_event(event)
    names = {json.loads(line)["event"] for line in heard.lines()}
    assert {"merge_failed", "batch_replayed", "mutation_ended", "query_changed", "offsets_lost"} <= names
    assert not names & {"batch_committed", "settled", "merge_began", "merge_ended", "uploaded", "store_requested"}


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (events.MergeFailed(table="t", kind="merge", level=1, parts=8, parked=False, error="no disk"), logging.WARNING),
        (events.MergeFailed(table="t", kind="merge", level=1, parts=8, parked=True, error="no disk"), logging.ERROR),
        (events.MutationFailed(table="t", operation="update", error="no column"), logging.ERROR),
        (
            events.CommitEnded(table="t", operation="SETTLE", result="unknown", version=3, attempts=1, seconds=0.1),
            logging.WARNING,
        ),
        (events.SchemaChanged(table="t", version=3, change='{"drop":["a"]}', reason=""), logging.INFO),
        (events.CommitGivenUp(table="t", operation="SETTLE", attempts=50, seconds=9.5), logging.WARNING),
        (
            events.CommitEnded(table="t", operation="SETTLE", result="committed", version=3, attempts=1, seconds=0.1),
            logging.DEBUG,
        ),
        (
            events.CommitEnded(table="t", operation="TRUNCATE", result="committed", version=3, attempts=1, seconds=0.1),
            logging.INFO,
        ),
        (
            events.CommitEnded(
                table="t", operation="CLAIM", result="conflicted", version=3, attempts=1, seconds=0.1, conflict="claim"
            ),
            logging.DEBUG,
        ),
        (
            events.QueryChanged(table="t", role="maintain", state="failed", error="Corrupt", reason="a file is gone"),
            logging.ERROR,
        ),
        (
            events.QueryChanged(
                table="t", role="maintain", state="waiting", error="Retry", reason="no worker", pause_seconds=4.0
            ),
            logging.WARNING,
        ),
        (events.QueryChanged(table="t", role="maintain", state="running"), logging.INFO),
        (events.InvariantViolated(table="t", invariant="P3", version=7, detail="x", when="read"), logging.ERROR),
        (events.ClaimChanged(table="t", result="taken"), logging.DEBUG),
        (events.ClaimChanged(table="t", result="taken_over"), logging.WARNING),
    ],
)
def test_what_somebody_should_look_at_is_above_info(event: events.Event, level: int) -> None:
    assert level_of(event) == level


def test_any_text_is_one_line_that_reads_back_as_it_was(logger: logging.Logger) -> None:
    heard = listening(logger, LogfmtFormatter())
    nasty = ['a "b" = c\\', "two\nlines\ttab", "", "100 %s", "Zürich", "\x7f\x00", "\u2028 is no line's end"]
    nasty += ["\x9b31mred", "\x85", "\u202egnp", "\udcff"]
    for text in nasty:
        log_fields(logging.INFO, "x", {"said": text, "done": True})
    lines = heard.out.getvalue().removesuffix("\n").split("\n")
    assert [parsed(line)["said"] for line in lines] == nasty
    assert parsed(lines[0])["done"] == "true"
    assert all(line.isprintable() for line in lines), "a terminal shows what is said, and obeys nothing of it"


def test_json_is_json_whatever_stderr_is_encoded_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, "ascii", errors="backslashreplace", line_buffering=True))
    assert (
        main(
            [
                *("compact", "--only", "settle"),
                a_table(tmp_path / "Zürich").path,
                "--format",
                "json",
                "--log-format",
                "json",
                "--log-level",
                "debug",
            ]
        )
        == 0
    )
    tables = {json.loads(line)["table"] for line in raw.getvalue().decode().splitlines()}
    assert tables == {str(tmp_path / "Zürich" / "t")}


def test_with_json_all_that_is_said_on_stderr_is_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also what libraries, Python's warnings and threads that die have to say."""

    def noisy(event: events.Event) -> None:
        warnings.warn("an old\nthing", stacklevel=1)
        logging.getLogger("botocore").warning("asked\nagain")
        thread = threading.Thread(target=lambda: [].pop(), name="t1")
        thread.start()
        thread.join()

    table, before = a_table(tmp_path), (threading.excepthook, logging.root.handlers[:], warnings.showwarning)
    end = events.listen(noisy)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        shown = warnings.showwarning
        assert main(["compact", "--only", "settle", table.path, "--format", "json", "--log-format", "json"]) == 0
        assert warnings.showwarning is shown
    end()
    assert main(["clean", "--only", "vacuum", table.path, "--format", "json", "--log-format", "json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    messages = [line["message"] for line in said if "message" in line]
    for text in (
        "UserWarning: an old thing",
        "asked again",
        "the thread t1 died: pop from empty list",
        "would be deleted",
    ):
        assert any(text in message for message in messages), text
    assert any("IndexError" in line.get("trace", "") for line in said)
    assert (threading.excepthook, logging.root.handlers[:], warnings.showwarning) == before


@pytest.mark.parametrize("formatter", [LogfmtFormatter, JsonFormatter])
def test_a_secret_is_hidden_also_where_it_would_be_escaped(
    logger: logging.Logger, formatter: type[LogfmtFormatter] | type[JsonFormatter]
) -> None:
    secret = 'pass "word"\\'
    heard = listening(logger, formatter(lambda text: text.replace(secret, "***")))
    log_event(events.MutationFailed(table="t", operation="update", error=f"{secret} was refused"))
    logger.warning("%s was refused", secret)
    try:
        raise ValueError(secret)
    except ValueError:
        logger.exception("it failed")
    assert len(heard.lines()) == 3
    assert heard.out.getvalue().count("***") == 3
    assert not re.search(r'word\\*"', heard.out.getvalue())  # the path in the trace may have the word too


def test_what_other_loggers_of_lakebed_say_has_the_same_form(logger: logging.Logger) -> None:
    heard = listening(logger, JsonFormatter())
    logging.getLogger("lakebed.cleanup").warning("%s is\nleft", "a.parquet")
    said = json.loads(heard.lines()[0])
    assert (said["event"], said["logger"], said["message"]) == ("message", "lakebed.cleanup", "a.parquet is left")


def test_an_event_is_one_line_however_often_logging_was_asked_for(logger: logging.Logger) -> None:
    heard = listening(logger, JsonFormatter())
    stop = log_events()
    log_events()
    events.emit(events.OffsetsLost(table="t", source="orders", records=5))
    stop()
    events.emit(events.OffsetsLost(table="t", source="orders", records=6))
    assert [json.loads(line)["records"] for line in heard.lines()] == [5]


def test_lines_join_with_the_timeline_and_with_each_other(tmp_path: Path, logger: logging.Logger) -> None:
    heard = listening(logger, JsonFormatter())
    stop = log_events()
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
    for number in range(4):
        table.apply(pa.table({"id": [number, 100 - number], "v": ["a", "b"]}, SCHEMA), batch_id=number)
        table.settle()
    table.maintenance.compact()
    stop()
    table.truncate()
    said = [json.loads(line) for line in heard.lines()]
    operations = {row["version"]: row["operation"] for row in table.inspect.timeline().to_pylist()}

    def of(name: str) -> list[dict[str, Any]]:
        return [line for line in said if line["event"] == name]

    assert [line["batch_id"] for line in of("batch_committed")] == [0, 1, 2, 3]
    assert all(line["query"] for line in of("batch_committed"))
    assert {operations[line["version"]] for line in of("settled")} == {"SETTLE"}
    ended = of("merge_ended")
    assert ended
    assert {operations[line["version"]] for line in ended} == {"MERGE"}
    taken = {line["claim"]: line for line in of("claim_changed")}
    for began, line in zip(of("merge_began"), ended, strict=True):
        assert began["claim"] == line["claim"]
        assert operations[taken[line["claim"]]["version"]] == "CLAIM"
        assert taken[line["claim"]]["replica"] == began["replica"] == line["replica"]
        commit = log_of(table).read_commit(line["version"])
        assert commit is not None and commit.info is not None
        assert commit.info.parameters["claim"] == line["claim"]
    assert "TRUNCATE" not in {line.get("operation") for line in said}, "nothing is logged after the end"


def test_the_call_of_the_documentation_logs_events(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.level, list(root.handlers)
    names: dict[str, Any] = {}
    root.handlers[:] = []
    try:
        exec(code_of(DOCUMENT, "log_events()"), names)
        lakebed.create(tmp_path / "t", SCHEMA, keys=["id"]).apply(pa.table({"id": [1], "v": ["a"]}, SCHEMA))
    finally:
        names["stop"]()
        root.setLevel(before[0])
        root.handlers[:] = before[1]
    assert "DEBUG:lakebed:event=batch_committed table=" in capsys.readouterr().err


# -- the command -----------------------------------------------------------------------------------------------------


def a_table(tmp_path: Path) -> lakebed.Table:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(pa.table({"id": [1, 2], "v": ["a", "b"]}, SCHEMA))
    return table


def test_a_command_logs_on_stderr_if_it_is_asked_to(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = a_table(tmp_path)
    assert main(["compact", "--only", "settle", table.path, "--format", "json"]) == 0
    assert capsys.readouterr().err == "", "nothing is wrong"
    table.apply(pa.table({"id": [1], "v": ["c"]}, SCHEMA))
    assert (
        main(
            [
                "compact",
                "--only",
                "settle",
                table.path,
                "--format",
                "json",
                "--log-format",
                "json",
                "--log-level",
                "debug",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert json.loads(told.out)["change_parts"] == 1, "stdout is as it was"
    assert "settled" in {json.loads(line)["event"] for line in told.err.splitlines()}
    assert main(["compact", "--only", "settle", table.path, "--log-format", "text", "--log-level", "warning"]) == 0
    assert capsys.readouterr().err == ""


def test_the_environment_says_it_too_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("lakebed")
    before = logger.level, list(logger.handlers), logger.propagate, events.listeners()
    monkeypatch.setenv("LAKEBED_LOG_FORMAT", "text")
    monkeypatch.setenv("LAKEBED_LOG_LEVEL", "debug")
    assert main(["compact", "--only", "settle", a_table(tmp_path).path]) == 0
    assert {"commit_ended", "settled"} <= {parsed(line)["event"] for line in capsys.readouterr().err.splitlines()}
    assert (logger.level, list(logger.handlers), logger.propagate, events.listeners()) == before
    monkeypatch.setenv("LAKEBED_LOG_FORMAT", "xml")
    assert main(["compact", "--only", "settle", str(tmp_path / "t")]) == 2
    assert "LAKEBED_LOG_FORMAT is 'xml'; it must be one of text, json, off" in capsys.readouterr().err


def test_an_error_that_ends_a_command_has_the_form_of_the_log(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compact", "--only", "settle", str(tmp_path / "none"), "--log-format", "json"]) != 0
    said = json.loads(capsys.readouterr().err)
    assert (said["event"], said["level"]) == ("failed", "error")
    assert "none" in said["message"]


def test_lines_go_to_what_stderr_is_at_the_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A live display takes the place of stderr, to put lines above itself."""
    table, out = a_table(tmp_path), io.StringIO()
    end = events.listen(lambda event: monkeypatch.setattr(sys, "stderr", out))
    assert main(["compact", "--only", "settle", table.path, "--log-format", "json", "--log-level", "debug"]) == 0
    end()
    assert "settled" in out.getvalue()
