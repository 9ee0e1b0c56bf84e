"""How far a query came: read from its checkpoint on disk, so that it can be asked of a process that was killed."""

from __future__ import annotations

import json
from pathlib import Path


def ingested_ends(table: Path | str) -> dict[tuple[str, int], int]:
    """The next offset of every topic partition, after the newest batch that the query committed."""
    checkpoint = Path(table) / "_lakebed" / "streams" / "ingest"
    batches = [int(path.name) for path in (checkpoint / "commits").glob("*") if path.name.isdigit()]
    if not batches:
        return {}
    source = json.loads((checkpoint / "offsets" / str(max(batches))).read_text().splitlines()[2])
    return {(topic, int(number)): end for topic, ends in source["topics"].items() for number, end in ends.items()}
