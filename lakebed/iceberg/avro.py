"""Manifests and lists of manifests as Avro, with the numbers of fields that Iceberg asks for. Pure.

The same entries give the same bytes: the sync marker is a digest of them, and no time is in a file.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa

from lakebed.errors import MissingPrerequisite
from lakebed.iceberg.columns import PartitionField

Json = dict[str, Any]
_HEAD_SCHEMA: Json = {
    "type": "record",
    "name": "org.apache.avro.file.Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": 16}},
    ],
}
"""Of an Avro file, from its specification."""


def require_avro() -> Any:
    """The library that reads and writes Avro. Raises MissingPrerequisite."""
    try:
        import fastavro  # only tables with lakebed.iceberg need it
    except ModuleNotFoundError as error:
        raise MissingPrerequisite("lakebed.iceberg needs fastavro: pip install 'lakebed[iceberg]'") from error
    return fastavro


def avro_bytes(schema: Json, records: Sequence[Json], metadata: Mapping[str, str], name: bytes) -> bytes:
    """A file of these records. ``name``: a digest of what is in it."""
    fastavro, out = require_avro(), io.BytesIO()
    about = dict(metadata) | {"avro.codec": "deflate", "avro.schema": orjson.dumps(schema).decode()}
    head = {
        "magic": b"Obj\1",
        "meta": {key: value.encode() for key, value in about.items()},
        "sync": hashlib.blake2b(name, digest_size=16).digest(),
    }
    fastavro.schemaless_writer(out, _HEAD_SCHEMA, head)  # fastavro's own head has spaces in the schema
    fastavro.writer(out, None, records, sync_interval=1 << 22, codec_compression_level=9)
    return out.getvalue()


def avro_records(data: bytes) -> list[Json]:
    """The records of a file. Raises ValueError for what is no Avro."""
    return list(require_avro().reader(io.BytesIO(data)))


def _optional(name: str, kind: Any, number: int) -> Json:
    return {"name": name, "type": ["null", kind], "default": None, "field-id": number}


def _required(name: str, kind: Any, number: int) -> Json:
    return {"name": name, "type": kind, "field-id": number}


def _by_column(name: str, number: int, key: int, value: int, kind: str) -> Json:
    pair = {
        "type": "record",
        "name": f"k{key}_v{value}",
        "fields": [_required("key", "int", key), _required("value", kind, value)],
    }
    return _optional(name, {"type": "array", "items": pair, "logicalType": "map"}, number)


def _partition_type(field: PartitionField) -> Any:
    kind = field.kind
    if pa.types.is_decimal(kind):
        size = next(each for each in range(1, 17) if 2 ** (8 * each - 1) - 1 >= 10**kind.precision - 1)
        return {
            "type": "fixed",
            "name": f"decimal_{field.json['field-id']}",
            "size": size,
            "logicalType": "decimal",
            "precision": kind.precision,
            "scale": kind.scale,
        }
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": kind.tz is not None}
    return field.type


def partition_name(field: PartitionField) -> str:
    """The name of a partition field in an entry. Avro's names are plain words; readers go by the number."""
    name = str(field.json["name"])
    plain = "".join(one if one.isascii() and (one.isalnum() or one == "_") else f"_x{ord(one):X}" for one in name)
    return f"_{plain}" if plain[0].isdigit() else plain


def entry_schema(partitions: Sequence[PartitionField], *, deletes: bool) -> Json:
    """The Avro schema of a manifest's entries, of data files or of deletion vectors."""
    fields = [
        _required("content", "int", 134),
        _required("file_path", "string", 100),
        _required("file_format", "string", 101),
        _required(
            "partition",
            {
                "type": "record",
                "name": "r102",
                "fields": [
                    _optional(partition_name(each), _partition_type(each), each.json["field-id"]) for each in partitions
                ],
            },
            102,
        ),
        _required("record_count", "long", 103),
        _required("file_size_in_bytes", "long", 104),
    ]
    if deletes:
        fields += [
            _optional("referenced_data_file", "string", 143),
            _optional("content_offset", "long", 144),
            _optional("content_size_in_bytes", "long", 145),
        ]
    else:
        fields += [
            _by_column("value_counts", 109, 119, 120, "long"),
            _by_column("null_value_counts", 110, 121, 122, "long"),
            _by_column("lower_bounds", 125, 126, 127, "bytes"),
            _by_column("upper_bounds", 128, 129, 130, "bytes"),
            _optional("sort_order_id", "int", 140),
        ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _required("status", "int", 0),
            _optional("snapshot_id", "long", 1),
            _optional("sequence_number", "long", 3),
            _optional("file_sequence_number", "long", 4),
            _required("data_file", {"type": "record", "name": "r2", "fields": fields}, 2),
        ],
    }


_SUMMARY = {
    "type": "record",
    "name": "r508",
    "fields": [
        _required("contains_null", "boolean", 509),
        _optional("contains_nan", "boolean", 518),
        _optional("lower_bound", "bytes", 510),
        _optional("upper_bound", "bytes", 511),
    ],
}


def list_schema(*, partitioned: bool) -> Json:
    """The Avro schema of a list of manifests. A table without partitions has no summaries of them."""
    summaries = _optional("partitions", {"type": "array", "items": _SUMMARY, "element-id": 508}, 507)
    fields = [
        _required("manifest_path", "string", 500),
        _required("manifest_length", "long", 501),
        _required("partition_spec_id", "int", 502),
        _required("content", "int", 517),
        _required("sequence_number", "long", 515),
        _required("min_sequence_number", "long", 516),
        _required("added_snapshot_id", "long", 503),
        _required("added_files_count", "int", 504),
        _required("existing_files_count", "int", 505),
        _required("deleted_files_count", "int", 506),
        _required("added_rows_count", "long", 512),
        _required("existing_rows_count", "long", 513),
        _required("deleted_rows_count", "long", 514),
        *([summaries] if partitioned else []),
        _optional("first_row_id", "long", 520),
    ]
    return {"type": "record", "name": "manifest_file", "fields": fields}
