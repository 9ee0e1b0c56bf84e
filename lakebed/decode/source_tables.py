"""Of which table of the source a topic's events are, so that a table takes the rows of one.

Each event names its table (``source.db``, ``schema`` and ``table``). Debezium derives the topic's name from that, and writes
``_`` for each character that Kafka does not allow there. So two tables may share a topic: ``"a b"`` and ``a_b``, or ``a."b.c"``
and ``"a.b".c``.

    1.  The table's log remembers for each topic whose events it takes (``Position.source``). A table of a database knows it from
        the beginning (``lakebed.source_table``); another one learns it from its next batch: the lowest offset decides.
    2.  An event of another table is refused: it goes to the quarantine, or the table of a database is parked.
    3.  Events of several tables are taken if the settings name these, or if the message key names shards, since both are made on
        purpose. After an event with shards the log remembers that there are ``SEVERAL``.

Events that do not name their table are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Unreadable
from lakebed.errors import InvalidSchema
from lakebed.positions.positions import SEVERAL, Seen
from lakebed.remarks import Remark

MEMBERS = ("db", "schema", "table")
"""Of an event's ``source``; MySQL and MariaDB have no schemas."""
_Mask = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRules:
    """What a table demands of the events that it takes."""

    tables: tuple[str, ...] = ()
    """Regular expressions of the whole names of source tables; empty: the one that the log remembers."""
    parks: bool = False
    """Whether an event of another table ends the batch."""
    keys_of_message: bool = False
    """Whether the table's keys were taken from the message key of the first record: then every event's has the same fields."""

    def takes(self, name: str | None, known: str | None) -> bool:
        """Whether events of a source table are taken. ``known``: the one that the log remembers."""
        if name is None:
            return True
        if self.tables:
            return any(re.fullmatch(pattern, name) for pattern in self.tables)
        return known in (None, SEVERAL, name)

    @property
    def names_several(self) -> bool:
        """Whether the settings may name several source tables."""
        return len(self.tables) > 1 or not all(re.fullmatch(r"[\w.]*", pattern) for pattern in self.tables)

    def learns(self, known: str | None) -> bool:
        """Whether the log is to remember whose events come."""
        return not self.tables and known is None


NO_RULES = SourceRules()


class _OtherSource(Unreadable):
    """An event of another table of the source."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.remarks = ((Remark.SOURCE_TABLE, name),)


def refused(name: str, known: str | None, topic: str, rules: SourceRules) -> _OtherSource | InvalidSchema:
    """The error for an event of a table that is not taken."""
    if rules.tables:
        return _OtherSource(name, f"the event is of {name}, which sources does not name")
    both = f"the event is of {name}, and this table is of {known}: the connector sends both to the topic {topic}"
    if not rules.parks:
        return _OtherSource(name, f"{both}; give each a topic of its own, or name both in table.sources")
    return InvalidSchema(
        f"{both}, whose name has _ for characters that Kafka does not allow. Let a connector with another topic.prefix capture "
        f"one of them, and name {known} in sources below database.tables. If they belong together, or it was renamed, name "
        "both. Then resume the table"
    )


def table_name(source: Any) -> str | None:
    """The name of an event's table, from the event's ``source``; None if that does not say it."""
    if not isinstance(source, Mapping):
        return None
    return _joined(tuple(source.get(member) for member in MEMBERS))


def _joined(parts: tuple[Any, ...]) -> str | None:
    """The parts that there are, with quotes where a dot is no end of a part."""
    *above, table = parts
    if not isinstance(table, str):
        return None
    named = [part for part in above if isinstance(part, str)] + [table]
    return ".".join(f'"{part}"' if "." in part or '"' in part else part for part in named)


@dataclass(frozen=True, slots=True)
class OfOneTable:
    """Events of one topic and one table of the source: their rows among others. ``name``: None: they do not say it."""

    topic: str
    name: str | None
    rows: _Mask


def by_table(topics: pa.Array, members: Mapping[str, pa.Array]) -> list[OfOneTable]:
    """Events by topic and table. ``members``: those of ``MEMBERS`` of each event."""
    columns = [topics, *(members[name] for name in MEMBERS)]
    found = []
    for rows in _alike(columns):
        topic, *parts = (column[int(np.argmax(rows))].as_py() for column in columns)
        found.append(OfOneTable(topic, _joined(tuple(parts)), rows))
    return found


def _alike(columns: list[pa.Array]) -> list[_Mask]:
    """Groups of rows that are the same in all columns."""
    count = len(columns[0])
    if not count:
        return []
    if all(map(_is_constant, columns)):
        return [np.ones(count, bool)]
    codes = np.zeros(count, np.int64)
    for column in columns:
        encoded = column.dictionary_encode(null_encoding="encode")
        codes = codes * len(encoded.dictionary) + np.asarray(encoded.indices)
    return [codes == code for code in np.unique(codes)]


def _is_constant(column: pa.Array) -> bool:
    if column.null_count:
        return bool(column.null_count == len(column))
    return bool(pc.all(pc.equal(column, column[0])).as_py())


def all_seen(seen: Iterable[Seen]) -> dict[str, dict[str, tuple[int, int]]]:
    """Several as one."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for one in seen:
        for topic, names in one.items():
            for name, place in names.items():
                found.setdefault(topic, {})[name] = min(found.get(topic, {}).get(name, place), place)
    return found


def first_of(names: Mapping[str, tuple[int, int]]) -> str:
    """The table that a topic's events are of: that whose event came first, or ``SEVERAL``."""
    return SEVERAL if SEVERAL in names else min(names, key=lambda name: (names[name], name))
