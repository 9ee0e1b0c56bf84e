"""What the page costs: answers over HTTP, and drawing in a headless Chromium, by the number of parts.

    python -m benchmarks.ui [--parts 1000 10000] [--requests 50]

The table is a log of 100 commits with parts of four levels whose ranges overlap, some with dead rows; the files of its parts are
holes of the right size. ``look`` is all that is worked out for a new version, off the request's thread. An answer is timed from a
new connection to its last byte: warm, then while looks go on without a pause, then as a browser asks that has it already (304).
``drawn`` runs from the call of the page to the bars on the screen; ``paint`` is the time within the canvas, again for zooming in.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import quote, urlsplit

import lakebed
from benchmarks.scrape import SCHEMA
from benchmarks.workload import median, p95, table
from lakebed.log.actions import AddPart, CommitInfo, Part
from lakebed.log.conflicts import BLIND
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.table_log import Committed
from lakebed.table import internals_of
from lakebed.ui.pages import PageServer
from lakebed.ui.watch import Watched
from tests.infra.chromium import browser
from tests.planning.tables import part

COMMITS = 100
ANSWERS = ("tables", "table", "levels", "timeline", "part")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--requests", type=int, default=50)
    args = parser.parse_args()
    looks: list[list[object]] = []
    answers: list[list[object]] = []
    drawn: list[list[object]] = []
    for count in args.parts:
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, "large"))
            many_parts(Path(path), count)
            looks.append([f"{count:,}", *looked(path)])
            server = PageServer([path], "127.0.0.1", 0, 2.0)
            server.start()
            try:
                answers += [[f"{count:,}", *row] for row in answered(server.url, path, args.requests)]
                drawn.append([f"{count:,}", *painted(server.url, path)])
            finally:
                server.close()
    table("A look, milliseconds", ["parts", "first", "again", "nothing new"], looks)
    heads = ["parts", "answer", "bytes", "gzip", "median", "p95", "p95 beside looks", "304 median"]
    table("An answer, milliseconds", heads, answers)
    table("Chromium, milliseconds", ["parts", "drawn", "paint", "paint closer"], drawn)


def many_parts(folder: Path, count: int) -> lakebed.Table:
    """A table of so many parts, added by ``COMMITS`` commits."""
    made = lakebed.create(folder, SCHEMA, keys=["key"])
    rng = random.Random(1)
    parts = [_one(rng, number) for number in range(count)]
    (folder / "_lakebed").mkdir(exist_ok=True)
    for each in parts:
        with (folder / each.path).open("wb") as file:
            file.truncate(each.bytes)
    log = internals_of(made).log
    snapshot = log.refresh()
    for start in range(COMMITS):
        outcome = log.commit(
            snapshot,
            [AddPart(each) for each in parts[start::COMMITS]],
            CommitInfo(operation="WRITE", commit_id=""),
            BLIND,
        )
        assert isinstance(outcome, Committed)
        snapshot = outcome.snapshot
    log.write_checkpoint(snapshot)
    return made


def _one(rng: random.Random, number: int) -> Part:
    low = rng.randrange(10**6)
    dead = rng.choice([0, 0, 0, 100, 600])
    placed = {"level": rng.randrange(4), "min_block": -1, "max_block": -1}
    made = part(f"_lakebed/{number:08}-0000-4000-8000-000000000000.parquet", low, low + rng.randrange(2000), **placed)
    vector = DeletionVector(storage="i", path_or_inline="x", offset=None, bytes=40, dead_rows=dead) if dead else None
    return replace(made, sort_key_version=1, modified_ms=int(time.time() * 1000), deletion_vector=vector)


def looked(path: str) -> list[object]:
    """A first look, one at a new version, one when nothing is new."""
    watched = Watched(path, path, 1.0)
    times = []
    for is_due in (True, True, False):
        started = time.perf_counter()
        watched._seen = watched._look(is_due)
        times.append((time.perf_counter() - started) * 1000)
    return list(times)


def answered(url: str, path: str, requests: int) -> list[list[object]]:
    targets = {name: f"/api/{name}?path={quote(path, safe='')}" for name in ANSWERS}
    while b'"figures":null' in _ask(url, targets["table"])[2]:  # the first look is not over yet
        time.sleep(0.1)
    body = _ask(url, targets["levels"])[2]
    targets["part"] += f"&id={json.loads(body)['columns']['id'][0]}"
    rows: list[list[object]] = []
    for name, target in targets.items():
        _, tag, plain = _ask(url, target)
        _, _, zipped = _ask(url, target, {"Accept-Encoding": "gzip"})
        warm = [_ask(url, target)[0] for _ in range(requests)]
        beside = _beside_looks(path, lambda target=target: [_ask(url, target)[0] for _ in range(requests)])
        known = [_ask(url, target, {"If-None-Match": tag})[0] for _ in range(requests)]
        rows.append([name, len(plain), len(zipped), median(warm), p95(warm), p95(beside), median(known)])
    return rows


def _beside_looks(path: str, work: Callable[[], list[float]]) -> list[float]:
    """Does the work while another thread looks at the table again and again."""
    done = threading.Event()
    watched = Watched(path, path, 1.0)

    def look() -> None:
        while not done.is_set():
            watched._look(True)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        return work()
    finally:
        done.set()
        thread.join()


def _ask(url: str, target: str, headers: dict[str, str] | None = None) -> tuple[float, str, bytes]:
    """Milliseconds, the tag, the body."""
    started = time.perf_counter()
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    connection.request("GET", target, headers=headers or {})
    answer = connection.getresponse()
    body = answer.read()
    elapsed = (time.perf_counter() - started) * 1000
    connection.close()
    return elapsed, answer.headers["ETag"], body


def painted(url: str, path: str) -> list[object]:
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1280, "height": 900})
        page.goto(url)
        page.locator(".cards a").first.wait_for()
        started = time.perf_counter()
        page.goto(f"{url}?again#/table/{quote(path, safe='')}")
        canvas = page.locator("canvas[data-bars]")
        canvas.wait_for()
        drawn = (time.perf_counter() - started) * 1000
        whole = float(canvas.get_attribute("data-ms") or "nan")
        page.get_by_role("button", name="look closer").click()
        page.wait_for_timeout(300)
        return [drawn, whole, float(canvas.get_attribute("data-ms") or "nan")]


if __name__ == "__main__":
    main()
