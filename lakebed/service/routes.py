"""What a route of the service is: one declaration, from which the server and its OpenAPI document are both made."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.responses import Response

from lakebed.service.tokens import Caller, Role
from lakebed.ui.last_watched import LastWatched

if TYPE_CHECKING:
    from lakebed.service.catalog import Catalog
    from lakebed.service.event_streams import EventStreams
    from lakebed.service.survey import Surveyor

Schema: TypeAlias = Mapping[str, Any]
"""A JSON Schema (2020-12)."""


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
    """``value`` becomes JSON; bytes are JSON already. ``etag``: of the answer, without quotes."""

    value: Any
    status: HTTPStatus = HTTPStatus.OK
    etag: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """``operation``: its name for clients. ``query``: parameters with their schemas. ``body``: of the request, None for none.

    ``answers``: a schema for each status of success. ``handle`` may read logs, and is called in a thread; ``stream`` in its place
    makes an answer that goes on.
    """

    method: str
    path: str
    operation: str
    summary: str
    role: Role = Role.READER
    query: Mapping[str, Schema] = field(default_factory=dict)
    headers: Mapping[str, Schema] = field(default_factory=dict)
    body: Schema | None = None
    answers: Mapping[int, Schema]
    media_type: str = "application/json"
    handle: Callable[[Call], Answer] | None = None
    stream: Callable[[Call], Response] | None = None
