"""What a record says besides its row: its headers, its operation, and metadata that ``sequence_by`` may name in place of a
column.

**Headers.** A table of records (``RECORD_SCHEMA``) may have a further column, ``HEADERS``. A source adds it where a record has
headers. Only those of ``READ`` are kept: Debezium gives each record some that are the same for all records. But the column says
that headers get here, so a record without one of them was sent without it.

**Operations.** A value that is spelled exactly like a known one has its meaning. Any other value is compared without regard to
case; it is unknown if it then equals both an upsert and a delete. An unknown value is never guessed: its record goes to the
quarantine.

Values are texts. A truth value counts as ``true`` or ``false``, a whole number (``1``, ``1.0``) as its digits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.text import Number, shown
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.parts.changes import DELETE, UPSERT
from lakebed.parts.quarantine import HEADERS, HEADERS_TYPE

ENVELOPE = ("ts_ms", "ts_us", "ts_ns")
_PARENTS = ("source", "transaction", "kafka")
KAFKA = ("offset", "timestamp", "partition")

KNOWN_MEMBERS = {
    "source": (
        # of all connectors
        "version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "sequence", "db", "schema", "table",
        "txId", "lsn", "xmin",  # PostgreSQL
        "server_id", "gtid", "file", "pos", "row", "thread", "query",  # MySQL, MariaDB
        "commit_lsn", "change_lsn", "begin_lsn", "event_serial_no",  # SQL Server, Db2, Informix
        "scn", "commit_scn", "start_scn", "start_ts_ms", "commit_ts_ms", "lcr_position", "rs_id", "ssn", "redo_thread",  # Oracle
        "user_name", "redo_sql", "row_id",
        "collection", "ord", "lsid", "txnNumber", "wallTime",  # MongoDB
        "vgtid", "keyspace", "shard",  # Vitess
        "commitTs", "clusterId",  # TiDB
    ),
    "transaction": ("id", "total_order", "data_collection_order"),
}  # fmt: skip
"""What Debezium's connectors are known to write. Others may write more."""


def metadata_path(name: str | None) -> tuple[str, str] | None:
    """``source.lsn`` as (source, lsn), ``ts_ms`` as ("", ts_ms). Raises ``InvalidSchema`` for any other name."""
    if name is None:
        return None
    if name in ENVELOPE:
        return "", name
    parent, _, member = name.partition(".")
    if parent not in _PARENTS or not member or (parent == "kafka" and member not in KAFKA):
        raise InvalidSchema(
            f"sequence_by {name!r} is neither a column of the table nor metadata of an event: use a column, "
            f"{', '.join(ENVELOPE)}, source.<field>, transaction.<field> or kafka.<{'|'.join(KAFKA)}>"
        )
    return parent, member


def kafka_metadata(records: pa.RecordBatch, name: str) -> pa.Array:
    """A record's own offset, timestamp (milliseconds) or partition."""
    values = records.column(name)
    return values.view(pa.int64()) if name == "timestamp" else values.cast(pa.int64())


NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Of an update that changes a row's key, which Debezium sends as a delete of the old key and a create of the new one."""
VALUE_SCHEMA, KEY_SCHEMA = "__value_schema_id", "__key_schema_id"
"""The schemas of a record's value and key, where these do not begin with it (``typed.registry``)."""
READ = (NEW_KEY, OLD_KEY, VALUE_SCHEMA, KEY_SCHEMA)

HEADERS_FIELD = pa.field(HEADERS, HEADERS_TYPE)
Headers = Mapping[str, bytes | None]
"""Those of one record. Of several with one name the last one counts."""
_NO_HEADERS: Headers = MappingProxyType({})


def headers_of(records: pa.RecordBatch | pa.Table) -> pa.ListArray | None:
    """The column of headers; None if there is none, or no record has a header."""
    if records.schema.get_field_index(HEADERS) < 0:
        return None
    column = records.column(HEADERS)
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return None if column.null_count == len(column) else column


def mappings_of(records: pa.RecordBatch | pa.Table) -> list[Headers]:
    """The headers of each record."""
    headers = headers_of(records)
    if headers is None:
        return [_NO_HEADERS] * records.num_rows
    return [{one["key"]: one["value"] for one in listed or ()} for listed in headers.to_pylist()]


def values_of(headers: pa.ListArray | None, name: str) -> pa.BinaryArray | None:
    """The header of a name of each record, null where a record has none; None if no record has it."""
    if headers is None:
        return None
    listed = headers.flatten()
    named = np.flatnonzero(np.asarray(pc.fill_null(pc.equal(pc.struct_field(listed, "key"), name), False)))
    if not len(named):
        return None
    places = np.full(len(headers), -1)
    places[np.asarray(pc.list_parent_indices(headers))[named]] = named  # of several the last one stays
    return pc.struct_field(listed, "value").take(pa.array(places, mask=places < 0))


def with_headers(records: pa.Table, headers: Sequence[Headers | None]) -> pa.Table:
    """The records with a column of headers if one of them has some. ``headers``: empty for a record that has others alone."""
    if all(one is None for one in headers):
        return records
    listed = [[{"key": name, "value": value} for name, value in one.items()] if one else None for one in headers]
    return records.append_column(HEADERS_FIELD, pa.array(listed, HEADERS_TYPE))


def with_few_headers(
    records: pa.Table, rows: np.ndarray[Any, Any], names: pa.StringArray, values: pa.BinaryArray
) -> pa.Table:
    """The records with a column of headers; ``rows``: the record of each header, in ascending order."""
    lengths = np.bincount(rows, minlength=len(records))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    listed = pa.StructArray.from_arrays([names, values], fields=list(HEADERS_TYPE.value_type))
    column = pa.ListArray.from_arrays(pa.array(offsets), listed, type=HEADERS_TYPE, mask=pa.array(lengths == 0))
    return records.append_column(HEADERS_FIELD, column)


_WHOLE_MAX = 10**18
DELETE_VALUES = ("d", "delete")
UPSERT_VALUES = ("c", "r", "u", "i", "create", "read", "update", "insert", "upsert", "load")


@dataclass(frozen=True, slots=True)
class Operations:
    """The values of the operations, as they are spelled in the settings."""

    deletes: frozenset[str]
    upserts: frozenset[str]
    _folded: dict[str, str | None] = field(repr=False, compare=False)

    @classmethod
    def given(cls, deletes: Iterable[str] = DELETE_VALUES, upserts: Iterable[str] | None = None) -> Operations:
        """``upserts``: None for ``UPSERT_VALUES`` but for those that ``deletes`` has. Raises InvalidInput for a value in both."""
        deletes = frozenset(deletes)
        if upserts is None:
            upserts = frozenset(UPSERT_VALUES) - {value.casefold() for value in deletes}
        upserts = frozenset(upserts)
        if both := sorted(deletes & upserts):
            raise InvalidInput(f"{both[0]!r} is in both delete_values and upsert_values; leave it out of one of them")
        folded: dict[str, str | None] = {}
        for values, meaning in ((deletes, DELETE), (upserts, UPSERT)):
            for value in values:
                small = value.casefold()
                folded[small] = meaning if folded.get(small, meaning) == meaning else None
        return cls(deletes, upserts, folded)

    def of(self, value: str) -> Literal["u", "d"] | None:
        """The operation that a value stands for; None if that is not known."""
        if value in self.deletes:
            return "d"
        if value in self.upserts:
            return "u"
        return self._folded.get(value.casefold())  # type: ignore[return-value]


def text_of(operation: Any) -> str:
    """A parsed operation as the text that the settings may list."""
    if isinstance(operation, str):
        return operation
    if isinstance(operation, Number) and operation.text[-1].isdigit():
        value = operation.decimal()
        if value == value.to_integral_value() and abs(value) < _WHOLE_MAX:
            return str(int(value))
    is_whole = isinstance(operation, int) and not isinstance(operation, bool)
    return str(int(operation)) if is_whole else shown(operation)
