"""What an hour of listening to idle tables asks of the store: ``python -m benchmarks.idle_events [--tables 1000]``.

The clock of the feed is moved by a second a step, so the hour takes as long as its requests do. Files of logs are counted as they
are read; what looks for new tables is counted by the folders that are listed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter

import pyarrow as pa

from lakebed.listeners import feed as feed_module
from lakebed.listeners.feed import Feed
from lakebed.log.log_reader import LogReader
from lakebed.log.stores import LocalLogStore
from lakebed.log.table_log import TableLog
from lakebed.operations.create import create_log
from lakebed.settings import TableSettings
from lakebed.storage.counters import StoreCounters
from lakebed.storage.object_store import Folders

SECONDS = 3600


def main() -> None:
    """Print the requests of an hour, and the processor time that they took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--listeners", type=int, default=5)
    options = parser.parse_args()
    listed: Counter[str] = Counter()
    plain = Folders.below

    def below(self: Folders, folder: str = "") -> list[str]:
        listed["folders"] += 1
        return plain(self, folder)

    feed_module.Folders.below = below  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as root:
        stores: dict[str, LocalLogStore] = {}
        for number in range(options.tables):
            stores[f"{root}/public/t{number}"] = store = LocalLogStore(f"{root}/public/t{number}")
            create_log(TableLog(store), pa.schema([("id", pa.int64())]), TableSettings(keys=("id",)), (), {}, "")
        now = [0.0]
        feed = Feed(root, open_log=lambda path: LogReader(stores[path]), clock=lambda: now[0])
        cursors = [feed.newest() for _ in range(options.listeners)]
        for _ in range(900):  # until every table is looked at once a minute
            now[0] += 1.0
            cursors = [feed.read(cursor).cursor for cursor in cursors]
        before = requests(stores)
        listed.clear()
        began = time.process_time()
        for _ in range(SECONDS):
            now[0] += 1.0
            cursors = [feed.read(cursor).cursor for cursor in cursors]
        spent, asked = time.process_time() - began, requests(stores) - before
    print(
        f"| {options.tables:,} idle tables, {options.listeners} listeners in one process, an hour | |\n| --- | ---: |"
    )
    for name, operation in (("requests for commits", "read"), ("listings of logs", "list_from")):
        print(f"| {name} | {asked.operations[operation].requests:,} |")
    print(f"| listings of folders | {listed['folders']:,} |\n| seconds of processor time | {spent:.1f} |")


def requests(stores: dict[str, LocalLogStore]) -> StoreCounters:
    """The requests of all stores so far."""
    return sum((store.counters() for store in stores.values()), StoreCounters())


if __name__ == "__main__":
    main()
