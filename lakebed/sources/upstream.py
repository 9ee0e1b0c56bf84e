"""Another table of lakebed as a source: which of its versions the next batch reads, and their change rows.

**Planning.** An offset document is ``{"table": id, "next": version, "begin": version}``: versions below ``next`` are read, and
``begin`` is where the first batch began; ``whole`` is the version with which a layer begins, as a whole. ``{}`` is the
beginning.

1. A new checkpoint begins where the table stopped (``positions.positions``), so losing one loses nothing.
2. Look at the upstream's log. If the table was recreated, or versions that were not read are gone, that is DataLoss, or reading
   goes on with what is there (``on_data_loss``).
3. Hold what is not read yet, so that no cleanup of the upstream deletes it.
4. Take the versions up to the newest, but no more than ``BYTES_MAX`` of change rows, and at least one. Versions that only
   rearranged rows have no changes: a batch is not made for a few of them alone.

**Reading**, in a task or in the driver. The columns are those of the newest version, whatever an older one had: renamed columns
come under their new names, dropped ones not at all, and those that were added later are null in rows from before.

The rows of the streaming source are ranges of versions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from lakebed.coordination.read_counts import begin_hold
from lakebed.errors import DataLoss, LakebedError, VersionNotFound
from lakebed.log.holds import Hold, first_unexpired
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.change_columns import columns_at
from lakebed.parts.change_rows import ChangedVersion, changed_versions, read_version
from lakebed.positions.positions import positions_of
from lakebed.sources.range_stream import RangeSource
from lakebed.sources.rows import PARTITION, WHOLE, records_of
from lakebed.sources.source import Bounds, Place, Range, RangePlanner

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_WHAT_TO_DO = (
    "to go on with the changes that are there now, set on_data_loss to 'skip'; to have all rows again, write into a new "
    "table"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamSettings:
    """``path``: of the upstream; ``table``: where its changes go; ``starting_version``: where the first batch begins.

    ``snapshot``: with the whole table at its newest version.
    """

    path: str
    table: str | None = None
    starting_version: int | Literal["newest", "snapshot"] = 0
    on_data_loss: Literal["fail", "skip"] = "fail"


@dataclass(slots=True)
class UpstreamReader:
    """Fetches the change rows of a range of versions."""

    settings: UpstreamSettings
    records_lost: int = 0

    @property
    def path(self) -> str:
        return self.settings.path

    @property
    def skips_losses(self) -> bool:
        return self.settings.on_data_loss == "skip"

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        return ranges_between(start, end)

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        log = _log_of(self.path)
        snapshot = log.refresh()
        oldest, wanted, end = oldest_version(log, snapshot), self.settings.starting_version, snapshot.version + 1
        starting = max(wanted, oldest) if isinstance(wanted, int) else end
        found = Bounds(earliest=oldest, starting=starting, end=end)
        return {place: found for place in places if place == (snapshot.metadata.id, PARTITION)}

    def impatient(self) -> UpstreamReader:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        log = _log_of(self.path)
        snapshot = log.refresh()
        if snapshot.metadata.id != chosen.topic:
            _log_of.cache_clear()  # a log in memory may be that of an earlier table in this place
            log = _log_of(self.path)
            snapshot = log.refresh()
        if snapshot.metadata.id != chosen.topic:
            raise _created_again(self.path)
        if chosen.partition == WHOLE:
            yield from self._whole(log, chosen)
            return
        first = chosen.start
        if self.skips_losses:
            first = max(first, oldest_version(log, snapshot))
            self.records_lost += min(first, chosen.end) - chosen.start
        try:
            for version in changed_versions(log, first, chosen.end - 1):
                for batch in read_version(self.path, version):
                    yield records_of(pa.Table.from_batches([batch]), snapshot.logical_schema, chosen.topic)
        except VersionNotFound as error:
            raise lost(self.path, chosen.start, str(error)) from error

    def _whole(self, log: TableLog, chosen: Range) -> Iterator[pa.Table]:
        """The table at a version. A layer that has read of this topic began with one before, so there is nothing then."""
        assert self.settings.table is not None
        if chosen.topic in positions_of(TableLog(open_store(self.settings.table)).refresh()):
            return
        try:
            snapshot = log.at_version(chosen.start)
            for batch in read_version(self.path, ChangedVersion.of_snapshot(snapshot)):
                yield records_of(pa.Table.from_batches([batch]), snapshot.logical_schema, chosen.topic)
        except VersionNotFound as error:
            raise lost(self.path, chosen.start, str(error)) from error


@lru_cache(maxsize=16)
def _log_of(path: str) -> TableLog:
    """One per process, so that not each batch reads the log from its checkpoint on."""
    return TableLog(open_store(path))


def ranges_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
    """What a batch between two offset documents reads (``UpstreamPlanner``)."""
    if not end:
        return []
    is_first = "begin" in end and start != end
    first = end["begin"] if is_first else min(start.get("next", end["next"]), end["next"])
    changes = Range(end["table"], PARTITION, first, end["next"], is_first=is_first)
    if not is_first or "whole" not in end:
        return [changes]
    return [changes, Range(end["table"], WHOLE, end["whole"], end["whole"] + 1, is_first=True)]


def oldest_version(log: TableLog, snapshot: Snapshot) -> int:
    """The oldest version of which nothing is gone."""
    return max(log.oldest_version(), first_unexpired(snapshot.domains))


def _created_again(path: str) -> DataLoss:
    """The error for a table that is not the one that the batches before have read."""
    return DataLoss(
        f"the table at {path} is not the one that this pipeline has read: it was created again, and changes of the old one may "
        f"be missing; {_WHAT_TO_DO}",
        topic=path,
    )


def lost(path: str, version: int, why: str) -> DataLoss:
    """The error for versions that are gone before they were read."""
    return DataLoss(
        f"the changes of {path} from version {version} on are not all there: {why}; {_WHAT_TO_DO}", topic=path
    )


_VERSIONS_MAX = 1000
BYTES_MAX = 512 << 20
"""Of parts with change rows: what one task reads in one batch."""
EMPTY_VERSIONS_MAX = 200
"""After so many versions without changes the position moves on, so that the upstream need not keep them."""
_HOLD_SECONDS = 7 * 86_400  # how long an upstream keeps what a pipeline that does not run has not read
MOVE_SECONDS = 600
"""A hold moves on at most so often, since each move is a commit to the upstream."""

_logger = logging.getLogger("lakebed.ingest")


class UpstreamPlanner(RangePlanner):
    """Plans which versions each batch reads."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self.log = TableLog(open_store(settings.path))
        self._scanned: dict[int, ChangedVersion] = {}
        self._oldest_in_log: int | None = None
        self._held: Hold | None = None
        self._held_ms = 0

    def next(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """The document of the next batch; ``start`` itself if there is nothing to read.

        Raises DataLoss, TableNotFound, StoreUnavailable.
        """
        snapshot = self.log.refresh()
        begin = self._begin(start, snapshot)
        first = int(start["next"]) if begin is None else begin
        self._hold(first, snapshot)
        end, has_changes = self._end(first, snapshot)
        self.left_some = end <= snapshot.version
        if begin is None and not has_changes and end - first < EMPTY_VERSIONS_MAX:
            return dict(start)
        document: dict[str, Any] = {"table": snapshot.metadata.id, "next": end}
        if begin is not None:
            document["begin"] = begin
            if not start and self._settings.starting_version == "snapshot" and begin == snapshot.version + 1:
                document["whole"] = snapshot.version
        return document

    def _begin(self, start: Mapping[str, Any], snapshot: Snapshot) -> int | None:
        """Where reading begins, if it does not go on at ``start``."""
        path, oldest, skips = self._settings.path, self._oldest(snapshot), self._settings.on_data_loss == "skip"
        if not start:
            first = self._first(snapshot)
            if first < oldest and not skips:
                raise lost(path, first, f"the oldest version that it still has is {oldest}")
            return max(first, oldest)
        if start["table"] != snapshot.metadata.id or start["next"] > snapshot.version + 1:
            if not skips:
                raise _created_again(path)
            return oldest
        if start["next"] >= oldest:
            return None
        if not skips:
            raise lost(path, start["next"], f"the oldest version that it still has is {oldest}")
        return oldest

    def _first(self, snapshot: Snapshot) -> int:
        """Where a new checkpoint begins: where the table stopped, or where the settings say."""
        table, wanted = self._settings.table, self._settings.starting_version
        if table is not None:
            position = positions_of(TableLog(open_store(table)).refresh()).get(snapshot.metadata.id)
            if position is not None and PARTITION in position.offsets:
                return position.offsets[PARTITION]
        return wanted if isinstance(wanted, int) else snapshot.version + 1

    def _oldest(self, snapshot: Snapshot) -> int:
        """The oldest version that is kept. The log is listed once: cleanups let versions expire before they delete them."""
        if self._oldest_in_log is None:
            self._oldest_in_log = self.log.oldest_version()
        return max(self._oldest_in_log, first_unexpired(snapshot.domains))

    def _end(self, first: int, snapshot: Snapshot) -> tuple[int, bool]:
        """The first version that the next batch does not read, and whether there are changes before it."""
        last = min(snapshot.version, first + _VERSIONS_MAX - 1)
        self._scan(first, last, snapshot)
        size, has_changes = 0, False
        for version in range(first, last + 1):
            found = self._scanned[version]
            size += found.bytes
            if has_changes and size > BYTES_MAX:
                return version, True
            has_changes = has_changes or found.has_rows
        return last + 1, has_changes

    def _scan(self, first: int, last: int, snapshot: Snapshot) -> None:
        """Read each commit once."""
        self._scanned = {version: found for version, found in self._scanned.items() if first <= version <= last}
        columns = columns_at(snapshot)
        for commit in self.log.commits(max(self._scanned, default=first - 1) + 1, last):
            self._scanned[commit.version] = ChangedVersion.of_commit(commit, columns)

    def _hold(self, first: int, snapshot: Snapshot) -> None:
        """Hold what is read next, and the version before it: rows that a version removed are in parts of the one before."""
        if self._settings.table is None:
            return
        version = min(max(first - 1, self._oldest(snapshot)), snapshot.version)
        now_ms = self.log.now_ms()
        if self._held is not None:
            has_moved = version != self._held.version and now_ms - self._held_ms >= MOVE_SECONDS * 1000
            if not has_moved and now_ms - self._held_ms < _HOLD_SECONDS * 500:
                return
        held = Hold(self._reader(), version, now_ms + _HOLD_SECONDS * 1000, onward=True, reader=self._settings.table)
        try:
            begin_hold(self.log, held)
        except VersionNotFound as error:
            raise lost(self._settings.path, first, str(error)) from error
        except LakebedError as error:
            _logger.warning(
                "%s can't be made to keep what this pipeline has not read, so a cleanup of it may lose changes: %s",
                self._settings.path,
                error,
            )
        self._held, self._held_ms = held, now_ms

    def _reader(self) -> str:
        """The id under which the upstream's log knows this pipeline: that of the table that it writes."""
        if self._held is not None:
            return self._held.id
        assert self._settings.table is not None
        return TableLog(open_store(self._settings.table)).refresh().metadata.id


@dataclass(frozen=True, slots=True)
class UpstreamSource:
    """The changes of another table as a source of a pipeline. ``batch_seconds``: the pace of batches (``Pace``)."""

    settings: UpstreamSettings
    batch_seconds: float = 0.0

    @property
    def reader(self) -> UpstreamReader:
        return UpstreamReader(self.settings)

    def stream(self, spark: SparkSession) -> DataFrame:
        return _UpstreamRanges.frame(spark, json.dumps(asdict(self.settings)), self.batch_seconds)


class _UpstreamRanges(RangeSource):
    FORMAT = "lakebed_upstream"

    def planned_by(self, settings: str) -> tuple[UpstreamPlanner, UpstreamReader]:
        parsed = UpstreamSettings(**json.loads(settings))
        return UpstreamPlanner(parsed), UpstreamReader(parsed)
