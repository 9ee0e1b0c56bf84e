"""How far a query came: read from its checkpoint on disk, so that it can be asked of a process that was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import Patience

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def ingested_ends(table: Path | str) -> dict[tuple[str, int], int]:
    """The next offset of every topic partition, after the newest batch that the query committed."""
    checkpoint = Path(table) / "_lakebed" / "streams" / "ingest"
    batches = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not batches:
        return {}
    source = json.loads((checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[2])
    return {(topic, int(number)): end for topic, ends in source["topics"].items() for number, end in ends.items()}


def started(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Starts a query and returns when its source answers.

    Spark gives the Python process of a source ten seconds to call back, and fails the query if it is late. So on a
    busy machine queries start one after the other, and one that failed before it began starts again.
    """
    patience = Patience()
    while True:
        query = start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.05)
        failure = query.exception()
        if failure is None:
            return query
        if "connect back" not in str(failure) or patience.is_over():
            raise failure
