"""Checkpoints: a snapshot in one Parquet file, as every Delta reader expects it (Delta PROTOCOL.md, "Checkpoints").

A row holds one action, in the column named after it. We write the classic kind in a single file. We read that, and the
classic kind in several files, which other writers make of large tables. The file's key-value metadata records which commit the
state is of (its digest, and its time), so a checkpoint that another table left behind is not mistaken for one of this table.
"""

from __future__ import annotations

import datetime
import decimal
import io
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import Corrupt, Unsupported
from lakebed.log import commit_codec as codec
from lakebed.log import entries
from lakebed.log.actions import Action, AddChangePart, AddPart, Domain, Part, RemovePart, Transaction
from lakebed.log.commit_codec import ZEROS, require_whole, with_checksum
from lakebed.log.snapshot import Snapshot
from lakebed.schema.metadata import Metadata, Protocol

_INT96_UNIT = "ms"  # as exact as statistics are; Delta keeps no other times in it
_STRINGS = pa.map_(pa.string(), pa.string())
_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_SCHEMA = pa.schema(
    [
        ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _STRINGS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("tags", _STRINGS),
                    ("deletionVector", _VECTOR),
                    ("stats", pa.string()),
                ]
            ),
        ),
        (
            "remove",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", _STRINGS),
                    ("size", pa.int64()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _STRINGS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("configuration", _STRINGS),
                    ("createdTime", pa.int64()),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
        (
            "domainMetadata",
            pa.struct([("domain", pa.string()), ("configuration", pa.string()), ("removed", pa.bool_())]),
        ),
    ]
)


_DIGEST = entries.CHECKPOINT_COMMIT.encode()
_TIMESTAMP = entries.CHECKPOINT_TIMESTAMP.encode()
_CHECKSUM = b"lakebed.crc32="  # in the footer's last field


def encode_checkpoint(snapshot: Snapshot) -> tuple[bytes, int]:
    """The Parquet file of a snapshot, and how many actions it holds."""
    columns: dict[str, list[Any]] = {
        "protocol": [codec.protocol_to_json(snapshot.protocol)],
        "metaData": [codec.metadata_to_json(snapshot.metadata)],
        "txn": [
            {"appId": t.app_id, "version": t.version, "lastUpdated": t.updated_ms}
            for t in snapshot.transactions.values()
        ],
        "domainMetadata": [codec.to_json(AddChangePart(part))["domainMetadata"] for part in snapshot.tail.values()]
        + [{"domain": d, "configuration": c, "removed": False} for d, c in snapshot.domains.items()],
        "add": [_add_row(part) for part in snapshot.parts.values()],
        "remove": [codec.remove_to_json(action) for action in snapshot.removed.values()],
    }
    total = sum(len(rows) for rows in columns.values())
    arrays, at = {}, 0
    for name, rows in columns.items():
        field = _SCHEMA.field(name)
        values = pa.array(rows, field.type)
        arrays[name] = pa.concat_arrays(
            [pa.nulls(at, field.type), values, pa.nulls(total - at - len(rows), field.type)]
        )
        at += len(rows)
    out = io.BytesIO()
    key_values = {
        _DIGEST: snapshot.digest,
        _TIMESTAMP: str(snapshot.timestamp_ms),
        entries.CHECKPOINT_CHECKSUM: _CHECKSUM + ZEROS,
    }
    schema = _SCHEMA.with_metadata(key_values)
    rows = pa.table([arrays[name] for name in _SCHEMA.names], schema=schema)
    pq.write_table(rows, out, compression="zstd")
    return with_checksum(out.getvalue(), _CHECKSUM), total


def decode_checkpoint(version: int, files: Iterable[bytes]) -> Snapshot:
    """The snapshot that the checkpoint of a version holds, in one file or several. Raises Corrupt, Unsupported."""
    try:
        return _decoded(version, files)
    except (pa.ArrowException, OSError, ValueError, OverflowError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(f"the checkpoint of version {version} can't be read: {error}", version=version) from error


def _decoded(version: int, files: Iterable[bytes]) -> Snapshot:
    protocol: Protocol | None = None
    metadata: Metadata | None = None
    parts, tail, domains, transactions, removed = {}, {}, {}, {}, {}
    timestamp_ms, digest = 0, ""
    for file in files:
        require_whole(file, _CHECKSUM)
        table = pq.ParquetFile(
            pa.BufferReader(file),
            pre_buffer=False,
            coerce_int96_timestamp_unit=_INT96_UNIT,
            page_checksum_verification=True,  # Spark writes them
        ).read(use_threads=False)
        key_values = table.schema.metadata or {}
        digest, timestamp_ms = key_values.get(_DIGEST, b"").decode(), int(key_values.get(_TIMESTAMP, 0))
        there = set(table.column_names)
        if "sidecar" in there and table["sidecar"].null_count < len(table):
            raise Unsupported(
                "the table has a v2 checkpoint with sidecars; drop the feature v2Checkpoint first", version=version
            )
        for name in _SCHEMA.names:
            if name not in there:
                continue
            column = table[name].drop_null()
            for body in _rows(column, _SCHEMA.field(name).type):
                action = _action(name, body, version)
                match action:
                    case AddPart(part, _):
                        parts[part.path] = part
                    case RemovePart(path=path):
                        removed[path] = action
                    case AddChangePart(change_part):
                        tail[change_part.domain] = change_part
                    case Domain(domain, configuration, False):
                        domains[domain] = configuration
                    case Transaction(app_id):
                        transactions[app_id] = action
                    case Protocol():
                        protocol = action
                    case Metadata():
                        metadata = action
                    case _:
                        pass
    if protocol is None or metadata is None:
        raise Corrupt(f"the checkpoint of version {version} has no protocol or no metadata", version=version)
    for path in parts:
        removed.pop(path, None)
    return Snapshot(
        version=version,
        timestamp_ms=timestamp_ms,
        protocol=protocol,
        metadata=metadata,
        parts=parts,
        tail=tail,
        domains=domains,
        transactions=transactions,
        removed=removed,
        digest=digest,
    )


def _action(name: str, body: Mapping[str, Any], version: int) -> Action | None:
    try:
        return codec.from_json({name: body})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(
            f"the checkpoint of version {version} has an action {name} that can't be read: {error}", version=version
        ) from error


def _add_row(part: Part) -> dict[str, Any]:
    return codec.add_to_json(part, data_change=False)


def _rows(column: pa.ChunkedArray, known: pa.StructType) -> Iterator[dict[str, Any]]:
    """The values of a struct column without nulls. Field by field, which is several times quicker than row by row.

    Fields that are not ``known`` are skipped, except statistics kept as a struct where their text is missing.
    """
    stored = {field.name for field in column.type}
    names = [field.name for field in known if field.name in stored]
    for chunk in column.chunks:
        fields = {name: _values(chunk.field(name)) for name in names}
        if "stats_parsed" in stored and None in fields.get("stats", [None]):
            texts = fields.get("stats", [None] * len(chunk))
            fields["stats"] = [
                parsed if text is None else text
                for text, parsed in zip(texts, _statistics(chunk.field("stats_parsed")), strict=True)
            ]
        for values in zip(*fields.values(), strict=True):
            yield dict(zip(fields, values, strict=True))


def _statistics(array: pa.StructArray) -> list[str | None]:
    """The text of statistics that another writer keeps as a struct (``delta.checkpoint.writeStatsAsStruct``)."""
    array = array.cast(_in_utc(array.type))
    try:
        rows = array.to_pylist()
    except (ValueError, OverflowError):  # a time that Python lacks
        without = [field.name for field in array.type if field.name not in ("minValues", "maxValues")]
        rows = pa.StructArray.from_arrays(
            [array.field(name) for name in without], without, mask=array.is_null()
        ).to_pylist()
    return [None if row is None else orjson.dumps(_json_value(row)).decode() for row in rows]


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """The type with a time zone for times of Spark's old kind (INT96), which Arrow leaves without one."""
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    return pa.timestamp(_INT96_UNIT, "UTC") if kind == pa.timestamp(_INT96_UNIT) else kind


def _json_value(value: Any) -> Any:
    """A value of statistics in the form that their text has; None for a value that the text can't express."""
    match value:
        case dict():
            fields = {name: _json_value(item) for name, item in value.items()}
            return {name: item for name, item in fields.items() if item is not None}
        case datetime.datetime():
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        case datetime.date():
            return value.isoformat()
        case decimal.Decimal():
            return orjson.Fragment(format(value, "f"))
        case float():
            return value if math.isfinite(value) else None
        case str() | int():
            return value
    return None


def _values(array: pa.Array) -> list[Any]:
    if not pa.types.is_map(array.type):
        values: list[Any] = array.to_pylist(maps_as_pydicts="strict")
        return values
    keys, items, offsets = array.keys.to_pylist(), array.items.to_pylist(), array.offsets.to_pylist()
    return [
        dict(zip(keys[start:end], items[start:end], strict=True)) if valid else None
        for start, end, valid in zip(offsets[:-1], offsets[1:], array.is_valid().to_pylist(), strict=True)
    ]
