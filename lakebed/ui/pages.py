"""What a browser is sent: the files of the page, and the answers about one table. Both servers of the page send these.

A path of a request is a key of a dictionary: no path that a request contains is ever opened.

**The server** of a page beside a run, or of one folder:

- Only GET and HEAD are served, and only paths that are keys of two dictionaries: files of the page, and answers. The server
  never opens a path that a request contains.
- A request under a foreign name is refused (``http``), so a page of another site gets no data.
- The Content-Security-Policy lets the page run its own scripts and connect to its own origin, nothing else.
- Each answer has an ETag. A client that already has the answer with this tag gets 304.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from importlib import resources
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lakebed.http import ZIPPING, HostCheck, Hosts, HttpServer, Listening, tagged
from lakebed.ui.documents import Live, sections
from lakebed.ui.members import Tables
from lakebed.ui.watch import Answer, Watched

_TYPES = {"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
Arguments = Mapping[str, Sequence[str]]
_Find = Callable[[str], Watched | None]


class Refused(Exception):
    """A request that gets an error in place of an answer."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


def files(entry: str) -> dict[str, tuple[str, Answer]]:
    """The files of the page with their media types, by the path of their request. ``entry``: the one that is sent for ``/``."""
    found = {}
    for file in resources.files("lakebed.ui").joinpath("page").iterdir():
        ending = file.name.rsplit(".", 1)[-1]
        if file.name == entry or ending in ("css", "js"):
            found["/" if file.name == entry else f"/{file.name}"] = _TYPES[ending], Answer(file.read_bytes())
    return found


def answers(find: _Find) -> dict[str, Callable[[Arguments], Answer]]:
    """The answers about one table, and of the runbook, by the path of their request. ``find``: the table with a name."""
    return {
        "/api/table": lambda arguments: _table(_watched(find, arguments)),
        "/api/levels": lambda arguments: _levels(_watched(find, arguments)),
        "/api/timeline": lambda arguments: _timeline(_watched(find, arguments)),
        "/api/part": lambda arguments: _part(_watched(find, arguments), arguments),
        "/api/runbook": _runbook,
    }


def _watched(find: _Find, arguments: Arguments) -> Watched:
    [path] = arguments.get("path", [""])[:1]
    watched = find(path)
    if watched is None:
        raise Refused(HTTPStatus.NOT_FOUND, "no such table is shown here; /api/tables lists the tables as path")
    return watched


def _table(watched: Watched) -> Answer:
    seen, _ = watched.seen()
    return Answer(watched.unseen()) if seen is None else seen.table


def _levels(watched: Watched) -> Answer:
    seen, _ = watched.seen()
    return _required(seen.levels if seen else None)


def _timeline(watched: Watched) -> Answer:
    seen, _ = watched.seen()
    return _required(seen.timeline if seen else None)


def _part(watched: Watched, arguments: Arguments) -> Answer:
    seen, _ = watched.seen()
    try:
        number = int(arguments.get("id", [""])[0])
    except ValueError:
        raise Refused(HTTPStatus.BAD_REQUEST, "id must be a whole number, one of those in /api/levels") from None
    # A part may have left since the levels were asked for. That is no error, so it is none in a browser's console.
    return Answer(seen.part(number) if seen and seen.part else None)


def _runbook(arguments: Arguments) -> Answer:
    [section] = arguments.get("section", [""])[:1]
    if section not in sections():
        raise Refused(HTTPStatus.NOT_FOUND, f"the runbook has no such section; it has {', '.join(sections())}")
    return Answer({"section": section, "text": sections()[section]})


def _required(answer: Answer | None) -> Answer:
    if answer is None:
        raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "the table can't be read now, or not yet; /api/table says why")
    return answer


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
