"""The planner over days of arrivals in seconds: no rows, only parts, with the planner and the settings that tables have.

1. A flush adds a change part a partition to the tail; without an order, a part to the base. When the planner settles the tail,
   its parts join the base at level 0, and what they replace dies in older parts, in proportion to their live rows.
2. The planner plans on a snapshot of these parts. Settling takes no time. Merges take ``merge_bytes_per_second`` (or no time),
   one after another; meanwhile their inputs are claimed. Rows that die while a merge runs are dead in its output.
3. With ``volatile``, what the planner merges for readers here goes to a local disk, and readers elsewhere still meet the parts
   below it. What it merges for readers elsewhere goes to the store, and ends what the disk has of the same parts.
4. Merged parts are split by size. Where a part's rows lie on the line of sort keys is kept as quantiles, so a merge of parts
   that are dense in different places is split where its rows are.

All numbers are expected values, so a simulation repeats exactly. ``arrivals`` may be a table's own (``recorded``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakebed.log.actions import ChangePart, Part, passes_after
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.snapshot import Snapshot
from lakebed.planning.admission import budget_elsewhere
from lakebed.planning.candidates import least_written
from lakebed.planning.plan import Goal, MergeKind, MergePlan, Planning
from lakebed.planning.planner import plan as make_plans
from lakebed.planning.settling import UploadRules, uploaded_plans
from lakebed.planning.workload import _POINTS, Arrival, Sample, Simulation, Workload
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.settings import TableSettings

_Floats = npt.NDArray[np.float64]
_KEYS = 2.0**48
_QUANTILES = 17
_SCHEMA = pa.schema([("key", pa.int64())])
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUNDS_MAX = 10_000


def simulate(
    workload: Workload,
    settings: TableSettings,
    samples_max: int = 500,
    on_progress: Callable[[int, int], object] | None = None,
) -> Simulation:
    """Run the planner over the workload. The sort key and keys of ``settings`` do not apply.

    ``on_progress`` gets how many arrivals were simulated, and of how many.
    """
    world = _World(workload, settings)
    every = max(1, len(workload.arrivals) // samples_max)
    samples: list[Sample] = []
    parts_read, last_ms, lost = 0.0, 0, sorted(workload.disk_lost_ms)
    for number, arrival in enumerate(workload.arrivals):
        if on_progress is not None:
            on_progress(number, len(workload.arrivals))
        world.finish_until(arrival.at_ms)
        if lost and lost[0] <= arrival.at_ms:
            world.lose_disk()
            del lost[0]
        world.flush(arrival)
        planning = world.work(arrival.at_ms)
        if number % every == 0 or number == len(workload.arrivals) - 1:
            samples.append(world.sample(arrival.at_ms, planning))
            hours = (arrival.at_ms - last_ms) / 3_600_000
            parts_read += workload.queries_per_hour * hours * samples[-1].depth_average
            last_ms = arrival.at_ms
    flushes = len(workload.arrivals)
    mean_bytes = world.ingested_bytes / max(1, flushes)
    budget = budget_elsewhere(settings.read_budget) if workload.volatile else settings.read_budget
    least = least_written(flushes, budget) * mean_bytes
    return Simulation(
        samples=samples,
        flushes=flushes,
        settles=world.settles,
        merges=world.merges,
        purges=world.purges,
        local_merges=world.local_merges,
        reference_bytes=round(least),
        parts_read=parts_read,
    )


@dataclass(slots=True)
class _Stored:
    """A part and where its live rows lie: ``_QUANTILES`` points with equally many rows between each two."""

    part: Part
    live: float
    quantiles: _Floats

    def mark(self) -> None:
        """The part's deletion vector says what is dead."""
        dead = self.part.rows - math.ceil(self.live)
        if dead > self.part.dead_rows:
            self.part = replace(self.part, deletion_vector=_vector(self.part.path, dead))


@dataclass(slots=True, eq=False)
class _Held:
    """What one merge wrote to the local disk, in place of these parts of the store."""

    sources: tuple[str, ...]
    stored: dict[str, _Stored]
    oldest_ms: int
    rows: float  # that were live in the sources when it was last looked at

    @property
    def bytes(self) -> int:
        return sum(item.part.bytes for item in self.stored.values())


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A change part of the tail: how many rows it will replace, how many of its own are deletes, where they lie."""

    part: ChangePart
    replaces: float
    deletes: int
    quantiles: _Floats


@dataclass(frozen=True, slots=True)
class _Running:
    plan: MergePlan
    done_ms: float


class _World:
    def __init__(self, workload: Workload, settings: TableSettings) -> None:
        self.workload = workload
        order_by = () if workload.order == "none" else ("key",)
        self.settings = replace(settings, keys=order_by, sort_key=order_by, sequence_by=None)
        names = ("partition",) if workload.partitions > 1 else ()
        self.metadata = Metadata(
            id="simulated",
            schema_string=schema_to_json(_SCHEMA),
            partition_columns=names,
            configuration=self.settings.to_properties(),
        )
        self.parts: dict[str, _Stored] = {}
        self.tail: dict[str, _Waiting] = {}
        self.running: list[_Running] = []
        self.version = 0
        self.ingested_bytes = self.merged_bytes = self.settles = self.merges = self.purges = 0
        self.held: list[_Held] = []
        self.local_bytes = self.local_merges = 0
        self.uploads = UploadRules(
            age_seconds=self.settings.upload_after_seconds, local_bytes_max=self.settings.volatile_bytes_max
        )
        self._rows_in = 0.0
        if workload.base is not None and workload.base.rows:
            self._lay(workload.base)

    def _lay(self, base: Arrival) -> None:
        """Full parts side by side, as a merge leaves them."""
        count = self.workload.partitions
        even = np.linspace(0.0, 1.0, _QUANTILES)
        rows, size = base.rows / count, base.bytes / count
        self._rows_in = rows
        for number in range(count):
            where = even * (rows if self.workload.order == "ascending" else _KEYS)
            self.parts |= self._written(
                rows, size, 1, [(where, rows)], blocks=(0, 0), partition=self._partition(number), name=f"base-{number}"
            )

    def _partition(self, number: int) -> dict[str, str | None]:
        return {"partition": str(number)} if self.workload.partitions > 1 else {}

    def flush(self, arrival: Arrival) -> None:
        """One part a partition."""
        self.version += 1
        count = self.workload.partitions
        rows, size = max(1, arrival.rows // count), max(1, arrival.bytes // count)
        deletes = min(rows, arrival.deletes // count)
        replaced = rows * self.workload.update_share if arrival.replaces is None else arrival.replaces / count
        for number in range(count):
            partition = self._partition(number)
            if arrival.rows == 0:
                self._kill(replaced, partition)
                continue
            quantiles = self._lie(rows, min(1.0, replaced / rows), number)
            part = ChangePart(
                path=f"flush-{self.version:07d}-{number}",
                version=self.version,
                ordinal=number,
                rows=rows,
                bytes=size,
                deletes=deletes,
                partition_values=partition,
                stats=_stats(rows, quantiles),
                modified_ms=arrival.at_ms,
                sort_key_version=self.settings.sort_key_version,
            )
            waiting = _Waiting(part, replaced, deletes, quantiles)
            self.ingested_bytes += size
            if self.workload.order == "none":
                self._join(waiting)
            else:
                self.tail[part.domain] = waiting
        self._rows_in += arrival.rows / count

    def _settle(self) -> None:
        """The whole tail joins the base."""
        self.version += 1
        self.settles += 1
        for waiting in self.tail.values():
            self._join(waiting)
        self.tail.clear()

    def _join(self, waiting: _Waiting) -> None:
        """The part joins the base; what it replaces dies."""
        part = waiting.part
        self._kill(waiting.replaces, part.partition_values)
        vector = _vector(part.path, waiting.deletes) if waiting.deletes else None
        self.parts[part.path] = _Stored(part.settled(vector), float(part.rows - waiting.deletes), waiting.quantiles)

    def _lie(self, rows: int, update_share: float, number: int) -> _Floats:
        """Where a flush's rows lie."""
        even = np.linspace(0.0, 1.0, _QUANTILES)
        if self.workload.order != "ascending":
            # The least and the greatest of so many rows anywhere, a little different each time.
            edge = (self.version * _GOLDEN + number / 7) % 1.0 / (rows + 1)
            return (edge + even * (1.0 - 2 * edge)) * _KEYS
        new = (self._rows_in + even * rows, rows * (1 - update_share))
        updates = rows * update_share
        recent = (self._rows_in * (0.9 + 0.1 * even), updates * self.workload.update_skew)
        anywhere = (self._rows_in * even, updates * (1 - self.workload.update_skew))
        return _mixed([piece for piece in (new, recent, anywhere) if piece[1] > 0], 1)[0]

    def _kill(self, rows: float, partition: Mapping[str, str | None]) -> None:
        stored = [item for item in self.parts.values() if item.part.partition_values == partition]
        if not rows or not stored:
            return
        stored.sort(key=lambda item: (-item.part.max_block, item.part.path))
        live = np.array([item.live for item in stored])
        newest = np.diff(np.minimum(np.cumsum(live), live.sum() / 10), prepend=0.0)
        skew = self.workload.update_skew
        weights = skew * newest / max(1.0, newest.sum()) + (1 - skew) * live / max(1.0, live.sum())
        for item, dies in zip(stored, np.minimum(live, rows * weights), strict=True):
            item.live = max(0.0, item.live - float(dies))
            item.mark()
        for held in self.held:
            live_now = sum(self.parts[path].live for path in held.sources)
            for item in held.stored.values():
                item.live *= live_now / max(1.0, held.rows)
                item.mark()
            held.rows = live_now

    def work(self, now_ms: int) -> Planning:
        """Plan, and begin the plans, until there is nothing more to do."""
        for _ in range(_ROUNDS_MAX):
            claimed = {path for running in self.running for path in running.plan.inputs}
            in_flight = sum(running.plan.bytes_in for running in self.running)
            planning = self._plan(claimed, now_ms, in_flight)
            if not planning.plans:
                return planning
            if planning.settle:
                self._settle()
            for plan in planning.merges:
                if self.workload.merge_bytes_per_second is None:
                    self._finish(plan, now_ms)
                else:
                    begins = max([float(now_ms), *(running.done_ms for running in self.running)])
                    done = begins + 1000 * plan.bytes_in / self.workload.merge_bytes_per_second
                    self.running.append(_Running(plan, done))
        raise AssertionError(f"the planner found no end in {_ROUNDS_MAX} rounds")

    def _plan(self, claimed: Set[str], now_ms: int, in_flight: int) -> Planning:
        """What to do next, for readers elsewhere first."""
        if not self.workload.volatile:
            return make_plans(self.snapshot(), claimed, now_ms, in_flight)
        self._upload_due(claimed, now_ms)
        at_work = {path for held in self.held if not claimed.isdisjoint(held.stored) for path in held.sources}
        elsewhere = make_plans(self.snapshot(), claimed | at_work, now_ms, in_flight, goal=Goal.ELSEWHERE)
        below = {path for held in self.held for path in held.sources}
        elsewhere = replace(elsewhere, merges=tuple(uploaded_plans(elsewhere, below)))
        if elsewhere.plans:
            return elsewhere
        busy = {path for held in self.held if not claimed.isdisjoint(held.sources) for path in held.stored}
        here = make_plans(self.snapshot(here=True), claimed | busy, now_ms, in_flight, goal=Goal.HERE)
        return replace(here, refusals=elsewhere.refusals)

    def _upload_due(self, claimed: Set[str], now_ms: int) -> None:
        """Parts that are due by age or room go to the store as they are."""
        free = [held for held in self.held if claimed.isdisjoint(held.stored)]
        for held in self.uploads.due(free, now_ms):
            self.version += 1
            for path in held.sources:
                del self.parts[path]
            self.parts |= {path.replace("local", "upload"): _renamed(item) for path, item in held.stored.items()}
            self.merged_bytes += held.bytes
            self.held.remove(held)

    def lose_disk(self) -> None:
        """What was on the local disk is gone, also what runs."""
        self.held.clear()
        self.running = [running for running in self.running if not running.plan.is_local]

    def finish_until(self, now_ms: int) -> None:
        """Finish the merges that are done by then; each makes room for the next."""
        while self.running and self.running[0].done_ms <= now_ms:
            done = self.running.pop(0)
            self._finish(done.plan, int(done.done_ms))
            self.work(int(done.done_ms))

    def _finish(self, plan: MergePlan, now_ms: int) -> None:
        if plan.is_local:
            self._finish_here(plan, now_ms)
            return
        inputs = [self.parts.pop(path) for path in plan.inputs]
        self.held = [held for held in self.held if self.parts.keys() >= set(held.sources)]
        rows = sum(item.live for item in inputs)
        size = sum(item.live * item.part.bytes / item.part.rows for item in inputs)
        self.version += 1
        self.purges += plan.kind is MergeKind.PURGE
        self.merges += plan.kind in (MergeKind.MERGE, MergeKind.RECLUSTER)
        if rows < 1:
            return
        self.parts |= self._merged(plan, inputs, rows, size, f"merge-{self.version:07d}")
        self.merged_bytes += round(size)

    def _finish_here(self, plan: MergePlan, now_ms: int) -> None:
        """The output stays on the local disk, in place of the store's parts below it. Parts written together come along."""
        if not self.seen(here=True).keys() >= set(plan.inputs):
            return  # some came along with another plan
        below = [held for held in self.held if not held.stored.keys().isdisjoint(plan.inputs)]
        normal = [path for path in plan.inputs if path in self.parts]
        inputs = [self.parts[path] for path in normal] + [item for held in below for item in held.stored.values()]
        sources = normal + [path for held in below for path in held.sources]
        rows = sum(item.live for item in inputs)
        size = sum(item.live * item.part.bytes / item.part.rows for item in inputs)
        self.version += 1
        self.local_merges += 1
        self.local_bytes += round(size)
        self.held = [held for held in self.held if held not in below]
        if rows >= 1:
            stored = self._merged(plan, inputs, rows, size, f"local-{self.version:07d}")
            oldest_ms = min((held.oldest_ms for held in below), default=now_ms)
            live = sum(self.parts[path].live for path in sources)
            self.held.append(_Held(tuple(sources), stored, oldest_ms, live))

    def _merged(
        self, plan: MergePlan, inputs: Sequence[_Stored], rows: float, size: float, name: str
    ) -> dict[str, _Stored]:
        parts = [item.part for item in inputs]
        blocks = (min(part.min_block for part in parts), max(part.max_block for part in parts))
        where = [(item.quantiles, item.live) for item in inputs if item.live > 0]
        passes = passes_after(parts, sum(part.live_rows for part in parts), self.settings.sort_key_version)
        partition = parts[0].partition_values
        return self._written(
            rows, size, plan.level, where, blocks=blocks, partition=partition, name=name, passes=passes
        )

    def _written(
        self,
        rows: float,
        size: float,
        level: int,
        where: Sequence[tuple[_Floats, float]],
        *,
        blocks: tuple[int, int],
        partition: Mapping[str, str | None],
        name: str,
        passes: int = 0,
    ) -> dict[str, _Stored]:
        """One run of parts of the target size."""
        written: dict[str, _Stored] = {}
        wanted = max(size / self.settings.target_part_bytes, rows / self.settings.target_part_rows)
        count = max(1, math.ceil(wanted - 1e-6))
        part_rows = math.ceil(rows / count)
        for number, quantiles in enumerate(_mixed(where, count)):
            part = Part(
                path=f"{name}-{number:04d}",
                rows=part_rows,
                bytes=math.ceil(size / count),
                level=level,
                min_block=blocks[0],
                max_block=blocks[1],
                partition_values=partition,
                stats=_stats(part_rows, quantiles),
                passes=passes,
                sort_key_version=self.settings.sort_key_version,
            )
            written[part.path] = _Stored(part, rows / count, quantiles)
        return written

    def seen(self, here: bool) -> dict[str, _Stored]:
        """The base as readers on this host see it, or others."""
        if not here:
            return self.parts
        stored = dict(self.parts)
        for held in self.held:
            for path in held.sources:
                del stored[path]
            stored |= held.stored
        return stored

    def snapshot(self, here: bool = False) -> Snapshot:
        """The table as the planner sees it."""
        parts = {path: item.part for path, item in self.seen(here).items()}
        tail = {domain: waiting.part for domain, waiting in self.tail.items()}
        return Snapshot(
            version=self.version,
            timestamp_ms=0,
            protocol=Protocol(3, 7),
            metadata=self.metadata,
            parts=parts,
            tail=tail,
        )

    def sample(self, at_ms: int, planning: Planning) -> Sample:
        elsewhere = make_plans(self.snapshot(), (), at_ms).depth_max if self.held else planning.depth_max
        return Sample(
            at_ms=at_ms,
            ingested_bytes=self.ingested_bytes,
            merged_bytes=self.merged_bytes,
            stored_bytes=sum(item.part.bytes for item in self.parts.values()),
            live_bytes=round(sum(item.live * item.part.bytes / item.part.rows for item in self.parts.values())),
            parts=len(self.parts),
            tail_parts=len(self.tail),
            depth_max=planning.depth_max,
            depth_average=self._depth_average(here=True),
            backlog_bytes=planning.backlog_bytes,
            local_bytes=self.local_bytes,
            depth_max_elsewhere=elsewhere,
            depth_average_elsewhere=self._depth_average(here=False),
        )

    def _depth_average(self, here: bool) -> float:
        """Parts at an average point of the line, averaged over the partitions."""
        stored = list(self.seen(here).values())
        if self.workload.order == "none":
            return len(stored) / self.workload.partitions
        low = np.array([item.quantiles[0] for item in stored])
        high = np.array([item.quantiles[-1] for item in stored])
        end = self._rows_in if self.workload.order == "ascending" else _KEYS
        points = (np.arange(_POINTS) + 0.5) / _POINTS * end
        over = (low[:, None] <= points) & (points <= high[:, None])
        return float(over.sum()) / _POINTS / self.workload.partitions


def _mixed(pieces: Sequence[tuple[_Floats, float]], count: int) -> list[_Floats]:
    """The rows of all pieces in order, cut into ``count`` equal ones: the quantiles of each."""
    points = np.unique(np.concatenate([quantiles for quantiles, _ in pieces]))
    shares = np.linspace(0.0, 1.0, _QUANTILES)
    below = sum((rows * np.interp(points, quantiles, shares) for quantiles, rows in pieces), np.zeros(len(points)))
    wanted = np.linspace(0.0, below[-1], count * (_QUANTILES - 1) + 1)
    at = np.interp(wanted, below, points)
    at[0], at[-1] = points[0], points[-1]
    return [at[start : start + _QUANTILES] for start in range(0, count * (_QUANTILES - 1), _QUANTILES - 1)]


def _stats(rows: int, quantiles: _Floats) -> str:
    return orjson.dumps(
        {
            "numRecords": rows,
            "minValues": {"key": int(quantiles[0])},
            "maxValues": {"key": int(quantiles[-1])},
            "nullCount": {"key": 0},
        }
    ).decode()


def _renamed(item: _Stored) -> _Stored:
    return replace(item, part=replace(item.part, path=item.part.path.replace("local", "upload")))


def _vector(path: str, dead: int) -> DeletionVector:
    return DeletionVector(storage="u", path_or_inline=path, offset=0, bytes=34 + dead // 8, dead_rows=dead)
