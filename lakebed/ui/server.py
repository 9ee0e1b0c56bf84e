"""Serves the page and the answers over HTTP, read-only.

- Only GET and HEAD are served, and only paths that are keys of two dictionaries: files of the page, and answers. The server
  never opens a path that a request contains.
- A request is refused if its ``Host`` is neither an IP address, nor a name of this machine, nor the host of the command line.
  So a foreign page whose domain was made to resolve to this server (DNS rebinding) gets no data.
- The Content-Security-Policy lets the page run its own scripts and connect to its own origin, nothing else.
- Each answer has an ETag. A client that already has the answer with this tag gets 304.
"""

from __future__ import annotations

import logging
import re
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.hosts import Hosts
from lakebed.ui.live import Live
from lakebed.ui.overview import Tables
from lakebed.ui.pages import HEADERS, Refused, answers, files
from lakebed.ui.watch import Answer

REQUEST_SECONDS_MAX = 30
CONNECTIONS_MAX = 100
_BUSY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_logger = logging.getLogger("lakebed.ui")
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
        """``port`` 0: any free one. ``live``: what this process knows of the tables beyond their logs. ``databases``: paths with
        tables below. ``where``: host and port are set.

        Raises InvalidInput for a path that can't be one, MissingPrerequisite for a taken port.
        """
        if not host:
            raise InvalidInput(
                f"the host of the page is empty, which means every address of this machine; set {where} (0.0.0.0, if that is "
                "wanted)"
            )
        self.tables = Tables(paths, interval_seconds, live, databases)
        try:
            self._server = _Server((host, port), _Page(self.tables, host))
        except OSError as error:
            raise MissingPrerequisite(
                f"the page can't be served on {host}:{port} ({error.strerror or error}); set {where} to a free port"
            ) from None
        except OverflowError:
            raise InvalidInput(f"the port of the page is {port}; it must be between 0 and 65535") from None
        spelled = f"[{host}]" if ":" in host else host
        self.url = f"http://{spelled}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="lakebed-ui", daemon=True)

    def start(self) -> None:
        self.tables.start()
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.tables.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = CONNECTIONS_MAX

    def __init__(self, address: tuple[str, int], page: _Page) -> None:
        self.page = page
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """One thread per connection, and at most ``CONNECTIONS_MAX`` connections."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(_BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Log the error, unless the browser only closed its connection."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            _logger.warning("a request failed", exc_info=True)


class _Page:
    """The files and answers of the page, and the host names that it is served under."""

    def __init__(self, tables: Tables, host: str) -> None:
        self.hosts = Hosts(host)
        self._files = files("index.html")
        self._answers = answers(tables.find) | {"/api/tables": lambda arguments: tables.overview()}

    def find(self, address: str) -> tuple[str, Answer]:
        """The media type and the answer for the address of a request. Raises Refused."""
        try:
            request = urlsplit(address)
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST, "this is no address") from None
        if request.path in self._files:
            return self._files[request.path]
        if request.path not in self._answers:
            raise Refused(HTTPStatus.NOT_FOUND, "there is nothing here; /api/tables lists the tables")
        return _JSON, self._answers[request.path](parse_qs(request.query))


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = REQUEST_SECONDS_MAX

    def do_GET(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # the body is not read, and must not be taken for the next request
        try:
            if not self.server.page.hosts.is_allowed(self.headers.get_all("Host") or []):
                raise Refused(
                    HTTPStatus.MISDIRECTED_REQUEST,
                    "this page answers to an address, to localhost and to this machine's name",
                )
            kind, answer = self.server.page.find(self.path)
        except Refused as refused:
            self._send(refused.status, _JSON, Answer({"error": str(refused)}))
            return
        if answer.tag in _TAG.findall(self.headers.get("If-None-Match", "")):
            self._send(HTTPStatus.NOT_MODIFIED, kind, answer)
        else:
            self._send(HTTPStatus.OK, kind, answer)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.close_connection = True  # the body is not read
        self._send(HTTPStatus.METHOD_NOT_ALLOWED, _JSON, Answer({"error": "this page only answers GET and HEAD"}))

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_POST

    def _send(self, status: HTTPStatus, kind: str, answer: Answer) -> None:
        accepted = {item.split(";")[0].strip() for item in self.headers.get("Accept-Encoding", "").split(",")}
        zipped = answer.zipped if "gzip" in accepted else None
        body = answer.body if zipped is None else zipped
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        if status in (HTTPStatus.OK, HTTPStatus.NOT_MODIFIED):
            self.send_header("ETag", f'W/"{answer.tag}"')
        if status is HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "GET, HEAD")
        if self.close_connection:
            self.send_header("Connection", "close")
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            if zipped is not None:
                self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        if self.command != "HEAD" and status is not HTTPStatus.NOT_MODIFIED:
            self.wfile.write(body)

    def version_string(self) -> str:
        return "lakebed"

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""
