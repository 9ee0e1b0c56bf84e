"""The page in a real browser: what it shows, by pointer and by keys, and that nothing from a table becomes markup."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, Route, expect

import lakebed
from benchmarks.ui import many_parts
from lakebed.coordination.failing import Parked, park
from lakebed.positions.point_log import Point, PointLog, TableAt
from lakebed.table import internals_of
from tests.clock import Clock
from tests.ui import live_page
from tests.ui.conftest import Serve, ServeDatabase
from tests.ui.tables import batch, claim, lived_in
from tests.ui.watched_page import TIMEOUT_MS, watched_page

pytestmark = pytest.mark.slow
expect.set_options(timeout=TIMEOUT_MS)
SCRIPT = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
COUNT_STROKES = """
  window.strokes = window.pictures = 0;
  const pen = CanvasRenderingContext2D.prototype;
  for (const name of ["fillRect", "strokeRect", "fillText", "measureText"]) {
    const act = pen[name];
    pen[name] = function (...given) { strokes += 1; return act.apply(this, given); };
  }
  const scale = pen.scale;
  pen.scale = function (...given) { pictures += 1; return scale.apply(this, given); };
"""


@pytest.fixture
def page(chromium: Browser) -> Iterator[Page]:
    with watched_page(chromium, ["503 (Service Unavailable)"]) as opened:  # the answer for the levels of a broken table
        yield opened


def test_a_database_is_a_row_a_table_and_a_line_with_its_newest_point(
    serve_database: ServeDatabase, page: Page, tmp_path: Path
) -> None:
    orders, customers = (
        lived_in(tmp_path / f"shop/public/{name}", Clock(1_790_000_000.0), batches=1) for name in ("a", "b")
    )
    park(internals_of(customers).log, Parked(error=SCRIPT, kind="InvalidSchema", since_ms=1_790_000_000_000))
    points, at = PointLog.of(str(tmp_path / "shop")), TableAt(version=orders.version, table_id="")
    points.create()
    points.take(
        Point(number=7, time_ms=1_790_000_000_000, transaction="9", tables={"public.a": at}, left_out={"b": SCRIPT})
    )
    page.goto(serve_database(tmp_path / "shop").url)
    line = page.locator("p.database")
    expect(line).to_contain_text("2 tables · 1 parked · point 7")
    expect(line).to_contain_text(SCRIPT)
    expect(page.get_by_role("row").filter(has_text="public.b").first).to_contain_text("parked")
    page.get_by_role("link", name="public.a", exact=True).click()
    expect(page.locator("canvas[data-bars]")).to_be_visible()
    assert page.title() != "owned"


def test_figures_and_drawings_are_of_one_version(orders: lakebed.Table, serve: Serve, page: Page) -> None:
    asked = 0

    def of_another_version_at_first(route: Route) -> None:
        nonlocal asked
        asked += 1
        answer = route.fetch(headers={**route.request.headers, "if-none-match": ""})
        whole = answer.json()
        route.fulfill(response=answer, json={**whole, "version": whole["version"] - (asked < 3)})

    page.route("**/api/levels*", of_another_version_at_first)
    page.goto(f"{serve(orders).url}#/table/{quote(orders.path, safe='')}")
    expect(page.locator("canvas[data-bars]")).to_be_visible()
    assert asked >= 3


def test_a_time_that_can_t_be_and_an_address_that_is_none_hold_up_nothing(
    orders: lakebed.Table, serve: Serve, page: Page, tmp_path: Path
) -> None:
    odd = lived_in(tmp_path / "odd", Clock(1e13), batches=1)
    url = serve(odd, orders).url
    page.goto(f"{url}#/table/%")
    expect(page.get_by_text("This table is not shown here")).to_be_visible()
    page.get_by_role("link", name="All tables").click()
    expect(page.get_by_role("row").filter(has_text="orders").first).to_contain_text("healthy")


def test_a_table_is_shown_from_the_overview_to_the_details_of_a_commit(
    orders: lakebed.Table, serve: Serve, page: Page
) -> None:
    claim(orders, Clock(time.time()), 2, 5)
    page.goto(serve(orders).url)
    row = page.get_by_role("row").filter(has_text="orders").first
    expect(row).to_contain_text("healthy")
    expect(row).to_contain_text(f"{orders.inspect.detail()['rows'][0].as_py():,}")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("heading", name="orders")).to_be_visible()
    parts = orders.inspect.parts().to_pylist()

    canvas = page.locator("canvas")
    expect(canvas).to_have_attribute("data-bars", str(len(parts)))
    canvas.focus()
    for _ in parts:
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowDown")
    expect(page.locator(".tip")).to_contain_text("_lakebed/")
    told = page.locator(".tip").inner_text()
    [part] = [part for part in parts if part["path"] in told]
    assert f"{part['rows']:,}, {part['dead_rows']:,} dead" in told.replace("\n", " ")
    page.keyboard.press("+")
    page.keyboard.press("Escape")
    expect(page.locator(".tip")).to_be_hidden()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 90, box["y"] + 10)
    page.mouse.move(box["x"] + 100, box["y"] + 9)

    merges = page.get_by_role("region", name="Running merges")
    expect(merges).to_contain_text("worker-2")
    expect(merges).to_contain_text("about")
    expect(page.get_by_text("parts under a live claim")).to_be_visible()
    assert "now" in (page.locator("svg.curve").nth(1).get_attribute("aria-label") or "")

    page.get_by_label("Operation").select_option("MERGE")
    commits = page.locator(".commits tbody tr")
    merged = orders.inspect.compactions().to_pylist()
    expect(commits).to_have_count(len(merged))
    commits.first.get_by_role("button", name="MERGE").press("Enter")
    expect(page.locator(".details")).to_contain_text(merged[0]["why"])
    expect(commits.first.get_by_role("button")).to_be_focused()

    orders.delete("amount < 50000")
    orders.settle()
    expect(page.locator("dl.figures")).to_contain_text(str(orders.version))


def test_what_a_table_is_called_and_holds_is_text(serve: Serve, page: Page, tmp_path: Path) -> None:
    schema = pa.schema([pa.field("<b>id", pa.string(), nullable=False)])
    table = lakebed.create(tmp_path / SCRIPT.replace("/", "÷"), schema, keys=["<b>id"])
    table.apply(pa.table({"<b>id": [SCRIPT, "z" + SCRIPT]}, schema))
    table.settle()
    broken = lakebed.create(tmp_path / "broken", schema, keys=["<b>id"])
    Path(broken.path, "_delta_log", f"{0:020}.json").write_text('{"' + SCRIPT)
    served = serve(table, broken)
    page.goto(served.url)
    expect(page.get_by_text("critical").first).to_be_visible()
    page.locator(".cards a").first.click()
    page.locator(".cards a").first.wait_for(state="detached")
    page.goto(f"{served.url}#/table/{quote(table.path, safe='')}")
    expect(page.locator("canvas")).to_have_attribute("data-bars", "1")
    page.locator("canvas").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(".tip")).to_contain_text("<script>")
    expect(page.locator(".head")).to_contain_text("keys <b>id")
    expect(page.locator("h1")).to_contain_text("<script>")
    assert page.locator("main script, main img").count() == 0
    assert page.title() != "owned"


def test_a_table_that_breaks_while_it_is_shown_says_why(orders: lakebed.Table, serve: Serve, page: Page) -> None:
    page.goto(f"{serve(orders).url}#/table/{quote(orders.path, safe='')}")
    expect(page.locator("dl.figures")).to_be_visible()
    file = Path(orders.path, "_delta_log", f"{orders.version + 1:020}.json")
    file.write_bytes(b"{ not JSON")
    expect(page.locator(".finding.critical")).to_contain_text("can't be read")
    expect(page.locator("dl.figures")).to_be_hidden()
    file.unlink()
    expect(page.locator("dl.figures")).to_be_visible()


def test_it_fits_a_phone_and_the_dark(orders: lakebed.Table, serve: Serve, page: Page) -> None:
    served = serve(orders)
    page.set_viewport_size({"width": 360, "height": 740})
    page.emulate_media(color_scheme="dark")
    for target in ("", f"#/table/{quote(orders.path, safe='')}"):
        page.goto(served.url + target)
        page.get_by_text("healthy").first.wait_for()
        page.wait_for_timeout(500)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, target
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"


def test_ten_thousand_parts_are_drawn_in_a_moment(serve: Serve, page: Page, tmp_path: Path) -> None:
    many_parts(tmp_path / "large", 10_000)
    served = serve(str(tmp_path / "large"), interval=2.0)
    sizes = {
        name: len(served.ask(f"/api/{name}?path={quote(str(tmp_path / 'large'), safe='')}")[1])
        for name in ("table", "levels", "timeline")
    }
    assert sizes["levels"] < 1_000_000 and sizes["table"] < 100_000 and sizes["timeline"] < 500_000, sizes
    page.add_init_script(COUNT_STROKES)
    page.goto(f"{served.url}#/table/{quote(str(tmp_path / 'large'), safe='')}")
    canvas = page.locator("canvas")
    expect(canvas).to_have_attribute("data-bars", "10000")
    strokes, pictures = page.evaluate("[strokes, pictures]")
    assert 10_000 <= strokes / pictures <= 10_000 + 2 * 1_200, "each bar once, and the depth of each pixel"
    page.get_by_role("button", name="look closer").click()
    expect(canvas).not_to_have_attribute("data-bars", "10000")


def test_what_a_reader_does_survives_new_versions(chromium: Browser, serve: Serve, tmp_path: Path) -> None:
    tables = live_page.make(tmp_path)
    url = serve(*tables, interval=0.5).url
    rng = random.Random(5)
    with live_page.writing(tables, 0.2, merges=False):
        for table in tables:
            page = chromium.new_page(viewport={"width": 1200, "height": 900})
            reader = live_page.Reader(page, url, table)
            reader.round(rng, 2, merges=False)
            before = reader.memory()
            for _ in range(2):
                reader.round(rng, 4, merges=False)
            after = reader.memory()
            assert not reader.complaints
            assert after.nodes - before.nodes < live_page.NODES_GROWTH_MAX, (before, after)
            assert after.heap_bytes - before.heap_bytes < live_page.HEAP_GROWTH_MAX, (before, after)
            page.close()


def test_an_opened_commit_stays_however_many_come_after_it(orders: lakebed.Table, serve: Serve, page: Page) -> None:
    page.goto(f"{serve(orders).url}#/table/{quote(orders.path, safe='')}")
    page.locator(".commits button.row").first.click()
    opened = page.locator(f"#commit-{orders.version}")
    for number in range(60):
        orders.apply(batch(random.Random(number), 90_000 + number, 1, 20_800))
    newest = page.locator(".commits tbody tr").first
    expect(newest).to_contain_text(f"{orders.version:,}")
    expect(page.locator(".commits button.row")).to_have_count(51)
    expect(opened).to_be_visible()
    page.locator(".commits button.row[aria-expanded=true]").click()
    expect(page.locator(".commits button.row")).to_have_count(50)


def test_the_sickest_table_is_first_and_search_finds_tables(serve: Serve, page: Page, tmp_path: Path) -> None:
    well = [lived_in(tmp_path / name, Clock(time.time()), batches=1) for name in ("alpha", "beta")]
    broken = lived_in(tmp_path / "zulu", Clock(time.time()), batches=1)
    Path(broken.path, "_delta_log", f"{1:020}.json").write_bytes(b"{ not JSON")
    page.goto(serve(*well, broken).url)
    names = page.locator(".cards tbody th a")
    expect(names).to_have_text(["zulu", "alpha", "beta"])
    page.get_by_role("link", name="runbook").first.click()
    expect(page.locator(".runbook pre")).to_contain_text("lakebed verify")
    page.get_by_role("link", name="All tables").click()
    page.get_by_label("Search").fill("beta HEALTHY")
    expect(names).to_have_text(["beta"])
    names.first.click()
    expect(page.get_by_role("heading", name="beta")).to_be_visible()
    page.go_back()
    expect(names).to_have_text(["beta"])
    expect(page.locator("#about")).to_contain_text(f"lakebed {lakebed.__version__}")
    expect(page.locator("#about")).to_contain_text("times in")


def test_claims_are_shown_on_request(orders: lakebed.Table, serve: Serve, page: Page) -> None:
    claim(orders, Clock(time.time()), 2, 5)
    page.goto(f"{serve(orders).url}#/table/{quote(orders.path, safe='')}")
    rows = page.locator(".commits tbody tr")
    expect(rows.first).to_be_visible()
    expect(rows.filter(has_text="CLAIM")).to_have_count(0)
    page.get_by_label("show claims").check()
    expect(rows.filter(has_text="CLAIM").first).to_be_visible()
    page.get_by_label("Operation").select_option("CLAIM")
    page.get_by_label("show claims").uncheck()
    expect(page.get_by_label("Operation")).to_have_value("")


def test_a_batch_that_comes_in_is_seen_without_reloading(orders: lakebed.Table, serve: Serve, page: Page) -> None:
    page.goto(serve(orders).url)
    expect(page.locator("td[data-label='Tail rows']")).to_have_text("0")
    orders.apply(batch(random.Random(1), 90_000, 25, 20_800))
    expect(page.locator("td[data-label='Tail rows']")).to_have_text("25")
