"""Takes the figures of a table again and again, at a low and bounded cost, for gauges and the display.

1. Each time: the figures of the newest snapshot (``coordination.table_figures``).
2. As often as ``share`` of the time allows: what the planner would do, what is wrong that the snapshot shows, and, if the base
   has changed, how well its parts are clustered. In between the earlier figures are used.
3. Each time, for a bounded time: commits are read, until the last hour is known (``monitoring.table_state``).
4. Once a minute: the rows of the quarantine.
5. Once an hour, or less often if that takes long, in a thread of its own: the files below the table's root are listed.

The reference of write amplification is that of ``planning.optimum``, at the margin: for as many equal batches as came in the last
hour, after as many as the table holds, (F(held + n, k) − F(held, k)) ÷ n, plus one for ingest itself; k is the read budget.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from lakebed.coordination.failing import parked_paths, taken_paths
from lakebed.coordination.settle_attempts import parked_settle
from lakebed.coordination.table_figures import TableFigures, figures_of
from lakebed.errors import LakebedError, Retry, TableNotFound
from lakebed.health.finding import Finding, counted
from lakebed.health.glance import snapshot_findings
from lakebed.health.run_report import Runs
from lakebed.log.actions import Part
from lakebed.log.claims import claims_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.merge.materialized import LocalParts
from lakebed.monitoring.table_state import Clustered, LevelState, Planned, Recent, RecentCommits, Stored, TableState
from lakebed.operations.cleanup import overdue
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.planning.backpressure import pressure
from lakebed.planning.optimum import least_written_up_to
from lakebed.planning.plan import kind_of
from lakebed.planning.planner import plan
from lakebed.sortkey.clustering import clustering
from lakebed.storage.open import open_part_storage
from lakebed.view.clustering import placed

_logger = logging.getLogger("lakebed.exporter")
_COSTLY_SHARE = 0.01
_QUARANTINE_SECONDS = 60.0
LIST_SECONDS = 3600.0
_LIST_SHARE = 0.01  # of the time, at most, for listing
_FLUSHES_MAX = 4096
_RUNS_MAX = 64


class Sampler:
    """Takes the figures of one table. Not thread-safe."""

    def __init__(
        self,
        path: str,
        log: TableLog,
        volatile: Path,
        clock: Callable[[], float] = time.time,
        share: float = _COSTLY_SHARE,
        log_seconds: float = 0.01,
    ) -> None:
        """``volatile``: the folder of materialized parts on this host, with one folder for each table. ``share``: the part of
        the time that step 2 may take. ``log_seconds``: the time for old commits in each call.
        """
        self._path = path
        self._log = log
        self._volatile = volatile
        self._clock = clock
        self._share = share
        self._log_seconds = log_seconds
        self._commits = RecentCommits(log, clock)
        self._planned: Planned | None = None
        self._clustered: Clustered | None = None
        self._clustered_parts: Mapping[str, Part] | None = None
        self._costly_again = 0.0
        self._runs = Runs(clock)
        self._findings: tuple[Finding, ...] = ()
        self._local: tuple[str, LocalParts] | None = None
        self._quarantine: TableLog | None = None
        self._quarantine_rows: int | None = None
        self._quarantine_again = 0.0
        self._stored: Stored | None = None
        self._list_again = 0.0

    def sample(self) -> TableState:
        """The figures now. Raises TableNotFound, StoreUnavailable, Corrupt."""
        started = time.monotonic()
        snapshot = self._log.refresh()
        now_ms = self._log.now_ms()
        figures = figures_of(snapshot, now_ms)
        if started >= self._costly_again:
            self._take_costly_figures(snapshot, now_ms)
            ended = time.monotonic()
            self._costly_again = ended + (ended - started) * (1 / self._share - 1)
        is_fed = snapshot.settings.source_topic is not None
        of_runs = self._runs.of_table(self._path, is_fed=is_fed, alone=True)
        recent = self._commits.read(snapshot.version, self._log_seconds)
        if started >= self._quarantine_again:
            self._look_at_quarantine()
            self._quarantine_again = started + _QUARANTINE_SECONDS
        if started >= self._list_again:
            self._list_again = math.inf  # until it has ended
            threading.Thread(target=self._list, name="lakebed-listing", daemon=True).start()
        parts, sizes = self._local_states(snapshot, now_ms)
        return TableState(
            **figures.as_fields(),
            planned=self._planned,
            clustered=self._clustered,
            recent=with_reference(recent, figures),
            parts_by_state=parts,
            bytes_by_state=sizes,
            quarantine_rows=self._quarantine_rows,
            parked_parts=len(parked_paths(snapshot, now_ms)),
            is_settle_parked=parked_settle(snapshot, now_ms) is not None,
            findings=counted([*of_runs, *self._findings]),
            stored=self._stored,
            seconds=time.monotonic() - started,
        )

    def _take_costly_figures(self, snapshot: Snapshot, now_ms: int) -> None:
        planning = plan(snapshot, taken_paths(snapshot, now_ms), now_ms, statistics=self._log.statistics)
        self._planned = Planned(
            backlog_bytes=planning.backlog_bytes,
            depth_max=planning.depth_max,
            plans=Counter(kind_of(each) for each in planning.plans),
            refused={refusal.cause.value: refusal.count for refusal in planning.refusals},
            backpressure_factor=pressure(snapshot).factor,
        )
        self._findings = tuple(snapshot_findings(snapshot, self._path, now_ms))
        if snapshot.parts is not self._clustered_parts:
            self._clustered_parts = snapshot.parts
            if snapshot.settings.order_by:
                found = clustering(placed(snapshot, self._log.statistics))
                self._clustered = Clustered(found.average_depth, found.average_overlaps)

    def _look_at_quarantine(self) -> None:
        log = self._quarantine or TableLog(open_store(self._path + QUARANTINE_SUFFIX), self._clock)
        try:
            beside = log.refresh()
        except TableNotFound:
            self._quarantine, self._quarantine_rows = None, 0
            return
        except Retry:
            return
        except LakebedError as error:  # the quarantine is another table: this one's figures do not depend on it
            if self._quarantine_rows is not None:
                _logger.warning("%s can't be read: %s", self._path + QUARANTINE_SUFFIX, error)
            self._quarantine_rows = None
            return
        self._quarantine = log
        found = figures_of(beside)
        self._quarantine_rows = found.rows + found.tail_rows

    def _list(self) -> None:
        started = time.monotonic()
        try:
            storage = open_part_storage(self._path)
            orphans = overdue(self._log, storage)
            size = sum(size for _, size, _ in storage.list(""))
            self._stored = Stored(size, len(orphans), sum(file.bytes for file in orphans))
        except (LakebedError, OSError) as error:  # the next sample reports what is wrong with the table
            _logger.warning("%s can't be listed: %s", self._path, error)
            self._stored = None
        finally:
            ended = time.monotonic()
            self._list_again = ended + max(LIST_SECONDS, (ended - started) / _LIST_SHARE)

    def _local_states(self, snapshot: Snapshot, now_ms: int) -> tuple[dict[LevelState, int], dict[LevelState, int]]:
        """Materialized parts of this host and volatile ones, by level; and bytes of the former."""
        table_id = snapshot.metadata.id
        if self._local is None or self._local[0] != table_id:
            self._local = table_id, LocalParts(self._volatile / table_id)
        claims = claims_of(snapshot.domains)
        parts: Counter[LevelState] = Counter()
        sizes: Counter[LevelState] = Counter()
        here = {one.claim.id: one for one in self._local[1].load() if one.claim.id in claims}
        for one in here.values():
            parts[one.claim.level, "materialized"] += len(one.parts)
            sizes[one.claim.level, "materialized"] += one.bytes
        for claim in claims.values():
            if claim.volatile and claim.is_live(now_ms) and claim.id not in here:
                parts[claim.level, "volatile"] += 1
        return dict(parts), dict(sizes)


def with_reference(recent: Recent, figures: TableFigures) -> Recent:
    if not recent.batches or recent.write_amplification is None:
        return recent
    held = round(figures.rows * recent.batches / recent.ingested_rows)
    return replace(
        recent, write_amplification_reference=reference_amplification(recent.batches, held, figures.read_budget)
    )


def reference_amplification(batches: int, held: int, read_budget: int) -> float:
    """The least that ``batches`` equal batches cost, their own bytes included, after ``held`` ones; both are bounded."""
    batches = min(batches, _FLUSHES_MAX // 2)
    held = min(held, _FLUSHES_MAX - batches)
    least = _least(min(read_budget, _RUNS_MAX))
    return 1 + float(least[held + batches] - least[held]) / batches


@lru_cache(maxsize=16)
def _least(read_budget: int) -> np.ndarray:
    return least_written_up_to(_FLUSHES_MAX, read_budget)
