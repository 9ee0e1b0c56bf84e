"""Positions: up to where a table has read each topic of its source. They are in the table's log, an entry per topic.

    lakebed.position.<topic>   {"offsets": {"0": 1200, "1": 800}, "id": "…", "source": "shop.public.orders",
                                "newest": {"0": [39419360, …]}, "last": {"0": [1200, 7283…]}}

1. For each partition the entry has the next offset to read. ``id`` is the id of the topic, where the source has one: a topic that
   was deleted and made again has another id, and its offsets mean other records. ``source`` is the table of the source that the
   topic's events are of, if they say it.
2. The commit that brings the records of a topic sets its entry, and conflicts with each other commit that sets the same entry. So
   a record is in the table if and only if its offset is below the position: once, whoever reads it.
3. Nothing else decides what was read: neither a checkpoint of Spark's, nor an id of a batch.
4. ``newest`` has, by partition, the greatest place of a change that was read in the order of its source, and the latest time of
   one (``lateness``).
5. ``last`` has, by partition, the offset behind the last record that was read, and a number that stands for the transaction of
   that record, if it is known. So a batch knows whether it goes on with a transaction that an earlier one began.

With points, the entry also has how far the table is in the order of the source's transactions (``Progress``). A transaction's
place in that order is the offset of the record of its end in the topic of transactions. Debezium writes these records one after
the other, in the order in which the source committed.

Some commits remove parts from the base for good: truncate, detach, and the replacement of a partition (``removals``). A claim on
such a part ends in the same commit (P1): its merge finds the claim gone and drops its output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import orjson

from lakebed.lateness import Newest, Place
from lakebed.log.actions import Action, Domain, Part, RemoveChangePart
from lakebed.log.claims import claims_of
from lakebed.log.commit_kind import truncated
from lakebed.log.entries import POSITION
from lakebed.log.entry_values import checked, document_of, reading
from lakebed.log.snapshot import Snapshot
from lakebed.positions.remarks import sent_again
from lakebed.settings import TableSettings

Counts = Mapping[str, Mapping[int, tuple[int, int]]]
"""By transaction and partition: how many of its events the table has, and the number of the last of them in the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a table has of the transactions. -1 means none."""

    cut: int = -1  # it has no event of a transaction that ends after this one
    through: int = -1  # of this transaction and all before it, it has every event
    partial: Counts = field(default_factory=dict)  # what it has of those between
    # it was read without regard to transactions until this time, so it may have parts of some that were open then
    doubt_ms: int | None = None
    # names, in their parts, of tables of the source whose events are routed into the topic
    tables: tuple[tuple[str, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is in a log."""
        out: dict[str, Any] = {"cut": self.cut, "through": self.through}
        if self.partial:
            out["partial"] = {
                id: {str(partition): list(count) for partition, count in places.items()}
                for id, places in self.partial.items()
            }
        if self.doubt_ms is not None:
            out["doubt_ms"] = self.doubt_ms
        if self.tables:
            out["tables"] = self.tables
        return out

    @staticmethod
    def of_json(document: Mapping[str, Any] | None) -> Progress | None:
        """None for None. Raises KeyError, ValueError for what is no progress."""
        if document is None:
            return None
        partial = checked(Mapping[str, Mapping[int, tuple[int, ...]]], document.get("partial", {}), "partial")
        return Progress(
            cut=checked(int, document["cut"], "cut"),
            through=checked(int, document["through"], "through"),
            partial={
                id: {partition: (count, last) for partition, (count, last) in places.items()}
                for id, places in partial.items()
            },
            doubt_ms=checked(int | None, document.get("doubt_ms"), "doubt_ms"),
            tables=checked(tuple[tuple[str, ...], ...], document.get("tables", []), "tables"),
        )


SEVERAL = "*"
Seen = Mapping[str, Mapping[str, tuple[int, int]]]
"""The source tables whose events came, by topic and name, each with the partition and offset of the first one."""

_KEPT_MAX = 4096
Last: TypeAlias = tuple[int, int]
"""The offset behind a record of a partition, and the number of the transaction that this record belongs to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Up to where a topic was read."""

    offsets: Mapping[int, int]  # the next offset, by partition
    topic_id: str | None = None
    # how far the table is in the transactions of the source, where points are taken
    transactions: Progress | None = None
    source: str | None = None  # the table of the source that the events are of
    # how far the changes were in the order of their source, by partition
    newest: Mapping[int, Newest] = field(default_factory=dict)
    last: Mapping[int, Last] = field(default_factory=dict)  # the last record that was read, by partition


def position_entry(topic: str) -> str:
    """The name of a topic's entry in the log."""
    return POSITION + topic


def positions_of(snapshot: Snapshot) -> dict[str, Position]:
    """The positions of a table, by topic. Raises Corrupt for an entry that is none."""
    return {
        domain.removeprefix(POSITION): position_of(domain, text)
        for domain, text in snapshot.domains.items()
        if domain.startswith(POSITION)
    }


def entry_of(topic: str, position: Position) -> Domain:
    """The action that sets the entry of a topic."""
    document: dict[str, Any] = {
        "offsets": {str(number): offset for number, offset in sorted(position.offsets.items())},
        "id": position.topic_id,
    }
    if position.source is not None:
        document["source"] = position.source
    if position.transactions is not None:
        document["transactions"] = position.transactions.to_json()
    if position.newest:
        document["newest"] = {str(number): astuple(newest) for number, newest in sorted(position.newest.items())}
    if position.last:
        document["last"] = {str(number): last for number, last in sorted(position.last.items())}
    return Domain(position_entry(topic), orjson.dumps(document).decode())


@lru_cache(_KEPT_MAX)
def position_of(domain: str, text: str) -> Position:
    """The position in the entry of a topic. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        return Position(
            offsets=checked(Mapping[int, int], document["offsets"], "offsets"),
            topic_id=checked(str | None, document.get("id"), "id"),
            transactions=Progress.of_json(document.get("transactions")),
            source=checked(str | None, document.get("source"), "source"),
            newest={number: Newest(*one) for number, one in _numbers_in(document.get("newest", {}), "newest").items()},
            last={
                number: (end, transaction)
                for number, (end, transaction) in _numbers_in(document.get("last", {}), "last").items()
            },
        )


def newest_by_place(positions: Mapping[str, Position]) -> dict[Place, Newest]:
    """How far the changes were in the order of their source, of all partitions."""
    return {(topic, number): newest for topic, one in positions.items() for number, newest in one.newest.items()}


def last_of(several: Iterable[Mapping[Place, Last]]) -> dict[Place, Last]:
    """The last records of several, by partition."""
    found: dict[Place, Last] = {}
    for one in several:
        for place, last in one.items():
            found[place] = max(last, found.get(place, last))
    return found


def _numbers_in(document: object, name: str) -> dict[int, tuple[int, ...]]:
    """Numbers by partition."""
    numbers: dict[int, tuple[int, ...]] = checked(Mapping[int, tuple[int, ...]], document, name)
    return numbers


def sources_of(settings: TableSettings, positions: Mapping[str, Position]) -> dict[str, str]:
    """What a table's log remembers, by topic."""
    made_of: dict[str, str] = {}
    if settings.source_topic is not None and settings.source_table is not None:
        made_of[settings.source_topic] = settings.source_table
    learned = {topic: position.source for topic, position in positions.items()}
    return {**made_of, **{topic: source for topic, source in learned.items() if source is not None}}


def topics_of_several(snapshot: Snapshot, seen: Seen = MappingProxyType({})) -> set[str]:
    """The topics that are known to have events of several source tables. ``seen``: of a batch after this version."""
    known = sources_of(snapshot.settings, positions_of(snapshot))
    found = {topic for topic, name in known.items() if name == SEVERAL}
    return found | {topic for topic, names in seen.items() if SEVERAL in names}


def removals(snapshot: Snapshot, parts: Iterable[Part], now_ms: int) -> list[Action]:
    """The removal of these parts of the base, and the end of every claim on one of them."""
    going = {part.path: part for part in parts}
    actions: list[Action] = [part.removed(now_ms) for part in going.values()]
    claims = claims_of(snapshot.domains).values()
    actions += [claim.ended() for claim in claims if not going.keys().isdisjoint(claim.sources)]
    return actions


def all_removals(snapshot: Snapshot, now_ms: int) -> list[Action]:
    """The removal of all base parts and of the tail, in the commit of the next version, and the entry that records it."""
    actions = removals(snapshot, snapshot.parts.values(), now_ms)
    actions += [RemoveChangePart(domain) for domain in snapshot.tail]
    return [*actions, truncated(snapshot.version + 1)]


def order_forgotten(snapshot: Snapshot, now_ms: int) -> list[Domain]:
    """What the commit that empties a table says of the order of its changes: without rows none of them loses."""
    positions = positions_of(snapshot)
    entries = [entry_of(topic, replace(one, newest={})) for topic, one in positions.items() if one.newest]
    return [*entries, *sent_again(snapshot, now_ms + 1)]
