"""A file's CRC-32 within the file itself: eight hexadecimal digits after a marker, which count as zeros."""

from __future__ import annotations

import zlib

ZEROS = b"00000000"


def with_checksum(data: bytes, marker: bytes) -> bytes:
    """The file with its checksum in place of the zeros after the last marker."""
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
