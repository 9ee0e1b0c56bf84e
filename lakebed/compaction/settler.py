"""Settles one table in this process: chooses the locator, quarantines records that can't become rows, emits events.

Keys of a large settle are found by Spark tasks (``_SparkKeyLocator``). The settle of a batch looks its keys up in the key index,
in the maintaining process. For a backlog of millions of keys it is cheaper to read the key columns of the base once, in
parallel: each task takes a group of parts and joins their keys with the keys that are looked up. It returns positions, at most
as many as there are keys.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed import events
from lakebed.compaction.settle import SettleResult, is_as_of, settle
from lakebed.coordination.failing import attempts_of, begin_settle, end_attempt, parked_settle, this_process
from lakebed.errors import Retry
from lakebed.failures import crosses_spark, spark_job
from lakebed.log.actions import ChangePart, Part
from lakebed.log.entries import SETTLING
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.planning.settling import reason_to_settle
from lakebed.positions.remarks import report_remarks
from lakebed.resolve.locate import KeyLocator, ScanLocator, lookup_schema
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.part_storage import PartStorage
from lakebed.telemetry import counted, measured, report_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_SPARK_LOOKUP_KEYS_MIN = 500_000
_GROUP_ROWS = 4_000_000


class _SparkKeyLocator:
    """Spark tasks for many keys, ``narrow`` for few."""

    def __init__(
        self,
        narrow: KeyLocator,
        spark: SparkSession,
        spec: WriteSpec,
        root: str,
        keys_min: int = _SPARK_LOOKUP_KEYS_MIN,
    ):
        self._narrow = narrow
        self._spark = spark
        self._spec = spec
        self._root = root
        self._keys_min = keys_min

    def lookup(self, base: Mapping[str, Part], keys: pa.Table) -> pa.Table:
        if len(keys) < self._keys_min:
            return self._narrow.lookup(base, keys)
        groups = _groups(base)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, keys.schema) as writer:
            writer.write_table(keys)
        broadcast = self._spark.sparkContext.broadcast(sink.getvalue().to_pybytes())
        spec, root = self._spec, self._root

        @crosses_spark
        def find(numbers: Iterable[int]) -> Iterator[tuple[bytes, str]]:
            wanted = pa.ipc.open_stream(broadcast.value).read_all()
            for number in numbers:
                with counted() as requests, measured(root, "find"):
                    found = ScanLocator(spec, open_part_storage(root)).lookup(groups[number], wanted)
                out = pa.BufferOutputStream()
                with pa.ipc.new_stream(out, found.schema) as writer:
                    writer.write_table(found)
                yield out.getvalue().to_pybytes(), requests.to_json()

        try:
            with spark_job():
                pieces = (
                    self._spark.sparkContext.parallelize(range(len(groups)), len(groups)).mapPartitions(find).collect()
                )
        finally:
            broadcast.unpersist()
        for _, requests in pieces:
            report_requests(requests)
        schema = lookup_schema(self._spec)
        return pa.concat_tables([pa.ipc.open_stream(piece).read_all() for piece, _ in pieces] or [schema.empty_table()])

    def learn(self, path: str, rows: pa.Table) -> None:
        self._narrow.learn(path, rows)


def _groups(base: Mapping[str, Part]) -> list[dict[str, Part]]:
    """Parts in groups of about as many rows; the order does not depend on the map's."""
    groups: list[dict[str, Part]] = []
    rows = _GROUP_ROWS
    for path in sorted(base):
        if rows >= _GROUP_ROWS:
            groups.append({})
            rows = 0
        groups[-1][path] = base[path]
        rows += base[path].rows
    return groups


_alone = threading.Lock()
"""Held while a table is settled whose last settle was abandoned: if that ends this process, one table is to blame."""


class Settler:
    """Settles one table. Safe to use from several threads."""

    def __init__(
        self,
        path: str,
        log: TableLog,
        storage: PartStorage,
        deletion_vectors: DeletionVectorCache,
        locator: Callable[[WriteSpec], KeyLocator],
        set_aside: Callable[[ChangePart, pa.Table], None],
    ) -> None:
        """``set_aside``: see ``settle``."""
        self._path = path
        self._log = log
        self._storage = storage
        self._deletion_vectors = deletion_vectors
        self._locator = locator
        self._set_aside = set_aside
        self.spark: SparkSession | None = None
        """Maintenance settles with it: its tasks find very many keys. None: the key index finds any number."""
        self.until_version: int | None = None
        """What becomes due is settled up to this version; later changes wait in the tail. None: no bound."""
        # Without it two threads would settle the same changes. Only threads that settle wait for it.
        self._lock = threading.Lock()
        self.process = this_process()
        self.found_version: int | None = None
        """Attempts are recorded for changes that were committed up to this version only; None: no attempts are recorded."""
        self._is_noted = False

    def settle(
        self,
        locator: Callable[[WriteSpec], KeyLocator] | None = None,
        checkpoint_slack: int = 1,
        until_version: int | None = None,
        first: Snapshot | None = None,
    ) -> SettleResult:
        """Settle the whole tail, or up to a version. Raises what ``settle`` raises.

        ``locator`` takes the place of the usual one; ``first``: the snapshot to begin with (default: the newest).
        """
        found_by = locator or self._locator
        result = settle(
            self._log,
            self._storage,
            self._deletion_vectors,
            found_by,
            self._set_aside,
            checkpoint_slack=checkpoint_slack,
            until_version=until_version,
            first=first,
        )
        if result.commits or result.conflicts:
            events.emit(
                events.Settled(
                    table=self._path,
                    version=result.version,
                    change_parts=result.change_parts,
                    rows=result.rows,
                    rows_marked_dead=result.rows_marked_dead,
                    conflicts=result.conflicts,
                    seconds=result.seconds,
                    bytes_written=result.bytes_written,
                    quarantined=result.quarantined_rows,
                    superseded=result.late_or_superseded_rows,
                    late=result.late_rows,
                )
            )
            report_remarks(self._path, result.remarks)
        return result

    def settle_if_due(self, looks: bool = True) -> bool:
        """Settle if the planner says so; returns whether something was settled.

        For maintenance, which writes checkpoints in a thread of its own: one is written here only if that thread is late.
        ``looks``: whether the log is read; if not, the newest snapshot in memory decides.
        """
        with self._lock:  # a tail that waits may become due while a batch is looked at
            now_ms, until_version = int(time.time() * 1000), self.until_version
            newest = (None if looks else self._log.newest) or self._log.refresh()
            to_settle = _without_later_changes(newest, until_version)
            if reason_to_settle(to_settle, now_ms, self._log.statistics) is None:
                return False
            with self._noted(newest, until_version) as begun:
                if begun is None:
                    return False
                locator = self.wide_locator(self.spark) if self.spark else None
                return self.settle(locator, checkpoint_slack=2, until_version=until_version, first=begun).commits > 0

    def settle_to(self, version: int) -> int | None:
        """Settle up to a version now; what becomes due afterwards is not settled beyond it. Raises what ``settle`` raises.

        Returns the version at which every reader sees what the table was at ``version``. None if there is none, because
        something that came later is in the base already: changes that were settled elsewhere, a truncate, another schema.
        Raises Retry also while settling is parked (``settle_attempts``), or waits for that of another table.
        """
        with self._lock:
            self.until_version = version
            with self._noted(self._log.refresh(), version) as begun:
                if begun is None:
                    raise Retry(
                        f"{self._path} is not settled now: processes that began it were killed (lakebed status)",
                        table=self._path,
                    )
                locator = self.wide_locator(self.spark) if self.spark else None
                settled = self.settle(locator, checkpoint_slack=2, until_version=version, first=begun)
            now = self._log.newest
            if now is None or now.version != settled.version:
                now = self._log.at_version(settled.version)
            if not now.settings.keys:  # what is appended joins the base at once
                return min(version, now.version)
            return now.version if is_as_of(version, now, self._log) else None

    @contextmanager
    def _noted(self, newest: Snapshot, until_version: int | None) -> Iterator[Snapshot | None]:
        """The snapshot to settle, after a note if others may have died of it; None if it is not settled now: that is parked, or
        this process settles another table of which others may have died.

        After an error the note stays: this process tries again, and counts once.
        """
        tail = [part.version for part in _without_later_changes(newest, until_version).tail.values()]
        if tail and parked_settle(newest, self._log.now_ms(), self.process) is not None:
            yield None
            return
        if not tail or self.found_version is None or min(tail) > self.found_version:
            yield newest
            return
        others_tried = attempts_of(newest).of_others(self.process, min(tail), self._log.now_ms())
        if others_tried and not _alone.acquire(blocking=False):
            yield None
            return
        try:
            begun, parked = begin_settle(self._log, self.process)
            self._is_noted = parked is None
            yield begun if parked is None else None
            if self._is_noted:
                self.end()
        finally:
            if others_tried:
                _alone.release()

    def end(self) -> None:
        """This process tries no more; nobody counts what it tried. Raises Contention, StoreUnavailable, TableNotFound."""
        newest = self._log.newest
        if self._is_noted and newest is not None and SETTLING in newest.domains:  # mostly the settle removed it
            end_attempt(self._log, self.process)
        self._is_noted = False

    def wide_locator(
        self, spark: SparkSession, keys_min: int = _SPARK_LOOKUP_KEYS_MIN
    ) -> Callable[[WriteSpec], KeyLocator]:
        """Finds keys by Spark tasks if there are at least ``keys_min``, and as usual if there are fewer."""
        return lambda spec: _SparkKeyLocator(self._locator(spec), spark, spec, self._path, keys_min)


def _without_later_changes(snapshot: Snapshot, until_version: int | None) -> Snapshot:
    """The snapshot without change parts of versions after this one."""
    if until_version is None:
        return snapshot
    return replace(
        snapshot, tail={domain: part for domain, part in snapshot.tail.items() if part.version <= until_version}
    )
