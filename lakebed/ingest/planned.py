"""What a batch reads, as Spark planned it in the checkpoint of its query; read without Spark.

1. Spark writes the source's offset document of a batch into ``offsets/<batch id>`` before the batch runs. A batch reads what lies
   between the document of the batch before and its own; the first one begins at ``{}``.
2. So the driver knows the ranges of a batch without a task that reads them from the stream. ``RangeReader.ranges`` finds the same
   ranges between two documents as the stream does.

Only a checkpoint on a local disk is read, with one source and in the form that is known (``v1``). For any other the answer is
None, and the ranges come from the stream.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lakebed.errors import LakebedError
from lakebed.ingest.source import Range, RangeReader
from lakebed.storage.roots import LocalRoot, parse_root

_VERSION = "v1"


class PlannedBatches:
    """The ranges of the batches of one query."""

    def __init__(self, checkpoint: str) -> None:
        """``checkpoint``: a path or URL, as Spark takes it."""
        try:
            root = parse_root(checkpoint)
        except LakebedError:  # a file system that only Spark knows
            root = None
        self._offsets = Path(root.path, "offsets") if isinstance(root, LocalRoot) else None

    def ranges(self, batch_id: int, reader: RangeReader) -> list[Range] | None:
        """What the batch reads; None if that is not known here."""
        if self._offsets is None:
            return None
        end = self._document(batch_id)
        start = {} if batch_id == 0 else self._document(batch_id - 1)
        return None if start is None or end is None else reader.ranges(start, end)

    def _document(self, batch_id: int) -> dict[str, Any] | None:
        assert self._offsets is not None
        try:
            version, _, *sources = (self._offsets / str(batch_id)).read_text().splitlines()
            document = json.loads(sources[0])
        except (OSError, ValueError, IndexError):
            return None
        return document if version == _VERSION and len(sources) == 1 and isinstance(document, dict) else None
