"""Settles one table in this process: chooses the locator, quarantines records that can't become rows, emits events."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed import events
from lakebed.compaction.settle import SettleResult, settle
from lakebed.compaction.spark_key_locator import SPARK_LOOKUP_KEYS_MIN, SparkKeyLocator
from lakebed.manifest.actions import ChangePart
from lakebed.manifest.table_log import TableLog
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.locate import KeyLocator
from lakebed.planning.settling import reason_to_settle
from lakebed.storage.part_storage import PartStorage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        # Without it two threads would settle the same changes. Only threads that settle wait for it.
        self._lock = threading.Lock()

    def settle(
        self, locator: Callable[[WriteSpec], KeyLocator] | None = None, checkpoint_slack: int = 1
    ) -> SettleResult:
        """Settle the whole tail; ``locator`` takes the place of the usual one. Raises what ``settle`` raises."""
        found_by = locator or self._locator
        result = settle(
            self._log,
            self._storage,
            self._deletion_vectors,
            found_by,
            self._set_aside,
            checkpoint_slack=checkpoint_slack,
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
        return result

    def settle_if_due(self, spark: SparkSession | None = None) -> bool:
        """Settle if the planner says so; returns whether something was settled. With a session, Spark tasks find very many keys.

        For maintenance, which writes checkpoints in a thread of its own: one is written here only if that thread is late.
        """
        with self._lock:  # a tail that waits may become due while a batch is looked at
            now_ms = int(time.time() * 1000)
            if reason_to_settle(self._log.refresh(), now_ms, self._log.statistics) is None:
                return False
            return self.settle(self.wide_locator(spark) if spark else None, checkpoint_slack=2).commits > 0

    def wide_locator(
        self, spark: SparkSession, keys_min: int = SPARK_LOOKUP_KEYS_MIN
    ) -> Callable[[WriteSpec], KeyLocator]:
        """Finds keys by Spark tasks if there are at least ``keys_min``, and as usual if there are fewer."""
        return lambda spec: SparkKeyLocator(self._locator(spec), spark, spec, self._path, keys_min)
