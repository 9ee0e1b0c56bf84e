"""Every error of the service as a problem document (RFC 9457, ``application/problem+json``).

``type`` is ``urn:lakebed:problem:`` and the class of the error in words, such as ``table-not-found``; a client makes the same
error of it again (``lakebed.client``). ``detail`` is the text of the error. Its data (``version``, ``oldest`` …) are members too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from starlette.responses import Response

from lakebed.errors import (
    InvalidInput,
    LakebedError,
    MissingPrerequisite,
    Retry,
    TableExists,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)

MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:lakebed:problem:"
_RETRY_SECONDS = 2
_CAPITAL = re.compile(r"(?<!^)(?=[A-Z])")


class Refused(Exception):
    """A request that gets an error, for a cause that HTTP knows: ``status`` says which."""

    def __init__(self, status: HTTPStatus, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})


def _status_of(error: LakebedError) -> HTTPStatus:
    """The status code for an error."""
    match error:
        case InvalidInput():
            return HTTPStatus.BAD_REQUEST
        case TableNotFound() | VersionNotFound():
            return HTTPStatus.NOT_FOUND
        case TableExists():
            return HTTPStatus.CONFLICT
        case Unsupported():
            return HTTPStatus.UNPROCESSABLE_ENTITY
        case Retry() | MissingPrerequisite():
            return HTTPStatus.SERVICE_UNAVAILABLE
        case _:
            return HTTPStatus.INTERNAL_SERVER_ERROR


def problem_of(error: LakebedError) -> Response:
    """The answer to a request that raised this error."""
    data = {name: value for name, value in error.data().items() if name != "args"}
    headers = {"Retry-After": str(_RETRY_SECONDS)} if isinstance(error, Retry) else {}
    return _response(_PREFIX + slug_of(type(error)), _status_of(error), str(error), headers, data)


def problem_of_refusal(refused: Refused) -> Response:
    """The answer to a request that is refused."""
    return _response("about:blank", refused.status, str(refused), refused.headers, {})


def slug_of(kind: type[LakebedError]) -> str:
    """The name of a class of errors in words: ``table-not-found``."""
    return _CAPITAL.sub("-", kind.__name__).lower()


def _response(
    kind: str, status: HTTPStatus, detail: str, headers: Mapping[str, str], data: Mapping[str, Any]
) -> Response:
    body = {**data, "type": kind, "title": status.phrase, "status": status.value, "detail": detail}
    return Response(orjson.dumps(body, default=str), status.value, dict(headers), MEDIA_TYPE)
