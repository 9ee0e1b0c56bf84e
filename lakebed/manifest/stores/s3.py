"""A log on S3, or on a server that speaks its protocol and honours ``If-None-Match: *`` (see ``store_probe``).

Invariants: False from ``put_if_absent`` means that another object certainly has the name; True that ours certainly has.

``put_if_absent``:
1. PutObject with ``If-None-Match: *``, retried here and nowhere else, a bounded number of times.
2. 200: ours. 412: taken, by another if every earlier attempt was certainly refused.
3. An attempt whose fate is unknown (time-out, broken connection, 5xx) may have landed, now or a little later. If a
   later attempt answers 200, it had not, and ours holds the name. If a later one answers 412, the object there may be
   our own: StoreUnavailable, and the caller reads the name back to see whose it is.
"""

from __future__ import annotations

import time
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from lakebed import events
from lakebed.errors import StoreUnavailable
from lakebed.storage.counters import RequestCounter, StoreCounters
from lakebed.storage.roots import S3Root
from lakebed.storage.s3_client import (
    ATTEMPTS_MAX,
    attempt_again,
    backoff_seconds,
    explain,
    is_transient,
    never_arrived,
    result_of,
    s3_client,
    status_of,
)


class S3LogStore:
    """``LogStore`` over a bucket and a prefix. Picklable: what it holds is a place, and a count that starts anew."""

    def __init__(self, place: S3Root) -> None:
        self.place = place
        self.root = str(place)
        self._counter = RequestCounter()

    def __repr__(self) -> str:
        return f"S3LogStore({self.root!r})"

    def counters(self) -> StoreCounters:
        """Requests and bytes so far, by operation."""
        return self._counter.value()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create the object; False if another certainly has the name. Raises StoreUnavailable if nobody can know."""
        key = self.place.key(name)
        client = s3_client()
        certain = True
        for attempt in range(ATTEMPTS_MAX):
            try:
                client.put_object(Bucket=self.place.bucket, Key=key, Body=data, IfNoneMatch="*")
            except (ClientError, BotoCoreError, HTTPError, OSError) as error:
                self._counter.count("put_if_absent", failures=1, bytes_written=len(data))
                said = result_of(error)
                events.emit(events.StoreRequested(self.root, "put_if_absent", said, bytes_written=len(data)))
                if isinstance(error, ClientError) and status_of(error) == 412:
                    if certain:
                        return False
                    raise StoreUnavailable(
                        f"s3://{self.place.bucket}/{key} is taken, perhaps by an earlier attempt of this very put whose"
                        " answer was lost: read it back"
                    ) from error
                if not is_transient(error):
                    if certain:
                        raise explain(error, "put_if_absent", self.place, key) from error
                    raise StoreUnavailable(
                        f"put_if_absent of s3://{self.place.bucket}/{key}: an attempt's answer was lost, the next was"
                        f" refused ({error}): read it back"
                    ) from error
                certain = certain and never_arrived(error)
                if attempt + 1 < ATTEMPTS_MAX:
                    time.sleep(backoff_seconds(attempt))
                    continue
                raise StoreUnavailable(
                    f"put_if_absent of s3://{self.place.bucket}/{key} got no answer in {ATTEMPTS_MAX} attempts and"
                    f" may or may not have landed, last: {error}"
                ) from error
            self._counter.count("put_if_absent", bytes_written=len(data))
            events.emit(events.StoreRequested(self.root, "put_if_absent", "ok", bytes_written=len(data)))
            return True
        raise AssertionError("the loop returns or raises")

    def put(self, name: str, data: bytes) -> None:
        """Create or replace the object."""

        def send(client: Any) -> tuple[None, int, int]:
            client.put_object(Bucket=self.place.bucket, Key=self.place.key(name), Body=data)
            return None, 0, len(data)

        attempt_again(self._counter, "put", self.place, self.place.key(name), send)

    def read(self, name: str) -> bytes:
        """The object's bytes. Raises FileNotFoundError if there is none, StoreUnavailable if the store fails."""

        def send(client: Any) -> tuple[bytes, int, int]:
            answer = client.get_object(Bucket=self.place.bucket, Key=self.place.key(name))
            with answer["Body"] as body:
                data: bytes = body.read()
            return data, len(data), 0

        return attempt_again(self._counter, "read", self.place, self.place.key(name), send)

    def list_from(self, folder: str, start: str) -> list[str]:
        """Base names of the objects directly in ``folder``, at or after ``start``, in byte order; none is no error."""
        prefix = self.place.key(folder) + "/"
        # StartAfter leaves out the name itself, so begin at a strict prefix of it and drop what comes before.
        request: dict[str, Any] = {"Bucket": self.place.bucket, "Prefix": prefix, "Delimiter": "/"}
        if len(start) > 1:
            request["StartAfter"] = prefix + start[:-1]
        names: list[str] = []
        while True:
            page = dict(request)

            def send(client: Any, page: dict[str, Any] = page) -> tuple[dict[str, Any], int, int]:
                return client.list_objects_v2(**page), 0, 0

            answer = attempt_again(self._counter, "list_from", self.place, prefix, send)
            names.extend(item["Key"][len(prefix) :] for item in answer.get("Contents", ()))
            if not answer.get("IsTruncated"):
                return sorted(name for name in names if name and name >= start)
            request["ContinuationToken"] = answer["NextContinuationToken"]

    def delete(self, name: str) -> None:
        """Remove the object; removing a name that is not there is no error."""

        def send(client: Any) -> tuple[None, int, int]:
            client.delete_object(Bucket=self.place.bucket, Key=self.place.key(name))
            return None, 0, 0

        try:
            attempt_again(self._counter, "delete", self.place, self.place.key(name), send)
        except FileNotFoundError:
            return
