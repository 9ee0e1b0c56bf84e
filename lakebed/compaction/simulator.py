"""The planner over days of arrivals in seconds: no rows, only parts, with the planner and the settings that tables have.

1. A flush adds one level-0 part a partition. What its updates replace dies in older parts, in proportion to their live rows.
2. The planner plans on a snapshot of these parts. Its merges take ``merge_bytes_per_second`` (or no time), one after another;
   meanwhile their inputs are claimed. Rows that die while a merge runs are dead in its output.
3. Merged parts are split by size. Where a part's rows lie on the line of sort keys is kept as quantiles, so a merge of parts
   that are dense in different places is split where its rows are.

All numbers are expectations, nothing is drawn, so a run repeats exactly. ``arrivals`` may be a table's own timeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from lakebed.compaction.optimum import least_written
from lakebed.compaction.plan import Plan, PlanKind, Planning
from lakebed.compaction.planner import plan as make_plans
from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.manifest.actions import Metadata, Part, Protocol
from lakebed.manifest.deletion_vector import DeletionVector
from lakebed.manifest.schema import schema_to_json
from lakebed.manifest.snapshot import Snapshot
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


@dataclass(frozen=True, slots=True)
class Arrival:
    """A flush: when (milliseconds since the start), how many rows, how many bytes."""

    at_ms: int
    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Workload:
    """What arrives. ``update_share`` of a flush's rows replace older ones; ``update_skew`` of these hit the newest tenth.

    ``order``: new rows lie anywhere on the line of sort keys, ascend on it, or the table has none. ``queries_per_hour`` read the
    table at an average point. ``merge_bytes_per_second`` None: merges take no time.
    """

    arrivals: Sequence[Arrival]
    update_share: float = 0.0
    update_skew: float = 0.0
    order: Order = "random"
    partitions: int = 1
    queries_per_hour: float = 0.0
    merge_bytes_per_second: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """The table after a flush and what it led to.

    ``depth_max``: runs at the deepest point. ``depth_average``: parts at an average one.
    """

    at_ms: int
    ingested_bytes: int
    merged_bytes: int
    stored_bytes: int
    live_bytes: int
    parts: int
    depth_max: int
    depth_average: float
    backlog_bytes: int

    @property
    def write_amplification(self) -> float:
        return (self.ingested_bytes + self.merged_bytes) / max(1, self.ingested_bytes)

    @property
    def space_amplification(self) -> float:
        return self.stored_bytes / max(1, self.live_bytes)


@dataclass(frozen=True, slots=True)
class Simulation:
    """``least_bytes``: what merges of so many equal flushes of new rows write at least, for the same read budget."""

    samples: Sequence[Sample]
    flushes: int
    merges: int
    purges: int
    least_bytes: int
    parts_read: float

    @property
    def merged_to_least(self) -> float:
        """Bytes that merges wrote ÷ the least: comparable for equal flushes without updates, in random order."""
        return self.samples[-1].merged_bytes / max(1, self.least_bytes)


def steady(days: float, rows_per_second: float, flush_seconds: float = 60.0, row_bytes: int = 25) -> list[Arrival]:
    """Equal flushes. Raises InvalidInput if there is none."""
    count = int(days * 86_400 / flush_seconds)
    rows = int(rows_per_second * flush_seconds)
    if count < 1 or rows < 1:
        raise InvalidInput(
            f"{days:g} days at {rows_per_second:g} rows a second hold no flush of {flush_seconds:g} seconds; take more"
        )
    return [Arrival(int((number + 1) * flush_seconds * 1000), rows, rows * row_bytes) for number in range(count)]


def simulate(workload: Workload, settings: TableSettings, samples_max: int = 500) -> Simulation:
    """Run the planner over the workload. ``settings``: its sort key and keys are the simulator's own, the rest counts."""
    world = _World(workload, settings)
    every = max(1, len(workload.arrivals) // samples_max)
    samples: list[Sample] = []
    parts_read, last_ms = 0.0, 0
    for number, arrival in enumerate(workload.arrivals):
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
    return Simulation(samples, flushes, world.merges, world.purges, round(least), parts_read)


@dataclass(slots=True)
class _Stored:
    """A part and where its live rows lie: ``_QUANTILES`` points with equally many rows between each two."""

    part: Part
    live: float
    quantiles: Floats


@dataclass(frozen=True, slots=True)
class _Running:
    plan: Plan
    done_ms: float


class _World:
    def __init__(self, workload: Workload, settings: TableSettings) -> None:
        self.workload = workload
        self.settings = replace(
            settings, keys=(), sort_key=() if workload.order == "none" else ("key",), sequence_by=None
        )  # fmt: skip
        names = ("partition",) if workload.partitions > 1 else ()
        self.metadata = Metadata("simulated", schema_to_json(_SCHEMA), names, self.settings.to_properties())
        self.parts: dict[str, _Stored] = {}
        self.running: list[_Running] = []
        self.version = 0
        self.ingested_bytes = self.merged_bytes = self.merges = self.purges = 0
        self._rows_in = 0.0

    def flush(self, arrival: Arrival) -> None:
        """One part a partition; what it replaces dies."""
        self.version += 1
        count = self.workload.partitions
        rows, size = max(1, arrival.rows // count), max(1, arrival.bytes // count)
        for number in range(count):
            partition = {"partition": str(number)} if count > 1 else {}
            self._kill(rows * self.workload.update_share, partition)
            self._add(
                rows, size, 0, (self.version, self.version), partition, float(rows), self._lie(rows, number),
                f"flush-{self.version:07d}-{number}",
            )  # fmt: skip
            self.ingested_bytes += size
        self._rows_in += rows

    def _lie(self, rows: int, number: int) -> Floats:
        """Where a flush's rows lie."""
        even = np.linspace(0.0, 1.0, _QUANTILES)
        if self.workload.order != "ascending":
            # The least and the greatest of so many rows anywhere, a little different each time.
            edge = (self.version * _GOLDEN + number / 7) % 1.0 / (rows + 1)
            return (edge + even * (1.0 - 2 * edge)) * _KEYS
        new = (self._rows_in + even * rows, rows * (1 - self.workload.update_share))
        updates = rows * self.workload.update_share
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
        """Plan and begin what is planned until there is nothing more."""
        for _ in range(_ROUNDS_MAX):
            claimed = {path for running in self.running for path in running.plan.inputs}
            in_flight = sum(running.plan.bytes_in for running in self.running)
            planning = make_plans(self.snapshot(), claimed, now_ms, in_flight)
            if not planning.plans:
                return planning
            for plan in planning.plans:
                if self.workload.merge_bytes_per_second is None:
                    self._finish(plan)
                else:
                    begins = max([float(now_ms), *(running.done_ms for running in self.running)])
                    done = begins + 1000 * plan.bytes_in / self.workload.merge_bytes_per_second
                    self.running.append(_Running(plan, done))
        raise AssertionError(f"the planner found no end in {_ROUNDS_MAX} rounds")

    def finish_until(self, now_ms: int) -> None:
        """Merges that are done by now take effect; each makes room for the next."""
        while self.running and self.running[0].done_ms <= now_ms:
            done = self.running.pop(0)
            self._finish(done.plan)
            self.work(int(done.done_ms))

    def _finish(self, plan: Plan) -> None:
        inputs = [self.parts.pop(path) for path in plan.inputs]
        parts = [item.part for item in inputs]
        rows = sum(item.live for item in inputs)
        size = sum(item.live * item.part.bytes / item.part.rows for item in inputs)
        count = math.ceil(max(size / self.settings.target_part_bytes, rows / self.settings.target_part_rows) - 1e-6)
        self.version += 1
        self.purges += plan.kind is PlanKind.PURGE
        self.merges += plan.kind is PlanKind.MERGE
        if rows < 1:
            return
        blocks = (min(part.min_block for part in parts), max(part.max_block for part in parts))
        pieces = _mixed([(item.quantiles, item.live) for item in inputs if item.live > 0], count)
        for number, quantiles in enumerate(pieces):
            self._add(
                math.ceil(rows / count), math.ceil(size / count), plan.level, blocks, parts[0].partition_values,
                rows / count, quantiles, f"merge-{self.version:07d}-{number:04d}",
            )  # fmt: skip
        self.merged_bytes += round(size)

    def _add(
        self, rows: int, size: int, level: int, blocks: tuple[int, int], partition: Mapping[str, str | None],
        live: float, quantiles: Floats, path: str,
    ) -> None:  # fmt: skip
        stats = {
            "numRecords": rows, "minValues": {"key": int(quantiles[0])}, "maxValues": {"key": int(quantiles[-1])},
            "nullCount": {"key": 0},
        }  # fmt: skip
        part = Part(
            path=path, rows=rows, bytes=size, level=level, min_block=blocks[0], max_block=blocks[1],
            partition_values=partition, stats=orjson.dumps(stats).decode(),
        )  # fmt: skip
        self.parts[path] = _Stored(part, live, quantiles)

    def snapshot(self) -> Snapshot:
        """The table as the planner sees it."""
        parts = {path: item.part for path, item in self.parts.items()}
        return Snapshot(self.version, 0, Protocol(3, 7), self.metadata, parts)

    def sample(self, at_ms: int, planning: Planning) -> Sample:
        averages = []
        for number in range(self.workload.partitions):
            partition = {"partition": str(number)} if self.workload.partitions > 1 else {}
            parts = [item.part for item in self.parts.values() if item.part.partition_values == partition]
            if self.workload.order == "none":
                averages.append(float(len(parts)))
            else:
                averages.append(depth([range_of(part.stats, _ORDER) for part in parts]).average)
        return Sample(
            at_ms=at_ms, ingested_bytes=self.ingested_bytes, merged_bytes=self.merged_bytes,
            stored_bytes=sum(item.part.bytes for item in self.parts.values()),
            live_bytes=round(sum(item.live * item.part.bytes / item.part.rows for item in self.parts.values())),
            parts=len(self.parts), depth_max=planning.depth_max, depth_average=sum(averages) / len(averages),
            backlog_bytes=planning.backlog_bytes,
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


def _vector(path: str, dead: int) -> DeletionVector:
    return DeletionVector("u", path, 0, 34 + dead // 8, dead)


def plot(simulation: Simulation, file: str, title: str = "") -> None:
    """Draw write, read and space amplification over time as a PNG. Raises MissingPrerequisite without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPrerequisite("drawing needs matplotlib: pip install 'lakebed[plots]'") from None
    samples = simulation.samples
    days = [sample.at_ms / 86_400_000 for sample in samples]
    figure = Figure(figsize=(9, 9), layout="constrained")
    FigureCanvasAgg(figure)
    write, read, space = figure.subplots(3, 1, sharex=True)
    write.plot(days, [sample.write_amplification for sample in samples], label="write amplification")
    least = 1 + simulation.least_bytes / max(1, samples[-1].ingested_bytes)
    write.axhline(least, linestyle="--", color="grey", label="the least in the end, for equal flushes")
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
    figure.savefig(file, format="png", dpi=110)
