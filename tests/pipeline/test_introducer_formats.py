"""Topics of Protobuf and JSON Schema become tables of a database, whose records then become their rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.pipeline.database.introducer import Introduced, decoder_of
from lakebed.pipeline.settings import DatabasePipeline
from lakebed.table import internals_of
from tests.decode.avro_events import framed
from tests.decode.records import records
from tests.decode.schema_registry import SchemaRegistry
from tests.decode.test_typed_formats import MICROS, PROTO, json_field, messages
from tests.pipeline.test_introducer import introduced, pipeline

__all__ = ["messages"]


def kept(of: DatabasePipeline, values: Sequence[bytes | None], keys: Sequence[bytes]) -> lakebed.Table:
    """The table that the first records make, with the changes of all."""
    found = introduced(of, values, keys)
    assert isinstance(found, Introduced), found
    decoded = decoder_of(of, found.table).decode(records(values, keys, "shop.public.orders"))
    assert not decoded.quarantined.num_rows, decoded.quarantined["reason"].to_pylist()
    names = [
        name for name in decoded.changes.column_names if name in found.table.schema.names or name.startswith("_lake")
    ]
    sequence = internals_of(found.table).log.refresh().settings.sequence_by
    rows = decoded.changes.select(names).rename_columns(
        [str(sequence) if one == "_lakebed_seq" else one for one in names]
    )
    found.table.apply(rows.drop_columns([one for one in rows.column_names if one.startswith("_lakebed_t")]))
    return found.table


def test_a_topic_of_protobuf_becomes_a_table(tmp_path: Path, messages: dict[str, Any]) -> None:
    envelope, key = messages["Envelope"], messages["Key"]
    source = envelope.Source(ts_ms=5, lsn=9)
    rows = [envelope.Value(id=number, name="a", at=MICROS) for number in (1, 2)]
    changes = [envelope(op="c", after=row, source=source) for row in rows]
    changes.append(envelope(op="d", before=rows[0], source=envelope.Source(ts_ms=6, lsn=12)))
    with SchemaRegistry() as registry:
        number = registry.register(PROTO, "PROTOBUF")
        values = [framed(number, b"\0" + change.SerializeToString()) for change in changes]
        keys = [framed(number, b"\2\2" + key(id=id).SerializeToString()) for id in (1, 2, 1)]
        of = pipeline(tmp_path, "", "debezium-protobuf", registry.url)
        table = kept(of, [None, *values], [keys[0], *keys])
    [detail] = table.inspect.detail().to_pylist()
    assert (detail["keys"], detail["sequence_by"]) == (["id"], "source.lsn")
    assert table.schema == pa.schema(
        [pa.field("id", pa.int64(), False), pa.field("name", pa.string()), pa.field("at", pa.int64())]
    )
    assert table.to_arrow().to_pylist() == [{"id": 2, "name": "a", "at": MICROS}]


@pytest.mark.parametrize("events", [True, False])
def test_a_topic_of_json_schema_becomes_a_table(tmp_path: Path, events: bool) -> None:
    row = {
        "type": "object",
        "properties": json_field("id", "int64", 0)
        | json_field("name", "string", 1)
        | json_field("at", "int64", 2, "io.debezium.time.MicroTimestamp"),
    }
    image = {"oneOf": [{"type": "null"}, row]}
    source = {"type": "object", "properties": json_field("lsn", "int64", 0) | json_field("ts_ms", "int64", 1)}
    envelope = {
        "type": "object",
        "properties": {"before": image, "after": image, "source": source, "op": {"type": "string"}},
    }
    of_key = {"type": "object", "properties": json_field("id", "int64", 0)}
    documents: list[dict[str, Any]] = [{"id": id, "name": "a", "at": MICROS} for id in (1, 2)]
    if events:
        at = {"lsn": 9, "ts_ms": 5}
        documents = [{"op": "c", "before": None, "after": one, "source": at} for one in documents]
        documents.append({"op": "d", "before": documents[0]["after"], "after": None, "source": {"lsn": 12, "ts_ms": 6}})
    with SchemaRegistry() as registry:
        number, key = registry.register(envelope if events else row, "JSON"), registry.register(of_key, "JSON")
        values: list[bytes | None] = [framed(number, json.dumps(one).encode()) for one in documents]
        values += [] if events else [None]  # a tombstone
        keys = [framed(key, json.dumps({"id": id}).encode()) for id in (1, 2, 1)]
        of = pipeline(tmp_path, "", "debezium-json-schema" if events else "json-schema", registry.url)
        table = kept(of, values, keys)
    [detail] = table.inspect.detail().to_pylist()
    assert (detail["keys"], detail["sequence_by"]) == (["id"], "source.lsn" if events else None)
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")
    assert [(one["id"], one["name"]) for one in table.to_arrow().to_pylist()] == [(2, "a")]
