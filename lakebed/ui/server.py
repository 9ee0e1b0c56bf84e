"""Serves the page and the answers over HTTP, read-only.

- Only GET and HEAD are served, and only paths that are keys of two dictionaries: files of the page, and answers. The server
  never opens a path that a request contains.
- A request under a foreign name is refused (``http.hosts``), so a page of another site gets no data.
- The Content-Security-Policy lets the page run its own scripts and connect to its own origin, nothing else.
- Each answer has an ETag. A client that already has the answer with this tag gets 304.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from lakebed.http.hosts import HostCheck, Hosts
from lakebed.http.server import HttpServer, Listening
from lakebed.ui.live import Live
from lakebed.ui.overview import Tables
from lakebed.ui.pages import HEADERS, Refused, answers, files
from lakebed.ui.watch import Answer

_JSON = "application/json"
_TAG = re.compile(r'(?:W/)?"([^"]*)"')


class PageServer:
    """The page at ``url`` until ``close``."""

    def __init__(
        self,
        paths: Sequence[str],
        host: str,
        port: int,
        interval_seconds: float,
        live: Live | None = None,
        *,
        databases: Sequence[str] = (),
        where: str = "--host and --port",
    ) -> None:
        """Takes the port.

        Args:
            paths: Tables to show.
            host: The address to listen on.
            port: 0 for any free one.
            interval_seconds: Seconds between two looks at a table while the page is open.
            live: What this process knows of the tables beyond their logs.
            databases: Folders whose tables are shown, too.
            where: Where the user sets host and port, in messages.

        Raises:
            InvalidInput: A path, the host or the port can't be used.
            MissingPrerequisite: The port is taken.
        """
        self.tables = Tables(paths, interval_seconds, live, databases)
        listening = Listening(host=host, port=port, what="the page", option=where)
        self._server = HttpServer(_application(self.tables, Hosts(host)), listening)
        self.url = f"{self._server.url}/"

    def start(self) -> None:
        """Begin to look at tables and to answer."""
        self.tables.start()
        self._server.start()

    def close(self) -> None:
        """End both."""
        self._server.close()
        self.tables.close()


def _application(tables: Tables, hosts: Hosts) -> Starlette:
    sent_files = files("index.html")
    answered = answers(tables.find) | {"/api/tables": lambda arguments: tables.overview()}

    def file(request: Request) -> Response:
        return _response(request, HTTPStatus.OK, *sent_files[request.url.path])

    def answer(request: Request) -> Response:
        return _response(request, HTTPStatus.OK, _JSON, answered[request.url.path](parse_qs(request.url.query)))

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _response(request, error.status, _JSON, Answer({"error": str(error)}))

    def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            text = "this page only answers GET and HEAD"
            return _response(
                request, HTTPStatus.METHOD_NOT_ALLOWED, _JSON, Answer({"error": text}), {"Allow": "GET, HEAD"}
            )
        text = "there is nothing here; /api/tables lists the tables"
        return _response(request, HTTPStatus(error.status_code), _JSON, Answer({"error": text}))

    application = Starlette(
        routes=[Route(path, file) for path in sent_files] + [Route(path, answer) for path in answered],
        exception_handlers={Refused: refused, HTTPException: failed},
        middleware=[Middleware(HostCheck, hosts)],
    )
    application.router.redirect_slashes = False
    return application


def _response(
    request: Request, status: HTTPStatus, kind: str, answer: Answer, more: Mapping[str, str] | None = None
) -> Response:
    headers = {**HEADERS, **(more or {})}
    if status is HTTPStatus.OK:
        headers["ETag"] = f'W/"{answer.tag}"'
        if answer.tag in _TAG.findall(request.headers.get("if-none-match", "")):
            return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    accepted = {item.split(";")[0].strip() for item in request.headers.get("accept-encoding", "").split(",")}
    zipped = answer.zipped if "gzip" in accepted else None
    if zipped is not None:
        headers["Content-Encoding"] = "gzip"
    return Response(answer.body if zipped is None else zipped, status, headers, kind)
