"""Whether an object is there, asked of S3 at a small part of the processor's time that a request of boto3 takes.

A worker of a fleet asks that for thousands of tables again and again, and mostly nothing is there.

1. The client of the process says once for each bucket how its objects are addressed and for which region requests are signed:
   both stand in a presigned url (``generate_presigned_url``). Its host does not count: for AWS it is the one of all regions,
   which redirects requests for new buckets elsewhere. The host is that of the client, as for its own requests.
2. The request is one text, signed by its headers (``s3_signature``). Its answer has no body, and only its status counts. So it
   goes over a plain connection, without the layers of an HTTP client. Who asks takes the connection that was used last.
3. A connection is kept after a whole answer. One that the server closed since, or on which more came, is not used again.

An answer that is neither "there" nor "not there" says nothing: then the caller asks as usual, with retries and explanations. So
does who has a proxy in the environment, and who signs requests in another way.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
from dataclasses import dataclass, field
from functools import lru_cache
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.utils import get_environ_proxies
from urllib3.util.wait import wait_for_read

from lakebed.storage.s3.signature import head_headers

_CONNECT_SECONDS, _READ_SECONDS = 5, 5
_CONNECTIONS_MAX = 8
_ANSWER_BYTES_MAX = 64 << 10
_PROBE = "lakebed"
_FOUND = {b"200": True, b"404": False}


def is_there(client: Any, credentials: Any, bucket: str, key: str) -> bool | None:
    """Whether the object exists; None if the answer does not say. ``credentials``: those of the client."""
    try:
        place = place_of(os.getpid(), client, bucket)
        if place is None or credentials is None:
            return None
        path = place.path + quote(key, safe="/-._~")
        keys = credentials.get_frozen_credentials()
        headers = head_headers(keys, region=place.region, host=place.host, path=path, at=time.time())
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return _found(place, f"HEAD {path} HTTP/1.1\r\n{lines}User-Agent: lakebed\r\n\r\n".encode("ascii"))
    except (BotoCoreError, HTTPException, OSError, UnicodeError):
        return None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the objects of a bucket are. ``host``: as in a request's header; ``path`` comes before each key, with a slash at its
    end; ``kept``: connections that nobody uses now.
    """

    origin: str
    host: str
    path: str
    region: str
    kept: list[socket.socket] = field(default_factory=list)


def _found(place: Place, request: bytes) -> bool | None:
    """What the answer says. Raises OSError if there is none."""
    connection = _kept(place) or connected(place.origin)
    may_be_kept = False
    try:
        answer = _answer(connection, request)
        found = _FOUND.get(answer[9:12]) if answer.startswith(b"HTTP/1.") else None
        may_be_kept = found is not None and _may_be_kept(answer) and len(place.kept) < _CONNECTIONS_MAX
        return found
    finally:
        if may_be_kept:
            place.kept.append(connection)
        else:
            connection.close()


def _kept(place: Place) -> socket.socket | None:
    while True:
        try:
            connection = place.kept.pop()
        except IndexError:
            return None
        if not wait_for_read(connection, timeout=0):
            return connection
        connection.close()


def _answer(connection: socket.socket, request: bytes) -> bytes:
    """The status and the headers. Raises ConnectionError if the server closed the connection first, or goes on and on."""
    connection.sendall(request)
    answer = b""
    while b"\r\n\r\n" not in answer:
        if len(answer) >= _ANSWER_BYTES_MAX:
            raise ConnectionAbortedError(f"the server's answer has no end within {_ANSWER_BYTES_MAX} bytes")
        if not (more := connection.recv(_ANSWER_BYTES_MAX)):
            raise ConnectionResetError("the server has closed the connection")
        answer += more
    return answer


def _may_be_kept(answer: bytes) -> bool:
    """Whether the connection is where the next answer begins, and stays open."""
    is_whole = answer.find(b"\r\n\r\n") == len(answer) - 4
    return is_whole and answer.startswith(b"HTTP/1.1 ") and b"\r\nconnection: close\r\n" not in answer.lower()


def connected(origin: str) -> socket.socket:
    """A new connection, over TLS for https. Raises OSError."""
    url = urlsplit(origin)
    made = HTTPConnection(url.hostname or "", url.port, timeout=_CONNECT_SECONDS)
    if url.scheme == "https":
        bundle = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE") or str(get_cert_path(True))
        made = HTTPSConnection(url.hostname or "", url.port, timeout=_CONNECT_SECONDS, context=_tls(bundle))
    made.connect()
    made.sock.settimeout(_READ_SECONDS)
    return made.sock


@lru_cache(maxsize=2)
def _tls(bundle: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=bundle)
    context.set_alpn_protocols(["http/1.1"])
    return context


@lru_cache(maxsize=64)
def place_of(pid: int, client: Any, bucket: str) -> Place | None:
    """Where the objects of a bucket are; None if it has to be asked as usual.

    For one process, since connections must not be shared with a forked one.
    """
    url = urlsplit(client.generate_presigned_url("head_object", Params={"Bucket": bucket, "Key": _PROBE}))
    query = parse_qs(url.query)
    scope = query.get("X-Amz-Credential", [""])[0].split("/")  # the key, the day, the region, the service, aws4_request
    is_usual = query.get("X-Amz-Algorithm") == ["AWS4-HMAC-SHA256"] and scope[3:4] == ["s3"]
    endpoint, path = urlsplit(client.meta.endpoint_url), url.path.removesuffix(_PROBE)
    in_host = url.netloc.startswith(f"{bucket}.")
    origin = f"{endpoint.scheme}://{bucket}.{endpoint.netloc}" if in_host else f"{endpoint.scheme}://{endpoint.netloc}"
    is_usual = is_usual and (in_host or path.endswith(f"/{bucket}/")) and "X-Amz-S3session-Token" not in query
    if not is_usual or get_environ_proxies(origin):
        return None
    return Place(origin, _host_of(origin), path, scope[2])


def _host_of(origin: str) -> str:
    """The Host header: without a port that goes without saying, which is not signed."""
    url = urlsplit(origin)
    host = url.netloc.rpartition("@")[2].lower()
    usual = {"http": ":80", "https": ":443"}.get(url.scheme, "")
    return host.removesuffix(usual)
