"""The planner over days of arrivals in seconds: no rows, only parts, with the planner and the settings that tables have.

1. A flush adds a change part a partition to the tail; without an order, a part to the base. When the planner settles the tail,
   its parts join the base at level 0, and what they replace dies in older parts, in proportion to their live rows.
2. The planner plans on a snapshot of these parts. Settling takes no time. Merges take ``merge_bytes_per_second`` (or no time),
   one after another; meanwhile their inputs are claimed. Rows that die while a merge runs are dead in its output.
3. Merged parts are split by size. Where a part's rows lie on the line of sort keys is kept as quantiles, so a merge of parts
   that are dense in different places is split where its rows are.

All numbers are expected values, so a simulation repeats exactly. ``arrivals`` may be a table's own (``recorded``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.manifest.actions import ChangePart, Metadata, Part, Protocol
from lakebed.manifest.deletion_vector import DeletionVector
from lakebed.manifest.passes import passes_after
from lakebed.manifest.schema import schema_to_json
from lakebed.manifest.snapshot import Snapshot
from lakebed.planning.optimum import least_written
from lakebed.planning.plan import MergeKind, MergePlan, Planning
from lakebed.planning.planner import plan as make_plans
from lakebed.plots import new_figure, save
from lakebed.settings import TableSettings
from lakebed.sortkey.ranges import depth, order_columns, range_of

Order = Literal["random", "ascending", "none"]
Floats = npt.NDArray[np.float64]
_KEYS = 2.0**48
_QUANTILES = 17
_SCHEMA = pa.schema([("key", pa.int64())])
_ORDER = order_columns(_SCHEMA, ["key"], ())
_GOLDEN = (math.sqrt(5) - 1) / 2
_ROUNDS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A flush: when (milliseconds since the start), how many rows, how many bytes.

    ``deletes``: its rows that are dead when they come; ``replaces``: rows of the table that it makes dead, None for the
    workload's ``update_share``.
    """

    at_ms: int
    rows: int
    bytes: int
    deletes: int = 0
    replaces: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What arrives. ``update_share`` of a flush's rows replace older ones; ``update_skew`` of these hit the newest tenth.

    ``order``: new rows lie anywhere on the line of sort keys, ascend on it, or have none. ``queries_per_hour`` read the
    table at an average point. ``merge_bytes_per_second`` None: merges take no time. ``base``: what lies there at the start, as
    one sorted run.
    """

    arrivals: Sequence[Arrival]
    update_share: float = 0.0
    update_skew: float = 0.0
    order: Order = "random"
    partitions: int = 1
    queries_per_hour: float = 0.0
    merge_bytes_per_second: float | None = None
    base: Arrival | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The table after a flush and the work that followed.

    ``depth_max``: runs at the deepest point. ``depth_average``: parts at an average one. Both are for the base.
    """

    at_ms: int
    ingested_bytes: int
    merged_bytes: int
    stored_bytes: int
    live_bytes: int
    parts: int
    tail_parts: int
    depth_max: int
    depth_average: float
    backlog_bytes: int

    @property
    def write_amplification(self) -> float:
        return (self.ingested_bytes + self.merged_bytes) / max(1, self.ingested_bytes)

    @property
    def space_amplification(self) -> float:
        return self.stored_bytes / max(1, self.live_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """``reference_bytes``: what merges of so many equal flushes of new rows write at least, for the same read budget."""

    samples: Sequence[Sample]
    flushes: int
    settles: int
    merges: int
    purges: int
    reference_bytes: int
    parts_read: float

    @property
    def merged_to_reference(self) -> float:
        """Bytes that merges wrote ÷ what equal flushes of new rows, in random order, need at least."""
        return self.samples[-1].merged_bytes / max(1, self.reference_bytes)


def steady(days: float, rows_per_second: float, flush_seconds: float = 60.0, row_bytes: int = 25) -> list[Arrival]:
    """Equal flushes. Raises InvalidInput if there is none."""
    count = int(days * 86_400 / flush_seconds)
    rows = int(rows_per_second * flush_seconds)
    if count < 1 or rows < 1:
        raise InvalidInput(
            f"{days:g} days at {rows_per_second:g} rows a second hold no flush of {flush_seconds:g} seconds; take more"
        )
    return [
        Arrival(at_ms=int((number + 1) * flush_seconds * 1000), rows=rows, bytes=rows * row_bytes)
        for number in range(count)
    ]


def simulate(
    workload: Workload, settings: TableSettings, samples_max: int = 500,
    on_progress: Callable[[int, int], object] | None = None,
) -> Simulation:  # fmt: skip
    """Run the planner over the workload. The sort key and keys of ``settings`` do not apply.

    ``on_progress`` gets how many arrivals were simulated, and of how many.
    """
    world = _World(workload, settings)
    every = max(1, len(workload.arrivals) // samples_max)
    samples: list[Sample] = []
    parts_read, last_ms = 0.0, 0
    for number, arrival in enumerate(workload.arrivals):
        if on_progress is not None:
            on_progress(number, len(workload.arrivals))
        world.finish_until(arrival.at_ms)
        world.flush(arrival)
        planning = world.work(arrival.at_ms)
        if number % every == 0 or number == len(workload.arrivals) - 1:
            samples.append(world.sample(arrival.at_ms, planning))
            hours = (arrival.at_ms - last_ms) / 3_600_000
            parts_read += workload.queries_per_hour * hours * samples[-1].depth_average
            last_ms = arrival.at_ms
    flushes = len(workload.arrivals)
    mean_bytes = world.ingested_bytes / max(1, flushes)
    least = least_written(flushes, settings.read_budget) * mean_bytes
    return Simulation(
        samples=samples,
        flushes=flushes,
        settles=world.settles,
        merges=world.merges,
        purges=world.purges,
        reference_bytes=round(least),
        parts_read=parts_read,
    )


@dataclass(slots=True)
class _Stored:
    """A part and where its live rows lie: ``_QUANTILES`` points with equally many rows between each two."""

    part: Part
    live: float
    quantiles: Floats


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A change part of the tail: how many rows it will replace, how many of its own are deletes, where they lie."""

    part: ChangePart
    replaces: float
    deletes: int
    quantiles: Floats


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
            self._write(
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
                path=f"flush-{self.version:07d}-{number}", version=self.version, ordinal=number, rows=rows, bytes=size,
                deletes=deletes, partition_values=partition, stats=_stats(rows, quantiles), modified_ms=arrival.at_ms,
                sort_key_version=self.settings.sort_key_version,
            )  # fmt: skip
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

    def _lie(self, rows: int, update_share: float, number: int) -> Floats:
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
            dead = item.part.rows - math.ceil(item.live)
            if dead > item.part.dead_rows:
                item.part = replace(item.part, deletion_vector=_vector(item.part.path, dead))

    def work(self, now_ms: int) -> Planning:
        """Plan, and begin the plans, until there is nothing more to do."""
        for _ in range(_ROUNDS_MAX):
            claimed = {path for running in self.running for path in running.plan.inputs}
            in_flight = sum(running.plan.bytes_in for running in self.running)
            planning = make_plans(self.snapshot(), claimed, now_ms, in_flight)
            if not planning.plans:
                return planning
            if planning.settle:
                self._settle()
            for plan in planning.merges:
                if self.workload.merge_bytes_per_second is None:
                    self._finish(plan)
                else:
                    begins = max([float(now_ms), *(running.done_ms for running in self.running)])
                    done = begins + 1000 * plan.bytes_in / self.workload.merge_bytes_per_second
                    self.running.append(_Running(plan, done))
        raise AssertionError(f"the planner found no end in {_ROUNDS_MAX} rounds")

    def finish_until(self, now_ms: int) -> None:
        """Finish the merges that are done by then; each makes room for the next."""
        while self.running and self.running[0].done_ms <= now_ms:
            done = self.running.pop(0)
            self._finish(done.plan)
            self.work(int(done.done_ms))

    def _finish(self, plan: MergePlan) -> None:
        inputs = [self.parts.pop(path) for path in plan.inputs]
        parts = [item.part for item in inputs]
        rows = sum(item.live for item in inputs)
        size = sum(item.live * item.part.bytes / item.part.rows for item in inputs)
        self.version += 1
        self.purges += plan.kind is MergeKind.PURGE
        self.merges += plan.kind in (MergeKind.MERGE, MergeKind.RECLUSTER)
        if rows < 1:
            return
        blocks = (min(part.min_block for part in parts), max(part.max_block for part in parts))
        where = [(item.quantiles, item.live) for item in inputs if item.live > 0]
        passes = passes_after(parts, sum(part.live_rows for part in parts), self.settings.sort_key_version)
        name = f"merge-{self.version:07d}"
        partition = parts[0].partition_values
        self._write(rows, size, plan.level, where, blocks=blocks, partition=partition, name=name, passes=passes)
        self.merged_bytes += round(size)

    def _write(
        self, rows: float, size: float, level: int, where: Sequence[tuple[Floats, float]], *,
        blocks: tuple[int, int], partition: Mapping[str, str | None], name: str, passes: int = 0,
    ) -> None:  # fmt: skip
        """One run of parts of the target size."""
        wanted = max(size / self.settings.target_part_bytes, rows / self.settings.target_part_rows)
        count = max(1, math.ceil(wanted - 1e-6))
        part_rows = math.ceil(rows / count)
        for number, quantiles in enumerate(_mixed(where, count)):
            part = Part(
                path=f"{name}-{number:04d}", rows=part_rows, bytes=math.ceil(size / count), level=level,
                min_block=blocks[0], max_block=blocks[1], partition_values=partition,
                stats=_stats(part_rows, quantiles), passes=passes, sort_key_version=self.settings.sort_key_version,
            )  # fmt: skip
            self.parts[part.path] = _Stored(part, rows / count, quantiles)

    def snapshot(self) -> Snapshot:
        """The table as the planner sees it."""
        parts = {path: item.part for path, item in self.parts.items()}
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
        averages = []
        for number in range(self.workload.partitions):
            partition = self._partition(number)
            parts = [item.part for item in self.parts.values() if item.part.partition_values == partition]
            if self.workload.order == "none":
                averages.append(float(len(parts)))
            else:
                averages.append(depth([range_of(part.stats, _ORDER) for part in parts]).average)
        return Sample(
            at_ms=at_ms, ingested_bytes=self.ingested_bytes, merged_bytes=self.merged_bytes,
            stored_bytes=sum(item.part.bytes for item in self.parts.values()),
            live_bytes=round(sum(item.live * item.part.bytes / item.part.rows for item in self.parts.values())),
            parts=len(self.parts), tail_parts=len(self.tail), depth_max=planning.depth_max,
            depth_average=sum(averages) / len(averages), backlog_bytes=planning.backlog_bytes,
        )  # fmt: skip


def _mixed(pieces: Sequence[tuple[Floats, float]], count: int) -> list[Floats]:
    """The rows of all pieces in order, cut into ``count`` equal ones: the quantiles of each."""
    points = np.unique(np.concatenate([quantiles for quantiles, _ in pieces]))
    shares = np.linspace(0.0, 1.0, _QUANTILES)
    below = sum((rows * np.interp(points, quantiles, shares) for quantiles, rows in pieces), np.zeros(len(points)))
    wanted = np.linspace(0.0, below[-1], count * (_QUANTILES - 1) + 1)
    at = np.interp(wanted, below, points)
    at[0], at[-1] = points[0], points[-1]
    return [at[start : start + _QUANTILES] for start in range(0, count * (_QUANTILES - 1), _QUANTILES - 1)]


def _stats(rows: int, quantiles: Floats) -> str:
    return orjson.dumps(
        {
            "numRecords": rows, "minValues": {"key": int(quantiles[0])}, "maxValues": {"key": int(quantiles[-1])},
            "nullCount": {"key": 0},
        }
    ).decode()  # fmt: skip


def _vector(path: str, dead: int) -> DeletionVector:
    return DeletionVector(storage="u", path_or_inline=path, offset=0, bytes=34 + dead // 8, dead_rows=dead)


def plot(simulation: Simulation, file: str, title: str = "") -> None:
    """Draw write, read and space amplification over time as a PNG. Raises MissingPrerequisite without matplotlib."""
    figure = new_figure(9, 9)
    samples = simulation.samples
    days = [sample.at_ms / 86_400_000 for sample in samples]
    write, read, space = figure.subplots(3, 1, sharex=True)
    write.plot(days, [sample.write_amplification for sample in samples], label="write amplification")
    reference = 1 + simulation.reference_bytes / max(1, samples[-1].ingested_bytes)
    write.axhline(reference, linestyle="--", color="grey", label="in the end, the least for equal flushes of new rows")
    read.plot(days, [sample.depth_max for sample in samples], label="depth, deepest point")
    read.plot(days, [sample.depth_average for sample in samples], label="depth, average point")
    space.plot(days, [sample.space_amplification for sample in samples], label="space amplification")
    for axes, unit in (
        (write, "bytes written ÷ bytes ingested"),
        (read, "parts"),
        (space, "bytes stored ÷ live bytes"),
    ):
        axes.set_ylabel(unit)
        axes.set_ylim(0, 1.1 * axes.dataLim.y1)
        axes.legend(loc="lower right")
        axes.grid(alpha=0.3)
    space.set_xlabel("days")
    figure.suptitle(title)
    save(figure, file)
