"""Deletion vectors: which rows of a part are dead, as Delta's readers expect them (Delta PROTOCOL.md, "Deletion Vectors").

A vector is a 64-bit roaring bitmap of row positions. It is stored either inline in the log (base 85) or in a file that
holds the vectors of one commit: a version byte, then for each vector its length, its data, and a checksum.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyroaring import BitMap64

from lakebed.errors import Corrupt, Unsupported

_MAGIC = 1681511377
_FORMAT_VERSION = b"\x01"
_FOLDER = "_lakebed"
# The alphabet of ZeroMQ's Z85, which Delta uses for uuids and inline vectors.
_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_DIGITS = {character: digit for digit, character in enumerate(_ALPHABET)}
_PAIRS = [a + b for a in _ALPHABET for b in _ALPHABET]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionVector:
    """Where a vector is stored: ``storage`` is "u" (file named by a uuid), "i" (inline) or "p" (absolute path)."""

    storage: str
    path_or_inline: str
    offset: int | None
    bytes: int
    dead_rows: int

    @property
    def unique_id(self) -> str:
        """Delta's id of a vector: two vectors with the same id mark the same rows."""
        at = "" if self.offset is None else f"@{self.offset}"
        return f"{self.storage}{self.path_or_inline}{at}"

    def file_path(self) -> str | None:
        """Path of the vector's file relative to the table's root, absolute for "p", None for an inline one. Raises Corrupt."""
        if self.storage == "i":
            return None
        if self.storage == "p":
            return self.path_or_inline
        prefix, encoded = self.path_or_inline[:-20], self.path_or_inline[-20:]
        if len(encoded) < 20:
            raise Corrupt(f"{encoded!r} is too short to be the uuid of a deletion vector")
        name = f"deletion_vector_{uuid.UUID(bytes=_decode_z85(encoded))}.bin"
        return f"{prefix}/{name}" if prefix else name

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"storageType": self.storage, "pathOrInlineDv": self.path_or_inline}
        if self.offset is not None:
            out["offset"] = self.offset
        return {**out, "sizeInBytes": self.bytes, "cardinality": self.dead_rows}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DeletionVector:
        if value["storageType"] not in ("u", "i", "p"):
            raise Unsupported(
                f"a deletion vector has the storage type {value['storageType']!r}, which lakebed does not know"
            )
        return cls(
            storage=value["storageType"],
            path_or_inline=value["pathOrInlineDv"],
            offset=value.get("offset"),
            bytes=value["sizeInBytes"],
            dead_rows=value["cardinality"],
        )


def encode(dead: BitMap64) -> bytes:
    """A vector's data: magic number and portable 64-bit roaring bitmap."""
    dead.run_optimize()
    return struct.pack("<I", _MAGIC) + bytes(dead.serialize())


def decode(data: bytes) -> BitMap64:
    """The bitmap of a vector's data. Raises Corrupt."""
    if len(data) < 4 or struct.unpack_from("<I", data)[0] != _MAGIC:
        raise Corrupt("a deletion vector does not begin with the magic number of its format")
    try:
        return BitMap64.deserialize(data[4:])
    except (ValueError, IndexError) as error:
        raise Corrupt(f"a deletion vector can't be read: {error}") from error


def inline(dead: BitMap64) -> DeletionVector:
    """A vector that is stored in the log itself."""
    data = encode(dead)
    return DeletionVector(
        storage="i", path_or_inline=_encode_z85(data), offset=None, bytes=len(data), dead_rows=len(dead)
    )


def inline_data(vector: DeletionVector) -> bytes:
    """The data of a vector that is stored in the log itself. Raises Corrupt."""
    return _decode_z85(vector.path_or_inline)[: vector.bytes]


def pack(vectors: Sequence[BitMap64]) -> tuple[str, bytes, list[DeletionVector]]:
    """One file for all vectors of a commit: its path, its bytes, and a descriptor for each vector.

    It is in a folder that other programs' cleanups ignore: one without support for vectors would delete the file.
    """
    name = uuid.uuid4()
    encoded_name = _FOLDER + _encode_z85(name.bytes)  # Delta allows a prefix there: the folder below the root
    out, descriptors = bytearray(_FORMAT_VERSION), []
    for dead in vectors:
        data = encode(dead)
        descriptors.append(
            DeletionVector(
                storage="u", path_or_inline=encoded_name, offset=len(out), bytes=len(data), dead_rows=len(dead)
            )
        )
        out += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return f"{_FOLDER}/deletion_vector_{name}.bin", bytes(out), descriptors


def unpack(vector: DeletionVector, file: bytes | None) -> BitMap64:
    """The bitmap of a descriptor, given its file's bytes (None for an inline one). Raises Corrupt."""
    if vector.storage == "i":
        dead = decode(inline_data(vector))
    else:
        assert file is not None
        at = vector.offset or 1
        if at + vector.bytes + 8 > len(file) or struct.unpack_from(">I", file, at)[0] != vector.bytes:
            raise Corrupt(
                f"deletion vector file {vector.file_path()} has no vector of {vector.bytes} bytes at {at}",
                path=vector.file_path(),
            )
        data = file[at + 4 : at + 4 + vector.bytes]
        if struct.unpack_from(">I", file, at + 4 + vector.bytes)[0] != zlib.crc32(data):
            raise Corrupt(
                f"deletion vector file {vector.file_path()}: the checksum of the vector at {at} is wrong",
                path=vector.file_path(),
            )
        dead = decode(data)
    if len(dead) != vector.dead_rows:
        raise Corrupt(
            f"deletion vector {vector.unique_id[:60]} marks {len(dead)} rows; its descriptor says {vector.dead_rows}",
            path=vector.file_path(),
        )
    return dead


def _encode_z85(data: bytes) -> str:
    """Base 85; the length is padded to a multiple of four with zero bytes."""
    data = data + b"\0" * (-len(data) % 4)
    out: list[str] = []
    for (word,) in struct.iter_unpack(">I", data):
        high, low = divmod(word, 85 * 85)
        top, middle = divmod(high, 85 * 85)
        out += (_ALPHABET[top], _PAIRS[middle], _PAIRS[low])
    return "".join(out)


def _decode_z85(text: str) -> bytes:
    """The bytes of a base 85 text, padding included. Raises Corrupt."""
    if len(text) % 5:
        raise Corrupt(f"{text[:40]!r} is no base 85 text: its length is no multiple of five")
    out = bytearray()
    try:
        for at in range(0, len(text), 5):
            word = 0
            for character in text[at : at + 5]:
                word = word * 85 + _DIGITS[character]
            out += word.to_bytes(4, "big")
    except (KeyError, OverflowError):
        raise Corrupt(f"{text[:40]!r} is no base 85 text") from None
    return bytes(out)


def bitmap(rows: Iterable[int]) -> BitMap64:
    """A bitmap of row positions."""
    return BitMap64(rows)
