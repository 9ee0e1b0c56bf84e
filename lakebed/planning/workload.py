"""What comes into a simulated table, and what is seen of it, as numbers and as a picture (``plot``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lakebed.errors import InvalidInput
from lakebed.notebook import new_figure, save

_POINTS = 100

Order = Literal["random", "ascending", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A flush."""

    at_ms: int  # milliseconds since the start
    rows: int
    bytes: int
    deletes: int = 0  # its rows that are dead when they come
    replaces: int | None = None  # rows of the table that it makes dead; None for the workload's ``update_share``


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What arrives."""

    arrivals: Sequence[Arrival]
    update_share: float = 0.0  # of a flush's rows, those that replace older ones
    update_skew: float = 0.0  # of these, those that hit the newest tenth
    order: Order = "random"  # whether new rows lie anywhere on the line of sort keys, ascend on it, or have no order
    partitions: int = 1
    queries_per_hour: float = 0.0  # that read the table at an average point
    merge_bytes_per_second: float | None = None  # None: merges take no time
    base: Arrival | None = None  # what lies there at the start, as one sorted run
    volatile: bool = False  # the process that merges has a local disk for parts
    disk_lost_ms: Sequence[int] = ()  # when that disk is lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The table after a flush and the work that followed. Depths are those of the base."""

    at_ms: int
    ingested_bytes: int
    merged_bytes: int  # written to the store
    stored_bytes: int
    live_bytes: int
    parts: int
    tail_parts: int
    depth_max: int  # runs at the deepest point, as readers here meet it
    depth_average: float  # parts at an average point, as readers here meet it
    backlog_bytes: int
    local_bytes: int  # written to the local disk
    depth_max_elsewhere: int  # as readers on other hosts meet it
    depth_average_elsewhere: float  # as readers on other hosts meet it

    @property
    def write_amplification(self) -> float:
        return (self.ingested_bytes + self.merged_bytes) / max(1, self.ingested_bytes)

    @property
    def space_amplification(self) -> float:
        return self.stored_bytes / max(1, self.live_bytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What came of a workload."""

    samples: Sequence[Sample]
    flushes: int
    settles: int
    merges: int
    purges: int
    local_merges: int  # merges whose output stayed on the local disk
    reference_bytes: int  # what merges of as many equal flushes of new rows write at least, for the same read budget
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
