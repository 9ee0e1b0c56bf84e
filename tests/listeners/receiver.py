"""A server on loopback that gets webhooks, and answers as the test says."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[dict[str, Any]], int | tuple[int, dict[str, str]]]


@dataclass
class Received:
    """What came, in the order in which it came; ``acknowledged``: the part that was answered with 200."""

    url: str = ""
    requests: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    acknowledged: list[dict[str, Any]] = field(default_factory=list)
    answer: Answer = lambda event: 200


@contextmanager
def receiver() -> Iterator[Received]:
    """A receiver while the block runs."""
    received, lock = Received(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            event = json.loads(body)
            with lock:
                received.requests.append(({name.lower(): value for name, value in self.headers.items()}, body))
                answer = received.answer(event)
                status, headers = answer if isinstance(answer, tuple) else (answer, {})
                if status == 200:
                    received.acknowledged.append(event)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    received.url = f"http://127.0.0.1:{server.server_port}/hook?from=lakebed"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
