"""Requests to the service: the connections of a client, its streams of events, and errors as the library raises them."""

from __future__ import annotations

import http.client
import os
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson

from lakebed import errors
from lakebed.errors import InvalidInput, LakebedError, StoreUnavailable, Unexpected
from lakebed.listeners.event_types import TableEvent, table_event
from lakebed.version import __version__

# -- Requests to the service: the connections of a client, and errors as the library raises them ---------------------------


SECONDS_MAX = 90.0
_PREFIX = "urn:lakebed:problem:"
_DATA = frozenset({"table", "version", "path", "oldest", "newest", "operation", "attempts", "part", "invariants"})


class Transport:
    """Sends requests to one service. Safe to use from several threads: each has a connection of its own."""

    def __init__(self, url: str, token: str | None, certificates: str | None) -> None:
        """``token``: default: the environment variable LAKEBED_TOKEN. ``certificates``: whom to trust, a file in PEM.

        Raises InvalidInput for a url that is none, and for a file that has no certificates.
        """
        try:
            place = urlsplit(url)
            self._port = place.port
        except ValueError as error:
            raise InvalidInput(f"{url!r} is no address of a service: {error}") from None
        if place.scheme not in ("http", "https") or not place.hostname or place.query or place.fragment:
            raise InvalidInput(f"{url!r} is no address of a service; write http://host:port or https://host:port")
        self.url = url.rstrip("/")
        self._host = place.hostname
        self._prefix = place.path.rstrip("/")
        self._tls = _trusting(certificates) if place.scheme == "https" else None
        token = token if token is not None else os.environ.get("LAKEBED_TOKEN")
        self._headers = {"User-Agent": f"lakebed/{__version__}", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._own = threading.local()

    def get(self, *steps: str, **query: Any) -> Any:
        """The answer to a GET. ``steps``: of the path below /v1; ``query``: None is left out."""
        return self.ask("GET", steps, query=query)

    def ask(
        self,
        method: str,
        steps: tuple[str, ...],
        *,
        query: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The answer to a request, read from JSON. Raises the error that the service reports; StoreUnavailable without answer."""
        path = f"{self._prefix}/v1/" + "/".join(quote(step, safe="") for step in steps)
        given = {name: _spelled(value) for name, value in (query or {}).items() if value is not None}
        target = f"{path}?{urlencode(given)}" if given else path
        data = None if body is None else orjson.dumps(body)
        sent = {
            **self._headers,
            **(headers or {}),
            **({"Content-Type": "application/json"} if data is not None else {}),
        }
        status, answer = self._exchange(method, target, data, sent)
        if status < 400:
            return orjson.loads(answer) if answer else None
        raise error_of(status, answer, self.url)

    def pages(self, steps: tuple[str, ...], member: str = "", **query: Any) -> list[dict[str, Any]]:
        """All rows that a route lists, page by page, those of one version where it takes one.

        ``member``: of the answer that has them, by default named as the route.
        """
        found: list[dict[str, Any]] = []
        after = None
        while True:
            answer = self.get(*steps, after=after, limit=1_000, **query)
            found += answer[member or steps[-1]]
            after = answer["next"]
            if after is None:
                return found
            if "version" in query:
                query["version"] = answer["version"]

    def stream(self, steps: tuple[str, ...], query: Mapping[str, Any]) -> Iterator[bytes]:
        """The lines of an answer that goes on, by a connection of its own. Raises as ``ask``, StoreUnavailable when it ends."""
        path = f"{self._prefix}/v1/" + "/".join(quote(step, safe="") for step in steps)
        given = {name: value for name, value in query.items() if value is not None}
        connection = self._connection()
        try:
            connection.request("GET", f"{path}?{urlencode(given)}" if given else path, headers=self._headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                raise error_of(answer.status, answer.read(), self.url)
            while line := answer.readline():
                yield line
            raise StoreUnavailable(f"the service at {self.url} has ended the stream")
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from None
        finally:
            connection.close()

    def _exchange(self, method: str, target: str, data: bytes | None, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """A connection that the server has closed meanwhile is opened again, once: the request was not read then."""
        for is_last in (False, True):
            connection = getattr(self._own, "connection", None)
            is_fresh = connection is None
            if connection is None:
                connection = self._own.connection = self._connection()
            try:
                connection.request(method, target, data, dict(headers))
                answer = connection.getresponse()
                return answer.status, answer.read()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                self._drop(connection)
                if is_fresh or is_last or method not in ("GET", "PUT", "DELETE"):
                    raise self._unavailable(error) from None
            except (OSError, http.client.HTTPException) as error:
                self._drop(connection)
                raise self._unavailable(error) from None
        raise AssertionError("the loop returns or raises")

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, timeout=SECONDS_MAX, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port, timeout=SECONDS_MAX)

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        connection.close()
        self._own.connection = None

    def _unavailable(self, error: Exception) -> LakebedError:
        if isinstance(error, ssl.SSLCertVerificationError):
            return InvalidInput(
                f"the certificate of {self.url} is not trusted ({error.verify_message}), so nothing was sent; give "
                "certificates= a file in PEM with whom to trust"
            )
        return StoreUnavailable(f"the service at {self.url} does not answer: {error or type(error).__name__}")


def _trusting(certificates: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=certificates)
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInput(f"{certificates} can't be used as the file of trusted certificates: {error}") from None


def error_of(status: int, answer: bytes, url: str) -> LakebedError:
    """The error that a problem document reports, of the class that the library would raise."""
    try:
        problem = orjson.loads(answer)
        kind, detail = str(problem["type"]), str(problem["detail"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return Unexpected(
            f"{url} answered {status}, and no problem document: {answer[:200].decode(errors='replace')!r}"
        )
    known = {_slug(each.__name__): each for each in vars(errors).values() if _is_error(each)}
    found = known.get(kind.removeprefix(_PREFIX))
    if found is None:
        found = InvalidInput if status < 500 and status not in (408, 429) else StoreUnavailable
    error = found(detail)
    for name in _DATA & problem.keys():
        if hasattr(error, name):
            setattr(error, name, problem[name])
    return error


def error_named(kind: str, text: str) -> LakebedError:
    """An error of a class of the library's; Unexpected if there is none of that name."""
    found = vars(errors).get(kind)
    return found(text) if _is_error(found) and found is not None else Unexpected(text)


def _slug(name: str) -> str:
    """The name of a class in words, as in the type of a problem: ``table-not-found``."""
    return "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("-")


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, LakebedError)


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# -- Reads server-sent events of the service, and goes on where it was when the connection breaks --------------------------


_PAUSE_SECONDS = (0.5, 30.0)


@dataclass(frozen=True, slots=True)
class Heard:
    """An event, and the cursor after it: None where the next event belongs to the same read."""

    event: TableEvent
    cursor: str | None


def events(transport: Transport, steps: tuple[str, ...], after: str | int | None) -> Iterator[Heard]:
    """Events, for as long as the caller asks for the next one. Connections that break are opened again at the last cursor.

    Without ``after``, what comes between two connections before the first event is not seen: give a cursor to miss nothing.
    """
    cursor, pause = None if after is None else str(after), _PAUSE_SECONDS[0]
    while True:
        try:
            for heard in _read(transport.stream(steps, {"after": cursor})):
                cursor, pause = heard.cursor or cursor, _PAUSE_SECONDS[0]
                yield heard
        except StoreUnavailable:
            if pause >= _PAUSE_SECONDS[1]:
                raise
        time.sleep(pause)
        pause = min(_PAUSE_SECONDS[1], pause * 2)


def _read(lines: Iterator[bytes]) -> Iterator[Heard]:
    """The events of a stream. One that ends in the middle of an event has not sent it."""
    kind, data, cursor = "", b"", None
    for line in lines:
        name, _, value = line.rstrip(b"\r\n").partition(b": ")
        if name == b"event":
            kind = value.decode()
        elif name == b"data":
            data = value
        elif name == b"id":
            cursor = value.decode()
        elif not line.strip():
            if data and kind != "problem":
                yield Heard(table_event(orjson.loads(data)), cursor)
            kind, data, cursor = "", b"", None
