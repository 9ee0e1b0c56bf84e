"""Which transaction each event belongs to, and the number that it has among the transaction's events of its table.

Debezium adds ``transaction`` to its events if ``provide.transaction.metadata`` is set: ``{"id": "755:39412744", "total_order": 2,
"data_collection_order": 1}``. Events of a snapshot have none.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.ingest.json.columns import MISSES
from lakebed.ingest.json.objects import ObjectParser
from lakebed.ingest.typed.metadata import members_of
from lakebed.ingest.typed.record_format import NarrowingReader
from lakebed.ingest.typed.schemas import Schemas

_POSTGRESQL = "([0-9]+):[0-9]+"
_TRANSACTION = pa.struct([("id", pa.string()), ("data_collection_order", pa.int64())])
_SCHEMA = pa.schema([("transaction", _TRANSACTION), ("payload", pa.struct([("transaction", _TRANSACTION)]))])


def identity(id: str) -> str:
    """What is the same for all records of a transaction: PostgreSQL's ids have the position of each operation behind a colon."""
    found = re.fullmatch(_POSTGRESQL, id)
    return found[1] if found else id


@dataclass(frozen=True, slots=True)
class TransactionIds:
    """One element a record; null for a record without a transaction."""

    ids: pa.StringArray
    orders: pa.Int64Array


class JsonTransactionIds:
    """Reads them from Debezium's events in JSON, with an inline schema or without. Picklable."""

    def __init__(self) -> None:
        self._parser: ObjectParser | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return JsonTransactionIds, ()

    def read(self, records: pa.Table) -> TransactionIds:
        """A record that is no event has no transaction."""
        values = records.column("value").combine_chunks()
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
        name = "data_collection_order"
        orders = pc.coalesce(pc.struct_field(outside, name), pc.struct_field(inside, name))
        if parsed.unsure:
            alone = [_of_event(some[row].as_py()) for row in np.flatnonzero(~parsed.sure).tolist()]
            fixed = _arrays(alone)
            mask = pa.array(~parsed.sure)
            ids = pc.replace_with_mask(ids, mask, fixed.ids)
            orders = pc.replace_with_mask(orders, mask, fixed.orders)
        return _placed(TransactionIds(ids, orders), present, len(values))


@dataclass(frozen=True, slots=True)
class TypedTransactionIds:
    """Reads them from Debezium's events whose schema is known."""

    schemas: Schemas

    def read(self, records: pa.Table) -> TransactionIds:
        """A record that can't be read has no transaction. Raises Retry if a registry does not answer."""
        values = records.column("value").combine_chunks()
        present = np.flatnonzero(np.asarray(values.is_valid()))
        some = values if len(present) == len(values) else values.drop_null()
        ids: list[pa.Array] = [pa.array([], pa.string())]
        orders: list[pa.Array] = [pa.array([], pa.int64())]
        places = [np.array([], np.int64)]
        for group in self.schemas.grouped(some).groups:
            reader = group.reader
            if isinstance(reader, NarrowingReader):
                reader = reader.narrowed({"transaction": ["id", "data_collection_order"]})
            members, _ = members_of(reader.read(group.payload).rows, "transaction")
            if "id" not in members or not pa.types.is_string(members["id"].type):
                continue
            ids.append(members["id"])
            orders.append(members.get("data_collection_order", pa.nulls(len(group.rows))).cast(pa.int64()))
            places.append(present[group.rows])
        return _placed(
            TransactionIds(pa.concat_arrays(ids), pa.concat_arrays(orders)), np.concatenate(places), len(values)
        )


def _of_event(value: bytes) -> tuple[str | None, int | None]:
    try:
        event = orjson.loads(value)
        if "payload" in event:
            event = event["payload"]
        transaction = event["transaction"]
        id, order = transaction["id"], transaction.get("data_collection_order")
    except (ValueError, TypeError, KeyError, AttributeError):
        return None, None
    if not isinstance(id, str):
        return None, None
    return id, order if isinstance(order, int) and 0 < order < 1 << 63 else None


def _arrays(found: list[tuple[str | None, int | None]]) -> TransactionIds:
    return TransactionIds(
        pa.array([id for id, _ in found], pa.string()), pa.array([order for _, order in found], pa.int64())
    )


def _placed(read: TransactionIds, places: np.ndarray[Any, Any], count: int) -> TransactionIds:
    """The ids of some records at their places among all, as identities."""
    ids = pc.replace_substring_regex(read.ids, f"^{_POSTGRESQL}$", r"\1")
    if len(places) == count and (places == np.arange(count)).all():
        return TransactionIds(ids, read.orders)
    at = np.full(count, -1)
    at[places] = np.arange(len(places))
    taken = pa.array(at, mask=at < 0)
    return TransactionIds(ids.take(taken), read.orders.take(taken))
