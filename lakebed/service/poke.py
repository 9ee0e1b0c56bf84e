"""The port of a fleet's worker at which others say that tables have changed: ``POST /poke``.

The same server as the service has, with its limits and tokens. A poke makes a look at a log earlier, so a reader may send it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

from lakebed.http.server import Listening
from lakebed.service.app import HEALTH, Service
from lakebed.service.catalog import Catalog
from lakebed.service.routes import Answer, Call, Route
from lakebed.service.schemas import record
from lakebed.service.server import Server, tokens_of
from lakebed.service.tokens import new_token

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
