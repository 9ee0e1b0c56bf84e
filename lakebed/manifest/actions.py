"""The actions of a commit: typed values, and their JSON as Delta's readers expect it (Delta PROTOCOL.md, "Actions").

Only standard actions carry state: other readers ignore unknown ones and lose them at their next checkpoint. What Delta
has no action for stands in ``domainMetadata`` whose names begin with ``lakebed.``.
"""

from __future__ import annotations

import hashlib
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from lakebed.manifest.deletion_vector import DeletionVector
from lakebed.manifest.embedded_checksum import ZEROS, require_whole, with_checksum
from lakebed.manifest.entries import PART

_TAG_LEVEL = "lakebed.level"
_TAG_MIN_BLOCK = "lakebed.min_block"
_TAG_MAX_BLOCK = "lakebed.max_block"
_TAG_SORT_KEY_VERSION = "lakebed.sort_key_version"
_TAG_PASSES = "lakebed.passes"
_TAG_DELETES = "lakebed.deletes"
_TAG_OP_COLUMN = "lakebed.op_column"
_TAG_DELETES_MS = "lakebed.deletes_ms"
_TAG_CHECKSUM = "lakebed.crc32"
_CHECKSUM = b'\n{"commitInfo":{"lakebedChecksum":"'  # at the start of a line, where no text can stand
_TABLE = "lakebedTable"
_PARENT = "lakebedParent"
_ATTEMPT = "lakebedAttempt"
_LOOSE = re.compile(r'"tightBounds"\s*:\s*false')
_TIGHT = re.compile(r',?\s*"tightBounds"\s*:\s*true')
_NO_COLUMNS = '{"type":"struct","fields":[]}'
_PATH_SAFE = "/!$&'()*+,;=:@-._~"


PartitionKey = tuple[tuple[str, str | None], ...]
"""A partition's columns and values, sorted by name; empty in a table without partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A base part: an ``add`` of the log.

    ``path`` is relative to the table's root (or absolute) and not url-encoded. ``rows`` counts physical rows, dead ones
    included. ``deletes`` counts the delete rows among them, all dead, kept as tombstones; ``deletes_ms`` is when the
    newest of them was written, if that was before the part. ``has_op_column`` says that the file has the hidden column
    that tells deletes from upserts. ``stats`` is Delta's statistics JSON. ``passes``: see ``manifest.passes``.
    ``spelling`` is the path as another writer spelled it in the log, if we would spell it otherwise: readers compare the text.
    ``checksum`` is the CRC-32 of the whole file; None for a file that others wrote.
    """

    path: str
    rows: int
    bytes: int
    level: int = 0
    min_block: int = 0
    max_block: int = 0
    sort_key_version: int | None = None
    deletes: int = 0
    has_op_column: bool = False
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str | None = None
    deletion_vector: DeletionVector | None = None
    modified_ms: int = 0
    spelling: str | None = None
    deletes_ms: int | None = None
    checksum: int | None = None
    passes: int = 0

    @property
    def newest_delete_ms(self) -> int:
        """When the newest of the part's delete rows was written, at the latest."""
        return self.modified_ms if self.deletes_ms is None else self.deletes_ms

    @property
    def dead_rows(self) -> int:
        return self.deletion_vector.dead_rows if self.deletion_vector else 0

    @property
    def live_rows(self) -> int:
        return self.rows - self.dead_rows

    @property
    def live_bytes(self) -> float:
        """What the live rows take, if all rows take the same; all bytes where the number of rows is not known."""
        return self.bytes * max(0, self.live_rows) / self.rows if self.rows > 0 else float(self.bytes)

    @property
    def partition_key(self) -> PartitionKey:
        return partition_key(self.partition_values)

    @property
    def is_native(self) -> bool:
        """Whether lakebed wrote the file."""
        return is_native_file(self.path)

    def removed(self, now_ms: int, data_change: bool = True) -> RemovePart:
        """What takes the part out of the base."""
        return RemovePart(
            path=self.path,
            deleted_ms=now_ms,
            data_change=data_change,
            deletion_vector=self.deletion_vector,
            bytes=self.bytes,
            partition_values=self.partition_values,
            spelling=self.spelling,
        )

    def marked(self, deletion_vector: DeletionVector | None) -> Part:
        """The part with these dead rows; its statistics still hold, but no live row need be at their bounds."""
        stats = _loose(self.stats) if deletion_vector else self.stats
        return replace(self, deletion_vector=deletion_vector, stats=stats)


def partition_key(values: Mapping[str, str | None]) -> PartitionKey:
    """The partition of these values."""
    return tuple(sorted(values.items())) if values else ()


def part_domain(path: str) -> str:
    """The name under which the log has a change part."""
    return PART + path.rsplit("/", 1)[-1].removesuffix(".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePart:
    """A part of the tail: a ``domainMetadata`` of the log. ``version`` and ``ordinal`` give its place in the order of changes.

    ``incomplete`` counts rows with a column whose value the source did not send. ``checksum``: as in ``Part``. ``mutation``:
    whether a ``delete`` or ``update`` wrote it, so its rows came from no source.
    """

    path: str
    version: int
    ordinal: int
    rows: int
    bytes: int
    deletes: int = 0
    incomplete: int = 0
    sort_key_version: int | None = None
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str | None = None
    modified_ms: int = 0
    checksum: int | None = None
    mutation: bool = False

    @property
    def domain(self) -> str:
        return part_domain(self.path)

    @property
    def partition_key(self) -> PartitionKey:
        return partition_key(self.partition_values)

    @property
    def order(self) -> tuple[int, int]:
        return (self.version, self.ordinal)

    def settled(self, deletion_vector: DeletionVector | None) -> Part:
        """The level-0 base part that this change part becomes; same file, same path."""
        return Part(
            path=self.path, rows=self.rows, bytes=self.bytes, level=0, min_block=self.version, max_block=self.version,
            sort_key_version=self.sort_key_version, deletes=self.deletes, has_op_column=True,
            partition_values=self.partition_values, stats=self.stats, modified_ms=self.modified_ms,
            checksum=self.checksum,
        ).marked(deletion_vector)  # fmt: skip


@dataclass(frozen=True, slots=True)
class AddPart:
    """``part`` is in the base from this commit on."""

    part: Part
    data_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePart:
    """The part with this path and deletion vector is no longer in the base."""

    path: str
    deleted_ms: int
    data_change: bool = True
    deletion_vector: DeletionVector | None = None
    bytes: int | None = None
    partition_values: Mapping[str, str | None] | None = None
    spelling: str | None = None


@dataclass(frozen=True, slots=True)
class AddChangePart:
    """``part`` joins the tail."""

    part: ChangePart


@dataclass(frozen=True, slots=True)
class RemoveChangePart:
    """The change part left the tail: settled, or truncated."""

    domain: str


@dataclass(frozen=True, slots=True)
class Protocol:
    """Which features a reader and a writer must know."""

    min_reader_version: int
    min_writer_version: int
    reader_features: frozenset[str] = frozenset()
    writer_features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """Schema, partition columns and properties of a table."""

    id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: Mapping[str, str]
    created_ms: int | None = None
    name: str | None = None
    description: str | None = None
    format_provider: str = "parquet"


@dataclass(frozen=True, slots=True)
class Transaction:
    """The newest batch that an application committed: what makes a replayed batch recognisable (invariant M3)."""

    app_id: str
    version: int
    updated_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Domain:
    """A named value of the table's state that is not a change part."""

    domain: str
    configuration: str
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """What a commit says of itself. It is no state: checkpoints do not keep it, and another tool may rewrite or drop it.

    Identity and time count: ``commit_id``, ``timestamp_ms``, ``table`` (the id of the table that the commit was made for),
    ``parent`` (the digest of the commit that it follows) and ``attempt`` (how often it was sent before). They tell lakebed's
    commits from those of another log or another time. The rest is for people; what a commit is follows from its other actions
    (``commit_kind``).
    """

    operation: str
    commit_id: str
    timestamp_ms: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    blind_append: bool = False
    engine: str = ""
    table: str = ""
    parent: str = ""
    attempt: int = 0


Action = (
    AddPart | RemovePart | AddChangePart | RemoveChangePart | Protocol | Metadata | Transaction | Domain | CommitInfo
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of the log. ``digest``: of its file's bytes, what tells it from every other; "" before it is written."""

    version: int
    actions: tuple[Action, ...]
    digest: str = ""

    @property
    def info(self) -> CommitInfo | None:
        return next((action for action in self.actions if isinstance(action, CommitInfo)), None)

    @property
    def timestamp_ms(self) -> int:
        info = self.info
        return info.timestamp_ms if info else 0


def is_native_file(path: str) -> bool:
    """Whether lakebed wrote the file, in the table or on a local disk: nobody else names files so."""
    return path.startswith("_lakebed/") or "/_lakebed/" in path


def at_version(action: Action, version: int) -> Action:
    """The action as it reads when its commit becomes ``version``: a new part's place in the order is the commit's."""
    if isinstance(action, AddChangePart):
        return AddChangePart(replace(action.part, version=version))
    if isinstance(action, AddPart) and action.part.min_block < 0:
        return AddPart(replace(action.part, min_block=version, max_block=version), action.data_change)
    return action


def encode_commit(actions: tuple[Action, ...]) -> bytes:
    """A commit file: a JSON object a line. A ``commitInfo`` begins with the checksum of the file."""
    lines = []
    for action in actions:
        line = to_json(action)
        if isinstance(action, CommitInfo):
            line = {"commitInfo": {"lakebedChecksum": ZEROS.decode(), **line["commitInfo"]}}
        lines.append(orjson.dumps(line))
    data = b"\n".join([b"", *lines, b""])
    return (with_checksum(data, _CHECKSUM) if _CHECKSUM in data else data)[1:]


def decode_commit(version: int, data: bytes) -> Commit:
    """The commit of a file's bytes; actions that state nothing for us are left out. Raises ValueError if it is no whole one.

    A commit has at least one action (Delta's rule), and one of lakebed's the bytes that it was written with.
    """
    require_whole(b"\n" + data, _CHECKSUM)
    lines = [orjson.loads(line) for line in data.splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"it is empty: {len(data)} bytes, and no action")
    return Commit(
        version, tuple([action for line in lines if (action := from_json(line)) is not None]), digest_of(data)
    )


def digest_of(data: bytes) -> str:
    """What tells a commit's file from every other."""
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
                "domainMetadata": {"domain": part.domain, "configuration": change_part_to_text(part), "removed": False}
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
    """The action of one JSON object; None for one that states nothing for us (``cdc``, an unknown one)."""
    name, body = next(iter(value.items()))
    if body is None:
        return None
    match name:
        case "add":
            return AddPart(add_from_json(body), body.get("dataChange", True))
        case "remove":
            return remove_from_json(body)
        case "domainMetadata":
            return domain_from_json(body)
        case "protocol":
            return protocol_from_json(body)
        case "metaData":
            return metadata_from_json(body)
        case "txn":
            return Transaction(body["appId"], body["version"], body.get("lastUpdated"))
        case "commitInfo":
            return _commit_info_from_json(body)
    return None


def add_to_json(part: Part, data_change: bool = True) -> dict[str, Any]:
    tags = {_TAG_LEVEL: str(part.level), _TAG_MIN_BLOCK: str(part.min_block), _TAG_MAX_BLOCK: str(part.max_block)}
    if part.sort_key_version is not None:
        tags[_TAG_SORT_KEY_VERSION] = str(part.sort_key_version)
    if part.deletes:
        tags[_TAG_DELETES] = str(part.deletes)
    if part.has_op_column:
        tags[_TAG_OP_COLUMN] = "true"
    if part.deletes_ms is not None:
        tags[_TAG_DELETES_MS] = str(part.deletes_ms)
    if part.checksum is not None:
        tags[_TAG_CHECKSUM] = str(part.checksum)
    if part.passes:
        tags[_TAG_PASSES] = str(part.passes)
    out: dict[str, Any] = {
        "path": part.spelling or encode_path(part.path),
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
    sort_key_version = tags.get(_TAG_SORT_KEY_VERSION)
    deletes_ms = tags.get(_TAG_DELETES_MS)
    checksum = tags.get(_TAG_CHECKSUM)
    vector = body.get("deletionVector")
    return Part(
        path=decode_path(body["path"]),
        rows=rows,
        bytes=body["size"],
        level=int(tags.get(_TAG_LEVEL, 0)),
        min_block=int(tags.get(_TAG_MIN_BLOCK, 0)),
        max_block=int(tags.get(_TAG_MAX_BLOCK, 0)),
        sort_key_version=None if sort_key_version is None else int(sort_key_version),
        deletes=int(tags.get(_TAG_DELETES, 0)),
        has_op_column=tags.get(_TAG_OP_COLUMN) == "true",
        partition_values=body.get("partitionValues") or {},
        stats=stats,
        deletion_vector=DeletionVector.from_json(vector) if vector else None,
        modified_ms=body.get("modificationTime") or 0,
        spelling=_foreign_spelling(body["path"]),
        deletes_ms=None if deletes_ms is None else int(deletes_ms),
        checksum=None if checksum is None else int(checksum),
        passes=int(tags.get(_TAG_PASSES, 0)),
    )


def remove_to_json(action: RemovePart) -> dict[str, Any]:
    out: dict[str, Any] = {
        "path": action.spelling or encode_path(action.path),
        "deletionTimestamp": action.deleted_ms,
        "dataChange": action.data_change,
    }
    if action.bytes is not None and action.partition_values is not None:
        out |= {"extendedFileMetadata": True, "partitionValues": dict(action.partition_values), "size": action.bytes}
    if action.deletion_vector:
        out["deletionVector"] = action.deletion_vector.to_json()
    return out


def remove_from_json(body: Mapping[str, Any]) -> RemovePart:
    vector = body.get("deletionVector")
    return RemovePart(
        path=decode_path(body["path"]),
        deleted_ms=body.get("deletionTimestamp") or 0,
        data_change=body.get("dataChange", True),
        deletion_vector=DeletionVector.from_json(vector) if vector else None,
        bytes=body.get("size"),
        partition_values=body.get("partitionValues"),
        spelling=_foreign_spelling(body["path"]),
    )


def change_part_to_text(part: ChangePart) -> str:
    """The configuration of a change part's domain."""
    value: dict[str, Any] = {
        "path": part.path, "version": part.version, "ordinal": part.ordinal, "rows": part.rows, "bytes": part.bytes,
        "deletes": part.deletes, "modified_ms": part.modified_ms,
    }  # fmt: skip
    if part.incomplete:
        value["incomplete"] = part.incomplete
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
    return orjson.dumps(value).decode()


def domain_from_json(body: Mapping[str, Any]) -> AddChangePart | RemoveChangePart | Domain:
    domain, configuration, removed = body["domain"], body["configuration"], body["removed"]
    if not domain.startswith(PART):
        return Domain(domain, configuration, removed)
    if removed:
        return RemoveChangePart(domain)
    value = orjson.loads(configuration)
    return AddChangePart(
        ChangePart(
            path=value["path"],
            version=value["version"],
            ordinal=value["ordinal"],
            rows=value["rows"],
            bytes=value["bytes"],
            deletes=value.get("deletes", 0),
            incomplete=value.get("incomplete", 0),
            sort_key_version=value.get("sort_key_version"),
            partition_values=value.get("partition_values") or {},
            stats=value.get("stats"),
            modified_ms=value.get("modified_ms", 0),
            checksum=value.get("crc32"),
            mutation=value.get("mutation", False),
        )
    )


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


def protocol_from_json(body: Mapping[str, Any]) -> Protocol:
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


def metadata_from_json(body: Mapping[str, Any]) -> Metadata:
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


def encode_path(path: str) -> str:
    """A path as it stands in the log: a url-encoded relative reference."""
    return urllib.parse.quote(path, safe=_PATH_SAFE)


def decode_path(path: str) -> str:
    """The path that a reference in the log stands for."""
    return urllib.parse.unquote(path) if "%" in path else path


def _foreign_spelling(reference: str) -> str | None:
    return None if encode_path(decode_path(reference)) == reference else reference


def _loose(stats: str | None) -> str | None:
    """Statistics of a part with dead rows: its bounds still hold, but no row need be at them (``tightBounds``)."""
    if stats is None or _LOOSE.search(stats):
        return stats
    # As text: parsing would round a decimal's bounds.
    body = _TIGHT.sub("", stats.strip())[1:-1].strip().strip(",")
    return "{" + body + (", " if body else "") + '"tightBounds":false}'


def _commit_info_to_json(info: CommitInfo) -> dict[str, Any]:
    ours = {_TABLE: info.table, _PARENT: info.parent, _ATTEMPT: info.attempt}
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
        table=body.get(_TABLE) or "",
        parent=body.get(_PARENT) or "",
        attempt=body.get(_ATTEMPT) or 0,
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _number(value: Any) -> int | float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return int(number) if number.is_integer() else number
