"""A table page in a real browser while another process writes to the table: what a reader does with the page survives.

    python -m tests.ui.live_page [--seconds 600]

Round by round a reader zooms in, points at a part, opens a commit, chooses an operation and marks a text. Some versions later all
of it must be as it was. The browser's memory must not grow, and its console must stay empty. ``make soak-page`` runs it for ten
minutes, a test for some seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from playwright.sync_api import CDPSession, Page

import lakebed
from lakebed.ui.pages import PageServer
from tests.infra.chromium import browser
from tests.infra.downloads import REPOSITORY
from tests.ui.tables import SCHEMA, batch
from tests.ui.watched_page import TIMEOUT_MS
from tests.waiting import Patience

SORT_KEYS = {"by-value": ["order_id"], "by-rank": ["region", "created"]}
ROWS = 300
VERSIONS = 6
HEAP_GROWTH_MAX = 8_000_000
NODES_GROWTH_MAX = 1_500


def make(folder: Path) -> list[lakebed.Table]:
    """Two tables, one on an axis of values and one on an axis of ranks, each with some parts."""
    made = []
    for name, sort_key in SORT_KEYS.items():
        table = lakebed.create(folder / name, SCHEMA, keys=["order_id"], sort_key=sort_key)
        rng = random.Random(1)
        for number in range(6):
            table.apply(batch(rng, number * ROWS, ROWS, 20_700 + number))
            table.settle()
        made.append(table)
    return made


def write(paths: list[str], pause_seconds: float, merges: bool) -> None:
    """Batches without end, each settled; with deletes, and merges if wanted."""
    tables, rng = [lakebed.open(path) for path in paths], random.Random(2)
    number = 6
    while True:
        for table in tables:
            changes = batch(rng, number * ROWS, ROWS, 20_700 + number)
            ops = pa.array(["d" if rng.random() < 0.05 else "u" for _ in range(len(changes))])
            table.apply(changes.append_column("op", ops), apply_as_deletes="op = 'd'")
            table.settle()
            if merges:
                table.maintenance.compact()
        number += 1
        time.sleep(pause_seconds)


@contextmanager
def writing(tables: list[lakebed.Table], pause_seconds: float, merges: bool) -> Iterator[None]:
    """Another process that writes to the tables until the block ends."""
    command = [sys.executable, "-m", "tests.ui.live_page", "--write", *(table.path for table in tables)]
    command += ["--pause", str(pause_seconds), *(["--merges"] if merges else [])]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.DEVNULL) as process:
        try:
            yield
            assert process.poll() is None, "the writer has ended"
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class Memory:
    heap_bytes: int
    nodes: int
    listeners: int


class Reader:
    """Uses the page of one table, and says what of that is lost."""

    def __init__(self, page: Page, url: str, table: lakebed.Table) -> None:
        self.page = page
        page.set_default_timeout(TIMEOUT_MS)
        self.complaints: list[str] = []
        page.on(
            "console", lambda message: message.type in ("error", "warning") and self.complaints.append(message.text)
        )
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(f"{url}#/table/{quote(table.path, safe='')}")
        self.canvas = page.locator("canvas[data-bars]")
        self.canvas.wait_for()
        page.locator(".commits tbody tr").first.wait_for()
        self._devtools: CDPSession = page.context.new_cdp_session(page)

    def round(self, rng: random.Random, versions: int, merges: bool) -> str:
        """Do what a reader does, wait for some versions, and compare. Returns what the reader pointed at."""
        page = self.page
        if (values := page.get_by_role("button", name="make distances those of values")).is_visible():
            values.click()
        page.get_by_label("Operation").select_option("SETTLE")
        page.locator(".commits tbody button.row[aria-expanded=false]").first.click()
        page.evaluate(_MARK)
        page.get_by_role("button", name="show the whole sort key").click()
        for _ in range(rng.randrange(1, 3)):
            page.get_by_role("button", name="look closer").click()
        if rng.random() < 0.3 and (other := page.get_by_role("button", name="step")).is_visible():
            other.click()  # by rank, where there are values
        self.point(rng)
        before = self.state()
        assert not self.complaints, self.complaints
        assert before["tip_is_hidden"] is False and before["marked"] and before["selected"], before
        patience = Patience(lambda: self.state()["version"])
        while int((after := self.state())["version"]) < int(before["version"]) + versions:
            assert not patience.is_over(), "no new version was shown"
            page.wait_for_timeout(100)
        for name in ("path", "tip_is_hidden", "operation", "marked", "opened", "selected", "scrolled"):
            assert after[name] == before[name], (name, before, after)
        if before["unit"] == "value":
            assert after["view"] == before["view"], (before, after)
        elif not merges:  # else all bounds that were shown may have left
            assert after["bounds"] == before["bounds"], (before, after)
        if not merges:
            assert "gone" not in after["tip"] and "gone" not in before["tip"], after
        page.locator(".commits button.row[aria-expanded=true]").click()
        page.get_by_label("Operation").select_option("")
        return str(after["path"])

    def point(self, rng: random.Random) -> None:
        """Point at some part, by the pointer or by keys, until the page says which it is."""
        told = self.page.locator(".tip:not([hidden]) dd.path").filter(has_text="_lakebed/")
        by_keys = rng.random() < 0.5
        if by_keys:
            self.canvas.focus()
        while not told.count():
            box = self.canvas.bounding_box()
            assert box is not None
            if by_keys:
                self.page.keyboard.press(rng.choice(["ArrowUp", "ArrowDown", "ArrowRight"]))
            else:
                x, y = box["x"] + rng.uniform(90, box["width"] - 20), box["y"] + rng.uniform(2, box["height"] / 2)
                self.page.mouse.move(x, y)
            self.page.wait_for_function(_SAYS_WHICH_PART)

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self.page.evaluate(_STATE)
        return found

    def memory(self) -> Memory:
        """What the page holds after a garbage collection."""
        self._devtools.send("HeapProfiler.collectGarbage")
        self._devtools.send("Performance.enable")
        metrics = {one["name"]: int(one["value"]) for one in self._devtools.send("Performance.getMetrics")["metrics"]}
        return Memory(metrics["JSHeapUsedSize"], metrics["Nodes"], metrics["JSEventListeners"])


_MARK = """() => {
  const opened = document.querySelector(".details");
  opened.marked = "by the reader";
  const range = document.createRange();
  range.selectNodeContents(opened.querySelector("dd"));
  getSelection().removeAllRanges();
  getSelection().addRange(range);
}"""
_SAYS_WHICH_PART = """() => {
  const tip = document.querySelector(".tip");
  return tip.hidden || tip.querySelector(".gone") || tip.querySelector("dd.path")?.textContent.includes("_lakebed/");
}"""
_STATE = """async () => {
  await new Promise(requestAnimationFrame);  // the tip changes at once, the canvas with the next frame
  const canvas = document.querySelector("canvas");
  const tip = document.querySelector(".tip");
  const opened = [...document.querySelectorAll(".details")].find((each) => each.marked);
  return {
    version: canvas.dataset.version, view: canvas.dataset.view, bounds: canvas.dataset.bounds,
    unit: document.querySelector(".levels .note").textContent.includes("distances are those of") ? "value" : "rank",
    tip: tip.innerHTML, tip_is_hidden: tip.hidden, path: tip.querySelector("dd.path")?.textContent ?? "",
    operation: document.querySelector("#operation").value, marked: opened?.marked ?? "", opened: opened?.id ?? "",
    selected: String(getSelection()), scrolled: Math.round(scrollY),
  };
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--write", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--pause", type=float, default=1.0, help=argparse.SUPPRESS)
    parser.add_argument("--merges", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write(options.write, options.pause, options.merges)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = str(Path(folder, "cache"))
        soak(Path(folder), options.seconds)


def soak(folder: Path, seconds: float) -> None:
    """Rounds on both tables in turn, each in a page of its own, until the time is over."""
    tables, rng, rounds = make(folder), random.Random(), 0
    server = PageServer([table.path for table in tables], "127.0.0.1", 0, 1.0)
    server.start()
    try:
        with writing(tables, 0.5, merges=True), browser() as chromium:
            readers = [Reader(chromium.new_page(), server.url, table) for table in tables]
            began, first = time.monotonic(), []
            while time.monotonic() - began < seconds:
                for reader in readers:
                    reader.page.bring_to_front()
                    reader.round(rng, VERSIONS, merges=True)
                    rounds += 1
                if not first and time.monotonic() - began > seconds / 5:
                    first = [reader.memory() for reader in readers]
            last = [reader.memory() for reader in readers]
    finally:
        server.close()
    for table, reader, early, late in zip(tables, readers, first, last, strict=True):
        print(f"{Path(table.path).name}: version {table.version}, {early} after a fifth of the time, {late} at the end")
        assert not reader.complaints, reader.complaints
        assert late.heap_bytes - early.heap_bytes <= HEAP_GROWTH_MAX, (early, late)
        assert late.nodes - early.nodes <= NODES_GROWTH_MAX, (early, late)
    print(
        f"{rounds} rounds in {time.monotonic() - began:,.0f} s: tip, zoom, choice and selection survived, no complaint"
    )


if __name__ == "__main__":
    main()
