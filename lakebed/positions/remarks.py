"""The entry of the log that keeps the remarks of a table (``lakebed.remarks``).

It is written with a commit that has remarks, so its counts are those of what was committed. A remark that was not made for a week
leaves it, but for one that says that rows are wrong until they are sent again (``Kind.until_sent_again``): it leaves when a
resnapshot that was asked for later has ended, when the table is emptied, or when a user says so (``dismiss``).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lakebed import events
from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import REMARKS, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.remarks import KINDS, Counts, Names, Remark, remarks_on, short

_logger = logging.getLogger("lakebed.ingest")
_WARNED_MAX = 10_000
_warned: set[tuple[str, str, str]] = set()

KEPT_SECONDS = 7 * 86_400


@dataclass(frozen=True, slots=True)
class _Seen:
    """The number of records of a remark, and when a batch that has it was committed last, in epoch milliseconds."""

    records: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Remarks:
    """The remarks that a table's log keeps, by kind and name."""

    kinds: Mapping[str, Mapping[str, _Seen]] = field(default_factory=dict)

    def since(self, earliest_ms: int) -> Remarks:
        """Those that were made at or after a time, and those that hold until rows are sent again."""
        return self._those(lambda kind, name, seen: seen.last_ms >= earliest_ms or _until_sent_again(kind))

    def without_sent_again(self, asked_ms: int) -> Remarks:
        """Without those that do not hold any more, since rows were sent again that were asked for at this time."""
        return self._those(lambda kind, name, seen: seen.last_ms >= asked_ms or not _until_sent_again(kind))

    def _those(self, is_kept: Callable[[str, str, _Seen], bool]) -> Remarks:
        kept = {
            kind: {name: seen for name, seen in names.items() if is_kept(kind, name, seen)}
            for kind, names in self.kinds.items()
        }
        return Remarks({kind: names for kind, names in kept.items() if names})

    def with_columns(self, column_of: Mapping[str, str], now_ms: int) -> Remarks:
        """After fields got columns, by their names: the rows that came before lack the values of those that none took."""
        columns = {short(name): column for name, column in column_of.items()}
        lost: dict[str, int] = {}

        def is_lost(kind: str, name: str) -> bool:
            if kind not in (Remark.UNKNOWN_FIELD, Remark.LEFT_OUT_FIELD):
                return False
            ends = (one.start() for one in re.finditer(r" \(", name)) if kind == Remark.LEFT_OUT_FIELD else [len(name)]
            found = [columns[name[:end]] for end in ends if name[:end] in columns]
            lost.update(dict.fromkeys(found, 1))
            return bool(found)

        left = self._those(lambda kind, name, seen: not is_lost(kind, name))
        return left.plus(remarks_on(Remark.RESNAPSHOT_ADVISED, lost), now_ms) if lost else self

    def plus(self, counts: Counts, now_ms: int) -> Remarks:
        """With the remarks of a batch, and without those that were not made for long."""
        kinds = {kind: dict(names) for kind, names in self.since(now_ms - KEPT_SECONDS * 1000).kinds.items()}
        for kind, names in counts.items():
            known = kinds.setdefault(kind, {})
            total = Names({name: seen.records for name, seen in known.items()})
            for name, count in names.items():
                counted_as = total.add(name, count)
                known[counted_as] = _Seen(total.counts[counted_as], now_ms)
        return Remarks(kinds)

    @property
    def counts(self) -> Counts:
        return {kind: {name: seen.records for name, seen in names.items()} for kind, names in self.kinds.items()}

    def to_entry(self) -> Domain:
        """The entry of the log."""
        listed = {
            kind: {name: [seen.records, seen.last_ms] for name, seen in names.items()}
            for kind, names in self.kinds.items()
        }
        return Domain(REMARKS, json.dumps(listed))


def _until_sent_again(kind: str) -> bool:
    return kind in KINDS and KINDS[kind].until_sent_again


def remarks_of(snapshot: Snapshot) -> Remarks:
    """The remarks that the table's log keeps; none if the entry can't be read, for no decision rests on it."""
    text = snapshot.domains.get(REMARKS)
    if text is None:
        return Remarks()
    try:
        return Remarks(
            {
                kind: {name: _Seen(int(records), int(last_ms)) for name, (records, last_ms) in names.items()}
                for kind, names in json.loads(text).items()
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return Remarks()


def wrong_rows(snapshot: Snapshot) -> dict[str, str]:
    """What is wrong with rows of a table until they are sent again, by kind."""
    kinds = remarks_of(snapshot).kinds
    return {kind: f"{KINDS[kind].what}: {', '.join(names)}" for kind, names in kinds.items() if _until_sent_again(kind)}


def sent_again(snapshot: Snapshot, asked_ms: int) -> list[Domain]:
    """What a commit does besides, if it says that all rows came that were asked for at this time."""
    before = remarks_of(snapshot)
    after = before.without_sent_again(asked_ms)
    return [] if after == before else [after.to_entry()]


def remark(log: TableLog, counts: Counts) -> None:
    """Add remarks in a commit of their own. Raises Contention, StoreUnavailable, TableNotFound."""
    if counts:
        _commit(log, lambda before: before.plus(counts, log.now_ms()))


def fields_got_columns(log: TableLog, snapshot: Snapshot, column_of: Mapping[str, str]) -> bool:
    """Say that fields have columns now; returns whether rows came before whose values no column took.

    ``snapshot``: a version of the table at which they had them. Raises Contention, StoreUnavailable, TableNotFound.
    """
    if not column_of or remarks_of(snapshot).with_columns(column_of, 0) == remarks_of(snapshot):
        return False
    return _commit(log, lambda before: before.with_columns(column_of, log.now_ms()))


def dismiss(log: TableLog) -> bool:
    """Say that rows are right again, whatever remarks say that they are wrong; returns whether any did.

    Raises Contention, StoreUnavailable, TableNotFound.
    """
    return _commit(log, lambda before: before.without_sent_again(log.now_ms() + 1))


def _commit(log: TableLog, change: Callable[[Remarks], Remarks]) -> bool:
    def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
        before = remarks_of(snapshot)
        after = change(before)
        if after == before:
            return Finished(False)
        return Proposal(actions=[after.to_entry()], result=lambda _: True)

    return commit_loop(log, Operation.REMARK, build)


def report_remarks(table: str, remarks: Counts) -> None:
    """Emit the remarks of a commit. The log of this process gets one warning for each name of a table."""
    for kind, names in remarks.items():
        for name, records in names.items():
            events.emit(events.RemarkMade(table=table, kind=kind, name=name, records=records))
            if KINDS[kind].is_finding and _is_new(table, kind, name):
                _logger.warning("%s: %s: %r. What to do: %s", table, KINDS[kind].what, name, KINDS[kind].remedy)


def _is_new(table: str, kind: str, name: str) -> bool:
    if (table, kind, name) in _warned:
        return False
    if len(_warned) >= _WARNED_MAX:
        _warned.clear()
    _warned.add((table, kind, name))
    return True
