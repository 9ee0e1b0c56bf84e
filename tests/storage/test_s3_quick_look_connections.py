"""The connections of the quick look: kept while that is right, and never believed beyond one whole answer."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from lakebed.storage.s3 import quick_look as s3_quick_look
from lakebed.storage.s3.quick_look import is_there
from tests.service.test_tls import make_certificate

MISSING = b"HTTP/1.1 404 Not Found\r\nx-amz-request-id: 7\r\n\r\n"
THERE = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n"
CLOSES = b"HTTP/1.1 404 Not Found\r\nConnection: Close\r\n\r\n"
KEYS = boto3.session.Session("the-key", "the-secret").get_credentials()


class Scripted:
    """A server that gives these answers, one to each request whose head it has read, and may close the connection after one.

    An answer is what it sends, in pieces; None closes the connection.
    """

    def __init__(self, script: Iterable[Iterable[bytes | None]], tls: ssl.SSLContext | None = None) -> None:
        self.connections = self.requests = 0
        self._script, self._tls = iter(script), tls
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()
        scheme = "http" if tls is None else "https"
        self.client: Any = boto3.session.Session("the-key", "the-secret").client(
            "s3",
            endpoint_url=f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}",
            region_name="x",
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )

    def has(self) -> bool | None:
        """The quick look."""
        return is_there(self.client, KEYS, "bucket", "key")

    def send(self, later: bytes | None) -> None:
        """Without a request, over the first connection; None closes it. Returns when the client can see it."""
        place = s3_quick_look.place_of(os.getpid(), self.client, "bucket")
        assert place is not None and place.kept
        if later is None:
            self._open[0].shutdown(socket.SHUT_RDWR)
        else:
            self._open[0].sendall(later)
        select.select(place.kept, [], [])

    def close(self) -> None:
        for each in (self._listening, *self._open):
            each.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection = self._listening.accept()[0]
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            while self._has_read_a_head(connection):
                self.requests += 1
                for piece in next(self._script):
                    if piece is None:
                        connection.close()
                        return
                    connection.sendall(piece)

    @staticmethod
    def _has_read_a_head(connection: socket.socket) -> bool:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            if not (more := connection.recv(4096)):
                return False
            head += more
        return True


@contextlib.contextmanager
def scripted(*script: Iterable[bytes | None], tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    server = Scripted(script, tls)
    yield server
    server.close()


def test_looks_share_a_connection_that_the_server_keeps() -> None:
    with scripted([MISSING], [THERE], [MISSING]) as server:
        assert [server.has() for _ in range(3)] == [False, True, False]
        assert (server.connections, server.requests) == (1, 3)


def test_an_answer_may_come_in_pieces() -> None:
    with scripted([bytes([each]) for each in MISSING], [THERE]) as server:
        assert [server.has(), server.has()] == [False, True]
        assert server.connections == 1


@pytest.mark.parametrize("ends", [[CLOSES], [b"HTTP/1.0 404 Not Found\r\n\r\n"]])
def test_a_connection_that_the_server_is_about_to_close_is_not_kept(ends: Iterable[bytes | None]) -> None:
    with scripted(ends, [THERE]) as server:
        assert [server.has(), server.has()] == [False, True]
        assert (server.connections, server.requests) == (2, 2)


@pytest.mark.parametrize("later", [None, b"a body that should not be\r\n\r\n", THERE])
def test_a_connection_that_was_closed_or_has_more_to_read_is_not_used_again(later: bytes | None) -> None:
    with scripted([MISSING], [MISSING]) as server:
        assert server.has() is False
        server.send(later)
        assert server.has() is False
        assert (server.connections, server.requests) == (2, 2)


@pytest.mark.parametrize(
    "answer",
    [
        [None],
        [MISSING[:20], None],
        [b"HTTP/1.1 403 Forbidden\r\n\r\n"],
        [b"HTTP/1.1 503 Slow Down\r\n\r\n"],
        [b"HTTP/1.1 301 Moved Permanently\r\nLocation: http://127.0.0.1:1/\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\n", MISSING],
        [b"HTTP/1.1 404 Not Found\r\nx: ", *itertools.repeat(b"x" * 1000, 1000), b"\r\n\r\n"],
        [b"SSH-2.0-x404 \r\n\r\n"],
    ],
)
def test_any_other_answer_says_nothing_and_ends_the_connection(answer: Iterable[bytes | None]) -> None:
    with scripted(answer, [THERE]) as server:
        assert [server.has(), server.has()] == [None, True]
        assert server.connections == 2


def test_bytes_after_an_answer_are_not_taken_for_the_next_one() -> None:
    with scripted([THERE + THERE], [MISSING]) as server:
        assert [server.has(), server.has()] == [True, False]
        assert server.connections == 2


def test_another_process_makes_connections_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted([MISSING], [THERE]) as server:
        assert server.has() is False
        monkeypatch.setattr(os, "getpid", lambda: -1)
        assert server.has() is True
        assert server.connections == 2


def test_it_asks_over_tls_whom_it_trusts_and_nobody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate, key = make_certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    with scripted([MISSING], [THERE], tls=tls) as server:
        assert server.has() is None and server.requests == 0
        monkeypatch.setenv("AWS_CA_BUNDLE", certificate)
        assert [server.has(), server.has()] == [False, True]
        assert server.connections == 2
