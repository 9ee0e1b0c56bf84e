"""What a route of the service is: one declaration, from which the server and its OpenAPI document are both made."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from lakebed.service.answers import COMPONENTS, MEDIA_TYPE, NAME, Schema, ref
from lakebed.service.tokens import Caller, Role
from lakebed.ui.watch import LastWatched
from lakebed.version import __version__

if TYPE_CHECKING:
    from lakebed.service.catalog import Catalog
    from lakebed.service.event_streams import EventStreams
    from lakebed.service.survey import Surveyor


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request that was checked: its parameters and its body are as the route declares them."""

    catalog: Catalog
    streams: EventStreams
    surveyor: Surveyor
    watched: LastWatched
    caller: Caller
    is_caller_known: Callable[[], bool]
    """Whether the caller's token still counts, and has the same role."""
    who: str
    """The caller's name, or the address of one without a token: whose share of what is bounded they use."""
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table in the path."""
        return self.path["name"]

    @property
    def now_ms(self) -> int:
        """The time, in epoch milliseconds."""
        return int(time.time() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a route answers."""

    value: Any  # becomes JSON; bytes are JSON already
    status: HTTPStatus = HTTPStatus.OK
    etag: str | None = None  # of the answer, without quotes
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route of the service. ``handle`` may read logs, and is called in a thread; ``stream`` in its place makes an answer that
    goes on.
    """

    method: str
    path: str
    operation: str  # its name for clients
    summary: str
    role: Role = Role.READER
    query: Mapping[str, Schema] = field(default_factory=dict)  # parameters with their schemas
    takes_other_parameters: bool = False  # others are ignored, not refused
    headers: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None  # of the request; None if it has none
    answers: Mapping[int, Schema]  # a schema for each status of success
    media_type: str = "application/json"
    handle: Callable[[Call], Answer] | None = None
    stream: Callable[[Call], Response] | None = None


# -- The OpenAPI 3.1 document ----------------------------------------------------------------------------------------------


_IN_PATH = re.compile(r"{(\w+)}")


def openapi(routes: Sequence[Route]) -> dict[str, Any]:
    """The document of these routes."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "lakebed",
            "version": __version__,
            "summary": "Tables of a lake: what their logs say, what to read of them, and jobs on them.",
        },
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(route: Route) -> dict[str, Any]:
    out: dict[str, Any] = {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": [
            *({"name": name, "in": "path", "required": True, "schema": NAME} for name in _IN_PATH.findall(route.path)),
            *_parameters("query", route.query),
            *_parameters("header", route.headers),
        ],
        "responses": {
            **{str(status): _response(schema, route.media_type) for status, schema in route.answers.items()},
            "default": _response(ref("Problem"), MEDIA_TYPE, "what is wrong"),
        },
        "security": [] if route.role is Role.NOBODY else [{"token": []}],
        "x-role": route.role.name.lower(),
    }
    if route.body is not None:
        out["requestBody"] = {"required": True, "content": {"application/json": {"schema": route.body}}}
    return out


def _parameters(place: str, schemas: Mapping[str, Schema]) -> list[dict[str, Any]]:
    return [{"name": name, "in": place, "required": False, "schema": schema} for name, schema in schemas.items()]


def _response(schema: Schema, media_type: str, description: str = "the answer") -> dict[str, Any]:
    return {"description": description, "content": {media_type: {"schema": schema}}}
