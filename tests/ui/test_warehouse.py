"""The page of a service in a real browser: an analyst finds a table, an operator sees why one lags, and starts and stops jobs."""

from __future__ import annotations

import re
import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

import lakebed
from lakebed.coordination import jobs
from lakebed.coordination.failing import Parked, park, park_merge
from lakebed.coordination.jobs import Job, jobs_of
from lakebed.errors import Corrupt
from lakebed.fleet.membership import Membership, Worker, fleet_log
from lakebed.http import Listening
from lakebed.service import survey
from lakebed.service.app import Server, Service
from lakebed.service.catalog import Catalog
from lakebed.service.job_routes import JobLoop
from lakebed.service.tokens import Role
from tests.clock import Clock
from tests.internals import log_of
from tests.service.conftest import TOKENS, tokens_for_tests
from tests.ui.tables import claim, lived_in
from tests.ui.watched_page import TIMEOUT_MS, watched_page
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
expect.set_options(timeout=TIMEOUT_MS)
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string())])


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    with watched_page(chromium, ["401 (Unauthorized)", "400 (Bad Request)", "404 (Not Found)"]) as opened:
        yield opened


@dataclass(frozen=True, slots=True)
class Served:
    url: str
    lake: Path

    def of(self, role: str) -> str:
        """The link for somebody with this role, as ``lakebed serve api`` prints it."""
        return f"{self.url}/#token={TOKENS[role]}"


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A service of ``tmp_path/lake``, which runs jobs, and where whoever has no token may read."""
    monkeypatch.setattr(survey, "LIST_SECONDS", 0.0)
    monkeypatch.setattr(survey, "PASS_SECONDS", 0.2)
    monkeypatch.setitem(TOKENS, "operator", "an-operators-token")
    monkeypatch.setitem(TOKENS, "reader", "a-readers-token")
    lake = tmp_path / "lake"
    lake.mkdir()
    catalog = Catalog([str(lake)])
    server = Server(Service(catalog, tokens_for_tests(Role.READER)), Listening(port=0))
    loop = JobLoop(catalog, pass_seconds=0.2)
    server.start()
    loop.start()
    yield Served(server.url, lake)
    loop.close()
    server.close()


def small(path: Path, **properties: str) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["id"], properties=properties)
    table.apply(pa.table({"id": [1, 2], "name": ["a", "b"]}, SCHEMA))
    table.settle()
    return table


@pytest.mark.long
def test_a_table_is_found_among_two_thousand_and_only_a_page_of_them_is_drawn(serve: Served, page: Page) -> None:
    one = small(serve.lake / "copy")
    for number in range(2_000):
        shutil.copytree(one.path, serve.lake / f"t{number:04}")
    shutil.rmtree(one.path)
    page.goto(serve.url)
    rows = page.get_by_role("table", name="Tables").locator("tbody tr")
    expect(page.get_by_text("of 2,000 tables")).to_be_visible()
    expect(rows).to_have_count(100)
    assert page.evaluate("document.querySelectorAll('*').length") < 3_000
    page.get_by_role("button", name="Table", exact=True).click()
    expect(rows.first).to_contain_text("t0000")
    page.get_by_role("button", name="Next").click()
    expect(rows.first).to_contain_text("t0100")
    page.get_by_role("button", name="Previous").click()
    page.get_by_label("Search").fill("T1234")
    expect(rows).to_have_count(1)
    page.keyboard.press("Tab")
    page.get_by_role("link", name="t1234", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="t1234")).to_be_visible()
    page.get_by_role("link", name="All tables").click()
    expect(page.get_by_label("Search")).to_have_value("T1234")
    page.get_by_label("Search").fill("no such table")
    expect(page.get_by_text("No table is found.")).to_be_visible()


def test_an_operator_sees_why_a_table_lags_who_works_and_what_is_parked(serve: Served, page: Page) -> None:
    lake = serve.lake
    late = small(lake / "late", **{"lakebed.freshness": "1 second"})
    late.apply(pa.table({"id": [3], "name": ["c"]}, SCHEMA))
    parked, failing = small(lake / "parked"), small(lake / "failing")
    park(log_of(parked), Parked(error=SCRIPT, kind="InvalidSchema", since_ms=1_790_000_000_000))
    park_merge(log_of(failing), list(log_of(failing).refresh().parts), Corrupt(f"damaged {SCRIPT}"), 4)
    merging = lived_in(lake / "merging", Clock(time.time()), batches=3)
    claim(merging, Clock(time.time()), 2, 5)
    for worker in ("vm-7-aa", "vm-8-aa"):
        Membership(fleet_log(str(lake)), Worker(id=worker, host=SCRIPT, cores=4)).beat()
    page.goto(serve.url)
    tables = page.get_by_role("table", name="Tables").locator("tbody tr")
    expect(tables.filter(has_text="parked").first).to_contain_text(SCRIPT)
    page.get_by_role("button", name="late 1").click()
    expect(tables).to_have_count(1)
    expect(tables).to_contain_text("late")
    page.get_by_role("link", name="Queue").click()
    work = page.get_by_role("table", name="Work", exact=True).locator("tbody tr")
    expect(page.get_by_role("table", name="Workers")).to_contain_text("vm-7-aa")
    expect(work.filter(has_text="merging")).to_contain_text("worker-2")
    expect(work.filter(has_text="failing")).to_contain_text(f"Corrupt: damaged {SCRIPT}")
    one_owns_it = re.compile("vm-7-aastanding by: vm-8-aa|vm-8-aastanding by: vm-7-aa")
    expect(work.filter(has_text="late")).to_contain_text(one_owns_it)
    page.get_by_role("button", name="parked 2").click()
    expect(work).to_have_count(2)
    assert page.title() != "owned"


def test_an_operator_starts_a_job_watches_it_and_a_parked_table_goes_on(serve: Served, page: Page) -> None:
    orders = small(serve.lake / "public" / "orders")
    orders.apply(pa.table({"id": [3], "name": ["c"]}, SCHEMA))
    park(log_of(orders), Parked(error="no such column", kind="InvalidSchema", since_ms=1_790_000_000_000))
    page.goto(serve.of("operator"))
    expect(page.get_by_text("operator, operator")).to_be_visible()
    assert "token" not in page.url, "the token is taken out of the address"
    page.get_by_role("link", name="public.orders", exact=True).click()
    expect(page.locator("canvas[data-bars]")).to_be_visible()
    listed = page.get_by_role("table", name="Jobs of the table").locator("tbody tr")
    for kind in ("settle", "compact", "resume"):
        page.get_by_label("Start a job").select_option(kind)
        page.get_by_role("button", name="Start", exact=True).click()
        expect(listed.filter(has_text=kind)).to_contain_text("succeeded")
    assert not log_of(lakebed.open(orders.path)).refresh().tail
    page.get_by_role("link", name="Jobs", exact=True).click()
    everywhere = page.get_by_role("table", name="Jobs").locator("tbody tr")
    expect(everywhere).to_have_count(3)
    page.get_by_label("Kind").select_option("resume")
    expect(everywhere).to_have_count(1)
    expect(everywhere).to_contain_text("resumed true")


def test_what_deletes_is_asked_for_twice_and_an_error_is_shown(serve: Served, page: Page) -> None:
    orders = small(serve.lake / "orders")
    page.goto(serve.of("operator"))
    page.get_by_role("link", name="orders", exact=True).click()
    page.get_by_label("Start a job").select_option("vacuum")
    page.get_by_label("retention").fill("nonsense")
    page.get_by_role("button", name="Start", exact=True).click()
    sure = page.get_by_role("dialog")
    expect(sure).to_contain_text("What is deleted does not come back")
    expect(sure.get_by_role("button", name="Don't")).to_be_focused()
    page.keyboard.press("Enter")
    expect(sure).to_be_hidden()
    assert jobs_of(log_of(orders).refresh()) == (), "nothing was asked for"
    page.get_by_role("button", name="Start", exact=True).click()
    sure.get_by_role("button", name="Start vacuum").click()
    listed = page.get_by_role("table", name="Jobs of the table").locator("tbody tr")
    expect(listed).to_contain_text("failed")
    page.get_by_label("Start a job").select_option("recluster")
    page.get_by_label("where").fill("no_such_column = 1")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_role("alert").filter(has_text="no_such_column")).to_be_visible()


def test_an_operator_stops_a_job_from_the_queue_and_a_reader_has_no_button(serve: Served, page: Page) -> None:
    orders = small(serve.lake / "orders")
    log = log_of(orders)
    jobs.ask(log, Job(id="d", kind="drop", by="somebody", not_before_ms=log.now_ms() + 10**9))
    page.goto(f"{serve.url}/#/queue")
    work = page.get_by_role("table", name="Work", exact=True).locator("tbody tr").filter(has_text="drop")
    expect(work).to_contain_text("its time has not come")
    expect(page.get_by_text("no token, reader")).to_be_visible()
    assert page.get_by_role("button", name="Cancel").count() == 0
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("table", name="Jobs of the table")).to_contain_text("drop")
    assert not page.get_by_label("Start a job").is_visible()
    page.get_by_role("link", name="use a token").click()
    page.get_by_label("Token").fill(TOKENS["operator"])
    page.keyboard.press("Enter")
    expect(page.get_by_text("operator, operator")).to_be_visible()
    page.get_by_role("link", name="Queue").click()
    page.get_by_role("button", name="Cancel drop of orders").click()
    wait_until(lambda: jobs_of(log_of(orders).refresh())[0].state == "cancelled")
    expect(page.get_by_text("Nothing runs, waits or is parked.")).to_be_visible()


def test_a_wrong_token_is_said_to_be_wrong_and_asked_for_again(serve: Served, page: Page) -> None:
    small(serve.lake / "orders")
    page.goto(f"{serve.url}/#token=nobodys")
    expect(page.get_by_role("alert")).to_contain_text("unknown token")
    page.get_by_label("Token").fill(TOKENS["reader"])
    page.get_by_role("button", name="Use it").click()
    expect(page.get_by_role("link", name="orders", exact=True)).to_be_visible()
    page.reload()
    expect(page.get_by_text("reader, reader")).to_be_visible()
    page.get_by_role("button", name="forget the token").click()
    expect(page.get_by_text("no token, reader")).to_be_visible()


def test_a_page_of_another_site_starts_nothing(serve: Served, page: Page) -> None:
    """Whoever is an operator in one tab gives no other site anything: no browser sends the token by itself."""
    orders = small(serve.lake / "orders")
    page.goto(serve.of("operator"))
    expect(page.get_by_text("operator, operator")).to_be_visible()
    site = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # answers 501, which is a page too
    threading.Thread(target=site.serve_forever, daemon=True).start()
    other = page.context.new_page()
    other.goto(f"http://127.0.0.1:{site.server_port}/")
    sent = other.evaluate(_ATTACK, f"{serve.url}/v1/tables/orders/jobs")
    site.shutdown()
    site.server_close()
    other.close()
    assert sent == ["refused", 0, "refused"], (
        "one that a browser sends without asking, whose answer the site does not see"
    )
    assert jobs_of(log_of(orders).refresh()) == ()


_ATTACK = """async (address) => {
  const body = JSON.stringify({ kind: "settle" });
  const tries = [{ headers: { "Content-Type": "application/json" } }, { mode: "no-cors" }, { credentials: "include" }];
  const told = [];
  for (const each of tries) {
    try { told.push((await fetch(address, { method: "POST", body, ...each })).status); } catch { told.push("refused"); }
  }
  return told;
}"""
