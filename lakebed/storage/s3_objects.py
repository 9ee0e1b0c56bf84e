"""The objects below one root in S3, or in a server that speaks its protocol: every request that lakebed makes of such a store.

The log keeps its files here directly: this is a ``log.stores.LogStore`` where the server honours ``If-None-Match: *``
(``log.stores`` tries it). The files of parts go through ``data_files``, which adds a cache.

Invariants: False from ``put_if_absent`` means that another object certainly has the name; True that ours certainly has. An
upload that fails leaves no object and no pieces of one, but for a process that dies in it: the bucket's lifecycle rule for
incomplete uploads removes those.

``put_if_absent``:
1. PutObject with ``If-None-Match: *``, retried here and nowhere else, a bounded number of times.
2. 200: ours. 412: taken, by another if every earlier attempt was certainly refused.
3. An attempt whose outcome is unknown (time-out, broken connection, 5xx) may have landed, now or a little later. If a
   later attempt answers 200, it had not, and ours holds the name. If a later one answers 412, the object there may be
   our own: StoreUnavailable, and the caller reads the name back to see whose it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from lakebed import events
from lakebed.errors import LakebedError, StoreUnavailable
from lakebed.storage.counters import RequestCounter, StoreCounters
from lakebed.storage.local_folders import delete_each
from lakebed.storage.roots import S3Root
from lakebed.storage.s3_client import (
    ATTEMPTS_MAX,
    backoff_seconds,
    code_of,
    explain,
    is_transient,
    never_arrived,
    result_of,
    s3_client,
    status_of,
    with_retries,
    writes,
)
from lakebed.waits import waiting_for

T = TypeVar("T")

DELETIONS_AT_ONCE = 1000
HANGS_SECONDS = 4
_NO_SUCH_REQUEST = (405, 501)
_UPLOAD_PART_BYTES = 16 << 20
_UPLOADS_AT_ONCE = 3


class S3Objects:
    """The objects below a bucket and a prefix; paths are relative to it, with ``/``.

    Picklable: it holds a place, and a counter that starts again at zero. Every method raises StoreUnavailable when the store
    does not answer, InvalidInput when it refuses, MissingPrerequisite without credentials (``s3_client.explain``).
    """

    def __init__(self, place: S3Root) -> None:
        self.place = place
        self.root = str(place)
        self._counter = RequestCounter()
        self._deletes_many = True  # until the store says that it has no such request

    def __repr__(self) -> str:
        return f"S3Objects({self.root!r})"

    def counters(self) -> StoreCounters:
        """Requests and bytes so far, by operation."""
        return self._counter.value()

    def read(self, path: str) -> bytes:
        """The whole object. Raises FileNotFoundError."""

        def send(client: Any, target: dict[str, str]) -> tuple[bytes, int, int]:
            answer = client.get_object(**target)
            with answer["Body"] as body:
                data: bytes = body.read()
            return data, len(data), 0

        return self._ask("read", path, send)

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        """The last ``length`` bytes or fewer, and the object's size. Raises FileNotFoundError."""

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
            return (data, int(of) if of.isdecimal() else len(data)), len(data), 0

        return self._ask("get_tail", path, send)

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        """The bytes from ``begin`` to before ``end``. Raises FileNotFoundError."""

        def send(client: Any, target: dict[str, str]) -> tuple[bytes, int, int]:
            answer = client.get_object(**target, Range=f"bytes={begin}-{end - 1}")
            with answer["Body"] as body:
                data: bytes = body.read()
            if len(data) != end - begin:
                raise ConnectionError(f"{len(data)} bytes came instead of {end - begin}")
            return data, len(data), 0

        return self._ask("get_range", path, send)

    def has(self, path: str) -> bool:
        """Whether there is such an object."""
        try:
            self._require(path)
        except FileNotFoundError:
            return False
        return True

    def require_answer(self) -> None:
        """Raises StoreUnavailable if the store does not answer now, InvalidInput if it refuses. It sends two requests at most."""
        try:
            self._require_answer()
        except LakebedError:
            writes.worked(self.place.bucket)  # why they failed is known; when it answers again, they may have success
            raise

    def _require_answer(self) -> None:
        path, began = "_lakebed/is-there", time.monotonic()
        with suppress(FileNotFoundError):
            try:
                self._require(path, attempts_max=1)
            except StoreUnavailable:
                if time.monotonic() - began >= HANGS_SECONDS:
                    raise
                self._require(
                    path, attempts_max=1
                )  # it refused, or closed the connection, and may answer a moment later

    def _require(self, path: str, attempts_max: int = ATTEMPTS_MAX) -> None:
        """Raises FileNotFoundError if there is no such object."""
        self._ask("head", path, lambda client, target: (client.head_object(**target), 0, 0), attempts_max)

    def require_writes(self) -> None:
        """Raises StoreUnavailable if writes of this process fail, though the store answers reads. It sends no request."""
        if (error := writes.error(self.place.bucket)) is not None:
            raise StoreUnavailable(error, path=self.root)

    def refused_write(self, path: str) -> str | None:
        """Why the store takes no writes now; None if it does, or if this process may only read.

        It is asked with a write that changes nothing: to create an object that is there. Two requests at most. If the object is
        not there any more, it is created, empty, and deleted.
        """
        key, refused = self.place.key(path), None
        for _ in range(2):
            try:
                s3_client().put_object(Bucket=self.place.bucket, Key=key, Body=b"", IfNoneMatch="*")
            except (ClientError, BotoCoreError, HTTPError, OSError) as error:
                self._counter.count("put_if_absent", failures=1)
                if not is_transient(error):  # it is taken, which the store decides when it could write
                    return None
                refused = f"put_if_absent of s3://{self.place.bucket}/{key} failed: {error}"
                time.sleep(backoff_seconds(0))
            else:
                self._counter.count("put_if_absent")
                self.delete(path)
                return None
        return refused

    def size(self, path: str) -> int:
        """The object's bytes, as the store says now. Raises FileNotFoundError."""
        return self.stat(path)[1]

    def stat(self, path: str) -> tuple[float, int]:
        """When the object was modified, in epoch seconds, and its bytes. Raises FileNotFoundError."""

        def send(client: Any, target: dict[str, str]) -> tuple[tuple[float, int], int, int]:
            answer = client.head_object(**target)
            return (answer["LastModified"].timestamp(), int(answer["ContentLength"])), 0, 0

        return self._ask("head", path, send)

    def put_if_absent(self, path: str, data: bytes) -> bool:
        """Create the object; False if another certainly has the path. Raises StoreUnavailable if nobody can know."""
        key = self.place.key(path)
        with waiting_for(f"put_if_absent of s3://{self.place.bucket}/{key}"):
            return self._put_if_absent(key, data)

    def _put_if_absent(self, key: str, data: bytes) -> bool:
        certain = True
        for attempt in range(ATTEMPTS_MAX):
            try:
                s3_client().put_object(Bucket=self.place.bucket, Key=key, Body=data, IfNoneMatch="*")
            except (ClientError, BotoCoreError, HTTPError, OSError) as error:
                self._counter.count("put_if_absent", failures=1, bytes_written=len(data))
                events.emit(
                    events.StoreRequested(
                        table=self.root, operation="put_if_absent", result=result_of(error), bytes_written=len(data)
                    )
                )
                if isinstance(error, ClientError) and status_of(error) == 412:
                    if certain:
                        return False
                    raise StoreUnavailable(
                        f"s3://{self.place.bucket}/{key} is taken, perhaps by an earlier attempt of this very put whose"
                        " answer was lost: read it back",
                        path=f"s3://{self.place.bucket}/{key}",
                    ) from error
                if not is_transient(error):
                    if certain:
                        raise explain(error, "put_if_absent", self.place, key) from error
                    raise StoreUnavailable(
                        f"put_if_absent of s3://{self.place.bucket}/{key}: an attempt's answer was lost, the next was"
                        f" refused ({error}): read it back",
                        path=f"s3://{self.place.bucket}/{key}",
                    ) from error
                certain = certain and never_arrived(error)
                writes.failed(self.place.bucket, f"put_if_absent of s3://{self.place.bucket}/{key} failed: {error}")
                if attempt + 1 < ATTEMPTS_MAX:
                    time.sleep(backoff_seconds(attempt))
                    continue
                raise StoreUnavailable(
                    f"put_if_absent of s3://{self.place.bucket}/{key} got no answer in {ATTEMPTS_MAX} attempts and"
                    f" may or may not have landed, last: {error}",
                    path=f"s3://{self.place.bucket}/{key}",
                ) from error
            writes.worked(self.place.bucket)
            self._counter.count("put_if_absent", bytes_written=len(data))
            events.emit(
                events.StoreRequested(table=self.root, operation="put_if_absent", result="ok", bytes_written=len(data))
            )
            return True
        raise AssertionError("the loop returns or raises")

    def put(self, path: str, data: bytes) -> None:
        """Create or replace the object with one request."""

        def send(client: Any, target: dict[str, str]) -> tuple[None, int, int]:
            client.put_object(**target, Body=data)
            return None, 0, len(data)

        self._ask("put", path, send)

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
                if code_of(error) != "NoSuchUpload" or self.size(path) != size:
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
        """The error that the store reports for one object of several; None if the object is gone."""
        error = ClientError({"Error": {"Code": answer["Code"], "Message": answer.get("Message", "")}}, "DeleteObjects")
        if is_transient(error):
            return StoreUnavailable(
                f"delete of s3://{self.place.bucket}/{answer['Key']} failed: {error}",
                path=f"s3://{self.place.bucket}/{answer['Key']}",
            )
        found = explain(error, "delete", self.place, answer["Key"])
        return found if isinstance(found, LakebedError) else None

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order; none is no error."""
        prefix = self.place.key(folder) + "/"
        # StartAfter leaves out the name itself, so begin at a strict prefix of it and drop what comes before.
        after = {"StartAfter": prefix + start[:-1]} if len(start) > 1 else {}
        names: list[str] = []
        for page in self._pages("list_from", folder + "/", Prefix=prefix, Delimiter="/", **after):
            names.extend(item["Key"][len(prefix) :] for item in page.get("Contents", ()))
        return sorted(name for name in names if name and name >= start)

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly in ``folder`` (empty: at the root), in byte order; none is no error."""
        return sorted(name for name, size, _ in self.children(folder) if size is None)

    def children(self, folder: str) -> Iterator[tuple[str, int | None, float]]:
        """What is directly in ``folder`` (empty: at the root), in no order: name, bytes, modified in epoch seconds; of a folder
        its name alone."""
        inside = self.place.key(folder) if folder else self.place.prefix
        prefix = f"{inside}/" if inside else ""
        for page in self._pages("list", f"{folder}/", Prefix=prefix, Delimiter="/"):
            for item in page.get("CommonPrefixes", ()):
                if name := item["Prefix"][len(prefix) : -1]:
                    yield name, None, 0.0
            for item in page.get("Contents", ()):
                if name := item["Key"][len(prefix) :]:
                    yield name, int(item["Size"]), item["LastModified"].timestamp()

    def has_folder(self, folder: str) -> bool:
        """Whether an object's path begins with that of a folder."""
        request = {"Bucket": self.place.bucket, "Prefix": f"{self.place.key(folder)}/", "MaxKeys": 1}

        def send(client: Any, _: dict[str, str]) -> tuple[bool, int, int]:
            return bool(client.list_objects_v2(**request).get("Contents")), 0, 0

        return self._ask("list", f"{folder}/", send)

    def list(self, prefix: str) -> Iterator[tuple[str, int, float]]:
        """All objects whose path begins with ``prefix``, page by page."""
        for page in self._pages("list", prefix, Prefix=self.place.key(prefix)):
            for item in page.get("Contents", ()):
                yield self.place.name(item["Key"]), int(item["Size"]), item["LastModified"].timestamp()

    def _pages(self, operation: str, path: str, **request: Any) -> Iterator[dict[str, Any]]:
        """The answers to a request for a list."""
        page = {"Bucket": self.place.bucket, **request}
        while True:

            def send(client: Any, _: dict[str, str], page: dict[str, Any] = page) -> tuple[dict[str, Any], int, int]:
                return client.list_objects_v2(**page), 0, 0

            answer = self._ask(operation, path, send)
            yield answer
            if not answer.get("IsTruncated"):
                return
            page = page | {"ContinuationToken": answer["NextContinuationToken"]}

    def now(self) -> float:
        """The time in the server's answer: the end of that second."""

        def send(client: Any, _: dict[str, str]) -> tuple[str, int, int]:
            request = {"Bucket": self.place.bucket, "Prefix": self.place.key(""), "MaxKeys": 1}
            return client.list_objects_v2(**request)["ResponseMetadata"]["HTTPHeaders"]["date"], 0, 0

        return parsedate_to_datetime(self._ask("list", "", send)).timestamp() + 1

    def _ask(
        self,
        operation: str,
        path: str,
        send: Callable[[Any, dict[str, str]], tuple[T, int, int]],
        attempts_max: int = ATTEMPTS_MAX,
    ) -> T:
        key = self.place.key(path)
        target = {"Bucket": self.place.bucket, "Key": key}
        return with_retries(
            self._counter, operation, self.place, key, lambda client: send(client, target), attempts_max
        )
