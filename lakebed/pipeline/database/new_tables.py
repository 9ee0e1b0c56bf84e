"""What the table of a topic is made with: columns, keys and order, from the first records that say what its rows are.

    1.  Records without a value say nothing, and neither do events that change no row (a truncate, a message): the next record
        is asked. So is the next one after a record that can't be read.
    2.  The columns are those of the record's schema, in the types that ``evolve`` would add them with. All but the keys may be
        null, as in columns that are added later: what a source forbids today it may allow tomorrow. The settings may give a
        field's column another name (``columns``). What can be no column is left out.
    3.  The keys are the settings'; else the fields of that record's message key; without one, the table is only appended to.
    4.  The order is the settings'; else what the events of a database have that grows with every change of a row
        (``ORDERS``). The values decide, and not their types alone: other connectors write events in the form of Debezium's, with
        members that are empty. So the first ``_ORDER_RECORDS`` events must all have a place in that order. Without one it is the
        order of arrival, which the table's log says in a remark.

All of it depends on these records and the settings. Two processes that begin with different records make different tables, of
which one is created; records of the other's schema then change it as they change any table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from lakebed.decode.debezium.inline_schemas import CHANGES, row_of_envelope
from lakebed.decode.debezium.message_key import SHARD_FIELD
from lakebed.decode.decoder import RecordReader
from lakebed.decode.formats import EVENTS, schemas_of
from lakebed.decode.json.connect_types import PLAIN, connect_fields, envelope_of
from lakebed.decode.json.text import Unreadable, parse, shown
from lakebed.decode.json.values import UnknownFields
from lakebed.decode.metadata import KEY_SCHEMA, VALUE_SCHEMA, mappings_of, metadata_path
from lakebed.decode.slices import Record
from lakebed.decode.source_order import ORDERS as SOURCE_ORDERS
from lakebed.decode.source_order import SourceRules, begin_of, table_name
from lakebed.decode.typed.schemas import KeySchemas, Schemas, read_one
from lakebed.decode.typed.values import column_field, column_of, members_of, plain_values, row_of
from lakebed.decode.unknown_fields import unknown_mode
from lakebed.errors import InvalidSchema
from lakebed.pipeline.database_section import TableWishes
from lakebed.positions.positions import SEVERAL
from lakebed.remarks import Counts, Remark, remarks_on, sum_of
from lakebed.schema.column_mapping import by_case
from lakebed.schema.fitting import EvolvePolicy, FieldPath, described, possible_fields, reserved_names
from lakebed.settings import suggest
from lakebed.sources.source import Range

ASKED_MAX = 100  # how many records, of those that have a value, are asked at a time
ORDERS = (
    ("lsn", "int", "lsn"),
    ("pos", "int", "file"),
    ("scn", "string", "commit_scn"),
    ("commit_lsn", "string", "event_serial_no"),
    ("commit_ts", "int", "cluster_id"),
)
"""Members of ``source`` that order the changes of a row (``source_order``), with their kind and the member that shows whose they
are: PostgreSQL's; MariaDB's and MySQL's; Oracle's; SQL Server's; those of TiDB by TiCDC, whose schema does not have them. Db2's
events have a ``commit_lsn`` too, and no serial number.
"""
_ORDER_RECORDS = 20
_DOCUMENTS = (
    "its rows are texts, as MongoDB's documents are: let the connector flatten them (its transformation "
    "ExtractNewDocumentState), and read them with format avro, protobuf or json-schema"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a record says about the rows of its topic."""

    columns: pa.Schema
    key: tuple[str, ...] | None = None  # the fields of its message key; None if it has none
    key_error: str = ""
    """Why the message key names no fields, if there is one that does not."""
    # the members of an event's ``source`` with their types; None if the record is no event
    source: Mapping[str, str] | None = None
    table: str | None = None
    """The source's name of the table, or ``SEVERAL``; None: the record does not say it."""
    connector: str = ""  # what wrote the event
    orders: tuple[str, ...] = ()  # the metadata by which it has a place in an order, the best first
    # where in the source's log the rows of its initial snapshot are, if it is one of them (``source_order``)
    begin: int | None = None
    operation: str = ""  # of the event
    row: str | None = None  # the values of its message key; None if they are not known
    # where a change is of a row that the topic does not have, so that its source had the row before; or empty
    older: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Introduction:
    """What a table is made with."""

    columns: pa.Schema
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    begin: int | None = None
    source_table: str | None = None
    remarks: Counts = field(default_factory=dict)  # what needs attention about it


class _RowsOf(Protocol):
    """Reads what a record says about its rows."""

    def __call__(self, record: Record) -> Rows | None:
        """``record`` has a value. None: it changes no row. Raises ``Unreadable``, and Retry if a registry does not answer."""


class _LogMessage(Unreadable):
    """A record is a message of the source's log (``pg_logical_emit_message``)."""


class FirstRows:
    """Looks for the first record of a topic that says what its rows are, in as many calls as it takes."""

    def __init__(self, rows_of: _RowsOf, wishes: TableWishes) -> None:
        """``wishes``: for the table that the rows make."""
        self._rows_of = rows_of
        self._needs_key = wishes.keys is None
        self._rules = SourceRules(tables=wishes.sources)
        self.why_not = "no record has a value yet"
        self.has_messages = False
        """Whether a record is a message of the source's log, which is of no table."""
        self._has_unreadable = False
        self.read_to: dict[int, int] = {}
        """By partition: the records before this offset have been asked."""

    def among(self, ranges: Sequence[Range], read: Callable[[Range], Iterable[pa.Table]]) -> Rows | None:
        """None: none of the next records in the ranges says it, ``why_not``. ``read``: the records of a range, in order.

        A call asks ``ASKED_MAX`` records at most, and the next call those behind them. When all were asked it begins again:
        a schema may have become known. Raises what ``read`` raises, and Retry if a registry does not answer.
        """
        if all(one.end <= self.read_to.get(one.partition, 0) for one in ranges):
            self.read_to.clear()
        asked = 0
        for one in ranges:
            start = max(one.start, self.read_to.get(one.partition, 0))
            if start >= one.end:
                continue
            for records in read(replace(one, start=start)):
                some = _records(records)
                for record in some:
                    if asked >= ASKED_MAX:
                        return None
                    asked += 1
                    found = self._ask(record)
                    if found is not None:
                        further = islice(some, _ORDER_RECORDS - 1)
                        return self._looked_at(found, record, further, _without_gap(records, start))
                    self.read_to[one.partition] = record.offset + 1
            self.read_to[one.partition] = one.end
        return None

    def _looked_at(self, rows: Rows, first: Record, further: Iterable[Record], end: int) -> Rows:
        """The rows with those orders alone in which further records have a place too, and with ``older``.

        ``end``: up to there the topic has all records that were ever in it; a compacted topic lacks some.
        """
        made = _Made(0 if self._has_unreadable else end)
        made.take(first, rows)
        for record in further if rows.orders else ():
            try:
                other = self._rows_of(record)
            except Unreadable:
                made.end = 0  # it may be the one that makes a row
                continue
            if other is not None:
                made.take(record, other)
                rows = replace(rows, orders=tuple(one for one in rows.orders if one in other.orders))
        return replace(rows, older=made.older)

    def _ask(self, record: Record) -> Rows | None:
        try:
            found = self._rows_of(record)
            if found is not None and found.key_error and self._needs_key:
                raise Unreadable(f"{found.key_error}; so set keys of this table below database.tables")
            if found is not None and not self._rules.takes(found.table, None):
                raise Unreadable(f"it is of {found.table}, which sources does not name")
        except _LogMessage:
            self.has_messages = True
            self.why_not = "no record changes a row yet"
            return None
        except Unreadable as error:
            self._has_unreadable = True
            self.why_not = f"offset {record.offset} of partition {record.partition}: {error}"
            return None
        if found is None:
            self.why_not = "no record changes a row yet"
        return found


@dataclass(slots=True)
class _Made:
    """Looks for the first change of a row that no record before it has made. ``end``: see ``FirstRows``."""

    end: int
    older: str = ""
    keys: set[str | None] = field(default_factory=set)

    def take(self, record: Record, rows: Rows) -> None:
        """The next record; its row is the one of its message key."""
        is_change = rows.operation in ("u", "d") and rows.row is not None and record.offset < self.end
        if is_change and rows.row not in self.keys and not self.older:
            self.older = f"{rows.operation} at offset {record.offset} of partition {record.partition}"
        self.keys.add(rows.row)


def _without_gap(records: pa.Table, start: int) -> int:
    """The offset behind the last record before which none is missing from an offset on."""
    offsets = records["offset"].to_numpy()
    gaps = np.flatnonzero(offsets != start + np.arange(len(offsets)))
    return start + (int(gaps[0]) if len(gaps) else len(offsets))


def rows_of(format: str, options: Mapping[str, Any]) -> _RowsOf:
    """For a format whose records have a schema. ``options``: of its decoder. Raises as ``typed_decoder``."""
    if format == "debezium-json":
        return _connect_rows
    values, keys = schemas_of(format, options)
    events = format.startswith(EVENTS)
    return _TypedRows(values, keys, events, None if events else options.get("operation_field"))


def introduction(
    rows: Rows, wishes: TableWishes, policy: EvolvePolicy, unknown_fields: UnknownFields = "warn"
) -> _Introduction:
    """The table for such rows. ``policy`` and ``unknown_fields``: of the table's stream.

    Raises InvalidSchema if no column is left, or a key is none.
    """
    sequence_by = wishes.sequence_by or next(iter(rows.orders), None)
    fields, left_out = policy.named(rows.columns), dict[FieldPath, str]()
    is_column = wishes.sequence_by in [one.name for one in fields]
    places = {one.name: place for place, one in enumerate(fields)}
    # Of two fields that differ by case alone, the one that has to be there is the column.
    wanted = {*(wishes.keys or map(policy.column_name, rows.key or ())), wishes.sequence_by}
    fields.sort(key=lambda one: one.name not in wanted)
    columns = possible_fields(fields, left_out, reserved_names(policy, None if is_column else sequence_by))
    columns.sort(key=lambda one: places[one.name])
    names = [one.name for one in columns]
    if not names:
        raise InvalidSchema(f"no field of its rows can be a column: {', '.join(described(left_out))}")
    keys = wishes.keys if wishes.keys is not None else _keys(rows.key or (), names, policy)
    if wishes.keys is None and SHARD_FIELD in keys:
        raise InvalidSchema(
            f"the message key has the field {SHARD_FIELD!r}: several tables of the source were routed into this topic, and their "
            "keys may repeat; set keys below database.tables to what is unique among the rows of all of them"
        )
    for key in keys:
        if key not in names:
            where = "database.tables has the key" if wishes.keys is not None else "the message key has the field"
            why = f" ({left_out[key,]})" if (key,) in left_out else suggest(key, names)
            raise InvalidSchema(
                f"{where} {key!r}, which is no column{why}; the columns are {', '.join(names)}; set keys below "
                "database.tables, or name a column for the field there (columns)"
            )
    if wishes.sequence_by and wishes.sequence_by not in names:
        _check_metadata(wishes.sequence_by, rows)
    remarks = [_of_table_with_keys(rows, sequence_by) if keys else {}]
    if unknown_mode(unknown_fields, policy, has_schema=False) == "warn":  # else rows do not just come in without them
        remarks.append(remarks_on(Remark.LEFT_OUT_FIELD, dict.fromkeys(described(left_out), 1)))
    return _Introduction(
        columns=pa.schema([pa.field(one.name, one.type, one.name not in keys) for one in columns]),
        keys=keys,
        sequence_by=sequence_by if keys else None,
        begin=rows.begin if keys and sequence_by == "source.lsn" else None,
        source_table=None if wishes.sources else rows.table,
        remarks=sum_of(remarks),
    )


def _keys(fields: Sequence[str], columns: Sequence[str], policy: EvolvePolicy) -> tuple[str, ...]:
    """The columns of the fields of a message key."""
    names = [policy.column_name(one) for one in fields]
    columns_of = by_case(columns, names)
    return tuple(columns_of.get(name, name) for name in names)


def _of_table_with_keys(rows: Rows, sequence_by: str | None) -> Counts:
    """The remarks on a table that has keys."""
    by_arrival = not sequence_by and rows.source is not None
    connector = rows.connector or "a connector without a name"
    return {
        **remarks_on(Remark.ORDER_OF_ARRIVAL, {connector: 1} if by_arrival else {}),
        **remarks_on(Remark.BEGAN_WITHOUT_ROWS, {rows.older: 1} if rows.older else {}),
    }


def _check_metadata(sequence_by: str, rows: Rows) -> None:
    """Raises InvalidSchema for metadata that the records lack."""
    path = metadata_path(sequence_by)
    if path is None or path[0] == "kafka" or (rows.source is not None and path[0] != "source"):
        return
    if rows.source is None:
        raise InvalidSchema(f"sequence_by {sequence_by!r}: rows have no such metadata; use a column or kafka.offset")
    if path[1] not in rows.source:
        near = suggest(path[1], rows.source)
        raise InvalidSchema(
            f"sequence_by {sequence_by!r}: the events have no such member{near}; they have {', '.join(rows.source)}"
        )


def _records(records: pa.Table) -> Iterator[Record]:
    """Those that have a value."""
    for batch in records.filter(records.column("value").is_valid()).to_batches(max_chunksize=ASKED_MAX):
        times, headers = batch.column("timestamp").view(pa.int64()), mappings_of(batch)
        for at in range(batch.num_rows):
            values = {name: batch.column(name)[at].as_py() for name in ("key", "value", "topic", "partition", "offset")}
            yield Record(**values, timestamp=times[at].as_py(), headers=headers[at])


# -- JSON with inline schemas ------------------------------------------------------------------------------------------


def _connect_rows(record: Record) -> Rows | None:
    assert record.value is not None
    event, schema = envelope_of(parse(record.value))
    if event is None:
        return None
    if not isinstance(event, dict) or "op" not in event:
        raise Unreadable("no change event: it has no 'op'")
    if _is_of_no_row(event["op"]):
        return None
    columns = row_of_envelope(schema)
    if columns is None and any(isinstance(event.get(side), str) for side in ("after", "before")):
        raise Unreadable(_DOCUMENTS)
    if columns is None:
        raise Unreadable("it carries no schema; set value.converter.schemas.enable of the connector, or use a registry")
    source = {one["field"]: one for one in connect_fields(schema)}.get("source")
    kinds = {one["field"]: str(one.get("type")) for one in connect_fields(source)}
    key, key_error = _key_read(_json_key, record.key)
    found = Rows(columns=columns, key=key.fields or None, key_error=key_error, operation=event["op"], row=key.row)
    return _with_source(found, kinds, event.get("source"))


def _is_of_no_row(operation: object) -> bool:
    """Whether an event changes no row. Raises _LogMessage."""
    if operation == "m":
        raise _LogMessage("a message of the source's log")
    return operation not in CHANGES


@dataclass(frozen=True, slots=True)
class _Key:
    """A message key. ``row``: its values, the same however they are written, and in whatever case their names are; None: they are
    not known.
    """

    fields: tuple[str, ...] = ()
    row: str | None = None

    @staticmethod
    def of(fields: Iterable[str], values: Mapping[str, Any]) -> _Key:
        named = sorted((name.lower(), repr(value)) for name, value in values.items())
        return _Key(tuple(fields), repr(named) if values else None)


def _key_read(read: Callable[[bytes], _Key], key: bytes | None) -> tuple[_Key, str]:
    """A message key, and why its fields are not known."""
    try:
        return (_Key() if key is None else read(key)), ""
    except Unreadable as error:
        return _Key(), f"the message key names no fields ({error})"


def _json_key(key: bytes) -> _Key:
    """A key in JSON, with or without its schema. Raises ``Unreadable``."""
    payload, schema = envelope_of(parse(key))
    fields = tuple(one["field"] for one in connect_fields(schema))
    if payload is not None and not fields and not isinstance(payload, dict):
        raise Unreadable(f"it is the value {shown(payload)}")
    values = payload if isinstance(payload, dict) else {}
    return _Key.of(fields or values, values)


def _with_source(rows: Rows, kinds: Mapping[str, str], source: object) -> Rows:
    """The rows with what the ``source`` of their event says. ``kinds``: the types of its members in the schema."""
    members = source if isinstance(source, dict) else {}
    kinds = {name: _KINDS.get(type(value), "") for name, value in members.items()} | dict(kinds)
    connector = members.get("connector")
    return replace(
        rows,
        source=kinds,
        table=SEVERAL if SHARD_FIELD in (rows.key or ()) else table_name(members),
        connector=connector if isinstance(connector, str) else "",
        orders=tuple(_orders(kinds, members)),
        begin=begin_of(members),
    )


_KINDS: Mapping[type, str] = {int: "int", str: "string"}


def _orders(kinds: Mapping[str, str], source: Mapping[str, Any]) -> Iterator[str]:
    """What orders the changes of a row: the members of ``source`` by which the event has a place."""
    for name, kind, shown_by in ORDERS:
        if not kinds.get(name, "").removeprefix("u").startswith(kind) or shown_by not in kinds:
            continue
        order = SOURCE_ORDERS.get(("source", name))
        place = source.get(name)
        if order is not None:
            place = order.place(_member(source, name), _member(source, order.beside))
        if isinstance(place, int) and place > 0:
            yield f"source.{name}"


def _member(source: Mapping[str, Any], name: str | None) -> int | str | None:
    value = source.get(name) if name is not None else None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


# -- formats whose schemas are elsewhere -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TypedRows:
    values: Schemas
    keys: KeySchemas
    events: bool
    operation_field: str | None

    def __call__(self, record: Record) -> Rows | None:
        assert record.value is not None
        reader, rows = read_one(self.values, record.value, record.headers.get(VALUE_SCHEMA))
        fields, logical = row_of(reader, events=self.events)
        operation = column_of(rows, "op", pa.string())[0].as_py() if self.events else ""
        if self.events and _is_of_no_row(operation):
            return None
        if not fields and self.events and "collection" in _members(reader, "source"):
            raise Unreadable(_DOCUMENTS)
        if not fields:
            raise Unreadable(
                "its schema has no rows ('after', 'before')" if self.events else "its schema has no fields"
            )
        columns = [
            column_field(one, logical.get(one.name, PLAIN)) for one in fields if one.name != self.operation_field
        ]
        header = record.headers.get(KEY_SCHEMA)
        key, key_error = _key_read(lambda key: self._key(key, header), record.key)
        bare = pa.schema([one.remove_metadata() for one in columns])
        found = Rows(columns=bare, key=key.fields or None, key_error=key_error, operation=operation, row=key.row)
        if not self.events:
            return found
        members, _ = members_of(rows, "source")
        source = {name: plain_values(value)[0].as_py() for name, value in members.items()}
        return _with_source(found, _members(reader, "source"), source)

    def _key(self, key: bytes, header: bytes | None) -> _Key:
        if self.keys is None or self.keys == "none":
            return _Key()
        if self.keys == "json":
            return _json_key(key)
        reader, rows = read_one(self.keys, key, header)
        names = reader.schema.names
        if names == ["value"] and not self.events:
            raise Unreadable("it is one value")
        values = zip(rows.schema.names, rows.columns, strict=True)
        return _Key.of(names, {name: plain_values(column)[0].as_py() for name, column in values})


def _members(reader: RecordReader, name: str) -> dict[str, str]:
    at = reader.schema.get_field_index(name)
    if at < 0 or not pa.types.is_struct(reader.schema.field(at).type):
        return {}
    return {child.name: str(child.type) for child in reader.schema.field(at).type}
