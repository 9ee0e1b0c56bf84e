"""A table of PostgreSQL and its events as Debezium's connector sends them, under random treatment.

1.  A seed draws columns, a primary key, a replica identity, and which columns are the message key. Values are often zeros, but
    not those of keys that are no message key at first: nobody can tell an old row of zeros alone.
2.  Rows come, change and go. Now and then the primary key or the replica identity becomes another.
3.  An old row has what the replica identity sends; the other columns are filled in. Where the message key of the old row is
    another than that of the new one, an update is a delete and a create. All of it as a real connector was seen to do it
    (``tests/end_to_end/test_keys_and_names.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

Row = dict[str, Any]
UNIQUE = ("id", "code", "mail")
"""Columns whose values no two rows have in common, so that each may be a key. They are never null."""
ZEROS = {"int64": 0, "string": ""}
SOURCE = {"connector": "postgresql", "db": "shop", "schema": "public", "table": "a_b"}


@dataclass
class Column:
    name: str
    kind: str
    nullable: bool = False
    default: Any = None

    @property
    def filling(self) -> Any:
        """What stands for a value that was not sent."""
        if self.default is not None:
            return self.default
        return None if self.nullable else ZEROS[self.kind]

    @property
    def schema(self) -> Row:
        more = {} if self.default is None else {"default": self.default}
        return {"type": self.kind, "field": self.name, "optional": self.nullable, **more}


@dataclass
class Sent:
    """An event: of which row it is, its message key, and what it says."""

    row: int
    key: Row | None
    change: Row


@dataclass
class PostgresTable:
    """``rows``: by a number that a row keeps. ``history``: all that a row has been."""

    rng: Random
    has_schema: bool
    columns: list[Column] = field(default_factory=list)
    primary_key: tuple[str, ...] = ("id",)
    identity: tuple[str, ...] | None = None
    """The columns that old rows have; None: those of the primary key."""
    message_key: tuple[str, ...] | None = None
    """None: the primary key."""
    rows: dict[int, Row] = field(default_factory=dict)
    history: dict[int, list[Row]] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    zeros: tuple[str, ...] = ()
    """The columns of ``UNIQUE`` that may be zero."""

    def __post_init__(self) -> None:
        rng = self.rng
        self.columns = [
            Column("id", "int64"),
            Column("code", "int64"),
            Column("mail", "string"),
            Column("version", "int64"),
        ]
        for number in range(rng.randint(0, 3)):
            kind, nullable = rng.choice(["int64", "string"]), rng.random() < 0.5
            default = rng.choice([None, None, 3 if kind == "int64" else "new"]) if self.has_schema else None
            self.columns.append(Column(f"c{number}", kind, nullable, default))
        self.primary_key = rng.choice([("id",), ("id",), ("code",), ("mail",), ("id", "code")])
        if rng.random() < 0.3:
            self.message_key = rng.choice([("mail",), ("code",)])
        self.zeros = self.key_columns
        self.new_identity()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self.message_key or self.primary_key

    def new_identity(self) -> None:
        """The default, whole rows, or a unique index beside the primary key."""
        beside = [name for name in UNIQUE if name not in self.primary_key]
        by_index = [(name,) for name in beside]
        self.identity = self.rng.choice([None, None, self.names, self.rng.choice([*by_index, None])])

    def new_primary_key(self) -> None:
        self.primary_key = self.rng.choice([("id",), ("code",), ("mail",), ("id", "code"), ("id", "code", "mail")])
        if self.identity is not None and len(self.identity) == 1:
            self.identity = None

    # -- rows ----------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        if not self.rows or rng.random() < 0.3:
            self.insert()
            return
        number = rng.choice(list(self.rows))
        if rng.random() < 0.35:
            self.delete(number)
        else:
            self.update(number)

    def insert(self) -> None:
        number = len(self.history)
        self.rows[number] = {column.name: self._value(column) for column in self.columns} | {"version": len(self.sent)}
        self.history[number] = [self.rows[number]]
        self._send(number, "c", None, self.rows[number])

    def update(self, number: int) -> None:
        old = self.rows[number]
        new = old | {column.name: self._value(column) for column in self.columns if self.rng.random() < 0.3}
        # An update of a message key that is not in the replica identity leaves no trace of the old one.
        new |= {name: old[name] for name in self.key_columns if name not in (self.identity or self.primary_key)}
        new["version"] = len(self.sent)
        self.rows[number] = new
        self.history[number].append(new)
        sends_old = self.identity == self.names or any(
            old[name] != new[name] for name in self.identity or self.primary_key
        )
        before = self._old(old) if sends_old else None
        if before is not None and self._key(before) != self._key(new):
            self._send(number, "d", before, None)
            self._send(number, "c", None, new)
        else:
            self._send(number, "u", before, new)

    def delete(self, number: int) -> None:
        self._send(number, "d", self._old(self.rows.pop(number)), None)

    def _old(self, row: Row) -> Row:
        sent = self.identity or self.primary_key
        return {one.name: row[one.name] if one.name in sent else one.filling for one in self.columns}

    def _key(self, row: Mapping[str, Any]) -> Row:
        return {name: row[name] for name in self.key_columns}

    def _value(self, column: Column) -> Any:
        rng = self.rng
        if column.name in UNIQUE:
            taken = {row[column.name] for row in self.rows.values()}
            numbers = list(range(0 if column.name in self.zeros else 1, 25))
            numbers = [number for number in numbers if self._spelled(column, number) not in taken]
            return self._spelled(column, rng.choice([numbers[0], rng.choice(numbers)]))
        if column.nullable and rng.random() < 0.4:
            return None
        return self._spelled(column, rng.choice([0, 0, 1, 2, 3]))

    def _spelled(self, column: Column, number: int) -> Any:
        return number if column.kind == "int64" else ["", "new", *"abcdefghijklmnopqrstuvwxyz"][number]

    def _send(self, number: int, op: str, before: Row | None, after: Row | None) -> None:
        source = {**SOURCE, "lsn": len(self.sent) + 1, "ts_ms": 1_700_000_000_000}
        key = self._key(before or after or {})
        if op == "u" and after is not None:
            key = self._key(after)
        self.sent.append(Sent(number, key, {"before": before, "after": after, "source": source, "op": op}))

    # -- records -------------------------------------------------------------------------------------------------------

    def encoded(self, sent: Sent) -> tuple[bytes, bytes]:
        """The key and the value of a record."""
        key, value = sent.key, sent.change
        if self.has_schema:
            fields = {column.name: column.schema for column in self.columns}
            row = {"type": "struct", "fields": list(fields.values()), "optional": True}
            of_key = {"type": "struct", "fields": [fields[name] for name in key or ()]}
            of_value = {"type": "struct", "fields": [{**row, "field": side} for side in ("before", "after")]}
            return _json({"schema": of_key, "payload": key}), _json({"schema": of_value, "payload": value})
        return _json(key), _json(value)


def _json(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()
