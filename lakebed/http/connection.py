"""Connections that can't be held open: each has deadlines, and there is room for new ones whatever the others do.

A connection *waits* while no whole request has come on it: its head is incomplete, or it is idle between two requests.

1. A wait ends after ``HEAD_SECONDS`` on a new connection and after ``IDLE_SECONDS`` after an answer. Bytes that come meanwhile do
   not prolong it.
2. If there are more than ``CONNECTIONS_MAX`` connections, or more than ``PEER_CONNECTIONS_MAX`` from one address, the one that
   has waited longest, of that address in the second case, is closed for the new one. So connections without a request can't keep
   others out. If none waits, all are at work for a caller, and the new connection gets 503.
3. A caller who does not read its answer has ``WRITE_SECONDS`` for what is buffered.
4. Whoever sends what is no request, such as a head that is too long, gets 400, and may go on sending until its wait ends: if the
   connection were closed at once, the answer would be lost.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

HEAD_SECONDS = 10.0
IDLE_SECONDS = 30.0
WRITE_SECONDS = 30.0
CONNECTIONS_MAX = 1_000
PEER_CONNECTIONS_MAX = 500
_NO_REQUEST = (
    b'{"type":"about:blank","title":"Bad Request","status":400,"detail":"no HTTP request, or its head is too long"}'
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
