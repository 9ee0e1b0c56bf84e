"""The transactions of the source that are remembered: those since the last point, and the newest before it.

1. Each end has a place: its offset, plus a shift if the topic was created again, so places only grow.
2. An end that comes again, because the connector sends it again after a restart, is the same transaction: its first place counts.
3. A transaction that has begun and not ended is open. Its id is kept until its end comes, however long that takes.
4. A connector sends one transaction after the other. If others began after an open one and have been ending for
   ``GIVEN_UP_MS``, the end of it was lost: it is given up, and counts as one that ended with no known number of events.
   That follows from the records alone, so each process that reads them decides the same. To one that begins behind them the
   events are unknown, and pass for their age (``cut``).
5. An end counts events by table. They are expected in the topic that Debezium would choose for the table, unless it is known that
   its events are routed into another one (``learn``).
6. What is forgotten is older than the last point, of which ``_KEPT`` transactions before it stay, and older than what any table
   still waits for, of which ``_WAITING_MAX`` stay.

They are read from Debezium's topic of transactions, which has the beginning and the end of each in the order of the source's
commits (``TransactionReader``):

``{"status": "END", "id": "754:39412448", "event_count": 3, "data_collections": [{"data_collection": "public.tellers",
"event_count": 1}, …], "ts_ms": 1795254750108}``
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile
from typing import Any, Protocol

import orjson
import pyarrow as pa

from lakebed.decode.metadata import VALUE_SCHEMA, headers_of, values_of
from lakebed.decode.source_order import identity
from lakebed.decode.typed.schemas import FixedSchema, Schemas
from lakebed.errors import InvalidInput
from lakebed.sources.cut import Cut, Expected, Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A beginning or an end of a transaction."""

    id: str
    offset: int
    time_ms: int  # of the source, as far as the connector knows it
    written_ms: int  # when the connector wrote the record
    events: Mapping[str, int] | None = None  # how many each table has; None for a beginning
    text: str = field(default="", compare=False)
    """The whole id, as the source gives it."""


class TransactionReader(Protocol):
    """Reads records (``RECORD_SCHEMA``) of the topic of transactions."""

    def read(self, records: pa.Table) -> Iterator[TransactionRecord]: ...


class JsonTransactions:
    """Records in JSON, with an inline schema or without."""

    def read(self, records: pa.Table) -> Iterator[TransactionRecord]:
        """Raises InvalidInput for a record that is none of a transaction."""
        for value, offset, written in _rows(records):
            try:
                document = orjson.loads(value)
                yield _record(document.get("payload", document), offset, written)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise _strange(offset, repr(error)) from None


class TypedTransactions:
    """Records whose schemas are in a registry."""

    def __init__(self, schemas: Schemas) -> None:
        if isinstance(schemas, FixedSchema):
            raise InvalidInput(
                "points need the schema of the topic of transactions besides those of the tables; a schema_file has one schema: "
                "use a registry, or leave database.points out"
            )
        self._schemas = schemas

    def read(self, records: pa.Table) -> Iterator[TransactionRecord]:
        """Raises InvalidInput for a record that is none of a transaction; Retry if a registry does not answer."""
        records = records.filter(records.column("value").is_valid())
        rows = list(_rows(records))
        headers = values_of(headers_of(records), VALUE_SCHEMA)
        grouped = self._schemas.grouped(pa.array([value for value, _, _ in rows], pa.binary()), headers)
        for at, reason in grouped.errors.items():
            raise _strange(rows[at][1], reason)
        documents: dict[int, Any] = {}
        for group in grouped.groups:
            read = group.reader.read(group.payload)
            for at, reason in read.errors.items():
                raise _strange(rows[int(group.rows[at])][1], reason)
            documents |= dict(zip(group.rows.tolist(), read.rows.to_pylist(), strict=True))
        for at, (_, offset, written) in enumerate(rows):
            try:
                yield _record(documents[at], offset, written)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise _strange(offset, repr(error)) from None


def _rows(records: pa.Table) -> Iterator[tuple[bytes, int, int]]:
    times = records.column("timestamp").combine_chunks().view(pa.int64()).to_pylist()
    columns = records.column("value").to_pylist(), records.column("offset").to_pylist(), times
    for value, offset, written in zip(*columns, strict=True):
        if value is not None:
            yield value, int(offset), int(written or 0)


def _record(document: Mapping[str, Any], offset: int, written_ms: int) -> TransactionRecord:
    text = document["id"]
    if not isinstance(text, str) or document["status"] not in ("BEGIN", "END"):
        raise ValueError("no status or id")
    events: dict[str, int] | None = None
    if document["status"] == "END":
        events = {}
        for one in document["data_collections"] or ():
            events[str(one["data_collection"])] = int(one["event_count"])
    return TransactionRecord(
        id=identity(text),
        offset=offset,
        time_ms=int(document.get("ts_ms") or written_ms),
        written_ms=written_ms,
        events=events,
        text=text,
    )


def _strange(offset: int, reason: str) -> InvalidInput:
    return InvalidInput(
        f"the record at offset {offset} of the topic of transactions is no beginning or end of a transaction ({reason}); "
        "database.points.transaction_topic must name Debezium's topic, <prefix>.transaction"
    )


_KEPT = 50_000
_RECENT = 1_000
_WAITING_MAX = 300_000
_STEP_MS = 10_000
"""By how much the connector's clock may step back."""
GIVEN_UP_MS = 300_000
_INVALID = re.compile(r"[^a-zA-Z0-9._-]")


@dataclass(frozen=True, slots=True)
class End:
    """A transaction that has ended."""

    place: int
    id: str
    text: str
    time_ms: int
    written_ms: int


@dataclass(slots=True, kw_only=True)
class Window:
    """The transactions that matter for the next points."""

    prefix: str  # of the topics, which a table's name lacks
    base: int = -1  # the transaction of the last point
    shift: int = 0  # see step 1
    from_place: int = -1  # of transactions up to this one nothing is known but that they ended
    next_offset: int | None = None
    ends: deque[End] = field(default_factory=deque)
    open: dict[str, int] = field(default_factory=dict)
    newest_ms: int = 0
    given_up: list[str] = field(default_factory=list)
    """Transactions that were, for whoever reports them."""
    routes: dict[str, str] = field(default_factory=dict)
    """By the topic that Debezium would choose for a table: the topic that has its events."""
    _uncounted: set[str] = field(default_factory=set)
    """Transactions that count as ended, and whose number of events nobody knows."""
    _passed_ms: dict[str, int] = field(default_factory=dict)
    """By open transaction: when the first later one ended."""
    _ids: dict[str, End] = field(default_factory=dict)
    _expected: dict[str, deque[Expected]] = field(default_factory=dict)

    def observe(self, records: Iterable[TransactionRecord]) -> None:
        """Take the next records of the topic, in their order."""
        for one in records:
            place = one.offset + self.shift
            self.next_offset = one.offset + 1
            self.newest_ms = max(self.newest_ms, one.written_ms)
            if one.events is None:
                if one.id not in self._ids:
                    self.open.setdefault(one.id, place)
                continue
            began = self.open.pop(one.id, None)
            self._passed_ms.pop(one.id, None)
            if one.id in self._ids:
                continue
            if began is not None and self.open:
                self._give_up(place, began, one)
            self._append(End(place, one.id, one.text, one.time_ms, one.written_ms))
            counts = Counter[str]()
            for name, events in one.events.items():
                topic = self._topic_of(name)
                counts[self.routes.get(topic, topic)] += events
            for topic, events in counts.items():
                self._expected.setdefault(topic, deque()).append(Expected(place, one.id, events))
        while len(self.ends) > _WAITING_MAX:
            self._forget()

    def _topic_of(self, table: str) -> str:
        """The topic that Debezium would choose for a table."""
        name = _INVALID.sub("_", table)
        return f"{self.prefix}.{name}" if self.prefix else name

    def learn(self, topic: str, id: str, table: Sequence[str]) -> bool:
        """A topic has an event of a table, though its transaction counts none for the topic. Returns whether that says something
        new: that the events of the table are routed into the topic.

        ``table``: the parts of its name. An end may have all of them, or not the first one, or not the second one of three.
        """
        names = [table, table[1:], [*table[:1], *table[2:]]]
        for each in dict.fromkeys(self._topic_of(".".join(name)) for name in names if name):
            if each != topic and each not in self.routes and any(one.id == id for one in self._expected.get(each, ())):
                self.routes[each] = topic
                counts = {one.place: one for one in self._expected.get(topic, ())}
                for one in self._expected.pop(each):
                    known = counts.get(one.place)
                    counts[one.place] = replace(one, events=one.events + (known.events if known else 0))
                self._expected[topic] = deque(counts[place] for place in sorted(counts))
                return True
        return False

    def _append(self, end: End) -> None:
        self.ends.append(end)
        self._ids[end.id] = end

    def _give_up(self, place: int, began: int, later: TransactionRecord) -> None:
        """Give up one of the transactions that a later one has ended before, if that has gone on for long."""
        for id, its in list(self.open.items()):
            if its > began or later.written_ms - self._passed_ms.setdefault(id, later.written_ms) < GIVEN_UP_MS:
                continue
            if self.ends and self.ends[-1].place >= place - 1:
                return  # its place must be its own: the next end may have one to spare
            del self.open[id], self._passed_ms[id]
            self._append(End(place - 1, id, id, later.time_ms, later.written_ms))
            self.given_up.append(id)
            self._uncounted.add(id)
            return

    def start_over(self) -> None:
        """The topic was created again: its offsets begin again."""
        if self.next_offset is not None:
            self.shift += self.next_offset
            self.next_offset = None

    @property
    def newest(self) -> End | None:
        """The end that came last."""
        return self.ends[-1] if self.ends else None

    def place_of(self, id: str) -> int | None:
        """The place of a transaction; None if it has not ended, or was forgotten."""
        end = self._ids.get(id)
        return end.place if end else None

    def strays(self, topic: str, ids: Iterable[str], after: int, until: int) -> list[str]:
        """Those transactions between two places that count no events of a topic."""
        places = {id: end.place for id in ids if (end := self._ids.get(id)) and id not in self._uncounted}
        found = [id for id, place in places.items() if after < place <= until]
        counting = {one.id for one in self.expected(topic, after, until)} if found else set[str]()
        return [id for id in found if id not in counting]

    def has(self, id: str) -> bool:
        """Whether the end of a transaction is remembered."""
        return id in self._ids

    def end_at(self, place: int) -> End | None:
        """The end at a place."""
        return next((end for end in reversed(self.ends) if end.place == place), None)

    def expected(self, topic: str, after: int, until: int) -> list[Expected]:
        """What transactions between two places count of a topic, in order."""
        newest = takewhile(lambda one: one.place > after, reversed(self._expected.get(topic, deque())))
        return [one for one in newest if one.place <= until][::-1]

    def topics(self, after: int, until: int) -> set[str]:
        """The topics that have events of transactions between two places."""
        found = set()
        for topic, several in self._expected.items():
            for one in reversed(several):
                if one.place <= after:
                    break
                if one.place <= until:
                    found.add(topic)
                    break
        return found

    def horizon_ms(self, target: int) -> int:
        """What the connector wrote before this time belongs to no transaction after ``target``."""
        end = self.end_at(target)
        return end.written_ms - _STEP_MS if end else -1

    @property
    def read_from(self) -> int:
        """The offset from which a process that begins later must read the topic, to know what the next cut needs."""
        start = self.ends[-min(_RECENT, len(self.ends))].place if self.ends else self.base + 1
        return max(0, min([start, *self.open.values()]) - self.shift)

    def cut(
        self, target: int, *, whole: bool, wall_ms: int = 0, partitions: Mapping[str, Partitions] | None = None
    ) -> Cut:
        """The cut at a transaction. ``whole``: with all transactions that are remembered, else with those since the last point
        and ``_RECENT`` before it. ``partitions``: see ``Cut``."""
        since = -1
        if not whole:
            before = list(islice((end.place for end in reversed(self.ends) if end.place <= self.base), _RECENT))
            since = before[-1] if before else -1
        chosen = list(takewhile(lambda end: end.place >= since, reversed(self.ends)))
        return Cut(
            target=target,
            passing=frozenset(end.id for end in chosen if end.place <= target),
            blocked=frozenset([end.id for end in chosen if end.place > target] + list(self.open)),
            horizon_ms=self.horizon_ms(target),
            expected={
                topic: tuple(reversed(newest))
                for topic, several in self._expected.items()
                if (newest := list(takewhile(lambda one: one.place >= since, reversed(several))))
            },
            from_place=max(self.from_place, since - 1),
            now_ms=max(self.newest_ms, wall_ms),
            places={end.id: end.place for end in chosen},
            uncounted=frozenset(self._uncounted),
            partitions=partitions or {},
        )

    def took(self, place: int, needed: int) -> None:
        """There is a point at this place. Tables wait for events of transactions after ``needed``."""
        self.base = max(self.base, place)
        old = min(self.base, needed)
        later = sum(1 for _ in takewhile(lambda end: end.place > self.base, reversed(self.ends)))
        while len(self.ends) - later > _KEPT and self.ends[0].place <= old:
            self._forget()

    def _forget(self) -> None:
        end = self.ends.popleft()
        del self._ids[end.id]
        self._uncounted.discard(end.id)
        self.from_place = max(self.from_place, end.place)
        for topic, several in list(self._expected.items()):
            while several and several[0].place <= end.place:
                several.popleft()
            if not several:
                del self._expected[topic]
