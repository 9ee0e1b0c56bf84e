"""How far an ingest query came, read from its checkpoint on disk: so it can be asked of a process that was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

WAIT_SECONDS_MAX = 120


def ingested_ends(table: Path | str) -> dict[tuple[str, int], int]:
    """The next offset of every topic partition, after the newest batch that the query committed."""
    checkpoint = Path(table) / "_lakebed" / "streams" / "ingest"
    batches = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not batches:
        return {}
    source = json.loads((checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[2])
    return {(topic, int(number)): end for topic, ends in source["topics"].items() for number, end in ends.items()}


def wait_until(condition: Callable[[], bool], failure: str, seconds_max: float = WAIT_SECONDS_MAX) -> None:
    """Returns when the condition holds. Raises AssertionError with the failure's text."""
    deadline = time.monotonic() + seconds_max
    while not condition():
        assert time.monotonic() < deadline, f"{failure}, after {seconds_max:.0f} s"
        time.sleep(0.1)
