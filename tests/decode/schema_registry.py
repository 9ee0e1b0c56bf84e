"""A small schema registry over HTTP in this process, which may fail on purpose."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, Self
from uuid import UUID


def guid_of(number: int) -> str:
    """The GUID of the schema with an id."""
    return str(UUID(int=number << 64 | 0xABCD))


class SchemaRegistry:
    """Answers as Confluent's does: schemas by id, and versions of subjects. ``failing``: so many requests fail first.

    A process keeps schemas by the registry's URL for ever, and ports come back: so each registry has a path of its own.
    """

    _numbers = count(1)

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[tuple[str, int], int] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        self.failing = 0
        self.failure: tuple[int, bytes] = (503, b'{"error_code": 50003, "message": "the store of schemas is away"}')
        self.authorization: str | None = None
        registry = self
        prefix = f"/registry{next(self._numbers)}"

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                path = self.path.removeprefix(prefix)
                registry.requests.append((path, dict(self.headers)))
                status, body = registry.answer(path, self.headers.get("Authorization"))
                self.send_response(status)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{prefix}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def register(
        self, schema: Any, kind: str = "AVRO", references: Sequence[tuple[str, str, int]] = (), subject: str = "s"
    ) -> int:
        """The id of a schema, given as text or as JSON; ``references``: name, subject and version."""
        text = schema if isinstance(schema, str) else json.dumps(schema)
        listed = [{"name": name, "subject": where, "version": version} for name, where, version in references]
        number = len(self.schemas) + 1
        self.schemas[number] = {"schema": text, "schemaType": kind, "references": listed}
        version = 1 + sum(1 for known, _ in self.subjects if known == subject)
        self.subjects[subject, version] = number
        return number

    def answer(self, path: str, authorization: str | None) -> tuple[int, bytes]:
        if self.failing:
            self.failing -= 1
            return self.failure
        if self.authorization is not None and authorization != self.authorization:
            return 401, b'{"error_code": 401, "message": "Unauthorized"}'
        steps = path.split("?")[0].strip("/").split("/")
        match steps:
            case ["schemas", "ids", number]:
                found = self.schemas.get(int(number))
                if found is None:
                    return 404, b'{"error_code": 40403, "message": "Schema not found"}'
                return 200, json.dumps(found).encode()
            case ["schemas", "guids", guid]:
                numbers = [number for number in self.schemas if guid_of(number) == guid]
                if not numbers:
                    return 404, b'{"error_code": 40403, "message": "Schema not found"}'
                return 200, json.dumps(self.schemas[numbers[0]] | {"guid": guid}).encode()
            case ["subjects", subject, "versions", version]:
                if version == "latest":
                    version = str(sum(1 for known_subject, _ in self.subjects if known_subject == subject))
                known = self.subjects.get((subject, int(version)))
                if known is None:
                    return 404, b'{"error_code": 40401, "message": "Subject not found"}'
                more = {"subject": subject, "version": int(version), "id": known}
                return 200, json.dumps(self.schemas[known] | more).encode()
        return 404, b"<html>no such page</html>"
