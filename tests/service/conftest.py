"""Services of a test's own, on loopback, over real tables."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

import lakebed
from lakebed.http import Listening
from lakebed.service.app import Server, Service
from lakebed.service.catalog import Catalog
from lakebed.service.tokens import Role, Token, Tokens, digest_of

TOKENS = {"reader": "a-reader's-token", "operator": "an-operator's-token"}


@pytest.fixture(autouse=True)
def every_test_has_its_own_cache(own_cache: None) -> None:
    """No test of this folder finds what another one kept."""


class Served:
    """A service, and what a caller is answered."""

    def __init__(self, server: Server, service: Service, catalog: Catalog) -> None:
        self._service = service
        self.catalog = catalog
        self.url = server.url
        self.address = urlsplit(server.url).netloc

    def end_streams(self) -> None:
        """End the streams of events, those to come too, each after its first line."""
        self._service.end_streams()

    def client(self, role: str = "operator") -> lakebed.client.RemoteWarehouse:
        return lakebed.connect(self.url, TOKENS.get(role, role))

    def ask(
        self, method: str, target: str, body: Any = None, role: str | None = "operator", **headers: str
    ) -> tuple[int, dict[str, str], bytes]:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if role is not None:
            sent.setdefault("Authorization", f"Bearer {TOKENS.get(role, role)}")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        if data is not None:
            sent.setdefault("Content-Type", "application/json")
        connection = HTTPConnection(self.address, timeout=120)
        try:
            connection.request(method, target, data, sent)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def json(self, target: str, method: str = "GET", body: Any = None) -> Any:
        status, _, answer = self.ask(method, target, body)
        assert status < 300, answer
        return json.loads(answer)

    def problem(self, method: str, target: str, body: Any = None, **more: Any) -> dict[str, Any]:
        """The problem document of a request that is refused."""
        status, headers, answer = self.ask(method, target, body, **more)
        assert status >= 400 and headers["content-type"] == "application/problem+json", (status, headers, answer)
        found: dict[str, Any] = json.loads(answer)
        assert found["status"] == status
        return found


Serve = Callable[..., Served]


def tokens_for_tests(nobody: Role = Role.NOBODY) -> Tokens:
    known = tuple(Token(Role[name.upper()], digest_of(text), name) for name, text in TOKENS.items())
    return Tokens(lambda: known, nobody)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serves what is below some roots until the test ends."""
    servers: list[Server] = []

    def started(
        *roots: Path | str, nobody: Role = Role.NOBODY, tokens: Tokens | None = None, shares_keys: bool = False
    ) -> Served:
        catalog = Catalog([str(root) for root in roots])
        service = Service(catalog, tokens or tokens_for_tests(nobody), shares_keys=shares_keys)
        server = Server(service, Listening(port=0))
        server.start()
        servers.append(server)
        return Served(server, service, catalog)

    yield started
    for server in servers:
        server.close()


SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("day", pa.string()), ("amount", pa.int64())])


def orders(path: Path, *, settled: int = 3, partitioned: bool = True) -> lakebed.Table:
    """A table of some batches, the first ``settled`` of which are settled; later ones change and delete earlier rows."""
    table = lakebed.create(path, SCHEMA, keys=["id"], partition_by=["day"] if partitioned else [])
    for number in range(settled + 2):
        rows = [
            {"id": number * 10 + each, "day": f"2026-01-0{number + 1}", "amount": each, "op": "u"} for each in range(10)
        ]
        if number:
            earlier = [(number - 1) * 10, (number - 1) * 10 + 1]
            rows += [{"id": earlier[0], "day": f"2026-01-0{number}", "amount": 500 + number, "op": "u"}]
            rows += [{"id": earlier[1], "day": f"2026-01-0{number}", "amount": 0, "op": "d"}]
        table.apply(rows, apply_as_deletes="op = 'd'", except_column_list=["op"])
        if number < settled:
            table.settle()
    return table


@pytest.fixture(scope="session")
def lake_to_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What each test gets a copy of."""
    folder = tmp_path_factory.mktemp("service")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAKEBED_CACHE_DIR", str(folder / "cache"))
        orders(folder / "lake" / "orders")
        orders(folder / "lake" / "public" / "items", partitioned=False)
    return folder / "lake"


@pytest.fixture
def lake(tmp_path: Path, lake_to_copy: Path) -> Path:
    """A folder with a table directly in it, and one in a schema."""
    shutil.copytree(lake_to_copy, tmp_path / "lake")
    return tmp_path / "lake"
