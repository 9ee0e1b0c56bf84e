"""What is known of records besides the rows that they became, from their decoding to the commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from lakebed.decode.source_tables import all_seen
from lakebed.lateness import Newest, Place, newest_of
from lakebed.positions.positions import Last, Seen, last_of
from lakebed.positions.source_columns import Met, met_in
from lakebed.positions.truncates import Truncate
from lakebed.remarks import Counts, sum_of
from lakebed.schema.change import SchemaChange
from lakebed.schema.fitting import merged


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What is known of some records besides their rows."""

    truncates: tuple[Truncate, ...] = ()
    """Those that no earlier batch contained."""
    event_time_max: int | None = None
    """The time of the newest event, in microseconds since the epoch."""
    ignored: int = 0
    """Records that change nothing: tombstones, logical messages, and truncates that an earlier batch applied."""
    truncated: int = 0
    """Changes that were left out because they are from before a truncate."""
    of_snapshot: int = 0
    """Records that are rows which the source's reader has read, and no changes."""
    newest: Mapping[Place, Newest] = field(default_factory=dict)
    """How far the changes are in the order of their source, if it has one, by partition."""
    last: Mapping[Place, Last] = field(default_factory=dict)
    """The last record of each partition, where its transaction is known."""
    met: Met = field(default_factory=dict)
    """Which columns the schemas of the records have, if they have schemas."""
    remarks: Counts = field(default_factory=dict)
    """What a person should look at (``remarks``)."""
    mismatched: int = 0
    """Records of the quarantine that are what the format says and do not fit the table."""
    mismatch: str = ""
    """Why the first of them does not fit."""
    sources: Seen = field(default_factory=dict)
    """Whose events they are, of topics of which the table does not know it."""
    schema_needed: SchemaChange | None = None
    """What the table must become before these records can be decoded. Then nothing else counts."""


def together(several: Iterable[Tally]) -> dict[str, Any]:
    """The members of a ``Tally`` of all records, from those of records that follow each other."""
    all = list(several)
    needs = [one.schema_needed for one in all if one.schema_needed is not None]
    return {
        "truncates": tuple(truncate for one in all for truncate in one.truncates),
        "event_time_max": max((one.event_time_max for one in all if one.event_time_max is not None), default=None),
        "ignored": sum(one.ignored for one in all),
        "truncated": sum(one.truncated for one in all),
        "of_snapshot": sum(one.of_snapshot for one in all),
        "newest": newest_of(one.newest for one in all),
        "last": last_of(one.last for one in all),
        "met": met_in(one.met for one in all),
        "remarks": sum_of(one.remarks for one in all),
        "mismatched": sum(one.mismatched for one in all),
        "mismatch": next((one.mismatch for one in all if one.mismatch), ""),
        "sources": all_seen(one.sources for one in all),
        "schema_needed": merged(needs) if needs else None,
    }
