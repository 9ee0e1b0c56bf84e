"""A small HTTP server that speaks enough S3 to be wrong in one chosen way: what a start-up probe must find out."""

from __future__ import annotations

import threading
import time
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit


class Behaviour(Enum):
    """How it treats ``If-None-Match: *``."""

    IGNORES = "ignores it"
    CHECKS_THEN_WRITES = "checks it, then writes a moment later"
    CONFLICTS_ONCE = "answers 409 to the first put of a name, and is right after that"
    REFUSES_ALL = "answers 412 always"


class UnsafeS3:
    """A server on a loopback port of its own, as a context manager."""

    def __init__(self, behaviour: Behaviour, gap_seconds: float = 0.01) -> None:
        self.behaviour = behaviour
        self.gap_seconds = gap_seconds
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.conflicted: set[str] = set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.unsafe = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> UnsafeS3:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def put(self, name: str, body: bytes, conditional: bool) -> int:
        """The HTTP status of a put."""
        match self.behaviour:
            case Behaviour.CHECKS_THEN_WRITES if conditional:
                if name in self.objects:
                    return 412
                time.sleep(self.gap_seconds)
                self.objects[name] = body
                return 200
            case Behaviour.REFUSES_ALL if conditional:
                return 412
            case Behaviour.CONFLICTS_ONCE if conditional:
                with self.lock:
                    if name not in self.conflicted:
                        self.conflicted.add(name)
                        return 409
                    if name in self.objects:
                        return 412
                    self.objects[name] = body
                    return 200
        self.objects[name] = body
        return 200


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    unsafe: UnsafeS3


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    @property
    def _name(self) -> str:
        return unquote(urlsplit(self.path).path)

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"0"')
        self.end_headers()
        self.wfile.write(body)

    def do_PUT(self) -> None:
        if self.headers.get("Expect", "").lower() == "100-continue":
            pass  # the base class has answered 100 already
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.unsafe.put(self._name, body, self.headers.get("If-None-Match") == "*")
        code = {409: "ConditionalRequestConflict", 412: "PreconditionFailed"}.get(status, "")
        self._answer(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode() if code else b"")

    def do_GET(self) -> None:
        body = self.server.unsafe.objects.get(self._name)
        if body is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
        else:
            self._answer(200, body)

    def do_DELETE(self) -> None:
        self.server.unsafe.objects.pop(self._name, None)
        self._answer(204)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""
