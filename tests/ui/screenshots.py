"""Pictures of the page, for the documents: all tables, and one table.

python -m tests.ui.screenshots [--out docs/images] [--scheme light]
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Literal

from playwright.sync_api import FloatRect

from lakebed.ui.pages import PageServer
from tests.clock import Clock
from tests.infra.chromium import browser
from tests.ui.tables import batch, claim, lived_in, orders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--scheme", choices=("light", "dark"), default="light")
    parser.add_argument("--width", type=int, default=1200)
    options = parser.parse_args()
    take(options.out, options.scheme, options.width)


def take(out: Path, scheme: Literal["light", "dark"], width: int) -> list[Path]:
    """Writes ``ui-tables.png`` and ``ui-table.png``."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LAKEBED_CACHE_DIR"] = str(Path(folder, "cache"))
        lake = Path("/tmp/lake")  # what the pictures show as the tables' paths
        shutil.rmtree(lake, ignore_errors=True)
        paths = tables(lake)
        server = PageServer(paths, "127.0.0.1", 0, 2.0)
        server.start()
        try:
            with browser() as chromium:
                page = chromium.new_page(viewport={"width": width, "height": 700}, color_scheme=scheme)
                clip: FloatRect = {"x": 0, "y": 0, "width": width, "height": 0}
                page.goto(server.url)
                page.get_by_role("link", name="orders", exact=True).wait_for()
                page.wait_for_timeout(500)
                pictures = [out / "ui-tables.png", out / "ui-table.png"]
                page.screenshot(path=pictures[0], full_page=True, clip=clip | {"height": 570})
                page.get_by_role("link", name="orders", exact=True).click()
                page.locator("canvas[data-bars]").wait_for()
                page.locator(".commits tbody tr").first.wait_for()
                page.wait_for_timeout(2500)
                page.screenshot(path=pictures[1], full_page=True, clip=clip | {"height": 1820})
        finally:
            server.close()
            shutil.rmtree(lake, ignore_errors=True)
    return pictures


def tables(lake: Path) -> list[str]:
    """Five tables: two well, one with a merge under way, one whose replica died, one that is broken."""
    began = time.time() - 2_100
    clock = Clock(began)
    table = lived_in(lake / "orders", clock, batches=44, seconds=46, part_rows=1_200)
    rng = random.Random(3)
    quiet = Clock(began)
    lived_in(lake / "customers", quiet, batches=12, seconds=20, seed=2).maintenance.compact()
    lived_in(lake / "returns", Clock(began + 900), batches=5, seconds=30, seed=4)
    late = Clock(began)
    claim(lived_in(lake / "shipments", late, batches=14, seconds=30, seed=5), late, 2, 0, lease_seconds=60)
    broken = orders(lake / "stock", Clock(began))
    broken.apply(batch(rng, 0, 100, 20_700))
    Path(broken.path, "_delta_log", f"{1:020}.json").write_bytes(b"{ not JSON")
    clock.now = time.time()
    claim(table, clock, 4, 0)
    table.apply(batch(rng, 20_000, 300, 20_745))
    return [str(lake / name) for name in ("customers", "orders", "returns", "shipments", "stock")]


if __name__ == "__main__":
    main()
