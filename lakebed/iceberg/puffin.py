"""Puffin files for deletion vectors: one a vector, since PyIceberg reads a file as a whole for each. Pure.

A blob ``deletion-vector-v1`` has the bytes that Delta's file has: length, magic number and roaring bitmap, checksum. So a twin is
the vector's bytes between a head and a foot, and where all of it lies follows from the log, before a byte is read.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from dataclasses import dataclass

import orjson

from lakebed.log.actions import Part
from lakebed.log.deletion_vector import DeletionVector

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


def twin_of(part: Part, vector: DeletionVector, data_file: str) -> Twin:
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
