"""The service on a port, and who may ask it; and the port at which a fleet's worker hears that tables have changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

from lakebed.errors import InvalidInput
from lakebed.http import HttpServer, Listening, is_loopback
from lakebed.service.answers import record
from lakebed.service.app import HEALTH, Service
from lakebed.service.catalog import Catalog
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.tokens import Role, Token, TokenFile, Tokens, digest_of, new_token


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


# -- The port of a fleet's worker at which others say that tables have changed: ``POST /poke`` -----------------------------
#
# The same server as the service has, with its limits and tokens. A poke makes a look at a log earlier, so a reader may send it.


_ROOTS = {"type": "array", "items": {"type": "string"}}


def poke_server(take: Callable[[object], Mapping[str, object]], listening: Listening, tokens: str | None) -> Server:
    """A server that hands the body of each poke to ``take``, and answers what it returns. Not started yet.

    ``tokens``: the file of them; it may be None where only this machine reaches the address. Raises InvalidInput,
    MissingPrerequisite.
    """

    def poke(call: Call) -> Answer:
        return Answer(value=take(call.body), status=HTTPStatus.ACCEPTED)

    answer = record(
        {"worker": {"type": "string"}, "malformed": {"type": "integer"}}
        | dict.fromkeys(("looks", "known", "elsewhere", "new", "unrelated"), _ROOTS)
    )
    route = Route(
        method="POST",
        path="/poke",
        operation="poke",
        summary="Tables have changed: look at them.",
        body={},
        answers={202: answer},
        handle=poke,
    )
    nobodys = new_token()  # everybody on this machine may poke, so no token is needed
    service = Service(Catalog(()), tokens_of(tokens, listening.host, nobodys), listening.host, routes=(HEALTH, route))
    return Server(service, listening)
