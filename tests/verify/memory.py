"""A source and a table in memory, both of which go on while they are compared."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from lakebed.verify.canonical import Column, OfKey, Rule, Shape
from lakebed.verify.comparing import Key, Row, Span, Tally, Version

NUMBER = Rule(
    source="{}::text", lake="{}::varchar", of_key=OfKey(source="{}", lake="{}", order="{}", order_of_text="{}")
)
TEXT = Rule(source="{}", lake="{}", is_free=True)


def shape(*, ordered: bool = True, value: Rule = TEXT) -> Shape:
    """A number as the key, and a text."""
    id = Column(name="id", source_name="id", kind="int4", rule=NUMBER)
    return Shape(
        keys=(id,),
        columns=(id, Column(name="v", source_name="v", kind="text", rule=value)),
        is_ordered=ordered,
    )


def checksum(key: int, value: str) -> int:
    """Of a row, as the databases compute it."""
    return int(hashlib.md5(f"{key},{len(value.encode())}:{value}".encode()).hexdigest()[:15], 16)


@dataclass
class World:
    """The log of a database: at each position a key got a value, or none. The table follows, with faults that were planted.

    ``before``: is called before each statement and each wait, and may change the database.
    """

    chance: random.Random
    log: list[tuple[int, str | None]] = field(default_factory=list)
    rows: dict[int, tuple[str, int]] = field(default_factory=dict)  # a value, and the position that wrote it
    followed: int = 0
    lake: dict[int, list[str]] = field(default_factory=dict)
    faults: dict[int, Callable[[list[str]], list[str]]] = field(
        default_factory=dict
    )  # of a key: what the table makes of it
    before: Callable[[], None] = lambda: None

    def write(self, key: int, value: str | None) -> None:
        self.log.append((key, value))
        if value is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = (value, len(self.log))

    def follow(self, position: int) -> None:
        for key, value in self.log[self.followed : position]:
            self.lake[key] = [] if value is None else [value]
        self.followed = max(self.followed, position)

    def there(self, key: int) -> list[str]:
        found = self.lake.get(key, [])
        return self.faults[key](found) if key in self.faults else found

    def known(self) -> list[int]:
        return sorted({*self.lake, *self.faults})


@dataclass
class MemorySource:
    """See ``Source``."""

    world: World
    statements: int = 0

    def _asked(self) -> dict[int, tuple[str, int]]:
        self.statements += 1
        self.world.before()
        return self.world.rows

    def position(self) -> int:
        self._asked()
        return len(self.world.log)

    def bound(self, after: Key | None, rows: int) -> Key | None:
        found = sorted(key for key in self._asked() if after is None or key > int(after[0]))
        return (str(found[rows - 1]),) if len(found) >= rows else None

    def _within(self, span: Span) -> list[tuple[int, str]]:
        return [(key, value) for key, (value, _) in sorted(self._asked().items()) if is_within(span, key)]

    def tally(self, span: Span) -> Tally:
        found = self._within(span)
        return Tally(rows=len(found), sum=sum(checksum(*one) for one in found))

    def checksums(self, span: Span) -> Iterator[pa.Table]:
        found = self._within(span)
        yield pa.table({"k0": [str(key) for key, _ in found], "h": [checksum(*one) for one in found]})

    def states(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Version]]:
        rows = self._asked()
        return {
            key: [Version(checksum(int(key[0]), rows[int(key[0])][0]), str(rows[int(key[0])][1]))]
            for key in keys
            if int(key[0]) in rows
        }

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        rows = self._asked()
        return {key: [[key[0], rows[int(key[0])][0]]] for key in keys if int(key[0]) in rows}


@dataclass
class MemoryLake:
    """See ``Lake``."""

    world: World
    kept: dict[int, list[int]] = field(default_factory=dict)
    found: list[Key] = field(default_factory=list)

    def reach(self, position: int) -> None:
        self.world.before()
        newest = len(self.world.log)
        self.world.follow(self.world.chance.choice([position, self.world.chance.randint(position, newest)]))

    def tallies(self, spans: Sequence[Span]) -> Mapping[Span, Tally]:
        return {span: self._tally(span) for span in spans}

    def _tally(self, span: Span) -> Tally:
        found = [(key, one) for key in self.world.known() if is_within(span, key) for one in self.world.there(key)]
        return Tally(rows=len(found), sum=sum(checksum(*one) for one in found))

    def keep(self, rows: pa.Table) -> None:
        for row in rows.to_pylist():
            self.kept.setdefault(int(row["k0"]), []).append(row["h"])

    def differing(self, spans: Sequence[Span] | None) -> int:
        keys = [key for key in self.world.known() if spans is None or any(is_within(span, key) for span in spans)]
        self.found = [
            (str(key),)
            for key in sorted({*keys, *self.kept})
            if sorted(self.kept.get(key, [])) != sorted(checksum(key, one) for one in self.world.there(key))
        ]
        self.kept = {}
        return len(self.found)

    def next_keys(self, count: int) -> Sequence[Key]:
        some, self.found = self.found[:count], self.found[count:]
        return some

    def states(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[int]]:
        return {key: [checksum(int(key[0]), one) for one in self.world.there(int(key[0]))] for key in keys}

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        return {key: [[key[0], one] for one in self.world.there(int(key[0]))] for key in keys}


def is_within(span: Span, key: int) -> bool:
    return (span.after is None or key > int(span.after[0])) and (span.upto is None or key <= int(span.upto[0]))
