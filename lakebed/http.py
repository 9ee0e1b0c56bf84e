"""The one HTTP server of lakebed: the service, the page and the metrics are applications of it.

A page of another site may have a domain that resolves to this machine (DNS rebinding). So a server that answers callers without a
token refuses requests under a name that is neither an address nor its own. ``LAKEBED_HOSTS`` may list further names, with commas
between, for servers that are reached under a name of DNS.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import re
import socket
import threading
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from lakebed.errors import InvalidInput, MissingPrerequisite

_REFUSED = (
    "this server answers to an address, to localhost, to this machine's name, to the host that it was started with and to the "
    "names in LAKEBED_HOSTS"
)
_PORT = re.compile(r":\d*$")


class Hosts:
    """The names of this machine, and the host that a server was started with: under these it answers."""

    def __init__(self, host: str) -> None:
        own = {
            "localhost",
            host,
            socket.gethostname(),
            socket.getfqdn(),
            *os.environ.get("LAKEBED_HOSTS", "").split(","),
        }
        self._names = {name.strip().lower() for name in own} - {""}

    def is_allowed(self, hosts: Sequence[str]) -> bool:
        """Whether the Host headers of a request are exactly one, with an IP address or a name of this machine."""
        if len(hosts) != 1:
            return False
        name = _PORT.sub("", hosts[0].strip().lower())
        if name.startswith("[") and name.endswith("]"):
            name = name[1:-1]
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


class HostCheck:
    """Middleware (ASGI): a request under a name that is not allowed gets 421 and a problem document (RFC 9457)."""

    def __init__(self, application: ASGIApp, hosts: Hosts) -> None:
        self._application = application
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._hosts.is_allowed(Headers(scope=scope).getlist("host")):
            status = HTTPStatus.MISDIRECTED_REQUEST
            problem = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": _REFUSED}
            await Response(json.dumps(problem), status, media_type="application/problem+json")(scope, receive, send)
            return
        await self._application(scope, receive, send)


def is_loopback(host: str) -> bool:
    """Whether nobody beyond this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# -- What answers of every server have in common: a tag, so that who has one already gets 304, and compression -------------


ZIPPING = Middleware(GZipMiddleware, minimum_size=1_400, compresslevel=4)
_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def tagged(response: Response, tag: str, request: Request) -> Response:
    """The response with its tag; without its body for a caller that has it already."""
    response.headers["ETag"] = f'W/"{tag}"'  # weak, since the same answer may be sent compressed or not
    known = request.method in ("GET", "HEAD") and tag in _TAG.findall(request.headers.get("if-none-match", ""))
    if not known:
        return response
    kept = {name: value for name, value in response.headers.items() if name not in ("content-length", "content-type")}
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={**kept, "Vary": "Accept-Encoding"})


# -- Connections that can't be held open: each has deadlines, and there is room for new ones -------------------------------
#
# A connection *waits* while no whole request has come on it: its head is incomplete, or it is idle between two requests.
#
# 1. A wait ends after ``HEAD_SECONDS`` on a new connection and after ``IDLE_SECONDS`` after an answer. Bytes that come
#    meanwhile do not prolong it.
# 2. If there are more than ``CONNECTIONS_MAX`` connections, or more than ``PEER_CONNECTIONS_MAX`` from one address, the one that
#    has waited longest, of that address in the second case, is closed for the new one. So connections without a request can't
#    keep others out. If none waits, all are at work for a caller, and the new connection gets 503.
# 3. A caller who does not read its answer has ``WRITE_SECONDS`` for what is buffered.
# 4. Whoever sends what is no request, such as a head that is too long, gets 400, and may go on sending until its wait ends:
#    if the connection were closed at once, the answer would be lost.


HEAD_SECONDS = 10.0
IDLE_SECONDS = 30.0
WRITE_SECONDS = 30.0
CONNECTIONS_MAX = 1_000
PEER_CONNECTIONS_MAX = 500
_NO_REQUEST = (
    b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"not HTTP, or its headers are too long"}'
)
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class Connections:
    """The connections of one server. Used from its event loop alone."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Connection, None] = OrderedDict()
        self._all: set[Connection] = set()
        self._by_peer: Counter[str] = Counter()

    def opened(self, new: Connection) -> bool:
        """Make room for a new connection, and count it. False: there is none."""
        if self._by_peer[new.peer] >= PEER_CONNECTIONS_MAX and not self._close_longest_waiting(new.peer):
            return False
        if len(self._all) >= CONNECTIONS_MAX and not self._close_longest_waiting(None):
            return False
        self._all.add(new)
        self._by_peer[new.peer] += 1
        return True

    def waits(self, connection: Connection) -> None:
        """No request is under way on a connection from now on."""
        self._waiting[connection] = None
        self._waiting.move_to_end(connection)

    def works(self, connection: Connection) -> None:
        """A request is under way on a connection."""
        self._waiting.pop(connection, None)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._waiting.pop(connection, None)
        if connection in self._all:
            self._all.discard(connection)
            self._by_peer[connection.peer] -= 1
            if not self._by_peer[connection.peer]:
                del self._by_peer[connection.peer]

    def _close_longest_waiting(self, peer: str | None) -> bool:
        for one in self._waiting:
            if peer is None or one.peer == peer:
                one.transport.abort()
                self.closed(one)
                return True
        return False


class Connection(H11Protocol):
    """One connection, whose waits are bounded."""

    def __init__(
        self, config: Config, server_state: ServerState, loop: asyncio.AbstractEventLoop, connections: Connections
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self.peer = ""
        self._connections = connections
        self._wait: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        if not self._connections.opened(self):
            transport.write(_BUSY)
            transport.close()
            return
        self._begin_wait(HEAD_SECONDS)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing() or self._is_refused:
            return
        super().data_received(data)
        if self._wait is not None and self.cycle is not None and not self.cycle.response_complete:
            self._end_wait()
            self._connections.works(self)

    def send_400_response(self, msg: str) -> None:
        self._is_refused = True
        head = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: application/problem+json\r\n"
        self.transport.write(head + b"Content-Length: %d\r\n\r\n" % len(_NO_REQUEST) + _NO_REQUEST)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._unset_keepalive_if_required()  # uvicorn's timer begins again with each byte
        if not self.transport.is_closing() and (self.cycle is None or self.cycle.response_complete):
            self._begin_wait(IDLE_SECONDS)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stuck = self._stuck or self.loop.call_later(WRITE_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._end_wait()
        self.resume_writing()
        self._connections.closed(self)

    def _begin_wait(self, seconds: float) -> None:
        self._end_wait()
        self._wait = self.loop.call_later(seconds, self.transport.abort)
        self._connections.waits(self)

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None


# -- An application (ASGI) on a port ---------------------------------------------------------------------------------------


HEAD_BYTES_MAX = 256 << 10  # a cursor of the events of 10,000 tables is a parameter of 200 KB
_STOP_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    what: str = "the server"
    """What is served, in messages."""
    option: str = "--host and --port"
    """Where its user sets host and port, in messages."""
    certificate: str | None = None
    """With ``key``, a file in PEM: for HTTPS."""
    key: str | None = None


class HttpServer:
    """An application at ``url``, from ``start`` until ``close``."""

    def __init__(self, application: ASGIApp, listening: Listening) -> None:
        """Takes the port.

        Raises:
            MissingPrerequisite: The port is taken.
            InvalidInput: The host, the port or the certificate can't be used.
        """
        if (listening.certificate is None) != (listening.key is None):
            raise InvalidInput("--certificate and --key belong together: give both or none")
        self._socket = _bound(listening)
        config = uvicorn.Config(
            application,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            lifespan="off",
            ws="none",
            h11_max_incomplete_event_size=HEAD_BYTES_MAX,
            timeout_graceful_shutdown=_STOP_SECONDS_MAX,
            ssl_certfile=listening.certificate,
            ssl_keyfile=listening.key,
        )
        try:
            config.load()
        except (OSError, ValueError) as error:
            self._socket.close()
            raise InvalidInput(f"the certificate or its key can't be used: {error}") from None
        self.host, self.port = listening.host, int(self._socket.getsockname()[1])
        spelled = f"[{listening.host}]" if ":" in listening.host else listening.host
        self.url = f"{'https' if listening.certificate else 'http'}://{spelled}:{self.port}"
        self._server = _Uvicorn(config)
        self._thread = threading.Thread(target=self._run, name="lakebed-http", daemon=True)

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Take no more requests, end those that are under way within seconds, and free the port."""
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


class _Uvicorn(uvicorn.Server):
    """Accepts connections whose waits are bounded, that of the handshake of TLS among them."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        assert sockets is not None
        loop, config, connections = asyncio.get_running_loop(), self.config, Connections()
        more: dict[str, Any] = {"ssl_handshake_timeout": HEAD_SECONDS} if config.ssl else {}
        self.servers = [
            await loop.create_server(
                lambda: Connection(config, self.server_state, loop, connections), sock=one, ssl=config.ssl, **more
            )
            for one in sockets
        ]
        self.started = True


def _bound(listening: Listening) -> socket.socket:
    host, port = listening.host, listening.port
    if not host:
        raise InvalidInput(
            f"the host of {listening.what} is empty, which means every address of this machine; set {listening.option} "
            "(0.0.0.0, if that is wanted)"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        out = socket.socket(family, kind, protocol)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        out.bind(address)
        out.listen(socket.SOMAXCONN)
    except OverflowError:
        raise InvalidInput(f"the port of {listening.what} is {port}; it must be between 0 and 65535") from None
    except OSError as error:
        raise MissingPrerequisite(
            f"{listening.what} can't be served on {host}:{port} ({error.strerror or error}); set {listening.option} to a free "
            "port"
        ) from None
    return out


class MetricsServer(HttpServer):
    """The metrics at ``url``, until ``close``."""

    def __init__(self, registry: CollectorRegistry, listening: Listening) -> None:
        """Takes the port. Raises MissingPrerequisite, InvalidInput."""

        def scrape(request: Request) -> Response:
            encode, kind = choose_encoder(request.headers.get("accept", ""))
            return Response(encode(registry), headers={"Content-Type": kind})

        application = Starlette(
            routes=[Route(path, scrape) for path in ("/metrics", "/")],
            middleware=[Middleware(HostCheck, Hosts(listening.host)), ZIPPING],
        )
        super().__init__(application, listening)
        self.url = f"{self.url}/metrics"
