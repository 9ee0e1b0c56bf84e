"""Verifies that a part's file is what was written, by a CRC-32 of the whole file, which is in the log beside the part.

Pages have checksums of their own. Page headers, the footer, Bloom filters and page indexes have none, and DuckDB and most readers
compare none. A bit that flips in the statistics of a footer leaves out rows without an error. So the writer of a part takes the
checksum of the file as it is on the local disk. Merges and uploads, which make other parts of it, and the checks of the table's
health compare it first. Otherwise damage would be copied and get a checksum of its own.

Files of other writers, and of versions of lakebed without checksums, have none in the log. Of such a file, the pages that have a
checksum are verified, by reading all of them with Arrow.
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.errors import LakebedError
from lakebed.manifest.actions import ChangePart, Part
from lakebed.parts.arrow_source import damaged, is_local, unreadable
from lakebed.storage.local_files import trouble
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.process_folders import process_folder

_BLOCK_BYTES = 1 << 20
_OBJECT_BLOCK_BYTES = 24 << 20  # more than the cache of ranges keeps of one read, so it pushes nothing out
_BATCH_ROWS = 65_536


def verify(part: Part | ChangePart, storage: PartStorage) -> None:
    """Read the whole file, of ``storage`` or local (``file://…``).

    Raises Corrupt, naming the file, if it is missing or is not what was written; StoreUnavailable.
    """
    url = storage.duckdb_url(part.path)
    if is_local(url):
        verify_local(part, url)
        return
    if part.checksum is not None:
        for _ in _compared(part, _of_object(part.path, storage)):
            pass
        return
    copy = process_folder() / f"verify-{uuid.uuid4().hex}.parquet"
    try:
        stage(part, storage, copy)
    finally:
        copy.unlink(missing_ok=True)


def verify_local(part: Part | ChangePart, local_path: str) -> None:
    """``verify``, of a file at a local place."""
    if part.checksum is None:
        verify_pages(part.path, local_path)
        return
    for _ in _compared(part, _of_file(part.path, local_path)):
        pass


def stage(part: Part | ChangePart, storage: PartStorage, place: Path) -> None:
    """Copy an object to a local place, verified. Raises Corrupt, naming it; StoreUnavailable, also for a full disk."""
    blocks = _of_object(part.path, storage)
    if part.checksum is not None:
        blocks = _compared(part, blocks)
    try:
        with open(place, "wb") as copy:
            for block in blocks:
                copy.write(block)
    except OSError as error:
        raise trouble(error.errno, f"{part.path} can't be copied to {place} ({error})", part.path) from error
    if part.checksum is None:
        verify_pages(part.path, str(place))


@contextmanager
def naming_damaged(parts: Iterable[Part | ChangePart], storage: PartStorage) -> Iterator[None]:
    """Wraps code that reads these parts without comparing checksums. If it fails without a reason, the parts are compared.

    Raises Corrupt, naming the first that is damaged. That reads all of them, after a failure that should never happen.
    """
    try:
        yield
    except LakebedError:
        raise
    except Exception:
        for part in parts:
            verify(part, storage)
        raise


def checksum_of(local_path: str) -> int:
    """The CRC-32 of a local file. Raises OSError."""
    value = 0
    with open(local_path, "rb") as file:
        while block := file.read(_BLOCK_BYTES):
            value = zlib.crc32(block, value)
    return value


def verify_pages(path: str, local_path: str) -> None:
    """Decode a whole local file, comparing the checksums of those pages that have one. Raises Corrupt, naming ``path``."""
    try:
        with pq.ParquetFile(local_path, pre_buffer=False, page_checksum_verification=True) as file:
            for _ in file.iter_batches(_BATCH_ROWS, use_threads=False):
                pass
    except (pa.ArrowMemoryError, pa.ArrowNotImplementedError):  # the latter: a type or codec that Arrow lacks
        return
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:  # the latter: a name in a damaged footer
        raise unreadable(path, error) from error


def _compared(part: Part | ChangePart, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks; after the last one raises Corrupt if they are not what was written."""
    value = size = 0
    for block in blocks:
        value, size = zlib.crc32(block, value), size + len(block)
        yield block
    if size != part.bytes:
        raise damaged(part.path, f"it has {size:,} bytes and the log says {part.bytes:,}")
    if value != part.checksum:
        raise damaged(part.path, "its bytes are not those that were written: their checksum differs")


def _of_object(path: str, storage: PartStorage) -> Iterator[bytes]:
    at = 0
    try:
        while block := storage.read_range(path, at, _OBJECT_BLOCK_BYTES):
            at += len(block)
            yield block
    except FileNotFoundError as error:
        raise damaged(path, "there is no such object") from error


def _of_file(path: str, local_path: str) -> Iterator[bytes]:
    try:
        with open(local_path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
    except FileNotFoundError as error:
        raise damaged(path, "there is no such file") from error
    except OSError as error:
        raise trouble(error.errno, f"{path} can't be read ({error})", path) from error
