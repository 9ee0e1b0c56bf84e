"""A source whose rows get other keys, in transactions of every kind, and its events as Debezium sends them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.sources.memory_source import Keyed

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"


@dataclass(slots=True, eq=False)
class Row:
    key: int
    value: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sends:
    """How a connector sends changes.

    ``full``: whole old rows, else keys alone. ``deferred``: the source checks that keys are unique when a transaction ends, else
    after each change. ``in_order``: of the rows of a key the first that came is the first to leave, there are two at most, and
    none is updated before the other has left. ``context``: whether records have headers that say nothing.
    """

    headers: bool = True
    full: bool = True
    deferred: bool = True
    in_order: bool = True
    tombstones: bool = True
    context: bool = True


@dataclass(slots=True)
class Source:
    """``events``: key, value and headers of each record, in the order of the source's log."""

    sends: Sends = field(default_factory=Sends)
    rows: list[Row] = field(default_factory=list)
    events: list[Keyed] = field(default_factory=list)
    lsn: int = 100
    commit: int = 0
    transaction: int = 0

    def begin(self) -> None:
        self.transaction += 1
        self.commit = self.lsn

    def row(self, key: int, place: int = 0) -> Row:
        return [row for row in self.rows if row.key == key][place]

    def snapshot(self, rows: Mapping[int, str | None]) -> None:
        for key, value in rows.items():
            self.rows.append(Row(key, value))
            self._send("r", key, None, {"id": key, "v": value}, {}, lsn=50)

    def insert(self, key: int, value: str | None) -> None:
        self.rows.append(Row(key, value))
        self._next()
        self._send("c", key, None, {"id": key, "v": value})

    def update(self, row: Row, value: str | None) -> None:
        before = {"id": row.key, "v": row.value} if self.sends.full else None
        row.value = value
        self._next()
        self._send("u", row.key, before, {"id": row.key, "v": value})

    def move(self, row: Row, key: int, value: str | None = "") -> None:
        """Give a row another key, and perhaps another value."""
        old, before = row.key, self._old(row)
        self.rows = [*(one for one in self.rows if one is not row), row]  # it is the last that came
        row.key, row.value = key, row.value if value == "" else value
        self._next()
        marks = self.sends.headers
        self._deleted(old, before, {NEW_KEY: json.dumps({"id": key}).encode()} if marks else {})
        headers = {OLD_KEY: json.dumps({"id": old}).encode()} if marks else {}
        self._send("c", key, None, {"id": key, "v": row.value}, headers)

    def delete(self, row: Row) -> None:
        self.rows = [one for one in self.rows if one is not row]
        self._next()
        self._deleted(row.key, self._old(row), {})

    def table(self) -> dict[int, str | None]:
        return {row.key: row.value for row in self.rows}

    # Records ---------------------------------------------------------------------------------------------------------

    def _old(self, row: Row) -> dict[str, Any]:
        return {"id": row.key, "v": row.value if self.sends.full else None}

    def _next(self) -> None:
        self.lsn += 8

    def _deleted(self, key: int, before: dict[str, Any], headers: Mapping[str, bytes]) -> None:
        self._send("d", key, before, None, headers)
        if self.sends.tombstones:
            self.events.append((self._key(key), None, self._headers(headers)))

    def _send(
        self,
        op: str,
        key: int,
        before: Any,
        after: Any,
        headers: Mapping[str, bytes] | None = None,
        lsn: int | None = None,
    ) -> None:
        source = {
            "connector": "postgresql", "ts_ms": 1_700_000_000_000, "table": "t", "txId": None if op == "r" else self.transaction,
            "lsn": lsn or self.lsn, "sequence": json.dumps([str(self.commit) if self.commit else None, str(lsn or self.lsn)]),
        }  # fmt: skip
        event = {"before": before, "after": after, "source": source, "transaction": None, "op": op, "ts_ms": 1}
        self.events.append((self._key(key), json.dumps(event).encode(), self._headers(headers or {})))

    def _key(self, key: int) -> bytes:
        return json.dumps({"id": key}).encode()

    def _headers(self, headers: Mapping[str, bytes]) -> dict[str, bytes | None]:
        more = {"__debezium.context.taskId": b"0"} if self.sends.context else {}
        return {**more, **headers}


KEYS = (1, 2, 3, 4)
VALUES = ("a", "b", "c", None)


def transaction(source: Source, dice: random.Random) -> None:
    """A random transaction, after which keys are unique; within it they may not be, if the source is so."""
    source.begin()
    for _ in range(dice.randint(1, 6)):
        _change(source, dice)
    while crowded := [row for row in source.rows if sum(one.key == row.key for one in source.rows) > 1]:
        crowded = crowded if not source.sends.in_order else [row for row in crowded if row is source.row(row.key)]
        row, free = dice.choice(crowded), [key for key in (*KEYS, 5, 6) if key not in source.table()]
        if free and dice.random() < 0.7:
            source.move(row, dice.choice(free))
        else:
            source.delete(row)


def _change(source: Source, dice: random.Random) -> None:
    at_once = 0 if not source.sends.deferred else 1 if source.sends.in_order else len(KEYS)
    free = [key for key in KEYS if sum(row.key == key for row in source.rows) <= at_once]
    kind = dice.choice(["insert", "update", "move", "move", "move", "delete"])
    rows = source.rows
    if source.sends.in_order:
        rows = [row for row in rows if row is source.row(row.key)]
        if kind == "update":
            rows = [row for row in rows if sum(one.key == row.key for one in source.rows) == 1]
    row = dice.choice(rows) if rows else None
    if kind == "insert":
        unused = [key for key in KEYS if key not in source.table()]
        if unused:
            source.insert(dice.choice(unused), dice.choice(VALUES))
    elif row is not None and kind == "update":
        source.update(row, dice.choice(VALUES))
    elif row is not None and kind == "delete":
        source.delete(row)
    elif row is not None and (others := [key for key in free if key != row.key]):
        source.move(row, dice.choice(others), dice.choice(["", "", *VALUES]))


def sent_again(events: Sequence[Keyed], dice: random.Random) -> Iterator[Keyed]:
    """The events of a connector that was killed some times, and sends what it does not know to have sent."""
    at = 0
    while at < len(events):
        yield events[at]
        at += 1
        if dice.random() < 0.05:
            at = max(0, at - dice.randint(1, 10))


__all__ = ["Row", "Sends", "Source", "replace", "sent_again", "transaction"]
