"""What a stream met that somebody should look at, counted by kind and by name, and the entry of the log that keeps it.

A remark has a kind (``Remark``), a name within the kind, such as that of a field, and the number of records that it is about.
``KINDS`` says for each kind what ``lakebed status`` shows and what can be done, so a new kind is a member of ``Remark`` and an
entry of ``KINDS``. Decoders make remarks, a batch carries them to its commit, and the table's log keeps them.

Names come from outside. So their number and their length are bounded, here and wherever they are counted: further names of a
kind are counted together, as ``OTHERS``.

The entry is written with a batch that has remarks, so its counts are those of the batches that were committed. Of two
writers that commit at the same moment, the entry keeps the counts of one. A remark that was not made for a week leaves it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from lakebed.manifest.actions import Domain
from lakebed.manifest.entries import REMARKS
from lakebed.manifest.snapshot import Snapshot

NAMES_MAX = 100
CHARACTERS_MAX = 100
OTHERS = "(other)"
KEPT_SECONDS = 7 * 86_400

Counts = Mapping[str, Mapping[str, int]]
"""Numbers of records, by kind of remark and by name."""


class Remark(StrEnum):
    """The kinds of remarks."""

    UNKNOWN_FIELD = "unknown_field"
    """A member of a record's row that no column takes; its name."""
    UNKNOWN_OPERATION = "unknown_operation"
    """An operation that is not known; its value. The record is in the quarantine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What remarks of a kind mean to an operator."""

    what: str
    """A sentence without its end: the names follow, each with the number of its records."""
    remedy: str
    """What to do."""
    is_critical: bool = False
    """Whether rows of the table may be wrong."""


KINDS: Mapping[str, Kind] = {
    Remark.UNKNOWN_FIELD: Kind(
        what="records have fields that no column takes",
        remedy="add columns, or have the fields ignored (format.unknown_fields: ignore, or except_column_list)",
    ),
    Remark.UNKNOWN_OPERATION: Kind(
        what="records have operations that are not known",
        remedy="add them to format.delete_values or format.upsert_values; these records are in the quarantine",
    ),
}


class Names:
    """Counts by name, bounded."""

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self.add_all(counts or {})

    def add(self, name: str, count: int = 1) -> str:
        """Count a name; returns the name under which it was counted."""
        name = short(name)
        if name not in self.counts and len(self.counts) >= NAMES_MAX:
            name = OTHERS
        self.counts[name] = self.counts.get(name, 0) + count
        return name

    def add_all(self, counts: Mapping[str, int]) -> None:
        """Add other counts."""
        for name, count in counts.items():
            self.add(name, count)


class RemarkCounts:
    """Counts by kind and name, bounded."""

    def __init__(self) -> None:
        self._kinds: dict[str, Names] = {}

    def add(self, kind: str, name: str, count: int = 1) -> None:
        """Count a remark."""
        self._kinds.setdefault(kind, Names()).add(name, count)

    def add_all(self, counts: Counts) -> None:
        """Add other counts."""
        for kind, names in counts.items():
            self._kinds.setdefault(kind, Names()).add_all(names)

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        return {kind: names.counts for kind, names in self._kinds.items() if names.counts}


def remarks_on(kind: str, names: Mapping[str, int]) -> Counts:
    """Counts of one kind; empty if there are no names."""
    return {kind: names} if names else {}


def short(name: str) -> str:
    """The name as valid text of at most ``CHARACTERS_MAX`` characters."""
    text = name[: CHARACTERS_MAX + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 1] + "…"


def sum_of(several: Iterable[Counts]) -> dict[str, dict[str, int]]:
    """Several counts as one."""
    total = RemarkCounts()
    for counts in several:
        total.add_all(counts)
    return total.counts


@dataclass(frozen=True, slots=True)
class Seen:
    """The number of records of a remark, and when a batch that has it was committed last, in epoch milliseconds."""

    records: int
    last_ms: int


@dataclass(frozen=True, slots=True)
class Remarks:
    """The remarks that a table's log keeps, by kind and name."""

    kinds: Mapping[str, Mapping[str, Seen]] = field(default_factory=dict)

    def since(self, earliest_ms: int) -> Remarks:
        """Those that were made at or after a time."""
        kept = {
            kind: {name: seen for name, seen in names.items() if seen.last_ms >= earliest_ms}
            for kind, names in self.kinds.items()
        }
        return Remarks({kind: names for kind, names in kept.items() if names})

    def plus(self, counts: Counts, now_ms: int) -> Remarks:
        """With the remarks of a batch, and without those that were not made for long."""
        kinds = {kind: dict(names) for kind, names in self.since(now_ms - KEPT_SECONDS * 1000).kinds.items()}
        for kind, names in counts.items():
            known = kinds.setdefault(kind, {})
            total = Names({name: seen.records for name, seen in known.items()})
            for name, count in names.items():
                counted_as = total.add(name, count)
                known[counted_as] = Seen(total.counts[counted_as], now_ms)
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


def remarks_of(snapshot: Snapshot) -> Remarks:
    """The remarks that the table's log keeps; none if the entry can't be read, for no decision rests on it."""
    text = snapshot.domains.get(REMARKS)
    if text is None:
        return Remarks()
    try:
        return Remarks(
            {
                kind: {name: Seen(int(records), int(last_ms)) for name, (records, last_ms) in names.items()}
                for kind, names in json.loads(text).items()
            }
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return Remarks()
