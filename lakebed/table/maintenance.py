"""``table.maintenance``: upkeep done at once, in this process. ``Table.maintain`` keeps doing all of it that is due."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.compaction.compaction import CompactResult
from lakebed.compaction.recluster_job import ReclusterJob, ReclusterProgress, ReclusterResult
from lakebed.coordination import failing
from lakebed.coordination.failing import resume_merges, resume_settle
from lakebed.health.file_checks import remove_unreadable
from lakebed.iceberg.publisher import Published, publish
from lakebed.operations import cleanup
from lakebed.operations.references import hold
from lakebed.operations.restore import restart_order, rewind
from lakebed.planning.plan import plan_table
from lakebed.positions.remarks import dismiss
from lakebed.settings import interval_seconds
from lakebed.table.internals import Internals

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class TableMaintenance:
    """Upkeep of one table."""

    def __init__(self, internals: Internals) -> None:
        self._internals = internals
        self._log = internals.log
        self._storage = internals.storage

    # -- fewer, better sorted parts ------------------------------------------------------------------------------------

    def plan(self) -> pa.Table:
        """What the planner would do now, best first, and what it leaves alone and why; nothing is done."""
        return plan_table(self._internals.compaction.plan(), self._log.refresh().columns)

    def compact(self) -> CompactResult:
        """Merge in this process until the planner finds nothing more to merge; returns what it did.

        Raises:
            Corrupt: A part can't be read; the error names it.
            Contention, StoreUnavailable: Compacting again is safe.
        """
        return self._internals.compaction.compact()

    def recluster(
        self,
        where: str | None = None,
        final: bool = False,
        on_progress: Callable[[ReclusterProgress], object] | None = None,
        stop: Callable[[], bool] | None = None,
        dry_run: bool = False,
        spark: SparkSession | None = None,
    ) -> ReclusterResult:
        """Sort parts of the base together, so that fewer of them cover a point of the sort key; returns what it did.

        One call makes the lowest level that is deeper than ``lakebed.recluster_depth`` as shallow as that. It can be stopped at
        any time (Ctrl-C, ``stop``), and continues from there when called again.

        Args:
            where: Only parts that may hold rows for which this condition is true.
            final: Continue until every level is shallow, and every part is sorted by the table's sort key.
            on_progress: Called as the work proceeds.
            stop: The work stops when this returns true.
            dry_run: Only estimate what would be done.
            spark: A session on a cluster: the groups are merged there, several side by side.

        Raises:
            InvalidInput: The table has no sort key, or ``where`` is wrong.
            StoreUnavailable: There is no room on disk.
            Contention, Corrupt
        """
        job = ReclusterJob(
            self._internals.path,
            self._log,
            self._storage,
            where=where,
            final=final,
            on_progress=on_progress,
            stop=stop or (lambda: False),
            reads=self._internals.reads.of,
        )
        return job.predicted() if dry_run else self._internals.compaction.recluster(job, spark)

    # -- for readers of Iceberg ----------------------------------------------------------------------------------------

    def publish_iceberg(self) -> Published:
        """Let readers of Iceberg see the newest version now; returns what was written, and where its metadata is.

        Running maintenance does this by itself, at most every ``lakebed.iceberg_seconds``.

        Raises:
            InvalidInput: ``lakebed.iceberg`` is not on.
            MissingPrerequisite: The package lacks what it needs for Avro.
            Contention, StoreUnavailable: Publishing again is safe.
        """
        return publish(self._log, self._storage)

    # -- reading again -------------------------------------------------------------------------------------------------

    def rewind(self, topic: str, to: int | Mapping[int, int] | None = None) -> int:
        """Have the table's pipeline read a topic again; returns the version.

        A table with keys keeps the newest change of each key; one without has the rows twice.

        Args:
            topic: The name of the topic.
            to: The offset from which all partitions are read, or an offset by partition. Without it the table forgets the topic,
                and its pipeline starts where its settings say (``starting_offsets``).

        Raises:
            InvalidInput: The topic or a partition was not read yet, or an offset is ahead of what was read.
            Contention, StoreUnavailable
        """
        return rewind(self._log, topic, to)

    def restart_order(self) -> int:
        """Make what is read from now on count as newer than all that the table has; returns the version.

        This is for a source that goes on at lower positions: it was moved to another server, restored, or its log was reset. Have
        its rows sent again after that.

        Raises:
            InvalidInput: A column or the order of arrival orders the changes, or no topic was read yet.
            Contention, StoreUnavailable
        """
        return restart_order(self._log, self._storage)

    # -- the pipeline of a database ------------------------------------------------------------------------------------

    def resume(self) -> bool:
        """Let continue what is parked; returns whether anything was.

        That is the table in its database's pipeline, merges, and a settle that keep failing. A running pipeline continues within
        seconds, where it stopped. Every process that maintains the table plans parts of parked merges at once, and settles the
        tail. Entries of coordination that can't be read are removed, and findings that hold until rows are sent again count as
        dealt with. Raises Contention, StoreUnavailable.
        """
        merges = resume_merges(self._log)
        settles = resume_settle(self._log)
        is_dealt_with = dismiss(self._log)
        is_parked = failing.resume(self._log) or settles or is_dealt_with
        return bool(remove_unreadable(self._log)) or is_parked or merges > 0

    def remove_entry(self, name: str) -> None:
        """Remove an entry of the log that can't be read (docs/runbook.md), whatever depends on it.

        Args:
            name: As ``status()`` and the error give it.

        Raises:
            InvalidInput: The entry can be read.
            Contention, StoreUnavailable
        """
        remove_unreadable(self._log, name)

    # -- cleaning up ---------------------------------------------------------------------------------------------------

    def hold(self, version: int, seconds: float) -> AbstractContextManager[int]:
        """Keep a version from being cleaned up, for a long reader; a context manager.

        Args:
            version: The version to keep.
            seconds: How long it is kept, unless the ``with`` block ends earlier.

        Raises:
            VersionNotFound: The version has expired.
        """
        return hold(self._log, version, seconds)

    def expire_rows(self, dry_run: bool = True) -> pa.Table:
        """Remove all rows whose time to live (the property ``lakebed.ttl``) has ended, now.

        Running maintenance does this by itself.

        Parts that hold nothing but such rows leave the table; in others the rows are marked dead. No file is rewritten. The
        newest value of a row decides, so a row with a change in the tail stays until that is settled.

        Args:
            dry_run: Only report what would be removed.

        Returns:
            A row for each part: path, expired_rows, rows_left, bytes (of a part that leaves), removed.

        Raises:
            InvalidInput: The table has no ``lakebed.ttl``.
            Contention, StoreUnavailable: Expiring again is safe.
        """
        return self._internals.row_expiry.expire(dry_run)

    def clean_log(self) -> int:
        """Checkpoint, and delete log files that nothing within ``lakebed.log_retention`` needs; returns how many."""
        return cleanup.clean_log(self._log, self._storage)

    def expire_snapshots(
        self,
        older_than: str | timedelta | None = None,
        retain_last: int = 1,
        dry_run: bool = True,
        allow_short_retention: bool = False,
    ) -> pa.Table:
        """Expire old versions: delete their log files and data files.

        Args:
            older_than: ``"7 days"`` or a timedelta. By default ``delta.deletedFileRetentionDuration`` (7 days).
            retain_last: How many of the newest versions are kept, however old they are.
            dry_run: Only report what would be deleted.
            allow_short_retention: Allow less than an hour.

        Returns:
            A row for each file: path, bytes, reason, modified. The reason is ``log``, ``expired`` (a file of a version that
                expired), ``orphan`` (no kept version refers to it), ``metadata`` (of Iceberg's, and no snapshot needs it) or
                ``temporary`` (a crashed writer left it).

        Raises:
            InvalidInput
            Corrupt: No version refers to a file, and the log does not record how the table became empty.
            Contention, StoreUnavailable
        """
        seconds = interval_seconds(older_than)
        return cleanup.expire_snapshots(self._log, self._storage, seconds, retain_last, dry_run, allow_short_retention)

    def remove_orphan_files(
        self, older_than: str | timedelta | None = None, dry_run: bool = True, allow_short_retention: bool = False
    ) -> pa.Table:
        """Delete old files that no version within retention refers to. Otherwise like ``expire_snapshots``.

        Args:
            older_than: The age that protects files of writers that have not committed yet (default: 3 days).
            dry_run: Only report what would be deleted.
            allow_short_retention: Allow less than an hour.
        """
        seconds = interval_seconds(older_than)
        return cleanup.remove_orphan_files(self._log, self._storage, seconds, dry_run, allow_short_retention)

    def vacuum(
        self, retention: str | timedelta | None = None, dry_run: bool = True, allow_short_retention: bool = False
    ) -> pa.Table:
        """Delete orphans and data files that only old versions refer to; the log stays as it is.

        Otherwise like ``expire_snapshots``.

        Args:
            retention: Versions older than this can't be read any more.
            dry_run: Only report what would be deleted.
            allow_short_retention: Allow less than an hour.
        """
        return cleanup.vacuum(self._log, self._storage, interval_seconds(retention), dry_run, allow_short_retention)
