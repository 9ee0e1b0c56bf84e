"""A proxy between an S3 client and an S3 server that delays and loses requests and answers, as networks and stores do.

Invariants:

- What is passed on is passed on byte for byte: the request's line, its headers (Host among them) and its body are never
  rewritten, so signatures stay valid. Bodies are streamed, never held whole.
- Whether a request fails, and how, is drawn from one seeded generator in order of arrival, or was asked for by
  ``fail_next``. A request that was not chosen reaches the server.

A fault hits a request in one of three places:

1. BEFORE: the server never sees the request; the client gets ``refusal``, by default 503 SlowDown.
2. RESET: the server never sees the request; the client's connection is reset.
3. AFTER: the server does all of it; then the connection is dropped, so the client does not know.

Steps for each request on a client's connection:

1. Read the head, draw the fault, count the request, wait ``delay_seconds``.
2. Pass the head on, then relay the body to the server while the server's answer is awaited: a client that sent
   ``Expect: 100-continue`` holds its body back until the server's interim answer reaches it.
3. Relay the answer; go on with the next request unless either side closes.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Self

from tests.infra.server import HOST, ServerFailed

CHUNK_BYTES = 256 * 1024
HEAD_BYTES_MAX = 64 * 1024
SERVER_SECONDS_MAX = 60
RECENT_MAX = 100
SLOW_DOWN = (503, "Slow Down", "SlowDown")
"""Status, reason and code of S3."""


class Fault(enum.Enum):
    """Where a request fails."""

    BEFORE = "before"
    RESET = "reset"
    AFTER = "after"


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The share of requests, 0 to 1, that meet each fault, among those of the methods and with the text in the path."""

    before: float = 0.0
    reset: float = 0.0
    after: float = 0.0
    methods: frozenset[str] | None = None
    path_contains: str = ""


@dataclass(slots=True)
class Request:
    """A request, and who made it: ``agent`` is what the client calls itself. Bytes are those of bodies."""

    method: str
    path: str
    agent: str = ""
    bytes_sent: int = 0
    bytes_received: int = 0


@dataclass(slots=True)
class Traffic:
    """What went through, by method; bytes are those of bodies. ``stored``: payloads of PUTs answered with 200, by path;
    ``refused``: those of the others; ``recent``: the last requests, oldest first.
    """

    requests: Counter[str] = field(default_factory=Counter)
    bytes_sent: Counter[str] = field(default_factory=Counter)
    bytes_received: Counter[str] = field(default_factory=Counter)
    faults: Counter[Fault] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    recent: deque[Request] = field(default_factory=lambda: deque(maxlen=RECENT_MAX))


@dataclass(frozen=True, slots=True)
class _Planned:
    fault: Fault
    method: str | None
    path_contains: str


@dataclass(frozen=True, slots=True)
class _Head:
    raw: bytes
    first: str
    second: str
    headers: dict[str, str]

    @property
    def is_chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def body_bytes(self) -> int | None:
        length = self.headers.get("content-length")
        return None if length is None else int(length)

    @property
    def payload_bytes(self) -> int:
        """Of the body, without the framing that signs it piece by piece."""
        return int(self.headers.get("x-amz-decoded-content-length", self.body_bytes or 0))

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


class FaultProxy:
    """A proxy on a loopback port of its own; ``endpoint`` is what S3 clients are given."""

    def __init__(self, server_port: int, seed: int = 0) -> None:
        self._server_port = server_port
        self._random = random.Random(seed)
        self._rates = FaultRates()
        self._planned: list[_Planned] = []
        self._lock = threading.Lock()
        self._traffic = Traffic()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server: asyncio.Server | None = None
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.delay_seconds = 0.0
        self.refusal = SLOW_DOWN
        self.port = 0

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def set_rates(self, rates: FaultRates, seed: int | None = None) -> None:
        """From now on fails this share of requests; ``seed`` begins the draws anew."""
        with self._lock:
            self._rates = rates
            if seed is not None:
                self._random.seed(seed)

    def fail_next(self, fault: Fault, count: int = 1, method: str | None = None, path_contains: str = "") -> None:
        """Fails the next ``count`` requests of the method with the text in their path, whatever the rates are."""
        with self._lock:
            self._planned += [_Planned(fault, method, path_contains)] * count

    def traffic(self, reset: bool = False) -> Traffic:
        """What went through since the start, or since the last call with ``reset``."""
        with self._lock:
            copy = deepcopy(self._traffic)
            if reset:
                self._traffic = Traffic()
            return copy

    def start(self) -> Self:
        """Listens on a free port (after ``stop`` or ``kill``: on the same one as before)."""
        if self._thread is not None:
            raise ServerFailed("the fault proxy runs already: stop it first")
        listening: socket.socket = socket.create_server((HOST, self.port), backlog=256)
        self.port = listening.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        started = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(self._loop, listening, started), name="fault-proxy", daemon=True
        )
        self._thread.start()
        started.wait()
        return self

    def stop(self) -> None:
        """Stops listening and closes all connections. Idempotent."""
        self._end(abruptly=False)

    def kill(self) -> None:
        """Stops listening and resets all connections, as a store that is cut off."""
        self._end(abruptly=True)

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *raised: object) -> None:
        self.stop()

    def _run(self, loop: asyncio.AbstractEventLoop, listening: socket.socket, started: threading.Event) -> None:
        async def serve() -> None:
            self._server = await asyncio.start_server(self._serve_client, sock=listening, limit=HEAD_BYTES_MAX)

        loop.run_until_complete(serve())
        started.set()
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    def _end(self, abruptly: bool) -> None:
        loop, thread, server = self._loop, self._thread, self._server
        if loop is None or thread is None or server is None:
            return
        self._loop = self._thread = self._server = None

        async def end_connections() -> None:
            for listening in server.sockets:
                loop.remove_reader(listening)
            await asyncio.sleep(0)  # what was accepted joins the server, which it could not once the server is closed
            server.close()
            this = {asyncio.current_task()}
            while asyncio.all_tasks() - this:  # a connection that was just accepted is served first, then ended
                for task, writer in list(self._connections.items()):
                    if abruptly:
                        _reset(writer)
                    task.cancel()
                await asyncio.sleep(0)
            await asyncio.sleep(0)  # transports close their sockets one step after they were told to

        ending = asyncio.run_coroutine_threadsafe(end_connections(), loop)
        ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
        thread.join()
        ending.result()

    async def _serve_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections[task] = writer
        upstream = _Upstream(self._server_port)
        try:
            while await self._serve_request(reader, writer, upstream):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # either side went away: so does the other
        except asyncio.CancelledError:  # the proxy ends: nothing waits until a side has read what is left for it
            upstream.abort()
            writer.transport.abort()
        finally:
            del self._connections[task]
            upstream.close()
            writer.close()

    async def _serve_request(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, upstream: _Upstream
    ) -> bool:
        """Serves one request; returns whether the connection goes on."""
        request = await _read_head(client)
        if request is None:
            return False
        counted = Request(request.first, request.second, request.headers.get("user-agent", ""))
        fault = self.draw(counted)
        waits_for_go_ahead = request.headers.get("expect", "").lower() == "100-continue"
        if self.delay_seconds:
            await asyncio.sleep(self.delay_seconds)

        if fault is Fault.RESET:
            _reset(to_client)
            return False
        if fault is Fault.BEFORE:
            if not waits_for_go_ahead:  # unread input would turn our answer into a reset
                await _relay_body(client, None, request, request.body_bytes or 0, _nothing)
            status, reason, code = self.refusal
            xml = (
                "<?xml version='1.0' encoding='UTF-8'?><Error><Code>{}</Code><Message>injected fault</Message></Error>"
            )
            body = xml.format(code).encode()
            head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: application/xml\r\nConnection: close\r\n"
            to_client.write(
                f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + (body if counted.method != "HEAD" else b"")
            )
            await to_client.drain()
            return False

        server, to_server = await upstream.connection()
        to_server.write(request.raw)
        await to_server.drain()

        async def send_body() -> None:
            await _relay_body(client, to_server, request, request.body_bytes or 0, self._counter(counted, sent=True))

        sending: asyncio.Task[None] = asyncio.create_task(send_body())
        try:
            return await self._relay_answer(request, counted, fault, server, to_client, sending) and not request.closes
        finally:
            sending.cancel()

    async def _relay_answer(
        self,
        request: _Head,
        counted: Request,
        fault: Fault | None,
        server: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        sending: asyncio.Task[None],
    ) -> bool:
        method = request.first
        while True:
            answer = await asyncio.wait_for(_read_head(server), SERVER_SECONDS_MAX)
            if answer is None:
                return False
            status = int(answer.second)
            is_final = status >= 200
            target = None if is_final and fault is Fault.AFTER else to_client
            if target is not None:
                target.write(answer.raw)
                await target.drain()
            if is_final:
                break
        if method == "PUT":
            with self._lock:
                taken = self._traffic.stored if status == 200 else self._traffic.refused
                taken[request.second.split("?")[0]] += request.payload_bytes
        body_bytes = 0 if method == "HEAD" or status in (204, 304) else answer.body_bytes
        await _relay_body(server, target, answer, body_bytes, self._counter(counted, sent=False), method == "HEAD")
        if fault is Fault.AFTER or answer.closes or (body_bytes is None and not answer.is_chunked):
            return False
        # A server may refuse a request without reading its body; the rest of the body would be taken for a request.
        return sending.done() and sending.exception() is None

    def draw(self, request: Request) -> Fault | None:
        with self._lock:
            self._traffic.requests[request.method] += 1
            self._traffic.recent.append(request)
            fault = self._draw_locked(request.method, request.path)
            if fault is not None:
                self._traffic.faults[fault] += 1
            return fault

    def _draw_locked(self, method: str, path: str) -> Fault | None:
        for index, planned in enumerate(self._planned):
            if planned.method in (None, method) and planned.path_contains in path:
                return self._planned.pop(index).fault
        rates = self._rates
        if (rates.methods is not None and method not in rates.methods) or rates.path_contains not in path:
            return None
        draw = self._random.random()
        for fault, rate in ((Fault.BEFORE, rates.before), (Fault.RESET, rates.reset), (Fault.AFTER, rates.after)):
            if draw < rate:
                return fault
            draw -= rate
        return None

    def _counter(self, request: Request, sent: bool) -> Callable[[int], None]:
        def count(byte_count: int) -> None:
            with self._lock:
                if sent:
                    request.bytes_sent += byte_count
                    self._traffic.bytes_sent[request.method] += byte_count
                else:
                    request.bytes_received += byte_count
                    self._traffic.bytes_received[request.method] += byte_count

        return count


class _Upstream:
    """The connection to the server that belongs to one client connection, opened when needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._streams is not None and self._streams[0].at_eof():  # the server closed an idle connection
            self.close()
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port, limit=HEAD_BYTES_MAX)
        return self._streams

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None

    def abort(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


async def _read_head(reader: asyncio.StreamReader) -> _Head | None:
    """The next request's or answer's head; None when the other side closed before it began one."""
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as end:
        if end.partial:
            raise
        return None
    first_line, *lines = raw.decode("latin-1").split("\r\n")[:-2]
    first, second, *_ = first_line.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Head(raw, first, second, headers)


async def _relay_body(
    source: asyncio.StreamReader,
    target: asyncio.StreamWriter | None,
    head: _Head,
    body_bytes: int | None,
    count: Callable[[int], None],
    is_empty: bool = False,
) -> None:
    """Relays a body as its head frames it: chunked, of a length, or (``body_bytes`` None) until the source closes."""
    if is_empty:
        return

    async def pass_on(data: bytes) -> None:
        count(len(data))
        if target is not None:
            target.write(data)
            await target.drain()

    if head.is_chunked:
        await _relay_chunks(source, pass_on)
        return
    left = body_bytes
    while left is None or left > 0:
        data = await source.read(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
        if not data:
            if left is None:
                return
            raise asyncio.IncompleteReadError(b"", left)
        await pass_on(data)
        left = None if left is None else left - len(data)


async def _relay_chunks(source: asyncio.StreamReader, pass_on: Callable[[bytes], Coroutine[None, None, None]]) -> None:
    while True:
        size_line = await source.readuntil(b"\r\n")
        await pass_on(size_line)
        size_bytes = int(size_line.split(b";")[0], 16)
        left = size_bytes + 2 if size_bytes else 0  # a chunk is followed by an empty line of its own
        while left:
            data = await source.readexactly(min(CHUNK_BYTES, left))
            await pass_on(data)
            left -= len(data)
        if not size_bytes:
            break
    while (trailer := await source.readuntil(b"\r\n")) != b"\r\n":
        await pass_on(trailer)
    await pass_on(b"\r\n")


def _nothing(byte_count: int) -> None:
    return None


def _reset(writer: asyncio.StreamWriter) -> None:
    """Closes a connection with a TCP reset instead of a goodbye."""
    connection = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
