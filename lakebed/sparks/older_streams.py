"""Streams for Spark 4.0 and 4.1, which ask for the newest offset without saying where the batch starts, or how much it may read.

``OlderStream`` knows where it starts: at what it answered last, since Spark makes a batch up to each new answer. A query that
goes on passes the newest offset of its checkpoint to ``partitions`` before it asks.

With the trigger ``availableNow`` Spark asks once, before it says that, and makes one batch up to the answer. So a stream that is
used with this trigger answers with all there is when it is asked first (``reads_all_at_first``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from lakebed.failures import methods_cross_spark


class ReadLimit:
    """How much a batch may read."""


@dataclass
class ReadAllAvailable(ReadLimit):
    """All there is."""


@dataclass
class ReadMaxRows(ReadLimit):
    """So many rows at most."""

    max_rows: int


@dataclass
class ReadMaxBytes(ReadLimit):
    """So many bytes at most."""

    max_bytes: int


class SupportsTriggerAvailableNow:
    """A stream that can stop at what was there when its query began, on a Spark that asks for that."""


@methods_cross_spark
class OlderStream(DataSourceStreamReader):
    """A stream in the shape of Spark 4.0 and 4.1."""

    def __init__(self, stream: Any, reads_all_at_first: bool) -> None:
        self._stream = stream
        self._reads_all_at_first = reads_all_at_first
        self._initial: dict[str, Any] | None = None
        self._start: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        if self._initial is None:  # Spark asks after it has asked for the newest, which depends on this one
            self._initial = self._stream.initialOffset()
        return self._initial

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        if self._start is None and self._reads_all_at_first:
            limit: object = ReadAllAvailable()
        else:
            limit = self._stream.getDefaultReadLimit()
        self._start = self._stream.latestOffset(self.initialOffset() if self._start is None else self._start, limit)
        return self._start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._start = end
        planned: Sequence[InputPartition] = self._stream.partitions(start, end)
        return planned

    def read(self, partition: InputPartition) -> Iterator[Any]:
        rows: Iterator[Any] = self._stream.read(partition)
        return rows

    def commit(self, end: dict[str, Any]) -> None:
        self._stream.commit(end)

    def stop(self) -> None:
        self._stream.stop()
