"""The offset documents in the checkpoint of a streaming query: what a batch reads, as Spark planned it.

Spark writes the source's offset document of a batch into ``offsets/<batch id>`` before the batch runs. A batch reads what lies
between the document of the batch before and its own; the first one begins at ``{}``. So the driver knows the ranges of a batch
without a task that reads them from the stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.errors import Unexpected
from lakebed.sparks.checkpoint_files import is_local, read_with_spark
from lakebed.storage.roots import LocalRoot, parse_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_VERSION = "v1"
_Document = dict[str, Any]


class OffsetDocuments:
    """The offset documents of one query with one source."""

    def __init__(self, checkpoint: str, read: Callable[[str], str]) -> None:
        """``checkpoint``: a path or URL, for messages; ``read`` returns the text of a file below it."""
        self._checkpoint = checkpoint
        self._read = read

    @staticmethod
    def of(spark: SparkSession, checkpoint: str) -> OffsetDocuments:
        """Those of a checkpoint as Spark spells its path. A local one is read here, any other by Hadoop."""
        root = parse_root(checkpoint) if is_local(spark, checkpoint) else None
        if isinstance(root, LocalRoot):
            folder = Path(root.path)
            return OffsetDocuments(checkpoint, lambda name: Path(folder, name).read_text())
        return OffsetDocuments(checkpoint, lambda name: read_with_spark(spark, f"{checkpoint}/{name}"))

    def read(self, name: str) -> str:
        """The text of a file of the checkpoint."""
        return self._read(name)

    def of_batch(self, batch_id: int) -> tuple[_Document, _Document]:
        """The documents between which a batch reads. Raises Unexpected if the checkpoint has not what Spark writes."""
        return {} if batch_id == 0 else self._document(batch_id - 1), self._document(batch_id)

    def _document(self, batch_id: int) -> _Document:
        name = f"offsets/{batch_id}"
        try:
            version, _, *sources = self._read(name).splitlines()
            document = json.loads(sources[0])
        except (OSError, ValueError, IndexError) as error:
            raise self._unreadable(name, str(error)) from None
        if version != _VERSION or len(sources) != 1 or not isinstance(document, dict):
            raise self._unreadable(name, f"it is of version {version}, with {len(sources)} sources")
        return document

    def _unreadable(self, name: str, why: str) -> Unexpected:
        return Unexpected(
            f"the checkpoint {self._checkpoint} has no plan that can be read in {name}: {why}. Set 'checkpoint' to a new folder: "
            "what was read is in the table, so nothing is lost or doubled"
        )
