"""Compares what each surface said, moment by moment, with what was true. Pure.

Times are seconds since the begin. Names are those of ``KINDS``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

KINDS = {
    "kafka": r"kafka|broker",
    "registry": r"registry",
    "s3": r"s3://|\bstore\b|Service: S3",
    "connector": r"connector",
    "disk": r"disk|No space left",
}
"""What can be down, and how a text names it."""
DETECTED_SECONDS = 15.0
RECOVERED_SECONDS = 15.0
NORMAL_LAG_SECONDS = 5.0
STALL_SECONDS = 20.0
LINES_A_MINUTE_MAX = 30.0
LINES_BESIDE = 15
"""A short outage may have so many lines, however short it is."""
BRINGS = {"kafka": {"connector"}, "disk": {"s3"}}
"""What else may be named: the connector writes to Kafka, and uploads to S3 begin as files on the disk."""


def named(text: str) -> frozenset[str]:
    """What a text says is down."""
    return frozenset(kind for kind, pattern in KINDS.items() if re.search(pattern, text, re.IGNORECASE))


@dataclass(frozen=True, slots=True)
class Outage:
    """``ended``: when the dependency itself was whole again."""

    kind: str
    how: str
    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    def excuses(self, kind: str, began: float, ended: float) -> bool:
        """Whether a look from ``began`` to ``ended`` may name a kind because of this outage."""
        is_named = kind == self.kind or kind in BRINGS.get(self.kind, ())
        return is_named and began <= self.ended + RECOVERED_SECONDS and ended >= self.began


@dataclass(frozen=True, slots=True)
class Said:
    """What a surface said. ``names``: what is down; ``is_well``: nothing is wrong (of ``status``: exit code 0)."""

    surface: str
    began: float
    ended: float
    names: frozenset[str]
    is_well: bool = True
    text: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """How old the oldest event is that the source has committed and a table does not show."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Records:
    """All that was seen. ``lines``: when the run wrote a line of its log or display."""

    outages: Sequence[Outage]
    said: Sequence[Said]
    lags: Sequence[Lag]
    lines: Sequence[float]
    ends_wrong: Sequence[str] = ()
    """What is wrong in the end: rows that differ, an exit code."""


@dataclass(slots=True)
class Row:
    """A kind of dependency in the table of results."""

    outages: int = 0
    seconds: float = 0.0
    detection: float = 0.0
    recovery: float = 0.0
    false_alarms: int = 0


@dataclass(slots=True)
class Verdict:
    rows: dict[str, Row] = field(default_factory=lambda: {kind: Row() for kind in KINDS})
    violations: list[str] = field(default_factory=list)


def judge(records: Records) -> Verdict:
    """Compare. Violations are in the order of the five questions of ``__main__``."""
    verdict = Verdict()
    surfaces = sorted({one.surface for one in records.said})
    for outage in records.outages:
        row = verdict.rows[outage.kind]
        row.outages += 1
        row.seconds += outage.seconds
        for surface in surfaces:
            looks = [one for one in records.said if one.surface == surface]
            verdict.violations += _not_named(outage, surface, looks, row)
    for outage in records.outages:
        verdict.violations += _not_recovered(outage, records.lags, verdict.rows[outage.kind])
    verdict.violations += _stalls(records)
    verdict.violations += _false_alarms(records, verdict)
    verdict.violations += _many_lines(records)
    verdict.violations += records.ends_wrong
    return verdict


def _not_named(outage: Outage, surface: str, looks: Sequence[Said], row: Row) -> Iterator[str]:
    during = [one for one in looks if outage.began <= one.began and one.ended <= outage.ended]
    right = [one for one in during if outage.kind in one.names and not one.is_well]
    if outage.seconds > DETECTED_SECONDS:
        seen = right[0].ended - outage.began if right else outage.seconds
        row.detection = max(row.detection, seen)
    late = [one for one in during if one.began > outage.began + DETECTED_SECONDS]
    silent = [one for one in late if one not in right]
    if silent:
        yield (
            f"{surface} did not name {_shown(outage)} in {len(silent)} of {len(late)} looks after {DETECTED_SECONDS:.0f} s,"
            f" the first at {silent[0].began - outage.began:.0f} s: {silent[0].text[:300]!r}"
        )
    elif not late and outage.seconds > 2 * DETECTED_SECONDS:
        yield f"{surface} said nothing at all of {_shown(outage)}"


def _not_recovered(outage: Outage, lags: Sequence[Lag], row: Row) -> Iterator[str]:
    well = [one.at for one in lags if one.at >= outage.ended and one.seconds <= NORMAL_LAG_SECONDS]
    seconds = well[0] - outage.ended if well else float("inf")
    row.recovery = max(row.recovery, seconds)
    if seconds > RECOVERED_SECONDS:
        yield f"rows flowed again only {seconds:.0f} s after {_shown(outage)}"


def _stalls(records: Records) -> Iterator[str]:
    """Times in which rows did not come though nothing was down."""
    stalled: list[Lag] = []
    for one in records.lags:
        is_down = any(each.began <= one.at <= each.ended + RECOVERED_SECONDS for each in records.outages)
        if one.seconds > STALL_SECONDS and not is_down:
            stalled.append(one)
        elif stalled:
            yield f"a stall at {stalled[0].at:.0f} s, with nothing down: {max(each.seconds for each in stalled):.0f} s of lag"
            stalled = []


def _false_alarms(records: Records, verdict: Verdict) -> Iterator[str]:
    before: dict[str, Collection[str]] = {}
    for one in records.said:
        wrong = {kind for kind in one.names if not _is_excused(kind, one, records.outages)}
        if not one.names and not one.is_well:
            excused = any(_is_excused(each.kind, one, [each]) for each in records.outages)
            wrong |= set() if excused else {"something"}
        for kind in wrong - set(before.get(one.surface, ())):
            if kind in verdict.rows:
                verdict.rows[kind].false_alarms += 1
            since = [one.began - each.ended for each in records.outages if each.ended <= one.began]
            after = f"{min(since):.0f} s after the last outage" if since else "before any outage"
            yield f"{one.surface} named {kind} at {one.began:.0f} s, {after}: {one.text[:300]!r}"
        before[one.surface] = wrong


def _is_excused(kind: str, one: Said, outages: Sequence[Outage]) -> bool:
    return any(each.excuses(kind, one.began, one.ended) for each in outages)


def _many_lines(records: Records) -> Iterator[str]:
    for outage in records.outages:
        ended = outage.ended + RECOVERED_SECONDS
        lines = sum(outage.began <= at <= ended for at in records.lines)
        if lines > LINES_BESIDE + LINES_A_MINUTE_MAX * (ended - outage.began) / 60:
            yield f"{lines} lines of log in the {ended - outage.began:.0f} s of {_shown(outage)}"


def _shown(outage: Outage) -> str:
    return f"the outage of {outage.kind} ({outage.how}) at {outage.began:.0f} s, {outage.seconds:.0f} s long"
