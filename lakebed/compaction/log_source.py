"""A table's log as a Structured Streaming source: one row a commit.

    spark.readStream.format("lakebed_log").option("path", "lake/orders").load()

The offset is the newest version that was returned. If commits after it have expired, the stream goes on with the oldest commit
that is kept; the reader of the stream gets the rest from a snapshot.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lakebed.error_transport import methods_cross_spark
from lakebed.errors import InvalidInput
from lakebed.log.actions import AddChangePart, AddPart, Commit, RemoveChangePart, RemovePart
from lakebed.log.commit_kind import is_append
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.sparks.streams import (
    DataSource,
    DataSourceStreamReader,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    for_this_spark,
)

_POLL_SECONDS = 0.02
_WAIT_SECONDS_MAX = 0.2
SCHEMA = (
    "version long, timestamp timestamp, operation string, blind_append boolean, change_parts_added int, "
    "change_parts_removed int, parts_added int, parts_removed int, rows_added long, bytes_added long, bytes_removed long, "
    "levels array<int>"
)


@methods_cross_spark
class LogSource(DataSource):
    """``format("lakebed_log")``; options: ``path``, ``startingVersion`` (default: only commits from now on)."""

    @classmethod
    def name(cls) -> str:
        return "lakebed_log"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return for_this_spark(_LogReader(dict(self.options)))


class _Range(InputPartition):
    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last


@methods_cross_spark
class _LogReader(DataSourceStreamReader):
    def __init__(self, options: MutableMapping[str, str]) -> None:
        if "path" not in options:
            raise InvalidInput('the source lakebed_log needs .option("path", …)')
        self._path = options["path"]
        self._starting = options.get("startingversion") or options.get("startingVersion")
        self._newest: int | None = None
        self._log: TableLog | None = None

    def initialOffset(self) -> dict[str, Any]:
        if self._starting is not None:
            return {"version": int(self._starting) - 1}
        # One before the newest, so that the first batch comes at once.
        return {"version": self._table_log().refresh().version - 1}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The newest version. Waits up to ``_WAIT_SECONDS_MAX`` for a new one, so that the store gets few requests."""
        deadline = time.monotonic() + _WAIT_SECONDS_MAX
        pause = _POLL_SECONDS
        while True:
            newest = self._table_log().refresh().version
            if newest > int(start["version"]) or time.monotonic() >= deadline:
                return {"version": max(newest, int(start["version"]))}
            time.sleep(pause)
            pause = min(pause * 2, _WAIT_SECONDS_MAX)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [_Range(int(start["version"]) + 1, int(end["version"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Range)
        log = TableLog(open_store(self._path))
        first = max(partition.first, log.oldest_version())
        rows = [_row(commit) for commit in log.commits(first, partition.last)]
        if rows:
            yield from pa.Table.from_pylist(rows, _ARROW_SCHEMA).to_batches()

    def _table_log(self) -> TableLog:
        if self._log is None:
            self._log = TableLog(open_store(self._path))
        return self._log


def _row(commit: Commit) -> dict[str, Any]:
    info = commit.info
    added = [action.part for action in commit.actions if isinstance(action, AddPart)]
    changed = [action.part for action in commit.actions if isinstance(action, AddChangePart)]
    removed = [action for action in commit.actions if isinstance(action, RemovePart)]
    return {
        "version": commit.version,
        "timestamp": commit.timestamp_ms * 1000,
        "operation": info.operation if info else None,
        "blind_append": is_append(commit.actions),
        "change_parts_added": len(changed),
        "change_parts_removed": sum(isinstance(action, RemoveChangePart) for action in commit.actions),
        "parts_added": len(added),
        "parts_removed": len(removed),
        "rows_added": sum(part.rows for part in changed) + sum(part.rows for part in added),
        "bytes_added": sum(part.bytes for part in changed) + sum(part.bytes for part in added),
        "bytes_removed": sum(action.bytes or 0 for action in removed),
        "levels": sorted({part.level for part in added}),
    }


_ARROW_SCHEMA = pa.schema(
    [
        ("version", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("operation", pa.string()),
        ("blind_append", pa.bool_()), ("change_parts_added", pa.int32()), ("change_parts_removed", pa.int32()),
        ("parts_added", pa.int32()), ("parts_removed", pa.int32()), ("rows_added", pa.int64()), ("bytes_added", pa.int64()),
        ("bytes_removed", pa.int64()), ("levels", pa.list_(pa.int32())),
    ]
)  # fmt: skip
