"""Which table a topic is, by its name alone, and in which folder the table is.

The name of a table is that of its topic without the prefix: ``shop.public.orders`` is ``public.orders``. Its folder below the
database is ``public/orders``: the part before the first dot, and the rest. Two topics never have the same folder:

    1.  Letters, digits, ``-``, ``_`` and dots stay. Every other byte of the name in UTF-8 is ``!`` and two hexadecimal digits.
    2.  So is the first character of a part that begins with ``_`` or ``.``, which hides folders from some readers (``_lakebed``
        is the database's own), a dot at its end, and the ``_`` of ``_quarantine`` at its end, which is the folder of a table's
        quarantine.
    3.  A name without a dot is in the folder ``default``; a schema of that name is ``!64efault``. An empty part is ``!``.
    4.  A part of more than ``PART_BYTES_MAX`` bytes is cut, and ends with ``!!`` and the hash of the whole.

No part is ``.`` or ``..``, none has a slash, and no table is in the folder of another, since all folders have two parts. Names
that differ in nothing but case have folders that do; a file system that takes these for one is noticed by the topic that the
table there remembers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from lakebed.errors import InvalidInput
from lakebed.parts.quarantine import QUARANTINE_SUFFIX

PART_BYTES_MAX = 160
"""So that a folder's name with that of its quarantine fits into what file systems allow: 255 bytes."""
WITHOUT_SCHEMA = "default"
_PLAIN = re.compile(rb"[A-Za-z0-9_.-]")
_ESCAPE = re.compile(rb"!([0-9a-f]{2})")
_HEAD = re.compile(r"\^?((?:[A-Za-z0-9_-]|\\-)+)(?:\\\.|\.(?![*+?{]))")
_TRANSACTIONS = "transaction"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """``text``: ``schema.table``, as the source names it."""

    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def folder(self) -> str:
        """``schema/table``, safe as folders and different for every name."""
        schema, dot, table = self.text.partition(".")
        if not dot:
            return f"{WITHOUT_SCHEMA}/{_part(self.text)}"
        first = _escaped(schema[:1]) + _part(schema[1:]) if schema.lower() == WITHOUT_SCHEMA else _part(schema)
        return f"{first}/{_part(table)}"

    @staticmethod
    def of_folder(folder: str) -> TableName | None:
        """The name whose folder this is; None if it is nobody's, or that of a name that was cut."""
        schema, slash, table = folder.partition("/")
        try:
            names = [_plain(schema), _plain(table)]
        except ValueError:
            return None
        found = TableName(names[1] if schema == WITHOUT_SCHEMA else ".".join(names))
        return found if slash and found.folder == folder else None


@dataclass(frozen=True, slots=True)
class NoTable:
    """A topic that is no table, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """``prefix``: what the topics' names begin with, and a dot; empty: nothing. ``include`` and ``exclude``: regular expressions
    that match whole names of tables. ``events``: the topics are Debezium's, some of which are no tables.
    """

    prefix: str = ""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    events: bool = True
    transaction_topic: str | None = None
    signal_topic: str | None = None
    notification_topic: str | None = None

    def table_of(self, topic: str) -> TableName | NoTable:
        """The table that a topic is. The same one always, and for no other topic."""
        if topic == self.transaction_topic:
            return NoTable("it has the source's transactions")
        if topic == self.signal_topic:
            return NoTable("it has the signals to the connector")
        if topic == self.notification_topic:
            return NoTable("it has the connector's notifications")
        if self.events and topic.startswith("__debezium-heartbeat"):
            return NoTable("it has Debezium's heartbeats")
        if self.events and topic == self.prefix:
            return NoTable("it has the source's changes of schemas")
        start = f"{self.prefix}." if self.prefix else ""
        name = topic.removeprefix(start)
        if start and name == topic:
            return NoTable(f"its name does not begin with {start!r} (database.topic_prefix)")
        if self.events and name == _TRANSACTIONS:
            return NoTable("it has the source's transactions")
        if excluded := next((one for one in self.exclude if re.fullmatch(one, name)), None):
            return NoTable(f"database.exclude has {excluded!r}")
        if self.include and not any(re.fullmatch(one, name) for one in self.include):
            return NoTable("nothing in database.include matches it")
        return TableName(name)


def prefix_of(topics: Sequence[str], pattern: str | None) -> str:
    """What comes before the first dot of all topics that settings name. Raises InvalidInput if they do not say that."""
    if pattern is not None:
        head = _HEAD.match(pattern)
        if head is not None and not _has_choices(pattern):
            return head[1].replace("\\-", "-")
        what = f"the pattern {pattern}"
    else:
        firsts = {topic.partition(".")[0] for topic in topics}
        if len(firsts) == 1 and all("." in topic for topic in topics):
            return firsts.pop()
        what = "the topics"
    raise InvalidInput(
        f"{what} may have names with several beginnings; set database.topic_prefix to the connector's topic.prefix, or to '' "
        "if the names of topics are those of tables"
    )


def _has_choices(pattern: str) -> bool:
    """Whether a pattern may have alternatives outside of brackets."""
    depth, is_set, is_literal = 0, False, False
    for character in pattern:
        if is_literal:
            is_literal = False
        elif character == "\\":
            is_literal = True
        elif is_set:
            is_set = character != "]"
        elif character == "[":
            is_set = True
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "|" and depth == 0:
            return True
    return False


def _part(name: str) -> str:
    """A name as one part of a path."""
    if not name:
        return "!"
    if name.lower().endswith(QUARANTINE_SUFFIX) and name[: -len(QUARANTINE_SUFFIX)]:
        at = len(name) - len(QUARANTINE_SUFFIX)
        text = _inner(name[:at]) + _escaped(name[at]) + name[at + 1 :]
    else:
        text = _inner(name)
    if len(text) <= PART_BYTES_MAX:
        return text
    digest = sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:40]
    cut = text[: PART_BYTES_MAX - len(digest) - 2]
    return f"{cut}!!{digest}"


def _plain(part: str) -> str:
    """The reverse of ``_part``. Raises ValueError."""
    data = _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), part.encode()) if part != "!" else b""
    return data.decode("utf-8", "surrogatepass")


def _inner(name: str) -> str:
    first, middle, last = name[:1], name[1:-1], name[1:][-1:]
    return (
        (_escaped(first) if first in "._" else _bytes(first))
        + _bytes(middle)
        + (_escaped(last) if last == "." else _bytes(last))
    )


def _bytes(text: str) -> str:
    data = text.encode("utf-8", "surrogatepass")
    return "".join(chr(byte) if _PLAIN.match(bytes([byte])) else f"!{byte:02x}" for byte in data)


def _escaped(text: str) -> str:
    return "".join(f"!{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))
