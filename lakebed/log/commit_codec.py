"""Commit files: the JSON of actions as Delta's readers expect it (Delta PROTOCOL.md, "Actions")."""

from __future__ import annotations

import hashlib
import urllib.parse
import zlib
from collections.abc import Mapping
from typing import Any

import orjson

from lakebed.log import entries
from lakebed.log.actions import (
    Action,
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    CommitInfo,
    Domain,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.entry_values import made
from lakebed.schema.metadata import Metadata, Protocol

ZEROS = b"00000000"

# At the start of a line, where no text of a value can occur.
_CHECKSUM = f'\n{{"commitInfo":{{"{entries.COMMIT_CHECKSUM}":"'.encode()
_NO_COLUMNS = '{"type":"struct","fields":[]}'
_PATH_SAFE = "/!$&'()*+,;=:@-._~"


def encode_commit(actions: tuple[Action, ...]) -> bytes:
    """A commit file: one JSON object per line. A ``commitInfo`` begins with the checksum of the file."""
    lines = []
    for action in actions:
        line = to_json(action)
        if isinstance(action, CommitInfo):
            line = {"commitInfo": {entries.COMMIT_CHECKSUM: ZEROS.decode(), **line["commitInfo"]}}
        lines.append(orjson.dumps(line))
    data = b"\n".join([b"", *lines, b""])
    return (with_checksum(data, _CHECKSUM) if _CHECKSUM in data else data)[1:]


def decode_commit(version: int, data: bytes) -> Commit:
    """The commit in a file; actions without state for lakebed are left out. Raises ValueError if the file is not whole.

    A whole commit has at least one action (Delta's rule); one of lakebed's has the bytes that it was written with.
    """
    require_whole(b"\n" + data, _CHECKSUM)
    lines = [orjson.loads(line) for line in data.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"it is empty: {len(data)} bytes, and no action")
    return Commit(
        version, tuple([action for line in lines if (action := from_json(line)) is not None]), digest_of(data)
    )


def digest_of(data: bytes) -> str:
    """The digest of a commit's file, which identifies it."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def to_json(action: Action) -> dict[str, Any]:
    """The action as one JSON object of a commit file."""
    match action:
        case AddPart(part, data_change):
            return {"add": add_to_json(part, data_change)}
        case RemovePart():
            return {"remove": remove_to_json(action)}
        case AddChangePart(part):
            return {
                "domainMetadata": {"domain": part.domain, "configuration": _change_part_to_text(part), "removed": False}
            }
        case RemoveChangePart(domain):
            return {"domainMetadata": {"domain": domain, "configuration": "", "removed": True}}
        case Domain(domain, configuration, removed):
            return {"domainMetadata": {"domain": domain, "configuration": configuration, "removed": removed}}
        case Protocol():
            return {"protocol": protocol_to_json(action)}
        case Metadata():
            return {"metaData": metadata_to_json(action)}
        case Transaction(app_id, version, updated_ms):
            return {"txn": {"appId": app_id, "version": version, "lastUpdated": updated_ms}}
        case CommitInfo():
            return {"commitInfo": _commit_info_to_json(action)}


def from_json(value: Mapping[str, Any]) -> Action | None:
    """The action of one JSON object; None for one without state for lakebed (``cdc``, an unknown one)."""
    name, body = next(iter(value.items()))
    if body is None:
        return None
    match name:
        case "add":
            return AddPart(add_from_json(body), body.get("dataChange", True))
        case "remove":
            return _remove_from_json(body)
        case "domainMetadata":
            return _domain_from_json(body)
        case "protocol":
            return _protocol_from_json(body)
        case "metaData":
            return _metadata_from_json(body)
        case "txn":
            return Transaction(body["appId"], body["version"], body.get("lastUpdated"))
        case "commitInfo":
            return _commit_info_from_json(body)
    return None


def add_to_json(part: Part, data_change: bool = True) -> dict[str, Any]:
    tags = {
        entries.LEVEL_TAG: str(part.level),
        entries.MIN_BLOCK_TAG: str(part.min_block),
        entries.MAX_BLOCK_TAG: str(part.max_block),
    }
    if part.sort_key_version is not None:
        tags[entries.SORT_KEY_VERSION_TAG] = str(part.sort_key_version)
    if part.deletes:
        tags[entries.DELETES_TAG] = str(part.deletes)
    if part.has_op_column:
        tags[entries.OP_COLUMN_TAG] = "true"
    if part.deletes_ms is not None:
        tags[entries.DELETES_MS_TAG] = str(part.deletes_ms)
    if part.checksum is not None:
        tags[entries.CHECKSUM_TAG] = str(part.checksum)
    if part.passes:
        tags[entries.PASSES_TAG] = str(part.passes)
    out: dict[str, Any] = {
        "path": part.spelling or _encode_path(part.path),
        "partitionValues": dict(part.partition_values),
        "size": part.bytes,
        "modificationTime": part.modified_ms,
        "dataChange": data_change,
        "stats": part.stats,
        "tags": tags,
    }
    if part.deletion_vector:
        out["deletionVector"] = part.deletion_vector.to_json()
    return out


def add_from_json(body: Mapping[str, Any]) -> Part:
    tags = body.get("tags") or {}
    stats = body.get("stats")
    rows = orjson.loads(stats).get("numRecords", -1) if stats else -1
    sort_key_version = tags.get(entries.SORT_KEY_VERSION_TAG)
    deletes_ms = tags.get(entries.DELETES_MS_TAG)
    checksum = tags.get(entries.CHECKSUM_TAG)
    vector = body.get("deletionVector")
    return Part(
        path=_decode_path(body["path"]),
        rows=rows,
        bytes=body["size"],
        level=int(tags.get(entries.LEVEL_TAG, 0)),
        min_block=int(tags.get(entries.MIN_BLOCK_TAG, 0)),
        max_block=int(tags.get(entries.MAX_BLOCK_TAG, 0)),
        sort_key_version=None if sort_key_version is None else int(sort_key_version),
        deletes=int(tags.get(entries.DELETES_TAG, 0)),
        has_op_column=tags.get(entries.OP_COLUMN_TAG) == "true",
        partition_values=body.get("partitionValues") or {},
        stats=stats,
        deletion_vector=DeletionVector.from_json(vector) if vector else None,
        modified_ms=body.get("modificationTime") or 0,
        spelling=_foreign_spelling(body["path"]),
        deletes_ms=None if deletes_ms is None else int(deletes_ms),
        checksum=None if checksum is None else int(checksum),
        passes=int(tags.get(entries.PASSES_TAG, 0)),
    )


def remove_to_json(action: RemovePart) -> dict[str, Any]:
    out: dict[str, Any] = {
        "path": action.spelling or _encode_path(action.path),
        "deletionTimestamp": action.deleted_ms,
        "dataChange": action.data_change,
    }
    if action.bytes is not None and action.partition_values is not None:
        out |= {"extendedFileMetadata": True, "partitionValues": dict(action.partition_values), "size": action.bytes}
    if action.deletion_vector:
        out["deletionVector"] = action.deletion_vector.to_json()
    return out


def _remove_from_json(body: Mapping[str, Any]) -> RemovePart:
    vector = body.get("deletionVector")
    return RemovePart(
        path=_decode_path(body["path"]),
        deleted_ms=body.get("deletionTimestamp") or 0,
        data_change=body.get("dataChange", True),
        deletion_vector=DeletionVector.from_json(vector) if vector else None,
        bytes=body.get("size"),
        partition_values=body.get("partitionValues"),
        spelling=_foreign_spelling(body["path"]),
    )


def _change_part_to_text(part: ChangePart) -> str:
    """The configuration of a change part's domain."""
    value: dict[str, Any] = {
        "path": part.path,
        "version": part.version,
        "ordinal": part.ordinal,
        "rows": part.rows,
        "bytes": part.bytes,
        "deletes": part.deletes,
        "modified_ms": part.modified_ms,
    }
    if part.incomplete:
        value["incomplete"] = part.incomplete
    if part.moves:
        value["moves"] = part.moves
    if part.sort_key_version is not None:
        value["sort_key_version"] = part.sort_key_version
    if part.partition_values:
        value["partition_values"] = dict(part.partition_values)
    if part.stats is not None:
        value["stats"] = part.stats
    if part.checksum is not None:
        value["crc32"] = part.checksum
    if part.mutation:
        value["mutation"] = True
    if part.late:
        value["late"] = part.late
    return orjson.dumps(value).decode()


def _domain_from_json(body: Mapping[str, Any]) -> AddChangePart | RemoveChangePart | Domain:
    domain, configuration, removed = body["domain"], body["configuration"], body["removed"]
    if not domain.startswith(entries.PART):
        return Domain(domain, configuration, removed)
    if removed:
        return RemoveChangePart(domain)
    value = orjson.loads(configuration)
    given = {"checksum": value.get("crc32"), "partition_values": value.get("partition_values") or {}}
    return AddChangePart(made(ChangePart, {**value, **given}))


def protocol_to_json(protocol: Protocol) -> dict[str, Any]:
    out: dict[str, Any] = {
        "minReaderVersion": protocol.min_reader_version,
        "minWriterVersion": protocol.min_writer_version,
    }
    if protocol.min_reader_version >= 3:
        out["readerFeatures"] = sorted(protocol.reader_features)
    if protocol.min_writer_version >= 7:
        out["writerFeatures"] = sorted(protocol.writer_features)
    return out


def _protocol_from_json(body: Mapping[str, Any]) -> Protocol:
    return Protocol(
        body["minReaderVersion"],
        body["minWriterVersion"],
        frozenset(body.get("readerFeatures") or ()),
        frozenset(body.get("writerFeatures") or ()),
    )


def metadata_to_json(metadata: Metadata) -> dict[str, Any]:
    out: dict[str, Any] = {"id": metadata.id}
    if metadata.name is not None:
        out["name"] = metadata.name
    if metadata.description is not None:
        out["description"] = metadata.description
    return {
        **out,
        "format": {"provider": metadata.format_provider, "options": {}},
        "schemaString": metadata.schema_string,
        "partitionColumns": list(metadata.partition_columns),
        "configuration": dict(metadata.configuration),
        "createdTime": metadata.created_ms,
    }


def _metadata_from_json(body: Mapping[str, Any]) -> Metadata:
    return Metadata(
        id=body["id"],
        schema_string=body.get("schemaString") or _NO_COLUMNS,  # another writer may fill it in later
        partition_columns=tuple(body.get("partitionColumns") or ()),
        configuration=body.get("configuration") or {},
        created_ms=body.get("createdTime"),
        name=body.get("name"),
        description=body.get("description"),
        format_provider=(body.get("format") or {}).get("provider", "parquet"),
    )


def _encode_path(path: str) -> str:
    """A path as the log holds it: a url-encoded relative reference."""
    return urllib.parse.quote(path, safe=_PATH_SAFE)


def _decode_path(path: str) -> str:
    """The path that a reference in the log encodes."""
    return urllib.parse.unquote(path) if "%" in path else path


def _foreign_spelling(reference: str) -> str | None:
    return None if _encode_path(_decode_path(reference)) == reference else reference


def _commit_info_to_json(info: CommitInfo) -> dict[str, Any]:
    ours = {entries.COMMIT_TABLE: info.table, entries.COMMIT_PARENT: info.parent, entries.COMMIT_ATTEMPT: info.attempt}
    return {
        "inCommitTimestamp": info.timestamp_ms,
        "timestamp": info.timestamp_ms,
        "operation": info.operation,
        "operationParameters": {name: _text(value) for name, value in info.parameters.items()},
        "operationMetrics": {name: str(value) for name, value in info.metrics.items()},
        "isBlindAppend": info.blind_append,
        "engineInfo": info.engine,
        "txnId": info.commit_id,
        **{name: value for name, value in ours.items() if value},
    }


def _commit_info_from_json(body: Mapping[str, Any]) -> CommitInfo:
    metrics = body.get("operationMetrics") or {}
    return CommitInfo(
        operation=body.get("operation") or "",
        commit_id=body.get("txnId") or "",
        timestamp_ms=body.get("inCommitTimestamp") or body.get("timestamp") or 0,
        parameters=body.get("operationParameters") or {},
        metrics={name: number for name, text in metrics.items() if (number := _number(text)) is not None},
        blind_append=bool(body.get("isBlindAppend")),
        engine=body.get("engineInfo") or "",
        table=body.get(entries.COMMIT_TABLE) or "",
        parent=body.get(entries.COMMIT_PARENT) or "",
        attempt=body.get(entries.COMMIT_ATTEMPT) or 0,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _number(value: Any) -> int | float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else number


def with_checksum(data: bytes, marker: bytes) -> bytes:
    """The file with its CRC-32 within itself: eight hexadecimal digits in place of the zeros after the last marker."""
    at = data.rindex(marker + ZEROS) + len(marker)
    return data[:at] + b"%08x" % zlib.crc32(data) + data[at + len(ZEROS) :]


def require_whole(data: bytes, marker: bytes) -> None:
    """Raises ValueError if the file has another checksum than it was written with. A file without a marker has none."""
    at = data.rfind(marker) + len(marker)
    if at < len(marker):
        return
    end = at + len(ZEROS)
    if data[at:end] != b"%08x" % zlib.crc32(data[:at] + ZEROS + data[end:]):
        raise ValueError("it is cut off or damaged: its checksum is not the one that it was written with")
