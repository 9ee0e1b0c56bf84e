"""What orders the changes of a source, as one number: the order of its commits; and the transaction that an event belongs to.

``source.pos`` of MariaDB and MySQL starts again with each file of the server's binary log. So it stands for the file's number
and the position in the file: ``number << 40 | pos``. It counts within the log of one server.

``source.lsn`` of PostgreSQL is where a change is in the log, which is no order of commits: a transaction may write, and commit
after others that wrote later. So it stands for the greater one of it and of the last commit before its transaction, which is
the first text of ``source.sequence``. Changes of one row by several transactions are in the order of ``lsn`` anyway, since a
transaction waits for the one before it. But rows of an incremental snapshot are as of a moment between two commits: what commits
later is newer than they, wherever it is in the log. Rows of an ad hoc snapshot have no ``lsn``; the last text of ``sequence``
holds the position of the connector when it sent them. The rows are as new as it: if the log has a change of a row between
reading and sending it, the connector leaves the row out.

The connector knows no commit before the first one that it meets. Its transaction may have been open during the initial snapshot,
whose rows lack its changes, though these have lower positions. So such changes are not before the rows that the table began with
(``not_before``; the table remembers their position).

``source.scn`` of Oracle is where a change is in the redo log, with the same fault, also in an initial snapshot: it has no change
of a transaction that is open then, whose changes have lower numbers than its rows. So it stands for the greater one of it and of
``source.commit_scn``. Rows of snapshots have no commit of their own, and no greater number than what commits later.

``source.commit_lsn`` of SQL Server is where the transaction committed: file, block and record of the log, 80 bits. The number has
25 bits of the file, 27 of the block and 11 of the record, which is enough for 33 million files of 64 GiB with blocks of 2,047
records. What is beyond counts as the last one, so it never changes the order of two commits; they may be equal.

Changes of one row by one transaction may be equal: of equal ones the later arrival counts.

Which transaction that is, and where in it the event is, connectors say in different members (``described``). A snapshot's rows
belong to none.

**Of which table of the source** a topic's events are is looked at too, so that a table takes the rows of one.

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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Unreadable, parse
from lakebed.errors import InvalidSchema
from lakebed.positions.positions import SEVERAL, Seen
from lakebed.remarks import Remark

# -- Of which table of the source events are ---------------------------------------------------------------------------


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


# -- What orders changes, and their transactions -----------------------------------------------------------------------


POSTGRESQL_ID = "([0-9]+):[0-9]+"
_MEMBERS = ("txId", "gtid", "vgtid", "commit_lsn", "commit_scn", "commitTs")
"""Members of ``source`` that are the same for all events of a transaction, the first that an event has."""
_ROWS_AT_A_POSITION = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What an event is beside its rows. ``transaction``: a text that is the same for all events of one; None: it has none.

    ``place``: grows with each change of a row within a transaction, and is the same if the event is sent again; None: unknown.
    """

    operation: str
    transaction: str | None = None
    place: int | None = None


def identity(id: str) -> str:
    """What is the same for all records of a transaction: PostgreSQL's ids have the position of each operation behind a colon."""
    found = re.fullmatch(POSTGRESQL_ID, id)
    return found[1] if found else id


def described(event: Any) -> Described | None:
    """A parsed event; None for one that changes no row."""
    operation = event.get("op") if isinstance(event, Mapping) else None
    if operation not in ("c", "r", "u", "d"):
        return None
    if operation == "r":
        return Described(operation="r")
    source, block = event.get("source"), event.get("transaction")
    source = source if isinstance(source, Mapping) else {}
    block = block if isinstance(block, Mapping) else {}
    return Described(operation=operation, transaction=_transaction(source, block), place=_place(source, block))


def _transaction(source: Mapping[str, Any], block: Mapping[str, Any]) -> str | None:
    for name in _MEMBERS:
        value = source.get(name)
        if value is not None and value != "":
            return f"{name} {value}"
    if isinstance(block.get("id"), str):
        return f"id {identity(block['id'])}"
    file, position = source.get("file"), source.get("pos")
    return f"{file} {position}" if file and position else None


NAMES_OF_TRANSACTIONS: Mapping[tuple[str, str], pa.DataType] = {
    **{("source", name): pa.int64() if name in ("txId", "commitTs") else pa.string() for name in _MEMBERS},
    ("source", "file"): pa.string(),
    ("source", "pos"): pa.int64(),
    ("transaction", "id"): pa.string(),
}
"""The members of events that name a transaction, by their path, with the types that they mostly have."""


def transactions(operation: pa.Array, members: Mapping[tuple[str, str], pa.Array]) -> pa.StringArray:
    """``Described.transaction`` of many events.

    ``members``: those of ``NAMES_OF_TRANSACTIONS`` that the events have. Raises TypeError for one of another type than text or
    whole number.
    """
    given = {path: values for path, values in members.items() if values.null_count < len(values)}
    texts = [pa.nulls(len(operation), pa.string())]
    for name in _MEMBERS:
        if ("source", name) in given:
            texts.append(pc.binary_join_element_wise(name, _texts(given["source", name]), " "))
    ids = given.get(("transaction", "id"))
    if ids is not None and pa.types.is_string(ids.type):
        texts.append(
            pc.binary_join_element_wise("id", pc.replace_substring_regex(ids, f"^{POSTGRESQL_ID}$", r"\1"), " ")
        )
    if ("source", "file") in given and ("source", "pos") in given:
        file, position = (_texts(given["source", name]) for name in ("file", "pos"))
        texts.append(pc.binary_join_element_wise(file, pc.if_else(pc.equal(position, "0"), None, position), " "))
    changes = pc.is_in(operation, value_set=pa.array(["c", "u", "d"]))
    return pc.if_else(changes, pc.coalesce(*texts), None)


def _texts(values: pa.Array) -> pa.StringArray:
    """Texts and whole numbers as texts, without those that are empty."""
    if pa.types.is_string(values.type):
        return pc.if_else(pc.equal(values, ""), None, values)
    if not pa.types.is_integer(values.type):
        raise TypeError(f"values of type {values.type} name no transaction")
    return values.cast(pa.string())


def _place(source: Mapping[str, Any], block: Mapping[str, Any]) -> int | None:
    order, lsn = _number_in(block.get("total_order")), _number_in(source.get("lsn"))
    if lsn is not None or order is not None:
        return order if lsn is None else lsn
    position, row = _number_in(source.get("pos")), _number_in(source.get("row"))
    if position is None or row is None or position >= 1 << 42 or row >= _ROWS_AT_A_POSITION:
        return None
    return position * _ROWS_AT_A_POSITION + row


def _number_in(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


_FILE_NUMBER = re.compile(r"\.([0-9]+)\Z")
FILE_NUMBERS, POSITIONS_PER_FILE = 1 << 23, 1 << 40  # all positions fit into 63 bits
_LAST_COMMIT = r'^\["(?P<commit>[0-9]{1,18})"'
_NO_COMMIT = "[null"
_INITIAL = ("true", "first", "last", "first_in_data_collection", "last_in_data_collection")
_NUMBER = r"^[0-9]{1,18}$"
_SQL_SERVER_LSN = re.compile(r"([0-9a-fA-F]{8}):([0-9a-fA-F]{8}):([0-9a-fA-F]{4})")
_SQL_SERVER_BITS = (25, 27, 11)
_INT64_MAX = (1 << 63) - 1
_Member = str | int | None


@dataclass(frozen=True, slots=True)
class _SourceOrder:
    """How a member of ``source`` orders changes. ``beside``: a member that it needs too, a text.

    ``kind``: the Arrow type that the member is read as. ``place``: of one event, from both members; None if it has none.
    ``places``: of many; null for those that have none, and for others that ``place`` has to read.
    """

    beside: str | None
    kind: pa.DataType
    place: Callable[[_Member, _Member], int | None]
    places: Callable[[pa.Array, pa.Array], pa.Array]
    needs: str = ""
    """What an event without a place may lack beside the member itself."""


# -- MariaDB and MySQL -------------------------------------------------------------------------------------------------


def binlog_position(pos: _Member, file: _Member) -> int | None:
    """The place of an event in a server's binary log. ``file``: as ``binlog.000007``."""
    number = _file_number(file)
    if number is None or not isinstance(pos, int) or not 0 <= pos < POSITIONS_PER_FILE:
        return None
    return number * POSITIONS_PER_FILE + pos


def binlog_positions(positions: pa.Array, files: pa.Array) -> pa.Array:
    """``binlog_position`` of each event."""
    encoded = files.dictionary_encode()
    firsts = [
        None if number is None else number * POSITIONS_PER_FILE
        for number in map(_file_number, encoded.dictionary.to_pylist())
    ]
    in_range = pc.and_(pc.greater_equal(positions, 0), pc.less(positions, POSITIONS_PER_FILE))
    known = pc.if_else(in_range, positions, pa.scalar(None, pa.int64()))
    return pc.add(pa.array(firsts, pa.int64()).take(encoded.indices), known)


def _file_number(file: object) -> int | None:
    found = _FILE_NUMBER.search(file) if isinstance(file, str) else None
    number = int(found[1]) if found and len(found[1]) < 20 else None
    return number if number is not None and number < FILE_NUMBERS else None


# -- PostgreSQL --------------------------------------------------------------------------------------------------------


def log_position(lsn: _Member, sequence: _Member) -> int | None:
    """The place of an event in PostgreSQL's log in the order of commits. ``sequence``: as ``["39419360","39419152"]``."""
    text = sequence if isinstance(sequence, str) else ""
    here = lsn if isinstance(lsn, int) else _last_position(text)
    found = re.match(_LAST_COMMIT, text)
    return max(here, int(found["commit"])) if found and here is not None else here


def log_positions(lsns: pa.Array, sequences: pa.Array) -> pa.Array:
    """``log_position`` of each event; null where there is no ``lsn``."""
    commits = pc.struct_field(pc.extract_regex(sequences, _LAST_COMMIT), "commit").cast(pa.int64())
    return pc.if_else(lsns.is_valid(), pc.max_element_wise(lsns, commits), pa.scalar(None, pa.int64()))


def not_before(begin: int, place: int, sequence: _Member) -> int:
    """The place of an event if its connector had met no commit: not before the rows that the table began with."""
    return max(begin, place) if isinstance(sequence, str) and sequence.startswith(_NO_COMMIT) else place


def all_not_before(begin: int, places: pa.Array, sequences: pa.Array) -> pa.Array:
    """``not_before`` of each event; null where there is no place."""
    is_first = pc.fill_null(pc.starts_with(sequences, _NO_COMMIT), False)
    later = pc.max_element_wise(places, pa.scalar(begin, pa.int64()), skip_nulls=False)
    return pc.if_else(is_first, later, places)


def begin_of(source: Mapping[str, Any]) -> int | None:
    """Where the rows of PostgreSQL's initial snapshot are, from the ``source`` of one of them; None for other events."""
    lsn, sequence = source.get("lsn"), source.get("sequence")
    is_row = source.get("snapshot") in _INITIAL and isinstance(sequence, str) and sequence.startswith(_NO_COMMIT)
    return lsn if is_row and isinstance(lsn, int) and not isinstance(lsn, bool) and lsn >= 0 else None


def _last_position(sequence: str) -> int | None:
    try:
        parsed = parse(sequence.encode(errors="replace"))
    except Unreadable:
        return None
    last = parsed[-1] if isinstance(parsed, list) and parsed else None
    return _number(last) if isinstance(last, str) else None


# -- Oracle ------------------------------------------------------------------------------------------------------------


def change_number(scn: _Member, commit_scn: _Member) -> int | None:
    """The place of an event of Oracle's. Both are numbers, or texts of digits."""
    known = [number for number in map(_number, (scn, commit_scn)) if number is not None]
    return max(known, default=None)


def _change_numbers(scns: pa.Array, commit_scns: pa.Array) -> pa.Array:
    """``change_number`` of each event; null where one of them is no text of digits."""
    numbers = pc.max_element_wise(_numbers(scns), _numbers(commit_scns))
    odd = pc.or_(_is_odd(scns), _is_odd(commit_scns))
    return pc.if_else(odd, pa.scalar(None, pa.int64()), numbers)


# -- SQL Server --------------------------------------------------------------------------------------------------------


def commit_position(commit_lsn: _Member, _: _Member = None) -> int | None:
    """The place of a commit in SQL Server's log, as ``00000027:00000ac0:0007``; a number is taken as it is."""
    found = _SQL_SERVER_LSN.fullmatch(commit_lsn) if isinstance(commit_lsn, str) else None
    if found is None:
        return _number(commit_lsn)
    place, is_beyond = 0, False
    for text, bits in zip(found.groups(), _SQL_SERVER_BITS, strict=True):
        last = (1 << bits) - 1
        is_beyond = is_beyond or int(text, 16) > last
        place = place << bits | (last if is_beyond else int(text, 16))
    return place


def _commit_positions(commit_lsns: pa.Array, _: pa.Array) -> pa.Array:
    """``commit_position`` of each event."""
    encoded = commit_lsns.dictionary_encode()
    found = pa.array(map(commit_position, encoded.dictionary.to_pylist()), pa.int64())
    return found.take(encoded.indices)


def _number(value: _Member) -> int | None:
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,19}", value):
        value = int(value)
    return value if isinstance(value, int) and abs(value) <= _INT64_MAX else None


def _numbers(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.match_substring_regex(texts, _NUMBER), texts, pa.scalar(None, pa.string())).cast(pa.int64())


def _is_odd(texts: pa.Array) -> pa.Array:
    """Which texts have to be read one by one."""
    return pc.fill_null(pc.invert(pc.match_substring_regex(texts, _NUMBER)), False)


_BINLOG = " (with source.file, a file of a binary log)"
LOG_POSITION = ("source", "lsn")
ORDERS: Mapping[tuple[str, str], _SourceOrder] = {
    ("source", "pos"): _SourceOrder("file", pa.int64(), binlog_position, binlog_positions, _BINLOG),
    LOG_POSITION: _SourceOrder("sequence", pa.int64(), log_position, log_positions),
    ("source", "scn"): _SourceOrder("commit_scn", pa.string(), change_number, _change_numbers),
    ("source", "commit_scn"): _SourceOrder("scn", pa.string(), change_number, _change_numbers),
    ("source", "commit_lsn"): _SourceOrder(None, pa.string(), commit_position, _commit_positions),
}
"""By the path of the metadata that ``sequence_by`` refers to; any other is a whole number that counts as it is."""


def metadata_type(parent: str, name: str) -> pa.DataType:
    """The Arrow type that the metadata at a path is read as."""
    order = ORDERS.get((parent, name))
    if order is not None:
        return order.kind
    return pa.string() if parent == "source" and name in _TEXTS else pa.int64()


_TEXTS = frozenset([*MEMBERS, *(order.beside for order in ORDERS.values() if order.beside)])
