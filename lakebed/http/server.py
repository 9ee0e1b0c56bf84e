"""An application (ASGI) on a port, in a thread of its own: uvicorn, with connections that are bounded."""

from __future__ import annotations

import asyncio
import socket
import threading
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.http.connection import HEAD_SECONDS, Connection, Connections

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
