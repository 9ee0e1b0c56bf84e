"""The page of a database: a row for each of its tables, also of those that are made later, parked or damaged."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.coordination.failing import Parked, park
from lakebed.events import SourceLagged
from lakebed.health.run_report import Down, RunReport, Waiting, said_here
from lakebed.positions.point_log import Point, PointLog, TableAt
from lakebed.positions.verified import Verified, note_verified
from lakebed.table import internals_of
from lakebed.ui import members, watch
from lakebed.ui.documents import Live
from tests.ui.conftest import Served, ServeDatabase
from tests.waiting import wait_until

ROWS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture(autouse=True)
def _lists_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "LIST_SECONDS", 0.0)


def made(database: Path, *names: str) -> list[lakebed.Table]:
    tables = [lakebed.create(database / "public" / name, ROWS, keys=["id"]) for name in names]
    for table in tables:
        table.apply(pa.table({"id": [1, 2], "name": ["a", "b"]}, ROWS))
    return tables


def rows(page: Served) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in page.json("/api/tables")["tables"]}


def test_all_tables_of_a_database_are_listed_and_each_has_a_page(tmp_path: Path, serve_database: ServeDatabase) -> None:
    orders, _ = made(tmp_path, "orders", "customers")
    page = serve_database(tmp_path)
    found = wait_until(lambda: len(now := rows(page)) == 2 and now)
    assert sorted(found) == ["public.customers", "public.orders"]
    one = found["public.orders"]
    assert (one["severity"], one["error"], one["is_parked"]) == ("ok", None, False)
    assert (one["figures"]["tail_rows"], one["figures"]["rows"], one["figures"]["version"]) == (2, 0, orders.version)
    assert page.of("table", one["path"])["figures"]["version"] == orders.version
    shown = Verified(time_ms=1_800_000_000_000, outcome="equal", position="0/1", version=orders.version)
    note_verified(internals_of(orders).log, shown)
    orders.settle()
    one = wait_until(lambda: (now := rows(page)["public.orders"])["figures"]["rows"] == 2 and now)
    assert (one["verified"], one["verified_ms"]) == ("equal to the source at 0/1", shown.time_ms)


def test_tables_come_and_go(tmp_path: Path, serve_database: ServeDatabase) -> None:
    page = serve_database(tmp_path)
    assert rows(page) == {}
    made(tmp_path, "orders", "customers")
    wait_until(lambda: sorted(rows(page)) == ["public.customers", "public.orders"])
    shutil.rmtree(tmp_path / "public/orders")
    wait_until(lambda: sorted(rows(page)) == ["public.customers"])


def test_a_parked_table_and_a_damaged_one_say_why_and_the_others_are_shown(
    tmp_path: Path, serve_database: ServeDatabase
) -> None:
    orders, customers, _ = made(tmp_path, "orders", "customers", "reviews")
    park(
        internals_of(orders).log,
        Parked(error="no column is like that", kind="InvalidSchema", since_ms=1_800_000_000_000),
    )
    Path(customers.path, "_delta_log", f"{customers.version:020}.json").write_text("no commit")
    page = serve_database(tmp_path)
    found = wait_until(lambda: (now := rows(page)).get("public.orders", {}).get("is_parked") and now)
    [finding] = found["public.orders"]["findings"]
    assert (finding["check"], finding["severity"], finding["runbook"]) == ("parked", "critical", "LakebedTableParked")
    assert "since 2027-01-15 08:00:00 UTC: no column is like that" in finding["what"]
    assert finding["remedy"] == f"remove the cause, then lakebed resume {orders.path}"
    assert found["public.customers"]["severity"] == "critical"
    assert found["public.reviews"]["severity"] == "ok"
    assert "parked" in [each["check"] for each in page.of("table", orders)["findings"]], "as its own page says it"
    orders.maintenance.resume()
    wait_until(lambda: rows(page)["public.orders"]["severity"] == "ok")


def test_the_newest_point_is_shown_with_what_is_left_out(tmp_path: Path, serve_database: ServeDatabase) -> None:
    made(tmp_path, "orders")
    page = serve_database(tmp_path)
    wait_until(lambda: len(rows(page)) == 1)
    [database] = page.json("/api/tables")["databases"]
    assert (database["tables"], database["parked"], database["point"]) == (1, 0, None)
    points = PointLog.of(str(tmp_path))
    points.create()
    at = TableAt(version=1, table_id="t")
    left_out = {"public.audit": "it is parked"}
    points.take(
        Point(number=7, time_ms=1_800_000_000_000, transaction="9", tables={"public.orders": at}, left_out=left_out)
    )
    expected = {"number": 7, "time_ms": 1_800_000_000_000, "left_out": left_out}
    wait_until(lambda: page.json("/api/tables")["databases"][0]["point"] == expected)
    assert sorted(rows(page)) == ["public.orders"], "the log of the points is no table"


def test_the_lag_of_each_table_is_shown_beside_the_run(tmp_path: Path, serve_database: ServeDatabase) -> None:
    orders, _ = made(tmp_path, "orders", "customers")
    live = Live(time.time)
    page = serve_database(tmp_path, live)
    live(SourceLagged(table=orders.path, topic="shop.public.orders", records=7))
    wait_until(lambda: rows(page).get("public.orders", {}).get("unread") == 7)
    assert rows(page)["public.customers"]["unread"] is None


def test_what_the_run_here_says_is_shown_though_the_store_does_not_answer(
    tmp_path: Path, serve_database: ServeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "orders")
    page, hangs = serve_database(tmp_path), threading.Event()
    wait_until(lambda: len(rows(page)) == 1)
    monkeypatch.setattr(members, "tables_below", lambda path: hangs.wait())
    now_ms, waiting = int(time.time() * 1000), (Waiting(name="public.orders", state="waiting", error="no answer"),)
    here = RunReport(host="here", pid=1, roles=("ingest", "maintain"), at_ms=now_ms, tables=waiting)
    monkeypatch.setitem(said_here, str(tmp_path), replace(here, down=(Down("store", "no answer", now_ms),)))
    [database] = page.json("/api/tables")["databases"]
    assert [each["check"] for each in database["findings"]] == ["store"]
    monkeypatch.setitem(said_here, str(tmp_path), here)
    assert page.json("/api/tables")["databases"][0]["findings"] == []
    hangs.set()


def test_only_the_tables_that_were_looked_at_last_are_watched_closely(
    tmp_path: Path, serve_database: ServeDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WATCHED_MAX", 2)
    tables = made(tmp_path, *(f"t{number}" for number in range(4)))
    page = serve_database(tmp_path)
    wait_until(lambda: len(rows(page)) == 4)
    for table in [*tables, tables[0]]:
        assert page.of("table", table)["figures"]["version"] == table.version
    assert page.ask("/api/table?path=nowhere")[0].status == 404
