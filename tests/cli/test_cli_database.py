"""``lakebed status`` and ``lakebed resume`` of a database, and what a run of one shows."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

import lakebed
from lakebed.cli import main
from lakebed.cli import run_display as run
from lakebed.cli.run_display import line, panel
from lakebed.coordination.failing import Parked, park, parked_of
from lakebed.discovery import tables_below
from lakebed.ingest.database_batch import TableStanding
from lakebed.monitoring.progress import Progress
from lakebed.pipeline.database.work import DatabaseState
from lakebed.pipeline.run import Look
from lakebed.pipeline.settings import parse_any
from tests.internals import log_of

GONE = Parked(error="the topic was deleted", kind="DataLoss", since_ms=1_700_000_000_000, failures=2)
SHOP = """
database: {path: lake/shop}
source: {kind: kafka, topic_pattern: "shop\\\\..*", config: {bootstrap.servers: "nowhere:1"}}
format: debezium-json
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Three tables, of which two are parked; and what is no table."""
    for name in ("public/orders", "public/items", "sales/regions"):
        lakebed.create(tmp_path / name, pa.schema([("id", pa.int64())]))
    for name in ("public/orders", "sales/regions"):
        assert park(log_of(lakebed.open(tmp_path / name)), GONE)
    for name in ("public/no_table/files", "_lakebed/streams", "public/orders_quarantine/_delta_log"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(each) for each in text.splitlines()]


def is_parked(path: Path) -> bool:
    return parked_of(log_of(lakebed.open(path)).refresh()) is not None


def test_the_tables_below_a_path_are_known_by_their_folders(shop: Path) -> None:
    names = ["public.items", "public.orders", "sales.regions"]
    assert tables_below(str(shop)) == {name: f"{shop}/{name.replace('.', '/')}" for name in names}
    assert tables_below(str(shop / "nowhere")) == {}


def test_status_of_a_database_lists_its_tables_and_why_some_are_parked(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", str(shop), "--format", "json"]) == 1
    found = rows(capsys.readouterr().out)
    assert [(one["table"], one["state"]) for one in found] == [
        ("public.orders", "parked"),
        ("sales.regions", "parked"),
        ("public.items", "live"),
    ]
    assert found[0]["error"] == "the topic was deleted" and found[2]["error"] is None
    main(["status", str(shop)])
    assert "the topic was deleted" in capsys.readouterr().out


def test_status_of_a_folder_lists_the_tables_that_lie_in_it_too(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lakebed.create(shop / "plain", pa.schema([("id", pa.int64())]))
    main(["status", str(shop), "--format", "json"])
    found = [one["table"] for one in rows(capsys.readouterr().out)]
    assert sorted(found) == ["plain", "public.items", "public.orders", "sales.regions"]


def test_the_doctor_examines_each_table_of_a_folder(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--self", str(shop)]) == 1
    said = [line.partition(":")[0] for line in capsys.readouterr().out.splitlines() if not line.startswith(" ")]
    assert said == ["public.items", "public.orders", "critical  parked", "sales.regions", "critical  parked"]
    assert main(["resume", str(shop)]) == main(["verify", "--self", str(shop)]) == 0
    for entry in (shop / "public/orders/_delta_log").glob("*.json"):
        entry.unlink()
    assert main(["verify", "--self", str(shop)]) == 1
    told = capsys.readouterr()
    assert "public.orders can't be examined" in told.err and "public.items: version" in told.out


@pytest.mark.parametrize("command", ["show parts", "query", "compact", "alter", "source positions", "status --deep"])
def test_a_command_for_one_table_names_those_of_a_folder(
    command: str, shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), str(shop), *(["select 1"] if command == "query" else [])]) == 2
    said = capsys.readouterr().err
    assert "there are tables below it: " in said and f"{shop}/public/items, " in said and said.count("\n") == 1


def test_resume_takes_a_table_all_tables_or_some(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["resume", str(shop), "sales.regions"]) == 0
    assert is_parked(shop / "public/orders") and not is_parked(shop / "sales/regions")
    assert "sales.regions is resumed" in capsys.readouterr().out
    assert main(["resume", str(shop / "public/orders")]) == 0
    assert not is_parked(shop / "public/orders")
    assert main(["resume", str(shop)]) == 0
    assert "nothing is parked" in capsys.readouterr().out
    assert lakebed.open(shop / "public/items").maintenance.resume() is False
    assert main(["status", str(shop)]) == 0


def test_resume_names_what_is_wrong(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, text in (
        ([str(shop), "public.order"], "there is no table public.order"),
        ([str(shop / "public/orders"), "public.orders"], "is a table"),
        ([str(shop / "nowhere")], "there is no table at"),
    ):
        assert main(["resume", *arguments]) != 0
        assert text in capsys.readouterr().err


def standing(name: str, state: str = "live", error: str = "") -> TableStanding:
    return TableStanding(f"shop.{name}", name, f"lake/shop/{name}", state, error)


def state_of(*tables: TableStanding) -> DatabaseState:
    return DatabaseState(tables=tables, rates={"public.a": 12.0}, unread=42)


def test_a_run_shows_how_many_tables_there_are_and_which_are_in_trouble() -> None:
    tables = [standing(f"public.{number:03}") for number in range(300)]
    now = state_of(*tables, standing("public.a"), standing("public.sick", "parked", "its topic is gone " * 20))
    look = Look("running", Progress("lake/shop", is_database=True).figures(), now, None)
    assert "302 tables, 1 parked · 42 records unread · public.sick parked: its topic is gone" in line(look)
    assert "visible after -, over all tables" in line(look), "the page has that of each table"
    console = Console(file=io.StringIO(), width=80, height=40)
    console.print(panel(look, parse_any(SHOP, "shop.yml", {})))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "302 tables, 1 parked" in shown and "public.a" in shown and "290 more" in shown
    assert shown.index("public.sick") < shown.index("public.a ") and len(shown.splitlines()) < 30


def test_what_changes_is_said_once() -> None:
    first = state_of(standing("public.a", "new"), standing("public.b"))
    second = state_of(standing("public.a"), standing("public.b", "parked", "gone"))
    assert list(run.news_of_database(None, first)) == ["1 table"]
    assert list(run.news_of_database(first, second)) == ["1 new table: public.a", "public.b is parked: gone"]
    assert list(run.news_of_database(second, second)) == []
    assert list(run.news_of_database(second, first)) == ["public.b goes on"]
    waiting = state_of(*(standing(f"public.{number}", "waiting", "no answer") for number in range(7)))
    names = "public.0, public.1, public.2, public.3, public.4 and 2 more"
    assert list(run.news_of_database(first, waiting)) == [f"{names} are waiting: no answer"]
    assert list(run.news_of_database(waiting, state_of(*map(standing, [one.name for one in waiting.tables])))) == [
        f"{names} go on"
    ]
