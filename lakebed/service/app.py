"""The service as an ASGI application: who asks, how much of it, whether the request is as its route declares, and the answer.

1. If whoever has no token may read, the ``Host`` must be an address or a name of this machine (``hosts``): a page of another
   site, whose domain was made to resolve to this machine, gets nothing.
2. The caller's token says their role; each route needs one. How many requests a caller may send is bounded.
3. Path, parameters and body are checked against the schemas that the route declares; what is wrong is reported with its place.
4. The route's function runs in one of a few threads. One that takes too long goes on there, and its caller gets an error.
5. Every error is a problem document (``answers``).

**The page** of the service: anybody may have its files, and it asks more than the routes that are for everybody. The page has no
rights of its own. It sends the token that its user gave it as a bearer token, which no page of another site has and no browser
sends by itself. Nothing is allowed for where a request comes from, so another site can't start anything here.

**Iceberg.** ``/iceberg/v1`` is Iceberg's REST catalog (``iceberg_routes``). Its routes are served in the same way. Iceberg's
specification describes them and their errors.

**Ports.** The service has one; a fleet's worker hears at another that tables have changed.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as StarletteRoute

from lakebed.errors import Corrupt, InvalidInput, LakebedError, TableNotFound, Unexpected
from lakebed.http import ZIPPING, HostCheck, Hosts, HttpServer, Listening, is_loopback, tagged
from lakebed.service import event_routes, iceberg_routes, job_routes, survey_routes, table_routes
from lakebed.service.answers import COMPONENTS, NAME, TEXT, Refused, Schema, problem_of, problem_of_refusal, record
from lakebed.service.catalog import Catalog
from lakebed.service.event_streams import EventStreams
from lakebed.service.iceberg_routes import IcebergRest
from lakebed.service.routes import Answer, Call, Route, openapi
from lakebed.service.survey import Surveyor
from lakebed.service.tokens import Caller, Role, Token, TokenFile, Tokens, digest_of, new_token
from lakebed.ui import pages
from lakebed.ui.documents import blotted, utf8
from lakebed.ui.pages import HEADERS
from lakebed.ui.watch import LastWatched, Watched
from lakebed.version import __version__

FILES = pages.files("warehouse.html")


def _who(call: Call) -> Answer:
    return Answer(value={"name": call.caller.name, "role": call.caller.role.name.lower()})


def _of_table(path: str) -> Callable[[Call], Answer]:
    """Answers about one table, as the page of a pipeline has them. Here ``path`` is the table's name."""

    def handle(call: Call) -> Answer:
        def find(name: str) -> Watched:
            root = call.catalog.root_of(name)
            return call.watched.find(root, utf8(blotted(root)))

        try:
            found = pages.answers(find)[path]({name: [value] for name, value in call.query.items()})
        except pages.Refused as refused:
            raise Refused(refused.status, str(refused)) from None
        return Answer(value=found.body, etag=found.tag)

    return handle


_PAGE_ROUTES = (
    Route(
        method="GET",
        path="/v1/whoami",
        operation="see_caller",
        summary="Whose token it is, and what it may do.",
        answers={200: record({"name": {"type": "string"}, "role": {"enum": ["reader", "operator"]}})},
        handle=_who,
    ),
)
_OWN_ROUTES = tuple(
    Route(
        method="GET",
        path=path,
        operation=path,
        summary="Used by the page alone, and may change.",
        answers={200: {}},
        query={"path": NAME, "id": TEXT, "section": TEXT},
        handle=_of_table(path),
    )
    for path in pages.answers(lambda name: None)
)
"""What is not described, because the page alone asks it."""


# -- How much of the service one caller, and all callers together, may use: whoever needs more runs another service --------


BODY_BYTES_MAX = 1 << 20
BODY_SECONDS_MAX = 20.0
"""In which the body of a request must have come."""
REQUEST_SECONDS_MAX = 60.0
"""After which the caller gets an error, whatever the thread still does."""
_REQUESTS_MAX = 200
"""Under way at once."""
_THREADS = 16
PER_SECOND_MAX = 200.0
BURST_MAX = 1_000.0
_CALLERS_MAX = 10_000


class Rates:
    """A bucket of requests a caller, which fills with ``PER_SECOND_MAX``."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by caller: requests left, and when that was
        self._lock = threading.Lock()

    def wait_seconds(self, caller: str) -> float:
        """Takes a request out of the bucket: 0.0; or, if there is none, after how many seconds there will be."""
        now = self._clock()
        with self._lock:
            left, then = self._left.pop(caller, (BURST_MAX, now))
            left = min(BURST_MAX, left + (now - then) * PER_SECOND_MAX)
            self._left[caller] = max(0.0, left - 1), now
            if len(self._left) > _CALLERS_MAX:
                self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / PER_SECOND_MAX


# -- The service as an ASGI application ------------------------------------------------------------------------------------


_logger = logging.getLogger("lakebed.service")
_LOOK_SECONDS = 2.0
_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]
_WHOLE = re.compile(r"-?\d+(\.0+)?", re.ASCII)
_HEADERS = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache", "Referrer-Policy": "no-referrer"}


def _healthz(call: Call) -> Answer:
    return Answer(value={"status": "serving", "lakebed": __version__})


def _openapi(call: Call) -> Answer:
    return Answer(value=_DOCUMENT, etag=__version__)


HEALTH = Route(
    method="GET",
    path="/v1/healthz",
    operation="health",
    summary="Whether the service answers.",
    role=Role.NOBODY,
    answers={200: record({"status": {"enum": ["serving"]}, "lakebed": {"type": "string"}})},
    handle=_healthz,
)
_ROUTES: tuple[Route, ...] = (
    HEALTH,
    Route(
        method="GET",
        path="/v1/openapi.json",
        operation="openapi",
        summary="This document.",
        role=Role.NOBODY,
        answers={200: {"type": "object"}},
        handle=_openapi,
    ),
    *table_routes.ROUTES,
    *job_routes.ROUTES,
    *survey_routes.ROUTES,
    *event_routes.ROUTES,
    *_PAGE_ROUTES,
)
_DOCUMENT = orjson.dumps(openapi(_ROUTES))


class Service:
    """The application. ``catalog``: its tables; ``tokens``: who may do what; ``host``: what it was started with."""

    def __init__(
        self,
        catalog: Catalog,
        tokens: Tokens,
        host: str = "127.0.0.1",
        routes: Sequence[Route] = _ROUTES,
        *,
        shares_keys: bool = False,
    ) -> None:
        """``routes``: those of another server of this kind; with those of the service it has the page and Iceberg's catalog, too.

        ``shares_keys``: see ``IcebergRest``.
        """
        self._known = ", ".join(f"{each.method} {each.path}" for each in routes)
        if routes is _ROUTES:
            self._known = "GET /v1/openapi.json lists the routes"
        self._catalog = catalog
        self._streams = EventStreams(catalog)
        self._surveyor = Surveyor(catalog)
        self._surveyor.start()
        self._watched = LastWatched(_LOOK_SECONDS)
        self._tokens = tokens
        self._rates = Rates()
        self._under_way = 0
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="lakebed-service")
        served = [
            StarletteRoute(route.path, partial(self._serve, route, *_validators(route)), methods=[route.method])
            for route in (*routes, *(_OWN_ROUTES if routes is _ROUTES else ()))
        ]
        files = FILES if routes is _ROUTES else ()
        served += [StarletteRoute(path, self._file, methods=["GET"]) for path in files]
        self._iceberg = IcebergRest(catalog, shares_keys=shares_keys)
        self._of_iceberg = {route.operation: _validators(route) for route in self._iceberg.routes}
        if routes is _ROUTES:
            served.append(StarletteRoute(iceberg_routes.EVERYTHING, self._serve_iceberg, methods=_METHODS))
        handlers: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
            Refused: self._refused,
            LakebedError: self._failed,
            HTTPException: self._unknown,
            Exception: self._unexpected,
        }
        check = [Middleware(HostCheck, Hosts(host))] if tokens.nobody > Role.NOBODY else []
        self.app = Starlette(routes=served, exception_handlers=handlers, middleware=[*check, ZIPPING])

    def end_streams(self) -> None:
        """End the streams of events, which would go on for ever."""
        self._streams.close()

    def close(self) -> None:
        """Let go of the tables. Requests under way are not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._surveyor.close()
        self._watched.close()
        self._catalog.close()

    async def _serve(
        self,
        route: Route,
        query: Mapping[str, Draft202012Validator],
        body: Draft202012Validator | None,
        request: Request,
        path: Mapping[str, str] | None = None,
    ) -> Response:
        caller, who = self._caller(route, request)
        header = request.headers.get("authorization")
        call = Call(
            catalog=self._catalog,
            streams=self._streams,
            surveyor=self._surveyor,
            watched=self._watched,
            caller=caller,
            is_caller_known=lambda: self._tokens.caller(header) == caller,
            who=who,
            path=path or {name: str(value) for name, value in request.path_params.items()},
            query=_query(request, query, route.takes_other_parameters),
            body=None if body is None else checked(await _body(request), body),
            headers=request.headers,
        )
        if route.stream is not None:
            return await asyncio.get_running_loop().run_in_executor(self._pool, route.stream, call)
        return _response(await self._run(route, call), request)

    async def _serve_iceberg(self, request: Request) -> Response:
        try:
            route, path = self._iceberg.find(request.method, request.scope["raw_path"])
            return await self._serve(route, *self._of_iceberg[route.operation], request, path)
        except (Refused, LakebedError) as error:
            return _with_headers(iceberg_routes.answer_of(error))
        except Exception as error:
            _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
            return _with_headers(iceberg_routes.answer_of(Unexpected("the service failed; its log says more")))

    async def _file(self, request: Request) -> Response:
        """A file of the page."""
        kind, file = FILES[request.url.path]
        return tagged(Response(file.body, 200, HEADERS, kind), file.tag, request)

    def _caller(self, route: Route, request: Request) -> tuple[Caller, str]:
        caller = self._tokens.caller(request.headers.get("authorization"))
        who = caller.name if caller and caller.name else f"from {request.client.host if request.client else ''}"
        if (wait := self._rates.wait_seconds(who)) > 0:
            raise Refused(
                HTTPStatus.TOO_MANY_REQUESTS, "too many requests; wait", {"Retry-After": str(math.ceil(wait))}
            )
        if caller is None or (caller.role < route.role and not caller.name):
            text = "unknown token" if caller is None else "this needs a token"
            raise Refused(HTTPStatus.UNAUTHORIZED, text, {"WWW-Authenticate": "Bearer"})
        if caller.role < route.role:
            raise Refused(
                HTTPStatus.FORBIDDEN,
                f"{caller.name} is a {caller.role.name.lower()}; this needs an {route.role.name.lower()}",
            )
        return caller, who

    async def _run(self, route: Route, call: Call) -> Answer:
        assert route.handle is not None
        if self._under_way >= _REQUESTS_MAX:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many requests are under way", {"Retry-After": "1"})
        self._under_way += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, route.handle, call)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), REQUEST_SECONDS_MAX)
        except TimeoutError:
            future.cancel()  # unless a thread has begun with it
            raise Refused(
                HTTPStatus.GATEWAY_TIMEOUT,
                f"it takes more than {REQUEST_SECONDS_MAX:.0f} s; ask for less at once",
            ) from None

    def _done(self, future: asyncio.Future[Answer]) -> None:
        self._under_way -= 1
        if not future.cancelled():
            future.exception()  # it has been looked at, also if the caller is gone

    async def _refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _with_headers(problem_of_refusal(error))

    async def _failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, LakebedError)
        if isinstance(error, (Corrupt, TableNotFound)):  # it may be gone, or another table may be there: look again
            self._catalog.look_again(str(request.path_params.get("name", "")))
        return _with_headers(problem_of(error))

    async def _unknown(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        text = f"there is nothing here; {self._known}"
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            text = f"{request.method} is not served here"
        return _with_headers(problem_of_refusal(Refused(HTTPStatus(error.status_code), text, error.headers)))

    async def _unexpected(self, request: Request, error: Exception) -> Response:
        _logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _with_headers(problem_of(Unexpected("the service failed; its log says more")))


def checked(value: Any, validator: Draft202012Validator, place: str = "the body") -> Any:
    """The value, if it is as its schema says. Raises Refused with the first thing that is not."""
    for error in validator.iter_errors(value):
        where = "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in error.absolute_path)
        raise Refused(HTTPStatus.BAD_REQUEST, f"{place}{where}: {error.message[:1_000]}")
    return value


def _validators(route: Route) -> tuple[dict[str, Draft202012Validator], Draft202012Validator | None]:
    def validator(schema: Schema) -> Draft202012Validator:
        return Draft202012Validator({**schema, "components": {"schemas": COMPONENTS}})

    query = {name: validator(schema) for name, schema in route.query.items()}
    return query, None if route.body is None else validator(route.body)


def _query(request: Request, known: Mapping[str, Draft202012Validator], takes_others: bool) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, text in request.query_params.multi_items():
        if name not in known and takes_others:
            continue
        if name not in known:
            allowed = f"it has {', '.join(known)}" if known else "it has none"
            raise Refused(HTTPStatus.BAD_REQUEST, f"this route has no parameter {name!r}; {allowed}")
        if name in out:
            raise Refused(HTTPStatus.BAD_REQUEST, f"the parameter {name} is given twice")
        out[name] = checked(_parsed(text, known[name].schema), known[name], f"the parameter {name}")
    return out


def _parsed(text: str, schema: Any) -> Any:
    """A parameter as its schema has it, as far as its text can be read so."""
    kind = schema.get("type")
    if kind == "integer" and len(text) < 40 and _WHOLE.fullmatch(text):
        return int(text.partition(".")[0])
    if kind == "boolean" and text in ("true", "false"):
        return text == "true"
    return text


async def _body(request: Request) -> Any:
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be JSON: Content-Type: application/json")
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS_MAX):
            async for chunk in request.stream():
                data += chunk
                if len(data) > BODY_BYTES_MAX:
                    raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {BODY_BYTES_MAX} bytes")
    except TimeoutError:
        raise Refused(HTTPStatus.REQUEST_TIMEOUT, "the body did not come in time", {"Connection": "close"}) from None
    except ClientDisconnect:
        raise Refused(HTTPStatus.BAD_REQUEST, "the caller is gone") from None
    try:
        return _with_whole_numbers(orjson.loads(data))
    except orjson.JSONDecodeError as error:
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is no JSON: {error}") from None


def _with_whole_numbers(value: Any) -> Any:
    """The value with each whole number as an int, however it is written: to JSON Schema 192.0 is an integer, too."""
    if isinstance(value, dict):
        return {name: _with_whole_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _response(answer: Answer, request: Request) -> Response:
    if answer.status is HTTPStatus.NO_CONTENT:
        return _with_headers(Response(status_code=answer.status.value, headers=dict(answer.headers)))
    body = answer.value if isinstance(answer.value, bytes) else orjson.dumps(answer.value)
    response = _with_headers(Response(body, answer.status.value, dict(answer.headers), "application/json"))
    return response if answer.etag is None else tagged(response, answer.etag, request)


def _with_headers(response: Response) -> Response:
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    return response


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
