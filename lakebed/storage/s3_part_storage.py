"""Data files in S3: written from local temporary files, read by ranges, handed to DuckDB as a file system of its own.

Invariants: a path is readable only when its upload is complete; a failed upload leaves no object and no parts of one
(but for a process that dies in it: the bucket's lifecycle rule for incomplete uploads removes those).

Read: every range goes through the process's ``BlockCache``, so footers, small parts and blocks that settles read again
cost no request. A small file is in it as soon as it is written: the settle after it asks for nothing.
Write: one PutObject up to ``SINGLE_PUT_BYTES_MAX``, above it a multipart upload with a few parts in flight.
"""

from __future__ import annotations

import os
import threading
import uuid
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import duckdb
from botocore.exceptions import ClientError
from fsspec import AbstractFileSystem

from lakebed.errors import LakebedError, StoreUnavailable, Unsupported
from lakebed.storage.counters import RequestCounter, StoreCounters
from lakebed.storage.file_errors import naming_unwritable
from lakebed.storage.part_storage import delete_each
from lakebed.storage.process_folders import temporary_folder
from lakebed.storage.range_cache import TAIL_BYTES, BlockCache
from lakebed.storage.roots import S3Root, local_file
from lakebed.storage.s3_client import attempt_again, code_of, explain, is_transient, status_of

T = TypeVar("T")

SINGLE_PUT_BYTES_MAX = 32 << 20
DELETIONS_AT_ONCE = 1000
_HOST = "table"  # DuckDB grants access below a place, and a scheme alone is none
_NO_SUCH_REQUEST = (405, 501)
_UPLOAD_PART_BYTES = 16 << 20
_UPLOADS_AT_ONCE = 3
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)

_lock = threading.Lock()
_cache = BlockCache()
_readers: dict[S3Root, RangeReader] = {}


def _after_fork_in_child() -> None:
    global _lock, _cache
    _lock = threading.Lock()
    _cache = BlockCache()
    _readers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


@dataclass(frozen=True, slots=True)
class S3PartStorage:
    """``PartStorage`` over a bucket and a prefix."""

    place: S3Root

    @property
    def root(self) -> str:
        return str(self.place)

    @property
    def spark_root(self) -> str:
        return "s3a" + self.root.removeprefix("s3")

    @property
    def _reader(self) -> RangeReader:
        with _lock:
            reader = _readers.get(self.place)
            if reader is None:
                reader = _readers[self.place] = RangeReader(self.place, _cache)
            return reader

    @property
    def _protocol(self) -> str:
        """A scheme for this root alone, so that a connection may read several roots."""
        return f"lakebed{zlib.crc32(self.root.encode()):08x}"

    def counters(self) -> StoreCounters:
        """See ``PartStorage``."""
        return self._reader.counter.value()

    def duckdb_url(self, path: str) -> str:
        """See ``PartStorage``."""
        return local_file(path) or f"{self.duckdb_folder}/{path}"

    @property
    def duckdb_folder(self) -> str:
        """See ``PartStorage``."""
        return f"{self._protocol}://{_HOST}"

    def path_of_url(self, url: str) -> str:
        """See ``PartStorage``."""
        return url.removeprefix(f"{self.duckdb_folder}/")

    def attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        """See ``PartStorage``."""
        with _lock:
            attached = connection.filesystem_is_registered(self._protocol)
        if not attached:
            try:
                connection.register_filesystem(RangeFileSystem(self._protocol, self._reader))
            except duckdb.Error:
                if not connection.filesystem_is_registered(self._protocol):  # else another thread was faster
                    raise

    def write_file(self, path: str, writer: Callable[[str], T]) -> T:
        """See ``PartStorage``."""
        ending = os.path.splitext(path)[1]
        temporary = str(temporary_folder() / f"upload-{uuid.uuid4().hex}{ending}")
        try:
            with naming_unwritable(temporary, temporary):
                result = writer(temporary)
                size = os.stat(temporary).st_size
            if size <= SINGLE_PUT_BYTES_MAX:
                with open(temporary, "rb") as file:
                    self.write_bytes(path, file.read())
            else:
                self._reader.upload(path, temporary, size)
        finally:
            if os.path.exists(temporary):
                os.unlink(temporary)
        return result

    def write_bytes(self, path: str, data: bytes) -> None:
        """See ``PartStorage``."""
        self._reader.put(path, data)

    def read_bytes(self, path: str) -> bytes:
        """See ``PartStorage``."""
        return self._reader.read(path, 0, self._reader.meet(path))

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """See ``PartStorage``."""
        return self._reader.read(path, start, length)

    def size(self, path: str) -> int:
        """See ``PartStorage``."""
        known = _cache.size(self._reader.file(path))
        return self._reader.head(path) if known is None else known

    def forget(self, path: str) -> None:
        """See ``PartStorage``."""
        _cache.forget(self._reader.file(path))

    def exists(self, path: str) -> bool:
        """See ``PartStorage``. Always asks the store."""
        try:
            self._reader.head(path)
        except FileNotFoundError:
            return False
        return True

    def delete(self, path: str) -> None:
        """See ``PartStorage``."""
        self._reader.delete(path)

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        """See ``PartStorage``."""
        return self._reader.delete_many(paths)

    def list(self, prefix: str = "") -> Iterator[tuple[str, int, float]]:
        """See ``PartStorage``."""
        return self._reader.list(prefix)

    def now(self) -> float:
        """See ``PartStorage``."""
        return self._reader.now()


class RangeReader:
    """The requests on one root in one process, their count, and their cache."""

    def __init__(self, place: S3Root, cache: BlockCache) -> None:
        self.place = place
        self.counter = RequestCounter()
        self._cache = cache
        self._deletes_many = True  # until the store says that it has no such request

    def file(self, path: str) -> str:
        """The name of a file in the cache."""
        return f"{self.place.bucket}/{self.place.key(path)}"

    def _ask(self, operation: str, path: str, send: Callable[[Any, dict[str, str]], tuple[T, int, int]]) -> T:
        key = self.place.key(path)
        target = {"Bucket": self.place.bucket, "Key": key}
        return attempt_again(self.counter, operation, self.place, key, lambda client: send(client, target))

    def meet(self, path: str) -> int:
        """The file's size, at the cost of its tail if it is new."""
        return self._cache.meet(self.file(path), lambda _, length: self._tail(path, length))

    def read(self, path: str, start: int, length: int) -> bytes:
        """At most ``length`` bytes from ``start``."""
        return self._cache.read(
            self.file(path),
            start,
            length,
            lambda _, begin, end: self._range(path, begin, end),
            lambda _, wanted: self._tail(path, wanted),
        )

    def _tail(self, path: str, length: int) -> tuple[bytes, int]:
        def send(client: Any, target: dict[str, str]) -> tuple[tuple[bytes, int], int, int]:
            try:
                answer = client.get_object(**target, Range=f"bytes=-{length}")
            except ClientError as error:
                if code_of(error) == "InvalidRange":  # an empty object has no last bytes
                    return (b"", 0), 0, 0
                raise
            with answer["Body"] as body:
                data: bytes = body.read()
            of = answer.get("ContentRange", "").rpartition("/")[2]
            return (data, int(of) if of.isdigit() else len(data)), len(data), 0

        return self._ask("get_tail", path, send)

    def _range(self, path: str, begin: int, end: int) -> bytes:
        def send(client: Any, target: dict[str, str]) -> tuple[bytes, int, int]:
            answer = client.get_object(**target, Range=f"bytes={begin}-{end - 1}")
            with answer["Body"] as body:
                data: bytes = body.read()
            if len(data) != end - begin:
                raise ConnectionError(f"{len(data)} bytes came instead of {end - begin}")
            return data, len(data), 0

        return self._ask("get_range", path, send)

    def head(self, path: str) -> int:
        """The file's size, as the store says now."""
        return self._ask(
            "head", path, lambda client, target: (int(client.head_object(**target)["ContentLength"]), 0, 0)
        )

    def put(self, path: str, data: bytes) -> None:
        """One PutObject; a small file stays in the cache, since the next settle reads it."""

        def send(client: Any, target: dict[str, str]) -> tuple[None, int, int]:
            client.put_object(**target, Body=data)
            return None, 0, len(data)

        self._ask("put", path, send)
        if len(data) <= TAIL_BYTES:
            self._cache.insert_tail(self.file(path), data, len(data))

    def upload(self, path: str, local: str, size: int) -> None:
        """A multipart upload of a local file."""

        def create(client: Any, target: dict[str, str]) -> tuple[str, int, int]:
            return str(client.create_multipart_upload(**target)["UploadId"]), 0, 0

        upload_id = self._ask("create_upload", path, create)

        def upload_part(number: int) -> dict[str, Any]:
            with open(local, "rb") as file:
                file.seek((number - 1) * _UPLOAD_PART_BYTES)
                data = file.read(_UPLOAD_PART_BYTES)

            def send(client: Any, target: dict[str, str]) -> tuple[str, int, int]:
                answer = client.upload_part(**target, UploadId=upload_id, PartNumber=number, Body=data)
                return str(answer["ETag"]), 0, len(data)

            return {"PartNumber": number, "ETag": self._ask("upload_part", path, send)}

        def complete(client: Any, target: dict[str, str]) -> tuple[None, int, int]:
            try:
                client.complete_multipart_upload(**target, UploadId=upload_id, MultipartUpload={"Parts": parts})
            except ClientError as error:
                # An earlier attempt whose answer was lost may have completed it; the name is ours alone.
                if code_of(error) != "NoSuchUpload" or self.head(path) != size:
                    raise
            return None, 0, 0

        def abort(client: Any, target: dict[str, str]) -> tuple[None, int, int]:
            client.abort_multipart_upload(**target, UploadId=upload_id)
            return None, 0, 0

        try:
            with ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool:
                parts = list(pool.map(upload_part, range(1, -(-size // _UPLOAD_PART_BYTES) + 1)))
            self._ask("complete_upload", path, complete)
        except BaseException:
            self._ask("abort_upload", path, abort)
            raise

    def delete(self, path: str) -> None:
        """Remove an object; one that is not there is no error."""

        def send(client: Any, target: dict[str, str]) -> tuple[None, int, int]:
            client.delete_object(**target)
            return None, 0, 0

        self._cache.forget(self.file(path))
        try:
            self._ask("delete", path, send)
        except FileNotFoundError:
            return

    def delete_many(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        """Remove objects, up to ``DELETIONS_AT_ONCE`` a request; returns why, for each that could not be removed."""
        failed: dict[str, LakebedError] = {}
        for start in range(0, len(paths), DELETIONS_AT_ONCE):
            some = paths[start : start + DELETIONS_AT_ONCE]
            failed |= self._delete_some(some) if self._deletes_many else delete_each(self.delete, some)
        return failed

    def _delete_some(self, paths: Sequence[str]) -> dict[str, LakebedError]:
        names = {self.place.key(path): path for path in paths}
        wanted = {"Objects": [{"Key": key} for key in names], "Quiet": True}

        def send(client: Any, target: dict[str, str]) -> tuple[list[dict[str, str]] | None, int, int]:
            try:
                return client.delete_objects(Bucket=target["Bucket"], Delete=wanted).get("Errors", []), 0, 0
            except ClientError as error:
                if status_of(error) in _NO_SUCH_REQUEST:
                    return None, 0, 0
                raise

        for path in paths:
            self._cache.forget(self.file(path))
        try:
            errors = self._ask("delete_many", paths[0], send)
        except LakebedError as error:
            return dict.fromkeys(paths, error)
        if errors is None:
            self._deletes_many = False
            return delete_each(self.delete, paths)
        failed = {names[error["Key"]]: self._why_not_deleted(error) for error in errors}
        return {path: error for path, error in failed.items() if error is not None}

    def _why_not_deleted(self, answer: dict[str, str]) -> LakebedError | None:
        """What the store says of one object of many; None if it is not there any more."""
        error = ClientError({"Error": {"Code": answer["Code"], "Message": answer.get("Message", "")}}, "DeleteObjects")
        if is_transient(error):
            return StoreUnavailable(f"delete of s3://{self.place.bucket}/{answer['Key']} failed: {error}")
        found = explain(error, "delete", self.place, answer["Key"])
        return found if isinstance(found, LakebedError) else None

    def now(self) -> float:
        """The time that the server's answer tells: the end of that second."""

        def send(client: Any, _: dict[str, str]) -> tuple[str, int, int]:
            request = {"Bucket": self.place.bucket, "Prefix": self.place.key(""), "MaxKeys": 1}
            return client.list_objects_v2(**request)["ResponseMetadata"]["HTTPHeaders"]["date"], 0, 0

        return parsedate_to_datetime(self._ask("list", "", send)).timestamp() + 1

    def list(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """All objects whose path begins with ``prefix``, page by page."""
        request: dict[str, Any] = {"Bucket": self.place.bucket, "Prefix": self.place.key(prefix)}
        while True:
            page = dict(request)

            def send(client: Any, _: dict[str, str], page: dict[str, Any] = page) -> tuple[dict[str, Any], int, int]:
                return client.list_objects_v2(**page), 0, 0

            answer = self._ask("list", prefix, send)
            for item in answer.get("Contents", ()):
                yield self.place.name(item["Key"]), int(item["Size"]), item["LastModified"].timestamp()
            if not answer.get("IsTruncated"):
                return
            request["ContinuationToken"] = answer["NextContinuationToken"]


class RangeFile:
    """What DuckDB reads an object through: a position over ``RangeReader``."""

    def __init__(self, reader: RangeReader, path: str) -> None:
        self._reader, self._path, self._at = reader, path, 0

    def seekable(self) -> bool:
        """DuckDB asks, and prefetches whole column chunks then."""
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to ``offset`` from the start (0), from here (1) or from the end (2)."""
        base = (0, self._at, self._reader.meet(self._path) if whence == 2 else 0)[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """The position."""
        return self._at

    def read(self, length: int = -1) -> bytes:
        """The next bytes; all that are left by default."""
        if length < 0:
            length = self._reader.meet(self._path) - self._at
        data = self._reader.read(self._path, self._at, length)
        self._at += len(data)
        return data

    def close(self) -> None:
        """Nothing is held open."""


class RangeFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The part of fsspec that DuckDB calls to read: no listing, no writing, and no request beyond the reads."""

    cachable = False

    def __init__(self, protocol: str, reader: RangeReader) -> None:
        super().__init__(skip_instance_cache=True)
        self.protocol = protocol
        self._reader = reader

    def _path(self, url: str) -> str:
        return url.removeprefix(f"{self.protocol}://{_HOST}/")

    def open(self, path: str, mode: str = "rb", **_: Any) -> RangeFile:
        """A file to read. Raises FileNotFoundError."""
        if mode != "rb":
            raise Unsupported(f"{path} can't be opened with mode {mode!r}: write with write_file")
        self._reader.meet(self._path(path))
        return RangeFile(self._reader, self._path(path))

    def glob(self, path: str, **_: Any) -> list[str]:
        """The path itself: names of parts hold no patterns, and a listing would cost a request."""
        return [path]

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name, size and kind."""
        return {"name": path, "size": self._reader.meet(self._path(path)), "type": "file"}

    def size(self, path: str) -> int:
        """The file's bytes."""
        return self._reader.meet(self._path(path))

    def modified(self, path: str) -> datetime:
        """Files never change, so any fixed time serves DuckDB's own caches."""
        return _LONG_AGO

    def exists(self, path: str, **_: Any) -> bool:
        """Is there such an object?"""
        try:
            self._reader.meet(self._path(path))
        except FileNotFoundError:
            return False
        return True

    def isfile(self, path: str) -> bool:
        """There are no folders."""
        return self.exists(path)
