"""Fields and operations of records that a table has no place for, counted by name, and the entry of the log that keeps them.

Names come from outside. So their number and their length are bounded, here and wherever they are counted: further names are
counted together, as ``OTHERS``.

The entry is written with a batch that has such names, so its counts are those of the batches that were committed. Of two
writers that commit at the same moment, the entry keeps the counts of one. A name that was not seen for a week leaves it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakebed.manifest.actions import Domain
from lakebed.manifest.entries import UNKNOWN_NAMES
from lakebed.manifest.snapshot import Snapshot

NAMES_MAX = 100
CHARACTERS_MAX = 100
OTHERS = "(other)"
KEPT_SECONDS = 7 * 86_400


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


def short(name: str) -> str:
    """The name as valid text of at most ``CHARACTERS_MAX`` characters."""
    text = name[: CHARACTERS_MAX + 1].encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= CHARACTERS_MAX else text[: CHARACTERS_MAX - 1] + "…"


def sum_of(several: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Several counts as one."""
    total = Names()
    for counts in several:
        total.add_all(counts)
    return total.counts


@dataclass(frozen=True, slots=True)
class Seen:
    """In how many records a name was, and when a batch that has it was committed last, in epoch milliseconds."""

    records: int
    last_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownNames:
    """The names that a table's log keeps."""

    fields: Mapping[str, Seen] = field(default_factory=dict)
    operations: Mapping[str, Seen] = field(default_factory=dict)

    def since(self, earliest_ms: int) -> UnknownNames:
        """Those that were seen at or after a time."""
        return UnknownNames(fields=_since(self.fields, earliest_ms), operations=_since(self.operations, earliest_ms))

    def plus(self, fields: Mapping[str, int], operations: Mapping[str, int], now_ms: int) -> UnknownNames:
        """With the counts of a batch, and without names that were not seen for long."""
        kept = self.since(now_ms - KEPT_SECONDS * 1000)
        return UnknownNames(
            fields=_plus(kept.fields, fields, now_ms), operations=_plus(kept.operations, operations, now_ms)
        )

    def to_entry(self) -> Domain:
        """The entry of the log."""
        both = {"fields": self.fields, "operations": self.operations}
        listed = {
            what: {name: [seen.records, seen.last_ms] for name, seen in names.items()} for what, names in both.items()
        }
        return Domain(UNKNOWN_NAMES, json.dumps(listed))


def unknown_names_of(snapshot: Snapshot) -> UnknownNames:
    """The names that the table's log keeps; none if the entry can't be read, for no decision rests on it."""
    text = snapshot.domains.get(UNKNOWN_NAMES)
    if text is None:
        return UnknownNames()
    try:
        found = json.loads(text)
        return UnknownNames(fields=_read(found["fields"]), operations=_read(found["operations"]))
    except (ValueError, TypeError, KeyError, AttributeError):
        return UnknownNames()


def _read(names: Mapping[str, list[int]]) -> dict[str, Seen]:
    return {name: Seen(int(records), int(last_ms)) for name, (records, last_ms) in names.items()}


def _since(names: Mapping[str, Seen], earliest_ms: int) -> dict[str, Seen]:
    return {name: seen for name, seen in names.items() if seen.last_ms >= earliest_ms}


def _plus(names: Mapping[str, Seen], counts: Mapping[str, int], now_ms: int) -> dict[str, Seen]:
    total = Names({name: seen.records for name, seen in names.items()})
    out = dict(names)
    for name, count in counts.items():
        counted_as = total.add(name, count)
        out[counted_as] = Seen(total.counts[counted_as], now_ms)
    return out
