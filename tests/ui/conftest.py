"""Pages of a test's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from playwright.sync_api import Browser

import lakebed
from lakebed.ui.documents import Live
from lakebed.ui.pages import PageServer
from tests.clock import Clock
from tests.infra.chromium import browser
from tests.ui.tables import lived_in


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as found:
        yield found


@pytest.fixture(autouse=True)
def every_test_has_its_own_cache(own_cache: None) -> None:
    """No test of this folder finds what another one kept."""


class Served:
    """A page of some tables, and what a client is answered."""

    def __init__(self, server: PageServer) -> None:
        self.url = server.url
        self.tables = server.tables
        self._address = urlsplit(server.url).netloc
        self.address = ("127.0.0.1", int(self._address.rpartition(":")[2]))

    def ask(self, target: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection(self._address, timeout=120)
        try:
            connection.request(
                method, target, headers={name.replace("_", "-"): value for name, value in headers.items()}
            )
            answer = connection.getresponse()
            return answer, answer.read()
        finally:
            connection.close()

    def json(self, target: str) -> Any:
        answer, body = self.ask(target)
        assert answer.status == 200, body
        return json.loads(body)

    def of(self, name: str, table: lakebed.Table | str, **more: object) -> Any:
        """An answer of a table."""
        path = table if isinstance(table, str) else table.path
        return self.json(
            f"/api/{name}?path={quote(path, safe='')}" + "".join(f"&{key}={value}" for key, value in more.items())
        )


Serve = Callable[..., Served]


@pytest.fixture
def servers() -> Iterator[list[PageServer]]:
    """Those that a test started; they end with it."""
    started: list[PageServer] = []
    yield started
    for server in started:
        server.close()


def served(server: PageServer, servers: list[PageServer]) -> Served:
    server.start()
    servers.append(server)
    return Served(server)


@pytest.fixture
def serve(servers: list[PageServer]) -> Serve:
    """Serves tables until the test ends; it looks at them five times a second."""

    def started(*tables: lakebed.Table | str, interval: float = 0.2, live: Live | None = None) -> Served:
        paths = [table if isinstance(table, str) else table.path for table in tables]
        return served(PageServer(paths, "127.0.0.1", 0, interval, live), servers)

    return started


ServeDatabase = Callable[..., Served]


@pytest.fixture
def serve_database(servers: list[PageServer]) -> ServeDatabase:
    """Serves the tables of a database until the test ends."""

    def started(path: Path, live: Live | None = None) -> Served:
        return served(PageServer([], "127.0.0.1", 0, 0.05, live, databases=[str(path)]), servers)

    return started


@pytest.fixture
def orders(tmp_path: Path) -> lakebed.Table:
    """A table of some levels, with a tail."""
    return lived_in(tmp_path / "orders", Clock(1_790_000_000.0), batches=6, read_budget=2)
