"""What a comparison has shown, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from lakebed.decode.source_order import POSITIONS_PER_FILE
from lakebed.verify.comparing import Difference

Outcome = Literal["equal", "differs", "repaired", "unsettled", "left out"]
_LINES_MAX = 20


@dataclass(slots=True, kw_only=True)
class Repaired:
    """What a repair did, and what differs or changed all the time after it."""

    sent_again: int = 0  # keys
    removed: int = 0  # rows
    left: int = 0  # keys
    shown: list[Difference] = field(default_factory=list)  # some of those that are left
    kept: str = ""  # why rows that the source does not have were not removed; empty if none had to stay
    last_position: int | None = None
    error: str = ""  # why it ended early; empty if it did not


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """One table. Positions are bytes of the source's log, or its files and places (``binlog_position``);
    what is not known is None."""

    table: str
    outcome: Outcome
    source: str = "the source"  # what it was compared with, for people
    reason: str = ""  # why it is left out
    version: int | None = None  # of the table, that was compared last
    rows: int = 0
    buckets: int = 0
    differing_buckets: int = 0
    keys: int = 0  # compared one by one, since their buckets differed
    rounds: int = 0
    differences: int = 0
    shown: Sequence[Difference] = ()
    is_cut: bool = False  # whether it ended early, after so many differences
    unsettled: int = 0  # keys that changed in each round
    left_out: Mapping[str, str] = field(default_factory=dict)  # a column to the reason
    quarantined: int = 0  # records of the table that could not become rows
    first_position: int | None = None
    last_position: int | None = None
    is_of_snapshot: bool = False  # whether all rows were read of the source as it was at the first position
    log_files: str = ""  # what the names of the files of the source's log begin with; empty if it is one of bytes
    time_ms: int | None = None  # when it ended, epoch milliseconds
    seconds: float = 0.0
    digest: str = ""  # the count of the rows and the sum of their checksums, as they were read
    repaired: Repaired | None = None

    @property
    def position(self) -> int | None:
        """What the outcome is true of."""
        return self.first_position if self.is_of_snapshot else self.last_position

    def mended(self, repaired: Repaired) -> TableReport:
        """The same after a repair of what differed, which says nothing of rows that were not compared."""
        outcome: Outcome = "unsettled" if self.unsettled else "repaired"
        return replace(self, outcome="differs" if repaired.left or self.is_cut else outcome, repaired=repaired)

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def position_text(position: int | None, log_files: str = "") -> str:
    """A position as the database writes it."""
    if position is None:
        return ""
    if log_files:
        number, place = divmod(position, POSITIONS_PER_FILE)
        return f"{log_files}.{number:06d}:{place}"
    return f"{position >> 32:X}/{position & 0xFFFFFFFF:X}"


def lines(report: TableReport) -> Iterator[str]:
    """A report for people: whether it is equal, then what was compared, what differs, and what is not compared."""
    if report.outcome == "left out":
        yield f"{report.table}: not compared: {report.reason}"
        return
    at = f" at {position_text(report.position, report.log_files)}" if report.position is not None else ""
    at = f" as it was{at}" if report.is_of_snapshot else at
    is_mended = report.repaired is not None and not report.repaired.left
    differ = "differed" if is_mended else "differs" if report.differences == 1 else "differ"
    differing = f"{_counted(report.differences, 'key')} {differ} from {report.source}{at}"
    words = {
        "equal": f"equal to {report.source}{at}",
        "unsettled": f"{report.unsettled:,} keys changed all the time and were not compared; all others are equal{at}",
    }
    again = f", {_counted(report.keys, 'key')} compared again" if report.keys else ""
    if again and report.is_of_snapshot:
        again += f" at {position_text(report.last_position, report.log_files)}"
    version = f"version {report.version}, " if report.version is not None else ""
    read = f"{_counted(report.rows, 'row')} in {_counted(report.buckets, 'bucket')}"
    yield f"{report.table}: {differing if report.differences else words[report.outcome]}"
    yield f"  {version}{read}{again}, {report.seconds:,.1f} s"
    yield f"  digest {report.digest}"
    for one in report.shown[:_LINES_MAX]:
        yield from _difference(one)
    if report.differences > min(len(report.shown), _LINES_MAX):
        yield f"  … and {report.differences - min(len(report.shown), _LINES_MAX):,} more"
    if report.is_cut:
        yield f"  it ended after {report.differences:,} differences: rows behind them were not compared"
    if report.differences and report.unsettled:
        yield f"  {report.unsettled:,} more keys changed all the time and were not compared"
    if report.repaired is not None:
        yield from _repaired(report.repaired, report.log_files)
    for name, why in report.left_out.items():
        yield f"  column {name} is not compared: {why}"
    if report.quarantined:
        yield f"  in the quarantine: {_counted(report.quarantined, 'record')} (lakebed quarantine show)"


_WORDS = {
    "missing": "is missing in the table",
    "surplus": "is not in the source",
    "doubled": "is there more often than in the source",
    "differs": "differs",
}


def _difference(one: Difference) -> Iterator[str]:
    key = ", ".join(f"{name}={text}" for name, text in one.key.items())
    column = f", first in {one.column}" if one.column else ""
    guess = f" ({one.looks_like})" if one.looks_like else ""
    yield f"  {key}: {_WORDS[one.kind]}{column}{guess}"
    for side, rows in (("source", one.source), ("table ", one.lake)):
        for row in rows:
            yield f"    {side}  " + ", ".join(f"{name}={_shown(text)}" for name, text in row.items())


def _repaired(one: Repaired, log_files: str) -> Iterator[str]:
    at = f" at {position_text(one.last_position, log_files)}" if one.last_position is not None else ""
    now = f"{_counted(one.left, 'key')} still differ{'s' if one.left == 1 else ''}" if one.left else "all are equal"
    if one.error:
        now = f"{_counted(one.left, 'key')} may still differ"
    yield f"  repaired: {_counted(one.sent_again, 'key')} sent again, {_counted(one.removed, 'row')} removed; {now}{at}"
    if one.error:
        yield f"  it ended early: {one.error}"
    if one.kept:
        yield f"  rows that the source does not have were kept: {one.kept}"
    for left in one.shown[:_LINES_MAX]:
        yield from _difference(left)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _shown(text: str | None) -> str:
    return "null" if text is None else text
