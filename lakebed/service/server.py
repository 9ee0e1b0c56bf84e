"""The service on a port, and who may ask it."""

from __future__ import annotations

from lakebed.errors import InvalidInput
from lakebed.http.hosts import is_loopback
from lakebed.http.server import HttpServer, Listening
from lakebed.service.app import Service
from lakebed.service.tokens import Role, Token, TokenFile, Tokens, digest_of


def tokens_of(path: str | None, host: str, own: str) -> Tokens:
    """The tokens of a file. Without one, whoever reaches this machine's own address may read, and ``own`` is an operator's token.

    Raises InvalidInput for a file that can't be used, or for none where others reach the address.
    """
    if path is not None:
        return Tokens(TokenFile(path))
    if not is_loopback(host):
        raise InvalidInput(
            f"others may reach {host}, so callers need tokens: give --tokens FILE; lakebed serve token makes its lines"
        )
    return Tokens(lambda: (Token(Role.OPERATOR, digest_of(own), "operator"),), nobody=Role.READER)


class Server(HttpServer):
    """The service at ``url``, from ``start`` until ``close``."""

    def __init__(self, service: Service, listening: Listening) -> None:
        """Raises MissingPrerequisite for a taken port, InvalidInput for a certificate that can't be used."""
        super().__init__(service.app, listening)
        self._service = service

    def close(self) -> None:
        """Take no more requests, end those under way within seconds, and let go of the tables."""
        self._service.end_streams()
        super().close()
        self._service.close()
