"""Nobody can keep others from a port: not with half a request, not byte by byte, not with many connections."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from urllib.request import urlopen

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.server import ServerState

from lakebed import http as limits
from lakebed.http import (
    HEAD_BYTES_MAX,
    HEAD_SECONDS,
    IDLE_SECONDS,
    WRITE_SECONDS,
    Connection,
    Connections,
    HttpServer,
    Listening,
)

REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Timer:
    def __init__(self, at: float, act: Callable[[], object]) -> None:
        self.at, self.act, self.is_cancelled = at, act, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Loop:
    """An event loop whose time is moved by hand, and whose tasks never run."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def call_later(self, seconds: float, act: Callable[[], object]) -> Timer:
        self.timers.append(Timer(self.now + seconds, act))
        return self.timers[-1]

    def create_task(self, task: Coroutine[Any, Any, None], **more: Any) -> Loop:
        task.close()
        return self

    def add_done_callback(self, act: object) -> None: ...

    def pass_by(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer.at <= self.now and not timer.is_cancelled]
        self.timers = [timer for timer in self.timers if timer not in due]
        for timer in due:
            timer.act()


class Transport:
    """What a connection writes to."""

    def __init__(self, peer: str) -> None:
        self.peer, self.written, self.is_open = peer, b"", True

    def get_extra_info(self, name: str) -> Any:
        return (self.peer, 1234) if name == "peername" else None

    def write(self, data: bytes) -> None:
        self.written += data

    def abort(self) -> None:
        self.is_open = False

    close = abort

    def is_closing(self) -> bool:
        return not self.is_open

    def pause_reading(self) -> None: ...

    resume_reading = pause_reading


class Listener:
    """A server's connections, without sockets."""

    def __init__(self) -> None:
        self.loop, self.connections = Loop(), Connections()
        self._config = uvicorn.Config(lambda scope: None, lifespan="off", log_config=None)

    def open(self, peer: str = "10.0.0.1") -> tuple[Connection, Transport]:
        one = Connection(self._config, ServerState(), self.loop, self.connections)  # type: ignore[arg-type]
        transport = Transport(peer)
        one.connection_made(transport)  # type: ignore[arg-type]
        return one, transport


def answered(connection: Connection) -> None:
    """The request that is under way has its answer."""
    connection.cycle.response_complete = True
    connection.on_response_complete()


def test_bytes_of_a_head_do_not_prolong_its_deadline() -> None:
    listener = Listener()
    connection, transport = listener.open()
    for second in range(int(HEAD_SECONDS)):
        assert transport.is_open, second
        connection.data_received(REQUEST[second : second + 1])
        listener.loop.pass_by(1.0)
    assert not transport.is_open


def test_a_request_under_way_has_no_deadline_of_the_connection() -> None:
    listener = Listener()
    connection, transport = listener.open()
    connection.data_received(REQUEST)
    listener.loop.pass_by(1_000.0)
    assert transport.is_open


def test_an_idle_connection_is_closed_whatever_bytes_come() -> None:
    listener = Listener()
    connection, transport = listener.open()
    connection.data_received(REQUEST)
    answered(connection)
    listener.loop.pass_by(IDLE_SECONDS - 1)
    connection.data_received(b"G")
    assert transport.is_open
    listener.loop.pass_by(1.0)
    assert not transport.is_open


def test_a_caller_who_does_not_read_its_answer_is_left() -> None:
    listener = Listener()
    connection, transport = listener.open()
    connection.data_received(REQUEST)
    for _ in range(2):
        connection.pause_writing()
        listener.loop.pass_by(WRITE_SECONDS - 1)
        assert transport.is_open
        connection.resume_writing()
    connection.pause_writing()
    listener.loop.pass_by(WRITE_SECONDS)
    assert not transport.is_open


def test_the_connection_that_waits_longest_makes_room_for_a_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 3)
    listener = Listener()
    first, second, third, fourth = (listener.open(f"10.0.0.{number}") for number in range(4))
    assert [transport.is_open for _, transport in (first, second, third, fourth)] == [False, True, True, True]
    second[0].data_received(REQUEST)
    listener.open("10.0.0.9")
    assert [transport.is_open for _, transport in (second, third, fourth)] == [True, False, True]


def test_one_address_takes_its_own_share_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PEER_CONNECTIONS_MAX", 2)
    listener = Listener()
    _, patient = listener.open("10.0.0.1")
    many = [listener.open("10.0.0.2")[1] for _ in range(10)]
    assert patient.is_open and sum(one.is_open for one in many) == 2


def test_where_all_connections_work_a_new_one_is_told_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 2)
    listener = Listener()
    working = [listener.open() for _ in range(2)]
    for connection, _ in working:
        connection.data_received(REQUEST)
    refused, transport = listener.open()
    assert transport.written.startswith(b"HTTP/1.1 503 ") and not transport.is_open
    refused.connection_lost(None)
    connection, _ = working[0]
    connection.connection_lost(None)
    _, transport = listener.open()
    assert transport.is_open


@pytest.fixture
def url() -> Iterator[str]:
    def hello(request: Request) -> Response:
        return PlainTextResponse("hello")

    server = HttpServer(Starlette(routes=[Route("/", hello)]), Listening())
    server.start()
    yield server.url
    server.close()


def test_half_heads_on_every_connection_keep_nobody_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "CONNECTIONS_MAX", 20)
    address = ("127.0.0.1", int(url.rpartition(":")[2]))
    with ExitStack() as held:
        for _ in range(30):
            half = held.enter_context(socket.create_connection(address, timeout=60))
            with suppress(ConnectionError):
                half.sendall(REQUEST[:10])
        assert urlopen(url, timeout=60).read() == b"hello"


def test_half_a_head_is_cut_off(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_SECONDS", 0.05)
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as half:
        half.sendall(REQUEST[:10])
        with suppress(ConnectionResetError):
            assert half.recv(100) == b""


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", REQUEST[:-2] + b"A: " + b"x" * 2 * HEAD_BYTES_MAX])
def test_what_is_no_request_is_told_so(sent: bytes, url: str) -> None:
    with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), timeout=60) as one:
        one.sendall(sent)
        assert b"".join(iter(lambda: one.recv(65536), b"")).startswith(b"HTTP/1.1 400 ")
