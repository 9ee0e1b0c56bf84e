"""Reads the change rows of versions of an upstream table, in a task or in the driver.

The columns are those of the newest version, whatever an older one had: renamed columns come under their new names, dropped ones
not at all, and those that were added later are null in rows from before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import pyarrow as pa

from lakebed.errors import DataLoss, VersionNotFound
from lakebed.log.holds import first_unexpired
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.change_rows import ChangedVersion, changed_versions, read_version
from lakebed.positions.positions import positions_of
from lakebed.sources.source import Bounds, Place, Range
from lakebed.sources.upstream.records import PARTITION, WHOLE, records_of

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
            raise made_anew(self.path)
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
    """What a batch between two offset documents reads (``planner``)."""
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


def made_anew(path: str) -> DataLoss:
    """The error for a table that is not the one that the batches before have read."""
    return DataLoss(
        f"the table at {path} is not the one that this pipeline has read: it was created anew, and changes of the old one may be "
        f"missing; {_WHAT_TO_DO}",
        topic=path,
    )


def lost(path: str, version: int, why: str) -> DataLoss:
    """The error for versions that are gone before they were read."""
    return DataLoss(
        f"the changes of {path} from version {version} on are not all there: {why}; {_WHAT_TO_DO}", topic=path
    )
