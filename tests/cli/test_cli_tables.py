"""Tables on a terminal: they fit its width, whatever they hold, and numbers and times are never cut."""

from __future__ import annotations

import datetime
import io
import json
import re
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from rich.cells import cell_len

import lakebed
from lakebed.cli import exit_codes, main, views
from lakebed.cli.text_table import Column, fold, lay_out
from lakebed.cli.views import columns_of, human
from lakebed.view.metadata_tables import CLAIMS_SCHEMA, COMPACTIONS_SCHEMA

WIDTHS = [80, 100, 120, 200]
TEXT = "東京タワー 👩‍👧 naïve " * 30
PRICE = Decimal("12345678901234567890123456.0123456789")
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("day", pa.string()),
        ("price", pa.decimal128(38, 10)),
        ("text", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("raw", pa.binary()),
        ("tags", pa.map_(pa.string(), pa.list_(pa.int32()))),
        ("nested", pa.struct([("a", pa.struct([("größe", pa.string())]))])),
        ("none", pa.float64()),
    ]
)
COMMANDS = {
    "parts": "state level rows dead size partition file versions sort_key",
    "commits": "version time_utc operation metrics",
    "merges": "version time_utc kind level parts rows size took replica why",
    "clustering": "level parts constant unsorted overlaps depth max_depth parts_by_depth waiting reads",
    "plan": "what level parts size depth rows partition",
    "detached": "name partition rows size parts detached_utc",
}
NEVER_LEFT_OUT = {
    "parts": "state level rows dead size partition file",
    "commits": "version time_utc operation metrics",
    "merges": "version time_utc level parts size took",
    "clustering": "level parts constant unsorted overlaps depth max_depth",
    "plan": "what level parts size depth",
    "detached": "name partition rows size",
}


def words(kind: str) -> tuple[str, str]:
    """The command that prints a kind of rows."""
    return ("partition", "list") if kind == "detached" else ("show", kind)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def table() -> Iterator[lakebed.Table]:
    """A table with merges, a detached partition, a tail and rows of every awkward kind; its path fits into each width."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield _made(Path(folder))


def _made(folder: Path) -> lakebed.Table:
    made = lakebed.create(folder / "orders", SCHEMA, keys=["id"], partition_by=["day"])
    row = {"price": PRICE, "text": TEXT, "at": datetime.datetime(2026, 1, 31, tzinfo=datetime.UTC), "raw": b"\x00\xff"}
    nested = {"tags": [("größe", [1, 2])], "nested": {"a": {"größe": TEXT}}}
    for number in range(12):
        ids = range(number, 72, 12)
        rows = [{"id": each, "day": f"2026-01-0{1 + each // 60}", **row, **nested} for each in ids]
        made.apply(pa.Table.from_pylist(rows, SCHEMA))
        made.settle()
    made.maintenance.compact()
    made.detach_partition({"day": "2026-01-02"})
    made.apply(pa.Table.from_pylist([{"id": each, "day": "2026-01-03"} for each in range(100, 130)], SCHEMA))
    return made


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    return Printed(monkeypatch)


class Printed:
    """Runs the command on a terminal of some width; without one, off a terminal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def __call__(self, width: int | None, *arguments: str) -> list[str]:
        out = Terminal() if width else io.StringIO()
        self._monkeypatch.setenv("COLUMNS", str(width or 80))
        self._monkeypatch.setattr("sys.stdout", out)
        assert main(arguments) == exit_codes.OK
        return out.getvalue().splitlines()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("command", COMMANDS)
def test_metadata_tables_fit_the_terminal_under_whole_headers(
    command: str, width: int, table: lakebed.Table, printed: Printed
) -> None:
    lines = printed(width, *words(command), table.path)
    assert len(lines) > 2, "the table has rows"
    assert max(map(cell_len, lines)) <= width
    columns = lines[0].split()
    assert set(NEVER_LEFT_OUT[command].split()) <= set(columns) <= set(COMMANDS[command].split())
    if width == 200:
        assert columns == [name for name in COMMANDS[command].split() if name != "partition" or name in columns]
    assert set(lines[1]) == {"─"}
    if "time_utc" in columns:
        assert all(re.search(r"\b\d\d:\d\d:\d\d\b", line) for line in lines[2:])
    assert not any(re.search(r"\d\.0\b(?! [KMGT]?B| s)", line) for line in lines[2:]), "whole numbers are whole"


@pytest.mark.parametrize("width", WIDTHS)
def test_the_figures_of_one_table_are_printed_downwards(width: int, table: lakebed.Table, printed: Printed) -> None:
    lines = printed(width, "show", "figures", table.path)
    assert [line.split()[0] for line in lines] == table.inspect.detail().column_names
    assert max(map(cell_len, lines)) <= max(width, cell_len(lines[0]))
    assert printed(None, "show", "figures", table.path) == lines


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_any_kind_fit_and_numbers_stay_whole(width: int, table: lakebed.Table, printed: Printed) -> None:
    lines = printed(width, "query", table.path, "select * from orders where text is not null limit 7")
    assert max(map(cell_len, lines)) <= width
    assert sum(str(PRICE) in line for line in lines) == 7
    assert any("2026-01-31T00:00:00Z" in line for line in lines)
    narrow = printed(width, "query", table.path, "select id, price, text from orders where text is not null limit 3")
    assert narrow[0].split() == ["id", "price", "text"] and "…" in narrow[2] and str(PRICE) in narrow[2]
    assert max(map(cell_len, narrow)) <= width


def test_eight_columns_stay_a_table_and_those_without_room_are_named(
    table: lakebed.Table, printed: Printed, capsys: pytest.CaptureFixture[str]
) -> None:
    sql = 'select id, day, "at" as a, "at" as b, "at" as c, "at" as d, "at" as e, "at" as f from orders where id < 5'
    lines = printed(120, "query", table.path, sql)
    assert lines[0].split() == ["id", "day", "a", "b", "c", "d"] and max(map(cell_len, lines)) <= 120
    assert "no room for e, f; --wide prints all columns" in capsys.readouterr().err
    printed(80, "show", "clustering", table.path)
    assert "no room for " in capsys.readouterr().err


def test_a_list_that_is_cut_ends_with_a_whole_item() -> None:
    column = Column(name="metrics", cells=["rows 2,000, bytesOut 5 B, rowsMarkedDead 17"], least=16)
    assert list(lay_out([column], 36).lines)[2] == "rows 2,000, bytesOut 5 B, …"


@pytest.mark.parametrize("width", WIDTHS)
def test_three_hundred_columns_are_printed_downwards(width: int, table: lakebed.Table, printed: Printed) -> None:
    columns = ", ".join(f"{number} as column_{number}" for number in range(300))
    lines = printed(width, "query", table.path, f"select {columns} from range(2)")
    assert len(lines) == 2 * 301
    assert lines[1].split() == ["column_0", "0"] and lines[-1].split() == ["column_299", "299"]
    assert max(map(cell_len, lines)) <= width


def test_wide_prints_all_columns_and_whole_values(table: lakebed.Table, printed: Printed) -> None:
    for command in COMMANDS:
        given = json.loads(printed(80, *words(command), table.path, "--format", "json")[0])
        lines = printed(80, *words(command), table.path, "--wide")
        assert set(given) - {"stats", "inputs", "deepest", "sources"} == set(lines[0].split())
    assert TEXT.strip() in "".join(printed(80, "query", table.path, "select text from orders where id = 58", "--wide"))


def test_what_no_terminal_reads_is_not_cut(table: lakebed.Table, printed: Printed) -> None:
    assert TEXT.strip() in printed(None, "query", table.path, "select text from orders where id = 58")[2]
    file = table.inspect.parts()["path"][0].as_py().rsplit("/", 1)[-1]
    assert file in printed(None, "show", "parts", table.path)[2]


def test_bytes_are_shown_as_text_where_they_are_one(table: lakebed.Table, printed: Printed) -> None:
    sql = "select encode('größe') as a, '\\x00\\xFF'::blob as b"
    assert printed(80, "query", table.path, sql)[2].split() == ["größe", "\\u0000\\xff"]


def test_a_plan_says_why_below_its_figures(table: lakebed.Table, printed: Printed) -> None:
    lines = printed(80, "show", "plan", table.path)
    why = table.maintenance.plan()["why"][0].as_py()
    below = [line for line in lines if line.startswith("    ")]
    assert " ".join(line.strip() for line in below).startswith(why)


def test_a_run_shows_the_first_columns_of_its_rows_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    from lakebed.cli.output import print_first_columns

    rows = pa.table({f"column_{number}": ["a text of some length"] * 5 for number in range(9)})
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        print_first_columns(rows, out := Terminal())
        lines = out.getvalue().splitlines()
        shown = len(lines[0].split())
        assert max(map(cell_len, lines)) <= width
        assert (lines[-1] == f"({shown} of 9 columns)") == (shown < 9) and (width > 150) == (shown == 9)


NOW = datetime.datetime(2026, 11, 22, 15, tzinfo=datetime.UTC)


def test_values_are_written_for_people() -> None:
    noon = NOW.replace(hour=12)
    assert human("timestamp", noon, NOW) == "12:00:00"
    assert human("timestamp", noon - datetime.timedelta(days=1), NOW) == "11-21 12:00:00"
    assert human("timestamp", noon.replace(year=2025), NOW) == "2025-11-22 12:00:00"
    values = [("seconds", 1.9), ("seconds", 0.128), ("seconds", 200.0), ("seconds", 7300.0), ("bytes_in", 171880)]
    assert [human(*each, NOW) for each in values] == ["1.9 s", "0.13 s", "3.3 min", "2.0 hours", "171.9 KB"]
    assert (
        human("metrics", {"rows": 2000.0, "bytesOut": 5.0, "ratio": 0.25}, NOW)
        == "rows 2,000, bytesOut 5 B, ratio 0.25"
    )
    assert [human("x", each, NOW) for each in (None, 10**7, 3.0, True)] == ["", "10,000,000", "3", "yes"]


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_with_long_texts_and_great_numbers_fit(width: int) -> None:
    claim = {
        "id": "bac26cba-a7a0-48f4-9306-78c47e0f6296", "replica": "a-rather-long-host-name-13907-df841b15", "kind": "volatile",
        "state": "expired", "since": NOW.replace(day=1), "lease_until": NOW.replace(day=1), "level": 3, "parts": 1000,
        "rows": 10**10, "bytes": 10**10, "left": 100, "sources": ["x"] * 1000,
    }  # fmt: skip
    merge = {
        "version": 10**6, "timestamp": NOW.replace(day=1), "operation": "upload", "level": 3, "parts_in": 128, "parts_out": 10,
        "rows_out": 10**10, "bytes_in": 10**11, "bytes_out": 10**11, "seconds": 7300.0, "why": TEXT,
    }  # fmt: skip
    file = {
        "path": f"day=2026-01-31/{'x' * 200}.parquet",
        "bytes": 10**10,
        "reason": "orphan" * 9,
        "modified": NOW.replace(day=1),
    }
    refused = {
        "position": "a.long.topic.of.orders-120-" + "9" * 18,
        "time": NOW,
        "key": TEXT,
        "value": TEXT,
        "reason": TEXT,
    }
    reason = {"reason": TEXT, "records": 10**9, "newest": NOW.replace(year=2025)}
    for view, row, schema in (
        (views.CLAIMS, claim, CLAIMS_SCHEMA),
        (views.COMPACTIONS, merge, COMPACTIONS_SCHEMA),
        (views.FILES, file, None),
        (views.QUARANTINE, refused, None),
        (views.REASONS, reason, None),
    ):
        columns, below = columns_of(pa.Table.from_pylist([row], schema), view, NOW)
        lines = list(lay_out(columns, width, below).lines)
        assert set(lines[1]) == {"─"}, "it is a table"
        assert max(map(cell_len, lines)) <= width


@pytest.mark.parametrize("width", [20, 33, 80])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    texts = ["", "a", TEXT, "x" * 1000, "東" * 500, "👍🏽" * 90, "e\u0301" * 300, "a " * 400, " lead", "two  spaces"]
    columns = [
        Column(name="名前" * 10, cells=texts, least=4),
        Column(name="n", cells=[str(10**at) for at in range(len(texts))], right=True),
    ]
    for downwards in (False, True):
        laid = lay_out(columns, width, texts, downwards=downwards)
        assert max(map(cell_len, laid.lines)) <= width
        assert not laid.is_whole
    for text in texts:
        assert max(map(cell_len, fold(text, width))) <= width
        assert "".join(fold(text, width)).replace(" ", "") == text.replace(" ", "")
