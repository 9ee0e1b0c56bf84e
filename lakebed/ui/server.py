"""Serves the page and the answers over HTTP, read-only.

- Only GET and HEAD are served, and only paths that are keys of two dictionaries: files of the page, and answers. The server
  never opens a path that a request contains.
- A request under a foreign name is refused (``http``), so a page of another site gets no data.
- The Content-Security-Policy lets the page run its own scripts and connect to its own origin, nothing else.
- Each answer has an ETag. A client that already has the answer with this tag gets 304.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lakebed.http import ZIPPING, HostCheck, Hosts, HttpServer, Listening, tagged
from lakebed.ui.live import Live
from lakebed.ui.members import Tables
from lakebed.ui.pages import HEADERS, Refused, answers, files
from lakebed.ui.watch import Answer


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

    def found(request: Request, kind: str, answer: Answer) -> Response:
        return tagged(Response(answer.body, HTTPStatus.OK, HEADERS, kind), answer.tag, request)

    def file(request: Request) -> Response:
        return found(request, *sent_files[request.url.path])

    def answer(request: Request) -> Response:
        return found(request, "application/json", answered[request.url.path](parse_qs(request.url.query)))

    def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, Refused)
        return _error(error.status, str(error))

    def failed(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            response = _error(HTTPStatus.METHOD_NOT_ALLOWED, "this page only answers GET and HEAD")
            response.headers["Allow"] = "GET, HEAD"
            return response
        return _error(HTTPStatus(error.status_code), "there is nothing here; /api/tables lists the tables")

    application = Starlette(
        routes=[Route(path, file) for path in sent_files] + [Route(path, answer) for path in answered],
        exception_handlers={Refused: refused, HTTPException: failed},
        middleware=[Middleware(HostCheck, hosts), ZIPPING],
    )
    application.router.redirect_slashes = False
    return application


def _error(status: HTTPStatus, text: str) -> Response:
    return JSONResponse({"error": text}, status, HEADERS)
