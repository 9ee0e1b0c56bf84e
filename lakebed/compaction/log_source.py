"""A table's log as a Structured Streaming source: one row a commit.

    spark.readStream.format("lakebed_log").option("path", "lake/orders").load()

1. The offset is the newest version that was returned. If commits after it have expired, the stream goes on with the oldest commit
   that is kept; the reader of the stream gets the rest from a snapshot.
2. Spark asks for new commits in a Python process beside the driver, which reads them at once. So a task finds its rows in Spark's
   memory: it needs neither Python nor the log.
3. With the option ``looks`` a batch also comes without a commit, when maintenance may have something to do: once the tail is due
   by its age, now and then while there is a tail, seldom while there is none, and at each start. The offset counts these.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark.sql.types import StructType

from lakebed.errors import InvalidInput, VersionNotFound
from lakebed.failures import methods_cross_spark
from lakebed.log.actions import AddChangePart, AddPart, Commit, RemoveChangePart, RemovePart
from lakebed.log.commit_kind import CommitKind, is_append, kind_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.planning.settling import due_ms
from lakebed.sparks.streams import DataSource, SimpleDataSourceStreamReader

_COMMITS_MAX = 1000
"""Commits in a batch: all of them are in memory for a moment."""
_PAUSE_SECONDS = 0.2
"""The shortest time between two requests for a newer version. Spark asks every 10 ms if the query has no trigger."""
TAIL_LOOK_SECONDS = 5.5
"""A little more than the pause after which a maintainer looks at a tail that waits."""
IDLE_LOOK_SECONDS = 60.0
SCHEMA = (
    "version long, timestamp timestamp_ltz, operation string, kind string, blind_append boolean, change_parts_added int, "
    "change_parts_removed int, parts_added int, parts_removed int, rows_added long, bytes_added long, bytes_removed long, "
    "levels array<int>, settled_rows long, merged_bytes long"
)


@methods_cross_spark
class LogSource(DataSource):
    """``format("lakebed_log")``; options: ``path``, ``startingVersion`` (default: only commits from now on), ``looks``."""

    @classmethod
    def name(cls) -> str:
        return "lakebed_log"

    def schema(self) -> str:
        return SCHEMA

    def simpleStreamReader(self, schema: StructType) -> SimpleDataSourceStreamReader:
        return LogReader(dict(self.options))


@methods_cross_spark
class LogReader(SimpleDataSourceStreamReader):
    """Reads the commits of one stream. Its offsets are ``{"version": …, "looks": …}``."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "path" not in options:
            raise InvalidInput('the source lakebed_log needs .option("path", …)')
        self._path = options["path"]
        starting = options.get("startingversion") or options.get("startingVersion")
        self._first = None if starting is None else int(starting)
        self._looks = options.get("looks", "false").lower() == "true"
        self._asked = float("-inf")  # when it last asked for a newer version
        self._looked, self._looked_ms = float("-inf"), 0  # when it last gave a batch

    @cached_property
    def _log(self) -> TableLog:
        """Opened in the process that reads it: Spark pickles the reader."""
        return TableLog(open_store(self._path))

    def initialOffset(self) -> dict[str, Any]:
        """Before the newest commit, so that the first batch comes at once."""
        if self._first is None:  # Spark may ask twice, and must hear the same
            self._first = self._log.refresh().version
        return {"version": self._first - 1, "looks": 0}

    def read(self, start: dict[str, Any]) -> tuple[Iterator[pa.RecordBatch], dict[str, Any]]:
        """The commits after ``start``, and the offset of the last one; ``start`` itself if there is nothing to do."""
        time.sleep(max(0.0, self._asked + _PAUSE_SECONDS - time.monotonic()))
        newest = self._log.refresh()
        self._asked = time.monotonic()
        version, looks = int(start["version"]), int(start["looks"])
        if newest.version != version:  # lower, if the table was made again
            end = {"version": min(newest.version, version + _COMMITS_MAX), "looks": looks}
        elif self._looks and self._is_look_due(newest):
            end = {"version": version, "looks": looks + 1}
        else:
            return iter([]), start
        self._looked, self._looked_ms = self._asked, self._log.now_ms()
        return self.readBetweenOffsets(start, end), end

    def readBetweenOffsets(self, start: dict[str, Any], end: dict[str, Any]) -> Iterator[pa.RecordBatch]:
        """The commits of a batch; Spark calls it for a batch that it planned before it was started again."""
        first, last = int(start["version"]) + 1, int(end["version"])
        try:
            rows = [_row(commit) for commit in self._log.commits(first, last)]
        except VersionNotFound:
            rows = [_row(commit) for commit in self._log.commits(max(first, self._log.oldest_version()), last)]
        # Spark copies the iterator, which a generator does not allow.
        return iter(pa.Table.from_pylist(rows, _ARROW_SCHEMA).to_batches() if rows else [])

    def _is_look_due(self, newest: Snapshot) -> bool:
        """Whether maintenance shall look at the table again, without a commit."""
        pause = TAIL_LOOK_SECONDS if newest.tail else IDLE_LOOK_SECONDS
        due = due_ms(newest)
        has_become_due = due is not None and self._looked_ms < due <= self._log.now_ms()
        return has_become_due or time.monotonic() - self._looked >= pause


def _row(commit: Commit) -> dict[str, Any]:
    info, kind = commit.info, kind_of(commit)
    added = [action.part for action in commit.actions if isinstance(action, AddPart)]
    changed = [action.part for action in commit.actions if isinstance(action, AddChangePart)]
    removed = [action for action in commit.actions if isinstance(action, RemovePart)]
    bytes_added = sum(part.bytes for part in changed) + sum(part.bytes for part in added)
    return {
        "version": commit.version,
        "timestamp": commit.timestamp_ms * 1000,
        "operation": info.operation if info else None,
        "kind": kind.value,
        "blind_append": is_append(commit.actions),
        "change_parts_added": len(changed),
        "change_parts_removed": sum(isinstance(action, RemoveChangePart) for action in commit.actions),
        "parts_added": len(added),
        "parts_removed": len(removed),
        "rows_added": sum(part.rows for part in changed) + sum(part.rows for part in added),
        "bytes_added": bytes_added,
        "bytes_removed": sum(action.bytes or 0 for action in removed),
        "levels": sorted({part.level for part in added}),
        "settled_rows": int(info.metrics.get("rows", 0)) if info and kind is CommitKind.SETTLE else 0,
        "merged_bytes": bytes_added if kind in (CommitKind.MERGE, CommitKind.UPLOAD) else 0,
    }


_ARROW_SCHEMA = pa.schema(
    [
        ("version", pa.int64()), ("timestamp", pa.timestamp("us", "UTC")), ("operation", pa.string()), ("kind", pa.string()),
        ("blind_append", pa.bool_()), ("change_parts_added", pa.int32()), ("change_parts_removed", pa.int32()),
        ("parts_added", pa.int32()), ("parts_removed", pa.int32()), ("rows_added", pa.int64()), ("bytes_added", pa.int64()),
        ("bytes_removed", pa.int64()), ("levels", pa.list_(pa.int32())), ("settled_rows", pa.int64()),
        ("merged_bytes", pa.int64()),
    ]
)  # fmt: skip
