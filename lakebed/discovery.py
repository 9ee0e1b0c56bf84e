"""Which tables there are below a path, what they are called, and when one is looked at next.

A folder that holds a log is a table, and so is the quarantine beside one, unless a mark says that it is dropped
(``log.removals``). Folders whose names begin with ``_`` or ``.`` are private. A table that is known already is not looked into
again, so to find nothing new in 10,000 tables of a schema takes some ten requests. That a table is gone is noticed by who looks
at its log.

A folder is one table's: no table lies inside another's folder (``require_alone``).

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

A look reads the name of the version after the newest one that is known. It finds nothing (one request), or the table has work.

1. The pause is a tenth of the time since the table changed: so a change is found late by a tenth of how long nothing came.
2. It is at least ``SECONDS_MIN``, and at most ``SECONDS_MAX`` or what the user has set, or a quarter of ``lakebed.freshness`` if
   that is less.
3. Every ``RELIST_SECONDS`` the log is listed too: that shows a table that was dropped, or created again.

4. A worker that stands by for a table looks at it twice in the time of ``lakebed.freshness``.

Hints (a commit of this process, a poke, an event of S3) make a look earlier. Without any hint nothing is missed. Looks for hints
of the same table are ``SECONDS_MIN`` apart, and twice as far after each hint for which nothing was found: so no flood of hints
costs much more than the looks without it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain, combinations
from pathlib import Path

from lakebed.errors import InvalidInput, LakebedError, StoreUnavailable
from lakebed.log.removals import DROPPED_FOLDER
from lakebed.log.stores import LOG_FOLDER
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.storage.object_store import Folders
from lakebed.storage.roots import LocalRoot, S3Root, parse_root

# -- Which tables there are below a root, by the folders that are there: the root itself, ``<table>`` and ``<schema>/<table>``


_THREADS = 16


def may_be_found(place: str, root: str) -> bool:
    """Whether ``tables_in(place)`` may find a table at this root."""
    if root == place:
        return True
    names = root.removeprefix(f"{place.rstrip('/')}/").split("/")
    is_below = root.startswith(f"{place.rstrip('/')}/")
    return is_below and len(names) <= 2 and all(names) and names == _visible(names)


def tables_in(root: str, known: Collection[str] = (), *, dropped: bool = False) -> list[str]:
    """The roots of the tables below a root, those that are ``known`` already among them if their schema is still there.

    ``dropped``: those with a mark that they are dropped, in place of all others. Raises InvalidInput, StoreUnavailable.
    """
    folders = Folders(root)
    place = str(folders.root)
    top = folders.below()
    if LOG_FOLDER in top:
        return [place] if _is_table(top, dropped) else []

    def looked_into(folder: str) -> list[str]:
        """The folder if it is a table, else those below it that may be one."""
        if f"{place}/{folder}" in known:
            return [folder]
        names = folders.below(folder)
        if LOG_FOLDER in names:
            return [folder] if _is_table(names, dropped) else []
        return [f"{folder}/{name}" for name in _visible(names)]

    def is_table(folder: str) -> bool:
        return "/" not in folder or f"{place}/{folder}" in known or _is_table(folders.below(folder), dropped)

    with ThreadPoolExecutor(_THREADS) as pool:
        found = list(chain.from_iterable(pool.map(looked_into, _visible(top))))
        return sorted(
            f"{place}/{folder}" for folder, is_one in zip(found, pool.map(is_table, found), strict=True) if is_one
        )


def _is_table(names: Collection[str], dropped: bool = False) -> bool:
    """Whether a folder that has folders of these names is a table, or one that is dropped."""
    return LOG_FOLDER in names and (DROPPED_FOLDER in names) is dropped


def require_alone(root: str) -> None:
    """Refuse a place for a table that lies inside another table's folder, or that has a table inside: a folder is one table's.

    Raises InvalidInput that names the other table; StoreUnavailable.
    """
    place = parse_root(root)
    for above in _above(place):
        if _has_log(str(above)):
            raise InvalidInput(
                f"{place} lies inside the table {above}; a table can't be inside another one: choose a path beside it",
                table=str(place),
            )
    below = _log_below(Folders(root), "")
    if below is not None:
        raise InvalidInput(
            f"the table {place}/{below} lies inside {place}; a table can't be inside another one: choose a path beside it",
            table=str(place),
        )


def require_apart(roots: Sequence[str]) -> None:
    """Refuse roots of which one lies inside another: tables below both would be served twice. Raises InvalidInput."""
    for outer, inner in combinations(sorted(map(str, map(parse_root, roots))), 2):
        if inner.startswith(f"{outer.rstrip('/')}/"):
            raise InvalidInput(f"the root {inner} lies inside the root {outer}; leave one of them out")


def _above(place: LocalRoot | S3Root) -> Iterator[LocalRoot | S3Root]:
    """The folders above a place, from its own folder up."""
    if isinstance(place, S3Root):
        steps = place.prefix.split("/") if place.prefix else []
        yield from (S3Root(place.bucket, "/".join(steps[:count])) for count in reversed(range(len(steps))))
    else:
        yield from (LocalRoot(str(parent)) for parent in Path(place.path).parents)


def _has_log(root: str) -> bool:
    try:
        return Folders(root).has(LOG_FOLDER)
    except StoreUnavailable:
        raise
    except LakebedError:
        return False  # whoever may not look there has no table of theirs there


def _log_below(folders: Folders, folder: str) -> str | None:
    """A folder with a log below one, which may have a log itself."""
    for name in _visible(folders.below(folder)):
        inside = f"{folder}/{name}" if folder else name
        if folders.has(f"{inside}/{LOG_FOLDER}"):
            return inside
        found = _log_below(folders, inside)
        if found is not None:
            return found
    return None


def _visible(names: Collection[str]) -> list[str]:
    return [name for name in names if not name.startswith(("_", "."))]


# -- Which table a topic is, by its name alone, and in which folder the table is -------------------------------------------


PART_BYTES_MAX = 160  # with it, a folder's name and that of its quarantine fit into what file systems allow: 255 bytes
_WITHOUT_SCHEMA = "default"
_PLAIN = re.compile(rb"[A-Za-z0-9_.-]")
_ESCAPE = re.compile(rb"!([0-9a-f]{2})")
_HEAD = re.compile(r"\^?((?:[A-Za-z0-9_-]|\\-)+)(?:\\\.|\.(?![*+?{]))")
_TRANSACTIONS = "transaction"


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    """The name of a table of a database."""

    text: str  # ``schema.table``, as the source calls it

    def __str__(self) -> str:
        return self.text

    @property
    def folder(self) -> str:
        """``schema/table``, safe as folders and different for every name."""
        schema, dot, table = self.text.partition(".")
        if not dot:
            return f"{_WITHOUT_SCHEMA}/{_part(self.text)}"
        first = _escaped(schema[:1]) + _part(schema[1:]) if schema.lower() == _WITHOUT_SCHEMA else _part(schema)
        return f"{first}/{_part(table)}"

    @staticmethod
    def of_folder(folder: str) -> TableName | None:
        """The name whose folder this is; None if it is nobody's, or that of a name that was cut."""
        schema, slash, table = folder.partition("/")
        try:
            names = [_plain(schema), _plain(table)]
        except ValueError:
            return None
        found = TableName(names[1] if schema == _WITHOUT_SCHEMA else ".".join(names))
        return found if slash and found.folder == folder else None


@dataclass(frozen=True, slots=True)
class NoTable:
    """A topic that is no table, and why."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Naming:
    """Which topics are tables, and what they are called."""

    prefix: str = ""  # what the topics' names begin with, before a dot; or empty
    include: tuple[str, ...] = ()  # regular expressions that match whole names of tables
    exclude: tuple[str, ...] = ()  # regular expressions that match whole names of tables
    events: bool = True  # the topics are Debezium's, some of which are no tables
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


# -- Which tables there are below a path, by the folders that are there: the list is no state of its own -------------------


_CUT = "!!"  # in the folder of a name that was cut (``Naming``)


def tables_below(path: str) -> dict[str, str]:
    """The roots of the tables of a database, by name (``schema.table``), in the order of the names; none is no error.

    A name that is too long for a folder is given as the folder says it. Raises InvalidInput, StoreUnavailable.
    """
    return named_tables(path, tables_in(path))


def named_tables(path: str, roots: Sequence[str]) -> dict[str, str]:
    """Those of the tables at ``roots`` that are a database's below ``path``, by name, in the order of the names."""
    place, found = f"{parse_root(path)}/", dict[str, str]()
    for root in roots:
        folder = root.removeprefix(place)
        name = TableName.of_folder(folder)
        if name is not None or (_CUT in folder and "/" in folder):
            found[str(name or folder.replace("/", "."))] = root
    return dict(sorted(found.items()))


def all_tables_below(path: str) -> dict[str, str]:
    """The same, with all other tables below the path (``discovery.tables_in``) but quarantines."""
    roots, place = tables_in(path), f"{parse_root(path)}/"
    found = named_tables(path, roots)
    others = {root for root in roots if not root.endswith(QUARANTINE_SUFFIX)} - set(found.values())
    return found | {root.removeprefix(place).replace("/", "."): root for root in sorted(others)}


def database_of(root: str) -> tuple[str, str] | None:
    """The folder of the database that a table is in, if it is in one, and its name there; None if its root can't be such."""
    head, _, table = root.rpartition("/")
    database, _, schema = head.rpartition("/")
    folder = f"{schema}/{table}"
    name = TableName.of_folder(folder)
    if (name is None and _CUT not in folder) or not database or database.endswith(("/", ":")):
        return None
    return database, str(name or folder.replace("/", "."))


# -- When a table to which nothing comes is looked at next. Pure -----------------------------------------------------------


SECONDS_MIN = 1.0
SECONDS_MAX = 300.0
RELIST_SECONDS = 4 * 3600.0
_IDLE_SHARE = 0.1
_FRESHNESS_SHARE = 0.25
_STANDBY_SHARE = 0.5


def hinted_pause_seconds(in_vain: int) -> float:
    """How long to wait from one look to the next for a hint. ``in_vain``: the last hints for which nothing was found."""
    return min(SECONDS_MAX, SECONDS_MIN * 2.0 ** min(in_vain, 30))


def pause_seconds(idle_seconds: float, freshness_seconds: int | None = None, seconds_max: float | None = None) -> float:
    """How long to wait until the next look. ``idle_seconds``: since the table changed last; ``seconds_max``: at most."""
    longest = SECONDS_MAX if seconds_max is None else seconds_max
    if freshness_seconds is not None:
        longest = min(longest, _FRESHNESS_SHARE * freshness_seconds)
    return max(SECONDS_MIN, min(longest, _IDLE_SHARE * idle_seconds))


def standby_pause_seconds(freshness_seconds: int | None) -> float:
    """How long a worker that stands by for a table waits until its next look. Without a freshness it waits for nothing."""
    return SECONDS_MAX if freshness_seconds is None else max(SECONDS_MIN, _STANDBY_SHARE * freshness_seconds)
