"""Topics of a simulated broker, and what a table must hold after it has read them up to its positions.

Records are Debezium's events as JSON with their schema. A record says where it stands, so a row of a table says which record it
came from: a row that is missing and a row that came twice are both seen. Some records can't be read, some are tombstones, later
ones have a column more, and now and then one truncates the table.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
import pyarrow as pa

from lakebed.decode.decoder import RECORD_SCHEMA
from lakebed.errors import StoreUnavailable
from lakebed.sources.source import Bounds, Place, Range
from tests.decode.records import event, with_schema

KEYS = 12
COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("place", pa.string())])
MORE = "more"
"""The column that later records have too."""
_FIELDS = [{"type": "int64", "field": "id"}, {"type": "string", "field": "place", "optional": True}]
_MORE_FIELDS = [*_FIELDS, {"type": "int64", "field": MORE, "optional": True}]
NO_RECORD = b"{ no event"

Row = tuple[int, str, int | None]
"""``id``, ``place`` and ``more``."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A record as the oracle knows it. ``kind``: an event's operation, ``bad`` or ``tombstone``."""

    kind: str
    id: int = 0
    place: str = ""
    more: int | None = None


@dataclass
class Topic:
    """``facts`` has the records of each partition; an offset is a place in its list."""

    name: str
    keyed: bool
    truncated: bool
    facts: list[list[Fact]]
    wider: bool = False  # records have one column more from now on

    @property
    def places(self) -> list[Place]:
        return [(self.name, number) for number in range(len(self.facts))]

    def produce(self, chance: random.Random) -> None:
        """One more record. A key is always in the same partition."""
        number = chance.randrange(KEYS)
        partition = number % len(self.facts)
        place = f"{self.name}/{partition}/{len(self.facts[partition])}"
        draw = chance.random()
        self.wider = self.wider or draw > 0.97
        more = chance.randrange(1000) if self.wider else None
        kind = "c"
        if draw < 0.08:
            kind = "bad"
        elif draw < 0.12:
            kind = "tombstone"
        elif draw < 0.14 and self.truncated:
            kind = "t"
        elif draw < 0.4 and self.keyed:
            kind = "d" if draw < 0.25 else "u"
        self.facts[partition].append(Fact(kind, number, place, more))


def encoded(fact: Fact, offset: int) -> bytes | None:
    """The value of a record."""
    if fact.kind == "tombstone":
        return None
    if fact.kind == "bad":
        return NO_RECORD
    row: dict[str, Any] | None = {"id": fact.id, "place": fact.place}
    fields = _FIELDS
    if fact.more is not None and row is not None:
        row, fields = row | {MORE: fact.more}, _MORE_FIELDS
    match fact.kind:
        case "t":
            change = event("t", None, None, lsn=offset + 1)
        case "d":
            change = event("d", None, row, lsn=offset + 1)
        case kind:
            change = event(kind, row, None, lsn=offset + 1)
    return orjson.dumps(with_schema(change, fields))


@dataclass
class Broker:
    """All topics."""

    topics: dict[str, Topic]

    def ends(self) -> dict[Place, int]:
        return {
            place: len(facts)
            for topic in self.topics.values()
            for place, facts in zip(topic.places, topic.facts, strict=True)
        }

    def expected(self, keyed: bool, positions: Mapping[Place, int]) -> list[Row]:
        """The rows of a table that has read its partitions up to these offsets, and nothing beyond."""
        live: dict[Any, Row] = {}
        for (name, partition), end in positions.items():
            topic = self.topics[name]
            for fact in topic.facts[partition][:end]:
                key = fact.id if keyed else fact.place
                match fact.kind:
                    case "c" | "u":
                        live[key] = (fact.id, fact.place, fact.more)
                    case "d":
                        live.pop(key, None)
                    case "t":  # a topic with truncates is the table's only one, and has one partition
                        live.clear()
        return sorted(live.values())

    def unreadable(self, topics: Sequence[str]) -> list[tuple[str, int, int]]:
        """Topic, partition and offset of each record that no table can take."""
        return [
            (name, partition, offset)
            for name in topics
            for partition, facts in enumerate(self.topics[name].facts)
            for offset, fact in enumerate(facts)
            if fact.kind == "bad"
        ]


@dataclass
class SimulatedReader:
    """A ``RangeReader`` of these topics as they are when it is pickled. ``fails``: how often a range can't be read, 0 to 1."""

    broker: Broker
    fails: float = 0.0
    records_lost: int = 0
    skips_losses: bool = False
    table_records: int = 7
    chance: random.Random = field(default_factory=random.Random)

    def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        raise NotImplementedError("the simulation plans its own batches")

    def bounds(self, places: Sequence[Place]) -> dict[Place, Bounds]:
        """See ``RangeReader``."""
        ends = self.broker.ends()
        return {place: Bounds(earliest=0, starting=0, end=ends[place]) for place in places if place in ends}

    def impatient(self) -> SimulatedReader:
        return self

    def read(self, chosen: Range) -> Iterator[pa.Table]:
        """See ``RangeReader``: a few records at a time."""
        facts = self.broker.topics[chosen.topic].facts[chosen.partition]
        assert chosen.end <= len(facts), f"{chosen} ends beyond the partition, which has {len(facts)} records"
        for start in range(chosen.start, chosen.end, self.table_records):
            if self.chance.random() < self.fails:
                raise StoreUnavailable("simulated: the brokers do not answer")
            offsets = range(start, min(start + self.table_records, chosen.end))
            values = [encoded(facts[offset], offset) for offset in offsets]
            keys = [json.dumps({"id": facts[offset].id}).encode() for offset in offsets]
            count = len(values)
            yield pa.table(
                [
                    pa.array(keys, pa.binary()),
                    pa.array(values, pa.binary()),
                    pa.array([chosen.topic] * count, pa.string()),
                    pa.array([chosen.partition] * count, pa.int32()),
                    pa.array(offsets, pa.int64()),
                    pa.array([1000 * offset for offset in offsets], pa.int64()).cast(pa.timestamp("ms", "UTC")),
                ],
                schema=RECORD_SCHEMA,
            )
