"""The service on a port: uvicorn around the application."""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass

import uvicorn

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.hosts import is_loopback
from lakebed.service.app import Service
from lakebed.service.tokens import Role, Token, TokenFile, Tokens, digest_of

_HEADER_BYTES_MAX = 16 << 10
_CONNECTIONS_MAX = 1_000
_IDLE_SECONDS_MAX = 30
_STOP_SECONDS_MAX = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens. ``certificate`` and ``key``: files in PEM, for HTTPS. ``port`` 0: any free one.

    ``option``: sets the port.
    """

    host: str = "127.0.0.1"
    port: int = 9467
    option: str = "--port"
    certificate: str | None = None
    key: str | None = None


def tokens_of(path: str | None, host: str, own: str) -> Tokens:
    """The tokens of a file. Without one, whoever reaches this machine's own address may read, and ``own`` is an operator's token.

    Raises InvalidInput for a file that can't be used, or for none where others reach the address.
    """
    if path is not None:
        return Tokens(TokenFile(path))
    if not is_loopback(host):
        raise InvalidInput(
            f"others may reach {host}, so callers need tokens: give --tokens FILE; lakebed token makes its lines"
        )
    return Tokens(lambda: (Token(Role.OPERATOR, digest_of(own), "operator"),), nobody=Role.READER)


class Server:
    """The service at ``url``, from ``start`` until ``close``."""

    def __init__(self, service: Service, listening: Listening) -> None:
        """Raises MissingPrerequisite for a taken port, InvalidInput for a certificate that can't be used."""
        if (listening.certificate is None) != (listening.key is None):
            raise InvalidInput("--certificate and --key belong together: give both or none")
        self._service = service
        self._socket = _bound(listening)
        config = uvicorn.Config(
            service.app, log_config=None, access_log=False, server_header=False, proxy_headers=False, lifespan="off",
            ws="none", h11_max_incomplete_event_size=_HEADER_BYTES_MAX, limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=_IDLE_SECONDS_MAX, timeout_graceful_shutdown=_STOP_SECONDS_MAX,
            ssl_certfile=listening.certificate, ssl_keyfile=listening.key,
        )  # fmt: skip
        try:
            config.load()
        except (OSError, ValueError) as error:
            self._socket.close()
            raise InvalidInput(f"the certificate or its key can't be used: {error}") from None
        spelled = f"[{listening.host}]" if ":" in listening.host else listening.host
        scheme = "https" if listening.certificate else "http"
        self.url = f"{scheme}://{spelled}:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="lakebed-service", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take no more requests, end those under way within seconds, and let go of the tables."""
        self._service.end_streams()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._service.close()

    def _run(self) -> None:
        self._server.run(sockets=[self._socket])


def _bound(listening: Listening) -> socket.socket:
    host, port = listening.host, listening.port
    if not host:
        raise InvalidInput(
            "the host is empty, which means every address of this machine; give 0.0.0.0 if that is wanted"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        out = socket.socket(family, kind, protocol)
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        out.bind(address)
        out.listen(socket.SOMAXCONN)
    except OverflowError:
        raise InvalidInput(f"{listening.option} is {port}; it must be between 0 and 65535") from None
    except OSError as error:
        raise MissingPrerequisite(
            f"nothing can listen on {host}:{port} ({error.strerror or error}); set --host and {listening.option} to a free one"
        ) from None
    return out
