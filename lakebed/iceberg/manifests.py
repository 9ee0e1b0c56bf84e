"""Which manifest each part of a version is in, and what the manifests say. A pure function of the set of parts.

1. Parts are put in the order of the newest commit that their rows are from, and then of their names. So new parts come last.
2. A manifest ends after each part whose name's digest is a multiple of a large number. So it depends on a part and its neighbours
   alone: one that comes or goes changes one manifest, or joins or cuts two. These manifests rest. Behind the last such end that
   is not among the newest parts, which change most, a smaller number counts, which divides the large one. When the next large end
   has grown older, all the small manifests before it become one at once.
3. Deletion vectors are in manifests of their own, made in the same way of the parts that have one. Those that change in one
   commit are scattered over the newest parts, so there larger manifests are fewer files, and the very newest are in one.
4. A manifest's name begins with a digest of all that it is made from. A manifest of the version before that has the same digest
   is used again, unread. What may differ from host to host, the compression, is in a second digest, of the bytes.
5. All entries are *existing* ones that say which commit they are from: ``sequence_number`` is its version + 1, and that of a
   vector is its part's. Iceberg applies a vector to the file that it names, if that is no newer.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import math
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from lakebed.iceberg.avro import avro_bytes, entry_schema, partition_name
from lakebed.iceberg.columns import IcebergColumns, StoredPath
from lakebed.log.actions import Part, loose_stats
from lakebed.log.deletion_vector import DeletionVector
from lakebed.parts.part_filter import trusts_bounds
from lakebed.sortkey.statistics import has_bounds, highest, lowest, parsed_stats

# -- Puffin files for deletion vectors: one a vector, since PyIceberg reads a file as a whole for each. Pure ---------------
#
# A blob ``deletion-vector-v1`` has the bytes that Delta's file has: length, magic number and roaring bitmap, checksum. So a
# twin is the vector's bytes between a head and a foot, and where all of it lies follows from the log, before a byte is read.


_MAGIC = b"PFA1"
_UNCOMPRESSED = b"\0\0\0\0"
_AROUND = 8  # length and checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """The Puffin file of a part's deletion vector."""

    name: str  # of the file; a digest of the part's and the vector's identity, which never change
    data_file: str  # where Iceberg finds the part
    vector: DeletionVector
    foot: bytes

    @property
    def offset(self) -> int:
        return len(_MAGIC)

    @property
    def length(self) -> int:
        """Bytes of the blob."""
        return self.vector.bytes + _AROUND

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.offset + self.length + len(self.foot)

    def content(self, data: bytes) -> bytes:
        """The file. ``data``: the vector's, as ``deletion_vector.encode`` returns it."""
        return _MAGIC + struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data)) + self.foot


def _twin_of(part: Part, vector: DeletionVector, data_file: str) -> Twin:
    """The twin of the vector of a part, which Iceberg finds at ``data_file``."""
    identity = f"{data_file}\n{vector.unique_id}\n{vector.bytes}\n{vector.dead_rows}".encode()
    blob = {
        "type": "deletion-vector-v1",
        "fields": [],
        "snapshot-id": -1,
        "sequence-number": -1,
        "offset": len(_MAGIC),
        "length": vector.bytes + _AROUND,
        "properties": {"referenced-data-file": data_file, "cardinality": str(vector.dead_rows)},
    }
    foot = orjson.dumps({"blobs": [blob]})
    return Twin(
        name=f"dv-{hashlib.blake2b(identity, digest_size=12).hexdigest()}.puffin",
        data_file=data_file,
        vector=vector,
        foot=_MAGIC + foot + struct.pack("<i", len(foot)) + _UNCOMPRESSED + _MAGIC,
    )


# -- Values in the bytes that Iceberg's metadata has them in: bounds of columns, and partitions. Pure ----------------------


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAY = datetime.date(1970, 1, 1)
_MICROSECOND = datetime.timedelta(microseconds=1)
_TEXT_MAX = 32
_LAST_CHARACTER = 0x10FFFF


def encoded(value: Any, kind: pa.DataType) -> bytes:
    """A single value (appendix D of Iceberg's specification)."""
    if pa.types.is_boolean(kind):
        return b"\1" if value else b"\0"
    if pa.types.is_string(kind):
        return value if isinstance(value, bytes) else str(value).encode()
    if pa.types.is_decimal(kind):
        number = int(decimal.Decimal(value).scaleb(kind.scale, decimal.Context(prec=80)))
        return number.to_bytes((number.bit_length() + 8) // 8, "big", signed=True)
    if pa.types.is_timestamp(kind):
        return struct.pack("<q", (value - _EPOCH) // _MICROSECOND)
    if pa.types.is_date(kind):
        return struct.pack("<i", (value - _EPOCH_DAY).days)
    if pa.types.is_float32(kind):
        return struct.pack("<f", value)
    if pa.types.is_float64(kind):
        return struct.pack("<d", value)
    return struct.pack("<q" if pa.types.is_int64(kind) else "<i", value)


class Bounds:
    """What Delta's statistics of one part say of its columns, by the columns' numbers."""

    def __init__(self, stats: str | None, leaves: Mapping[StoredPath, tuple[int, pa.DataType]]) -> None:
        self.nulls: dict[int, int] = {}
        self.lower: dict[int, bytes] = {}
        self.upper: dict[int, bytes] = {}
        found = parsed_stats(stats) if stats else {}
        for path, count in _flat(found.get("nullCount") or {}):
            if path in leaves and isinstance(count, int):
                self.nulls[leaves[path][0]] = count
        least, greatest = (dict(_flat(found.get(name) or {})) for name in ("minValues", "maxValues"))
        for path, (number, kind) in leaves.items():
            low, high = least.get(path), greatest.get(path)
            if low is None or high is None or not has_bounds(kind):
                continue
            if (ends := _ends(low, high, kind)) is not None:
                self.lower[number], self.upper[number] = ends


def _ends(low: Any, high: Any, kind: pa.DataType) -> tuple[bytes, bytes] | None:
    """Bounds in bytes, None where they can't be told."""
    try:
        least, greatest = lowest(low, kind), highest(high, kind)
        if pa.types.is_floating(kind):
            if math.isnan(least) or math.isnan(greatest):
                return None
            least = -0.0 if least == 0 else least
            greatest = 0.0 if greatest == 0 else greatest
        if pa.types.is_string(kind):
            start, end = _text_start(least), _text_end(greatest)
            return None if end is None else (start, end)
        if pa.types.is_decimal(kind):
            least, greatest = decimal.Decimal(least), decimal.Decimal(greatest)
        return encoded(least, kind), encoded(greatest, kind)
    except (ValueError, OverflowError, struct.error, ArithmeticError):  # a time that Python lacks
        return None


def _text_start(text: bytes) -> bytes:
    return text.decode(errors="ignore")[:_TEXT_MAX].encode()


def _text_end(text: bytes) -> bytes | None:
    """A text that none of those up to ``text`` is above."""
    characters = text.decode(errors="replace")
    if len(characters) <= _TEXT_MAX:
        return text
    for at in range(_TEXT_MAX - 1, -1, -1):
        code = ord(characters[at]) + 1
        code = 0xE000 if 0xD800 <= code <= 0xDFFF else code
        if code <= _LAST_CHARACTER:
            return (characters[:at] + chr(code)).encode()
    return None


def _flat(values: Mapping[str, Any], above: StoredPath = ()) -> Iterator[tuple[StoredPath, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, (*above, name))
        else:
            yield (*above, name), value


def _partition_value(text: str | None, kind: pa.DataType) -> Any:
    """A partition's value as Avro takes it, from the text in the log. Raises ValueError for a text that is no such value."""
    if text is None or text == "":
        return None
    if pa.types.is_string(kind):
        return text
    if pa.types.is_boolean(kind):
        return text.lower() == "true"
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_decimal(kind):
        return decimal.Decimal(text)
    if pa.types.is_date(kind):
        return (datetime.date.fromisoformat(text) - _EPOCH_DAY).days
    moment = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    moment = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment
    return (moment - _EPOCH) // _MICROSECOND


Json = dict[str, Any]
DATA, DELETES = 0, 1
_EXISTING = 0
_LAYOUT = b"lakebed 1"
"""Of manifests as this module writes them: another one gives them other names."""


class _Cut(NamedTuple):
    """Of how many parts manifests are."""

    together: int  # so many of the newest parts are always in one manifest
    newest: int  # so many of the newest parts are in no large one
    small: int  # on average
    large: int  # on average; a multiple of it


CUTS = {DATA: _Cut(0, 96, 16, 256), DELETES: _Cut(48, 96, 48, 240)}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartEntry:
    """A part, with what its place among manifests depends on."""

    part: Part
    location: str  # where Iceberg finds the file
    digest: bytes  # of what a manifest says of it
    twin: Twin | None
    twin_digest: bytes
    cut: int  # a manifest ends after it if this is a multiple of a number
    order: tuple[int, str]

    @property
    def sequence_number(self) -> int:
        return max(0, self.part.max_block) + 1


def part_entry(part: Part, location: str) -> PartEntry:
    """The entry of a part."""
    stats = loose_stats(part.stats)  # whether they are tight is in no manifest
    said = (location, part.rows, part.bytes, stats, sorted(part.partition_values.items()), part.max_block)
    vector = part.deletion_vector
    twin = _twin_of(part, vector, location) if vector is not None and vector.dead_rows else None
    path = hashlib.blake2b(part.path.encode(), digest_size=4).digest()
    return PartEntry(
        part=part,
        location=location,
        digest=_digest(repr((*said, part.sort_key_version)).encode()),
        twin=twin,
        twin_digest=_digest(repr((*said[4:], twin.name, twin.file_bytes)).encode()) if twin else b"",
        cut=int.from_bytes(path, "big"),
        order=(part.max_block, part.path),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest of a version, which may have been written before."""

    content: int  # DATA or DELETES
    key: str  # the digest of what it is made from
    entries: tuple[PartEntry, ...]

    @property
    def prefix(self) -> str:
        """What the names of its files begin with."""
        return f"manifest-{self.key}-"


def manifests_of(entries: Iterable[PartEntry], columns: IcebergColumns) -> list[Manifest]:
    """The manifests of a version with these parts."""
    about = _digest(b"%s %s" % (_LAYOUT, orjson.dumps([columns.schema, columns.spec, columns.sort_order["order-id"]])))
    ordered = sorted(entries, key=attrgetter("order"))
    vectors = [entry for entry in ordered if entry.twin is not None]
    return [
        *_cut(ordered, DATA, about, attrgetter("digest")),
        *_cut(vectors, DELETES, about, attrgetter("twin_digest")),
    ]


def _cut(
    entries: Sequence[PartEntry], content: int, about: bytes, said: Callable[[PartEntry], bytes]
) -> Iterable[Manifest]:
    cut, start = CUTS[content], 0
    rests = max(0, len(entries) - cut.together)
    ends = [at for at, entry in enumerate(entries[:rests], 1) if entry.cut % cut.small == 0]
    large = {at for at in ends if entries[at - 1].cut % cut.large == 0}
    last = max((at for at in large if at <= len(entries) - cut.newest), default=0)
    ends = [at for at in ends if at > last or at in large]
    for end in ends if ends and ends[-1] == len(entries) else [*ends, len(entries)]:
        own = tuple(entries[start:end])
        if own:
            key = _digest(b"".join([about, bytes([content]), *map(said, own)])).hex()
            yield Manifest(content=content, key=key, entries=own)
        start = end


def manifest_bytes(manifest: Manifest, columns: IcebergColumns, place: str) -> bytes:
    """The manifest's file. ``place``: the folder that the twins of vectors are in, as Iceberg finds it."""
    is_data = manifest.content == DATA
    records = [
        _data_entry(entry, columns) if is_data else _vector_entry(entry, columns, place) for entry in manifest.entries
    ]
    about = {
        "schema": orjson.dumps(columns.schema).decode(),
        "schema-id": str(columns.schema["schema-id"]),
        "partition-spec": orjson.dumps(columns.spec["fields"]).decode(),
        "partition-spec-id": "0",
        "format-version": "3",
        "content": "data" if is_data else "deletes",
    }
    return avro_bytes(entry_schema(columns.partitions, deletes=not is_data), records, about, manifest.key.encode())


def manifest_name(manifest: Manifest, data: bytes) -> str:
    """The name of the manifest's file."""
    return f"{manifest.prefix}{hashlib.blake2b(data, digest_size=3).hexdigest()}.avro"


def manifest_row(manifest: Manifest, columns: IcebergColumns, location: str, length: int) -> Json:
    """What a list says of the manifest, whose file is at ``location``."""
    numbers = [entry.sequence_number for entry in manifest.entries]
    rows = sum(entry.part.rows if manifest.content == DATA else entry.part.dead_rows for entry in manifest.entries)
    return {
        "manifest_path": location,
        "manifest_length": length,
        "partition_spec_id": 0,
        "content": manifest.content,
        "sequence_number": max(numbers),
        "min_sequence_number": min(numbers),
        "added_snapshot_id": max(numbers),
        "added_files_count": 0,
        "existing_files_count": len(manifest.entries),
        "deleted_files_count": 0,
        "added_rows_count": 0,
        "existing_rows_count": rows,
        "deleted_rows_count": 0,
        "partitions": _summaries(manifest, columns) if columns.partitions else None,
        "first_row_id": None,
    }


def _summaries(manifest: Manifest, columns: IcebergColumns) -> list[Json]:
    out = []
    for field in columns.partitions:
        values = [
            _partition_value(entry.part.partition_values.get(field.stored), field.kind) for entry in manifest.entries
        ]
        known = [value for value in values if value is not None and value == value]  # NaN is in no bound
        ends = [_partition_bound(end(known), field.kind) if known else None for end in (_least, _greatest)]
        out.append(
            {
                "contains_null": None in values,
                "contains_nan": any(value != value for value in values),
                "lower_bound": ends[0],
                "upper_bound": ends[1],
            }
        )
    return out


def _least(values: Sequence[Any]) -> Any:
    least = min(values, key=_comparable)
    return -0.0 if isinstance(least, float) and least == 0 else least


def _greatest(values: Sequence[Any]) -> Any:
    greatest = max(values, key=_comparable)
    return 0.0 if isinstance(greatest, float) and greatest == 0 else greatest


def _comparable(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


def _partition_bound(value: Any, kind: Any) -> bytes:
    """Dates and times are numbers already."""
    if isinstance(value, int) and not isinstance(value, bool):
        wide = value.to_bytes(8, "little", signed=True)
        return wide if kind.bit_width == 64 else wide[:4]
    return encoded(value, kind)


def _entry(entry: PartEntry, file: Json) -> Json:
    return {
        "status": _EXISTING,
        "snapshot_id": entry.sequence_number,
        "sequence_number": entry.sequence_number,
        "file_sequence_number": entry.sequence_number,
        "data_file": file,
    }


def _partition(entry: PartEntry, columns: IcebergColumns) -> Json:
    texts = entry.part.partition_values
    return {
        partition_name(field): _partition_value(texts.get(field.stored), field.kind) for field in columns.partitions
    }


def _data_entry(entry: PartEntry, columns: IcebergColumns) -> Json:
    part = entry.part
    leaves = {path: one for path, one in columns.leaves.items() if trusts_bounds(part.path, one[1])}
    bounds = Bounds(part.stats, leaves)
    is_sorted = part.sort_key_version is not None and part.sort_key_version == columns.sort_order["order-id"]
    return _entry(
        entry,
        {
            "content": 0,
            "file_path": entry.location,
            "file_format": "PARQUET",
            "partition": _partition(entry, columns),
            "record_count": part.rows,
            "file_size_in_bytes": part.bytes,
            "value_counts": _pairs({number: part.rows for number in bounds.nulls}),
            "null_value_counts": _pairs(bounds.nulls),
            "lower_bounds": _pairs(bounds.lower),
            "upper_bounds": _pairs(bounds.upper),
            "sort_order_id": columns.sort_order["order-id"] if is_sorted else 0,
        },
    )


def _vector_entry(entry: PartEntry, columns: IcebergColumns, place: str) -> Json:
    twin = entry.twin
    assert twin is not None
    return _entry(
        entry,
        {
            "content": 1,
            "file_path": f"{place}/{twin.name}",
            "file_format": "PUFFIN",
            "partition": _partition(entry, columns),
            "record_count": twin.vector.dead_rows,
            "file_size_in_bytes": twin.file_bytes,
            "referenced_data_file": entry.location,
            "content_offset": twin.offset,
            "content_size_in_bytes": twin.length,
        },
    )


def _pairs(values: Mapping[int, Any]) -> tuple[str, list[Json]]:
    """A map as an array, named: else fastavro looks at each value to tell whether it is null."""
    return "array", [{"key": key, "value": values[key]} for key in sorted(values)]


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=8).digest()
