"""Which transaction each event belongs to, and the number that it has among the transaction's events.

Debezium adds ``transaction`` to its events if ``provide.transaction.metadata`` is set: ``{"id": "755:39412744", "total_order": 2,
"data_collection_order": 1}``. Events of a snapshot have none. The number is the one among all events of the transaction, because
a topic may have events of several tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoder
from lakebed.decode.json.columns import MISSES
from lakebed.decode.json.objects import ObjectParser
from lakebed.decode.metadata import VALUE_SCHEMA, headers_of, values_of
from lakebed.decode.source_order import POSTGRESQL_ID
from lakebed.decode.source_order import identity as identity
from lakebed.decode.typed.records import TypedRecords
from lakebed.decode.typed.schemas import Schemas, members_of_group
from lakebed.decode.typed.values import members_of
from lakebed.errors import InvalidInput

_NAME = ("db", "schema", "table")
_TRANSACTION = pa.struct([("id", pa.string()), ("total_order", pa.int64())])
_SCHEMA = pa.schema([("transaction", _TRANSACTION), ("payload", pa.struct([("transaction", _TRANSACTION)]))])


@dataclass(frozen=True, slots=True)
class TransactionIds:
    """One element a record; null for a record without a transaction."""

    ids: pa.StringArray
    orders: pa.Int64Array
    table_of: Callable[[int], tuple[str, ...]] = lambda _: ()
    """The name of the table of a record, in its parts: database, schema and table, as far as the event has them."""


class _JsonTransactionIds:
    """Reads them from Debezium's events in JSON, with an inline schema or without. Picklable."""

    def __init__(self) -> None:
        self._parser: ObjectParser | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _JsonTransactionIds, ()

    def read(self, records: pa.Table) -> TransactionIds:
        """A record that is no event has no transaction."""
        values = records.column("value").combine_chunks()
        return replace(self._read(values), table_of=lambda row: _table_of(values[row].as_py()))

    def _read(self, values: pa.BinaryArray) -> TransactionIds:
        present = np.flatnonzero(np.asarray(values.is_valid()))
        some = values if len(present) == len(values) else values.drop_null()
        self._parser = self._parser or ObjectParser(_SCHEMA, {}, {})
        try:
            parsed = self._parser.parse(some)
        except MISSES:
            found = [_of_event(value.as_py()) for value in some]
            return _placed(_arrays(found), present, len(values))
        inside = pc.struct_field(parsed.rows.column("payload"), "transaction")
        outside = parsed.rows.column("transaction")
        ids = pc.coalesce(pc.struct_field(outside, "id"), pc.struct_field(inside, "id"))
        orders = pc.coalesce(pc.struct_field(outside, "total_order"), pc.struct_field(inside, "total_order"))
        if parsed.unsure:
            alone = [_of_event(some[row].as_py()) for row in np.flatnonzero(~parsed.sure).tolist()]
            fixed = _arrays(alone)
            mask = pa.array(~parsed.sure)
            ids = pc.replace_with_mask(ids, mask, fixed.ids)
            orders = pc.replace_with_mask(orders, mask, fixed.orders)
        return _placed(TransactionIds(ids, orders), present, len(values))


@dataclass(frozen=True, slots=True)
class _TypedTransactionIds:
    """Reads them from Debezium's events whose schema is known."""

    schemas: Schemas

    def read(self, records: pa.Table) -> TransactionIds:
        """A record that can't be read has no transaction. Raises Retry if a registry does not answer."""
        values, headers = records.column("value").combine_chunks(), values_of(headers_of(records), VALUE_SCHEMA)

        def table_of(row: int) -> tuple[str, ...]:
            return self._table_of(values.slice(row, 1), None if headers is None else headers.slice(row, 1))

        return replace(self._read(values, headers), table_of=table_of)

    def _table_of(self, value: pa.BinaryArray, header: pa.BinaryArray | None) -> tuple[str, ...]:
        for group in self.schemas.grouped(value, header).groups:
            members, _ = members_of(members_of_group(group, {"source": _NAME}), "source")
            return _name_of(
                {name: column[0].as_py() for name, column in members.items() if name in _NAME and len(column)}
            )
        return ()

    def _read(self, values: pa.BinaryArray, headers: pa.BinaryArray | None) -> TransactionIds:
        present = np.flatnonzero(np.asarray(values.is_valid()))
        some = values if len(present) == len(values) else values.drop_null()
        named = None if headers is None else headers.take(pa.array(present))
        ids: list[pa.Array] = [pa.array([], pa.string())]
        orders: list[pa.Array] = [pa.array([], pa.int64())]
        places = [np.array([], np.int64)]
        for group in self.schemas.grouped(some, named).groups:
            members, _ = members_of(members_of_group(group, {"transaction": ("id", "total_order")}), "transaction")
            if "id" not in members or not pa.types.is_string(members["id"].type):
                continue
            ids.append(members["id"])
            orders.append(members.get("total_order", pa.nulls(len(group.rows))).cast(pa.int64()))
            places.append(present[group.rows])
        return _placed(
            TransactionIds(pa.concat_arrays(ids), pa.concat_arrays(orders)), np.concatenate(places), len(values)
        )


def _of_event(value: bytes) -> tuple[str | None, int | None]:
    event = _event(value)
    transaction = event.get("transaction") if event else None
    if not isinstance(transaction, dict) or not isinstance(id := transaction.get("id"), str):
        return None, None
    order = transaction.get("total_order")
    return id, order if isinstance(order, int) and 0 < order < 1 << 63 else None


def _event(value: bytes) -> dict[str, Any] | None:
    try:
        event = orjson.loads(value)
    except ValueError:
        return None
    if isinstance(event, dict) and "payload" in event:
        event = event["payload"]
    return event if isinstance(event, dict) else None


def _table_of(value: bytes) -> tuple[str, ...]:
    event = _event(value)
    source = event.get("source") if event else None
    return _name_of(source) if isinstance(source, dict) else ()


def _name_of(source: Mapping[str, Any]) -> tuple[str, ...]:
    """The parts of the name of an event's table."""
    return tuple(part for name in _NAME if isinstance(part := source.get(name), str))


def _arrays(found: list[tuple[str | None, int | None]]) -> TransactionIds:
    return TransactionIds(
        pa.array([id for id, _ in found], pa.string()), pa.array([order for _, order in found], pa.int64())
    )


def _placed(read: TransactionIds, places: np.ndarray[Any, Any], count: int) -> TransactionIds:
    """The ids of some records at their places among all, as identities."""
    ids = pc.replace_substring_regex(read.ids, f"^{POSTGRESQL_ID}$", r"\1")
    if len(places) == count and (places == np.arange(count)).all():
        return TransactionIds(ids, read.orders)
    at = np.full(count, -1)
    at[places] = np.arange(len(places))
    taken = pa.array(at, mask=at < 0)
    return TransactionIds(ids.take(taken), read.orders.take(taken))


class _TransactionIdReader(Protocol):
    """Reads the transactions of records (``RECORD_SCHEMA``)."""

    def read(self, records: pa.Table) -> TransactionIds: ...


def transaction_ids_of(decoder: Decoder) -> _TransactionIdReader:
    """Raises InvalidInput for records that are no events of Debezium's."""
    if isinstance(decoder, DebeziumJson):
        return _JsonTransactionIds()
    if isinstance(decoder, TypedRecords) and decoder.reads_events:
        return _TypedTransactionIds(decoder.value_schemas)
    raise InvalidInput(
        "points need Debezium's change events, whose transactions they keep whole: use a format of Debezium's, or leave "
        "database.points out"
    )
