"""Which versions of an upstream table the next batch reads. Knows no Spark.

An offset document is ``{"table": id, "next": version, "begin": version}``: versions below ``next`` are read, and ``begin`` is
where the first batch began; ``whole`` is the version with which a layer begins, as a whole. ``{}`` is the beginning.

1. A new checkpoint begins where the table stopped (``positions.positions``), so losing one loses nothing.
2. Look at the upstream's log. If the table was recreated, or versions that were not read are gone, that is DataLoss, or reading
   goes on with what is there (``on_data_loss``).
3. Hold what is not read yet, so that no cleanup of the upstream deletes it.
4. Take the versions up to the newest, but no more than ``BYTES_MAX`` of change rows, and at least one. Versions that only
   rearranged rows have no changes: a batch is not made for a few of them alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from lakebed.coordination.hold_commits import begin_hold
from lakebed.errors import LakebedError, VersionNotFound
from lakebed.log.holds import Hold, first_unexpired
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.change_columns import columns_at
from lakebed.parts.change_rows import ChangedVersion
from lakebed.positions.positions import positions_of
from lakebed.sources.upstream.reader import UpstreamSettings, lost, made_anew
from lakebed.sources.upstream.records import PARTITION

VERSIONS_MAX = 1000
BYTES_MAX = 512 << 20
"""Of parts with change rows: what one task reads in one batch."""
EMPTY_VERSIONS_MAX = 200
"""After so many versions without changes the position moves on, so that the upstream need not keep them."""
HOLD_SECONDS = 7 * 86_400
"""So long an upstream keeps for a pipeline that does not run what it has not read."""
MOVE_SECONDS = 600
"""A hold moves on at most so often, since each move is a commit to the upstream."""

_logger = logging.getLogger("lakebed.ingest")


class UpstreamPlanner:
    """Plans the batches of one pipeline. One thread at a time."""

    def __init__(self, settings: UpstreamSettings) -> None:
        self._settings = settings
        self.log = TableLog(open_store(settings.path))
        self._scanned: dict[int, ChangedVersion] = {}
        self._oldest_in_log: int | None = None
        self._held: Hold | None = None
        self._held_ms = 0
        self.left_some = False

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
                raise made_anew(path)
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
        last = min(snapshot.version, first + VERSIONS_MAX - 1)
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
            if not has_moved and now_ms - self._held_ms < HOLD_SECONDS * 500:
                return
        held = Hold(self._reader(), version, now_ms + HOLD_SECONDS * 1000, onward=True, reader=self._settings.table)
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
