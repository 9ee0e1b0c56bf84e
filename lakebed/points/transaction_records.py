"""Reads the records of Debezium's topic of transactions: the beginning and the end of each, in the order of the source's commits.

``{"status": "END", "id": "754:39412448", "event_count": 3, "data_collections": [{"data_collection": "public.tellers",
"event_count": 1}, …], "ts_ms": 1795254750108}``
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson
import pyarrow as pa

from lakebed.decode.headers import VALUE_SCHEMA, headers_of, values_of
from lakebed.decode.transactions import identity
from lakebed.decode.typed.schemas import FixedSchema, Schemas
from lakebed.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionRecord:
    """A beginning (``events`` is None) or an end, which counts the events of each table.

    ``time_ms``: of the source, as far as the connector knows it; ``written_ms``: when the connector wrote the record.
    """

    id: str
    offset: int
    time_ms: int
    written_ms: int
    events: Mapping[str, int] | None = None
    text: str = field(default="", compare=False)
    """The whole id, as the source gives it."""


class TransactionReader(Protocol):
    """Reads records (``RECORD_SCHEMA``) of the topic of transactions."""

    def read(self, records: pa.Table) -> Iterator[TransactionRecord]: ...


class JsonTransactions:
    """Records in JSON, with an inline schema or without."""

    def read(self, records: pa.Table) -> Iterator[TransactionRecord]:
        """Raises InvalidInput for a record that is none of a transaction."""
        for value, offset, written in _rows(records):
            try:
                document = orjson.loads(value)
                yield _record(document.get("payload", document), offset, written)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise _strange(offset, repr(error)) from None


class TypedTransactions:
    """Records whose schemas are in a registry."""

    def __init__(self, schemas: Schemas) -> None:
        if isinstance(schemas, FixedSchema):
            raise InvalidInput(
                "points need the schema of the topic of transactions besides those of the tables; a schema_file has one schema: "
                "use a registry, or leave database.points out"
            )
        self._schemas = schemas

    def read(self, records: pa.Table) -> Iterator[TransactionRecord]:
        """Raises InvalidInput for a record that is none of a transaction; Retry if a registry does not answer."""
        records = records.filter(records.column("value").is_valid())
        rows = list(_rows(records))
        headers = values_of(headers_of(records), VALUE_SCHEMA)
        grouped = self._schemas.grouped(pa.array([value for value, _, _ in rows], pa.binary()), headers)
        for at, reason in grouped.errors.items():
            raise _strange(rows[at][1], reason)
        documents: dict[int, Any] = {}
        for group in grouped.groups:
            read = group.reader.read(group.payload)
            for at, reason in read.errors.items():
                raise _strange(rows[int(group.rows[at])][1], reason)
            documents |= dict(zip(group.rows.tolist(), read.rows.to_pylist(), strict=True))
        for at, (_, offset, written) in enumerate(rows):
            try:
                yield _record(documents[at], offset, written)
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise _strange(offset, repr(error)) from None


def _rows(records: pa.Table) -> Iterator[tuple[bytes, int, int]]:
    times = records.column("timestamp").combine_chunks().view(pa.int64()).to_pylist()
    columns = records.column("value").to_pylist(), records.column("offset").to_pylist(), times
    for value, offset, written in zip(*columns, strict=True):
        if value is not None:
            yield value, int(offset), int(written or 0)


def _record(document: Mapping[str, Any], offset: int, written_ms: int) -> TransactionRecord:
    text = document["id"]
    if not isinstance(text, str) or document["status"] not in ("BEGIN", "END"):
        raise ValueError("no status or id")
    events: dict[str, int] | None = None
    if document["status"] == "END":
        events = {}
        for one in document["data_collections"] or ():
            events[str(one["data_collection"])] = int(one["event_count"])
    return TransactionRecord(
        id=identity(text),
        offset=offset,
        time_ms=int(document.get("ts_ms") or written_ms),
        written_ms=written_ms,
        events=events,
        text=text,
    )


def _strange(offset: int, reason: str) -> InvalidInput:
    return InvalidInput(
        f"the record at offset {offset} of the topic of transactions is no beginning or end of a transaction ({reason}); "
        "database.points.transaction_topic must name Debezium's topic, <prefix>.transaction"
    )
