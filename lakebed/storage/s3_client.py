"""One S3 client for a process, and one way to retry: every request to S3 goes through this module.

Invariants: every request that is sent is counted, also a failed one; a request is sent a bounded number of times; an
error that no retry can cure names the bucket and what to check.

1. ``s3_client()`` gives the process's client (boto3's usual chain of credentials, profile and endpoint). It is
   thread-safe and pools its connections. A forked child gets its own, since connections must not be shared.
2. botocore's own retries are off: ``with_retries`` is the only loop, so that a caller can know whether an earlier
   attempt may have reached the server (which decides what a refused conditional put means).
3. ``explain`` turns botocore's errors into ours.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    ResponseStreamingError,
    SSLError,
)
from botocore.exceptions import ConnectionError as EndpointError
from urllib3.exceptions import HTTPError

from lakebed import events
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, StoreUnavailable
from lakebed.storage.counters import RequestCounter
from lakebed.storage.roots import S3Root
from lakebed.waits import waiting_for

T = TypeVar("T")

ATTEMPTS_MAX = 8
_BACKOFF_FIRST_SECONDS = 0.05
_BACKOFF_LONGEST_SECONDS = 2.0
_PATIENCE_SECONDS = 120.0
"""No request is tried again after that time."""
_CONNECT_TIMEOUT_SECONDS = 5
_READ_TIMEOUT_SECONDS = 7
"""Without a byte of an answer. So long a thread waits after an outage, if a network has forgotten its connection."""
_WRITES = frozenset(("put", "put_if_absent", "create_upload", "upload_part", "complete_upload"))
WRITES_SECONDS = 3.0  # how long no write has had success before the store counts as down
WRITES_SECONDS_MAX = 30.0
"""After the last failure: whoever still wants to write would have tried again."""
_CONNECTIONS_MAX = 128
"""Kept open for the next request. A process that keeps a database has more threads than one that keeps a table; beyond the limit
each request makes a connection, and the client logs a warning."""

_TRANSIENT_CODES = {
    "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded", "RequestTimeout",
    "RequestTimeoutException", "InternalError", "ServiceUnavailable", "BadDigest", "IncompleteBody",
}  # fmt: skip
_DENIED_CODES = {
    "AccessDenied", "Forbidden", "403", "401", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken",
    "InvalidToken", "AccountProblem", "AllAccessDisabled", "RequestTimeTooSkewed", "XAmzContentSHA256Mismatch",
}  # fmt: skip
_THROTTLING_CODES = {"SlowDown", "Throttling", "ThrottlingException", "TooManyRequests", "RequestLimitExceeded"}
_MISSING_CODES = {"NoSuchKey", "404", "NotFound"}

_patience_seconds = _PATIENCE_SECONDS
timeouts: tuple[float, float] = (_CONNECT_TIMEOUT_SECONDS, _READ_TIMEOUT_SECONDS)
_lock = threading.Lock()
_clients: dict[tuple[str | None, ...], Any] = {}


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class FailingWrites:
    """Whether writes fail, by bucket. A store may answer every read and yet refuse all that is written: one without room does."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failing: dict[str, tuple[float, float, str]] = {}  # since when, until when, and the last error

    def failed(self, bucket: str, error: str) -> None:
        """A write had no success, and may have it a moment later."""
        now = self._clock()
        since, last, _ = self._failing.get(bucket, (now, now, ""))
        self._failing[bucket] = since if now - last <= WRITES_SECONDS_MAX else now, now, error

    def worked(self, bucket: str) -> None:
        """A write had success, or nothing is known any more."""
        self._failing.pop(bucket, None)

    def error(self, bucket: str) -> str | None:
        """Why none has had success for ``WRITES_SECONDS`` and more; None if one had, or if nothing is written."""
        now = self._clock()
        since, last, error = self._failing.get(bucket, (now, now, ""))
        return error if now - since >= WRITES_SECONDS and now - last <= WRITES_SECONDS_MAX else None


writes = FailingWrites()
"""Of this process."""


def be_impatient(seconds: float) -> None:
    """From now on no request of this process takes longer, with all its attempts: for a command that a user waits for."""
    global _patience_seconds, timeouts
    before, longest = timeouts, 0.4 * seconds
    timeouts = (min(_CONNECT_TIMEOUT_SECONDS, longest), min(_READ_TIMEOUT_SECONDS, longest))
    _patience_seconds = seconds - timeouts[1]  # an attempt that begins then may take so long
    if before != timeouts:
        forget_connections()


def forget_connections() -> None:
    """Make other connections from now on: after an outage the network may have lost those that are kept."""
    with _lock:
        _clients.clear()


def s3_client() -> Any:
    """The client for the environment's endpoint and credentials, made once a process and environment."""
    names = (
        "AWS_ENDPOINT_URL_S3",
        "AWS_ENDPOINT_URL",
        "AWS_PROFILE",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    )
    identity = tuple(os.environ.get(name) for name in names)
    found = _clients.get(identity)
    if found is None:
        with _lock:  # one thread makes the client, which may ask for credentials; the others wait for it
            found = _clients.get(identity)
            if found is None:
                found = _clients[identity] = _new_client()
    return found


def _new_client() -> Any:
    common: dict[str, Any] = {
        "retries": {"total_max_attempts": 1},
        "connect_timeout": timeouts[0],
        "read_timeout": timeouts[1],
        "max_pool_connections": _CONNECTIONS_MAX,
        "tcp_keepalive": True,
        "user_agent_extra": "lakebed",
    }
    region = os.environ.get("AWS_REGION")  # boto3 knows only AWS_DEFAULT_REGION; every other AWS SDK this one
    try:
        session = boto3.session.Session(region_name=region)
        client = session.client("s3", config=Config(**common))
        host = urlsplit(client.meta.endpoint_url).hostname or ""
        if host.endswith((".amazonaws.com", ".amazonaws.com.cn")):
            return client
        # A server of one's own rarely has a DNS name for every bucket, nor boto3's newest checksum trailers.
        plain: dict[str, Any] = {"s3": {"addressing_style": "path"}}
        if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
            plain["request_checksum_calculation"] = "when_required"
        if "AWS_RESPONSE_CHECKSUM_VALIDATION" not in os.environ:
            plain["response_checksum_validation"] = "when_required"
        return session.client("s3", config=Config(**common, **plain))
    except ProfileNotFound as error:
        raise InvalidInput(f"{error}; set AWS_PROFILE to a profile of ~/.aws/config or unset it") from error
    except (BotoCoreError, ValueError) as error:
        raise InvalidInput(f"no S3 client can be made: {error}; check AWS_ENDPOINT_URL and the AWS settings") from error


def with_retries(
    counter: RequestCounter,
    operation: str,
    root: S3Root,
    key: str,
    send: Callable[[Any], tuple[T, int, int]],
    attempts_max: int = ATTEMPTS_MAX,
) -> T:
    """Send an idempotent request until it is answered; ``send(client)`` returns (result, bytes read, bytes written).

    Raises FileNotFoundError for a missing key, StoreUnavailable when the attempts are used up, else see ``explain``.
    """
    with waiting_for(f"{operation} of s3://{root.bucket}/{key}"):
        return _with_retries(counter, operation, root, key, send, attempts_max)


def _with_retries(
    counter: RequestCounter,
    operation: str,
    root: S3Root,
    key: str,
    send: Callable[[Any], tuple[T, int, int]],
    attempts_max: int,
) -> T:
    began = time.monotonic()
    for attempt in range(attempts_max):
        client = s3_client()  # each time, since connections may have been forgotten meanwhile
        try:
            result, read, written = send(client)
        except (ClientError, BotoCoreError, HTTPError, OSError) as error:
            counter.count(operation, failures=1)
            events.emit(events.StoreRequested(table=str(root), operation=operation, result=result_of(error)))
            if not is_transient(error):
                raise explain(error, operation, root, key) from error
            if operation in _WRITES:
                writes.failed(root.bucket, f"{operation} of s3://{root.bucket}/{key} failed: {error}")
            if attempt + 1 == attempts_max or time.monotonic() - began > _patience_seconds:
                raise StoreUnavailable(
                    f"{operation} of s3://{root.bucket}/{key} failed {attempt + 1} times, last: {error}",
                    table=str(root),
                    path=f"s3://{root.bucket}/{key}",
                ) from error
            time.sleep(backoff_seconds(attempt))
        else:
            if operation in _WRITES:
                writes.worked(root.bucket)
            counter.count(operation, bytes_read=read, bytes_written=written)
            events.emit(
                events.StoreRequested(
                    table=str(root), operation=operation, result="ok", bytes_read=read, bytes_written=written
                )
            )
            return result
    raise AssertionError("attempts_max must be positive")


def backoff_seconds(attempt: int) -> float:
    """A wait before the next attempt: doubling, bounded, and spread so that writers that collided do not collide again."""
    longest = min(_BACKOFF_LONGEST_SECONDS, _BACKOFF_FIRST_SECONDS * 2.0**attempt)
    return longest * (0.5 + random.random() / 2)


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, ClientError):
        return code_of(error) in _TRANSIENT_CODES or status_of(error) in (409, 429) or _is_of_the_server(error)
    if isinstance(error, SSLError):
        return False  # a wrong certificate stays wrong
    if isinstance(error, (EndpointError, HTTPClientError, ResponseStreamingError, IncompleteReadError, HTTPError)):
        return True  # no connection, a time-out, a connection that broke, a short body
    return isinstance(error, (ConnectionError, TimeoutError))


def _is_of_the_server(error: ClientError) -> bool:
    """Whether the store has a trouble of its own, such as a full disk (MinIO's 507). What it does not support is no trouble."""
    return status_of(error) >= 500 and status_of(error) not in (501, 505)


def result_of(error: Exception) -> str:
    """The result of a failed request, in a word: see ``events.StoreRequested``."""
    if not isinstance(error, ClientError):
        return "no_answer"
    code, status = code_of(error), status_of(error)
    if code in _MISSING_CODES or status == 404:
        return "missing"
    if status == 412:
        return "taken"
    if code in _THROTTLING_CODES or status in (429, 503):
        return "throttled"
    return "denied" if code in _DENIED_CODES or status in (401, 403) else "failed"


def never_arrived(error: Exception) -> bool:
    """Whether the server certainly did not act on the request: no connection was made, or the server says so.

    409 is S3's answer to a conditional put that met another one in flight: it refuses to decide, and stores nothing.
    """
    if isinstance(error, ClientError):
        return 400 <= status_of(error) < 500
    return isinstance(error, (EndpointConnectionError, ConnectTimeoutError))


def explain(error: Exception, operation: str, root: S3Root, key: str) -> Exception:
    """The error to raise for one that no retry cures."""
    place = f"s3://{root.bucket}/{key}"
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return MissingPrerequisite(
            f"no complete S3 credentials for bucket {root.bucket!r}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY,"
            " or AWS_PROFILE, or run where an instance role is given"
        )
    if isinstance(error, ClientError):
        code = code_of(error)
        if code == "NoSuchBucket":
            return InvalidInput(
                f"bucket {root.bucket!r} does not exist at {s3_client().meta.endpoint_url}: create it, or fix the path"
                " or AWS_ENDPOINT_URL"
            )
        if code in _MISSING_CODES:
            return FileNotFoundError(place)
        if code in _DENIED_CODES or status_of(error) in (401, 403):
            return InvalidInput(
                f"{operation} of {place} was denied by bucket {root.bucket!r} ({code}): check the credentials, the"
                " clock, and that they allow s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject on it"
            )
        if status_of(error) in (301, 307, 400) and code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "301"):
            return InvalidInput(f"bucket {root.bucket!r} is in another region: set AWS_REGION to its region ({error})")
    if isinstance(error, (LakebedError, FileNotFoundError)):
        return error
    return InvalidInput(f"{operation} of {place} was refused: {error}; check the path and AWS_ENDPOINT_URL")


def code_of(error: ClientError) -> str:
    """The S3 error code, such as ``NoSuchKey``."""
    return str(error.response.get("Error", {}).get("Code", ""))


def status_of(error: ClientError) -> int:
    """The HTTP status of an error answer; 0 if it had none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
