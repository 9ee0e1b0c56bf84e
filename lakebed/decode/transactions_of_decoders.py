"""How the events of a decoder say which transaction they belong to."""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa

from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import Decoder
from lakebed.decode.transaction_ids import JsonTransactionIds, TransactionIds, TypedTransactionIds
from lakebed.decode.typed.records import TypedRecords
from lakebed.errors import InvalidInput


class TransactionIdReader(Protocol):
    """Reads the transactions of records (``RECORD_SCHEMA``)."""

    def read(self, records: pa.Table) -> TransactionIds: ...


def transaction_ids_of(decoder: Decoder) -> TransactionIdReader:
    """Raises InvalidInput for records that are no events of Debezium's."""
    if isinstance(decoder, DebeziumJson):
        return JsonTransactionIds()
    if isinstance(decoder, TypedRecords) and decoder.reads_events:
        return TypedTransactionIds(decoder.value_schemas)
    raise InvalidInput(
        "points need Debezium's change events, whose transactions they keep whole: use a format of Debezium's, or leave "
        "database.points out"
    )
