"""What a table reads of the ranges that were planned: from its own positions up to their ends. Pure.

A range that was planned means only "read up to ``end``". So a range may come again, come late, or come from another plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lakebed.errors import Unexpected
from lakebed.sources.source import Place, Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What was planned of one partition: ``first`` is the earliest of its ranges, ``end`` the end of the last one."""

    first: Range
    end: int

    @property
    def place(self) -> Place:
        return self.first.place


def planned(ranges: Iterable[Range]) -> list[Planned]:
    """What was planned, by partition, in their order."""
    found: dict[Place, Planned] = {}
    for one in sorted(ranges, key=lambda one: (one.place, one.start)):
        known = found.get(one.place)
        first = known.first if known else one
        found[one.place] = Planned(first=first, end=max(one.end, known.end if known else one.end))
    return list(found.values())


def clipped(ranges: Iterable[Range], starts: Mapping[Place, int]) -> list[Range]:
    """The ranges from these offsets on, sorted. What lies between an offset and the first range of a partition is one more.

    Partitions that ``starts`` does not have are left out, and so are empty ranges.
    """
    out: list[Range] = []
    reached: dict[Place, int] = {}
    for one in sorted(ranges, key=lambda one: (one.place, one.start)):
        if one.place not in starts:
            continue
        begin = reached.get(one.place, starts[one.place])
        if begin < one.start:
            out.append(replace(one, start=begin, end=one.start))
        if max(begin, one.start) < one.end:
            out.append(replace(one, start=max(begin, one.start)))
        reached[one.place] = max(begin, one.end)
    return out


def limited(ranges: Sequence[Range], records_max: int | None) -> list[Range]:
    """The beginning of each partition's ranges, about ``records_max`` offsets in all, in proportion to what a partition has."""
    total = sum(one.size for one in ranges)
    if records_max is None or total <= records_max:
        return list(ranges)
    waiting: dict[Place, int] = {}
    for one in ranges:
        waiting[one.place] = waiting.get(one.place, 0) + one.size
    shares = {place: max(1, size * records_max // total) for place, size in waiting.items()}
    out: list[Range] = []
    for one in ranges:
        taken = min(one.size, shares[one.place])
        shares[one.place] -= taken
        if taken:
            out.append(replace(one, end=one.start + taken))
    return out


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """The same with one range for each partition; those of a partition follow each other without a gap."""
    out: dict[Place, Range] = {}
    for one in sorted(ranges, key=lambda one: (one.place, one.start)):
        out[one.place] = replace(out[one.place], end=one.end) if one.place in out else one
    return tuple(out.values())


def read_to(starts: Mapping[Place, int], read: Iterable[Range]) -> dict[Place, int]:
    """Up to where each partition was read, from these offsets on. Raises Unexpected if something between was not read."""
    reached = dict(starts)
    for one in sorted(read, key=lambda one: (one.place, one.start)):
        if reached.get(one.place) != one.start:
            raise Unexpected(
                f"topic {one.topic!r} partition {one.partition}: offsets from {one.start} were read, and not those from "
                f"{reached.get(one.place)} on"
            )
        reached[one.place] = one.end
    return reached


def grouped(ranges: Sequence[Range], records_each: int) -> list[list[Range]]:
    """The ranges for tasks, in their order: small ones share a task, up to about so many records."""
    groups: list[list[Range]] = []
    held = 0
    for one in ranges:
        if not groups or held + one.records > records_each:
            groups.append([])
            held = 0
        groups[-1].append(one)
        held += one.records
    return groups
