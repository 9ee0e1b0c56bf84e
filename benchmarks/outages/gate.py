"""A TCP gate in front of a server, which can be shut in the ways in which networks fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Literal, Self

from tests.infra.server import HOST

CHUNK_BYTES = 64 << 10
CUT_BYTES = 700
Shut = Literal["refuse", "stall", "lose", "cut"]
"""How it is shut.

- refuse: connections are reset, and new ones are refused.
- stall: nothing passes; when the gate opens, what was on its way arrives.
- lose: nothing passes, and the connections of that time never carry anything again. Nobody is told, as when a firewall forgets
  them.
- cut: each connection passes some hundred bytes of answers, then nothing; when the gate opens, these connections are reset.
"""


class _Connection:
    def __init__(self, writers: tuple[asyncio.StreamWriter, ...]) -> None:
        self.writers = writers
        self.is_lost = False
        self.passed_bytes = 0

    def reset(self) -> None:
        for writer in self.writers:
            writer.transport.abort()


class Gate:
    """Listens on a loopback port of its own, ``port``, and passes everything on to another while it is open."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._loop = asyncio.new_event_loop()
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._shut: Shut | None = None
        self._opened = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._loop.run_forever, name="gate", daemon=True).start()
        self._do(self._listen())
        self.open()
        return self

    def __exit__(self, *raised: object) -> None:
        self._do(self._refuse())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def shut(self, how: Shut) -> None:
        """Let nothing pass any more."""
        self._do(self._shut_now(how))

    def open(self) -> None:
        """Let everything pass again."""
        self._do(self._open())

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, HOST, self.port, backlog=256)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        for each in list(self._connections):
            each.reset()

    async def _shut_now(self, how: Shut) -> None:
        self._opened.clear()
        self._shut = how
        for each in self._connections:
            each.passed_bytes = 0
        if how == "refuse":
            await self._refuse()

    async def _open(self) -> None:
        for each in list(self._connections):
            each.is_lost = each.is_lost or self._shut == "lose"
            if self._shut == "cut":
                each.reset()
        self._shut = None
        self._opened.set()
        if self._server is None:
            await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_read, to_write = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        connection = _Connection((writer, to_write))
        self._connections.add(connection)
        try:
            pumps = (self._pump(connection, reader, to_write, False), self._pump(connection, to_read, writer, True))
            _, left = await asyncio.wait([asyncio.ensure_future(one) for one in pumps], return_when="FIRST_COMPLETED")
            for one in left:
                one.cancel()
        finally:
            self._connections.discard(connection)
            for each in connection.writers:
                with suppress(OSError):
                    each.close()

    async def _pump(
        self, connection: _Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                if self._shut == "cut":
                    if is_answer:
                        data, rest = data[: max(0, CUT_BYTES - connection.passed_bytes)], data
                        connection.passed_bytes += len(rest)
                        writer.write(data)
                        if len(data) < len(rest):
                            await self._opened.wait()
                        continue
                elif self._shut is not None:
                    await self._opened.wait()
                if connection.is_lost:
                    await asyncio.Event().wait()
                writer.write(data)
                await writer.drain()
