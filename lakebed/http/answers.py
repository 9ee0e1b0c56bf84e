"""What answers of every server have in common: a tag, so that who has an answer already gets 304, and compression."""

from __future__ import annotations

import re
from http import HTTPStatus

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response

ZIPPING = Middleware(GZipMiddleware, minimum_size=1_400, compresslevel=4)
_TAG = re.compile(r'(?:W/)?"([^"]*)"')


def tagged(response: Response, tag: str, request: Request) -> Response:
    """The response with its tag; without its body for a caller that has it already."""
    response.headers["ETag"] = f'W/"{tag}"'  # weak, since the same answer may be sent compressed or not
    known = request.method in ("GET", "HEAD") and tag in _TAG.findall(request.headers.get("if-none-match", ""))
    if not known:
        return response
    kept = {name: value for name, value in response.headers.items() if name not in ("content-length", "content-type")}
    return Response(status_code=HTTPStatus.NOT_MODIFIED, headers={**kept, "Vary": "Accept-Encoding"})
