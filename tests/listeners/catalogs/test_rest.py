"""What is particular to REST catalogs: whether a name may be registered again, and answers that are none.

``test_iceberg`` has what all catalogs do. Here is a catalog in memory besides, on loopback, which knows ``overwrite``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.listeners.targets import Catalog
from tests.infra.rest_catalog import RestCatalogServer
from tests.listeners.catalogs.catalogs import Follower
from tests.listeners.test_listening import changes, make

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]


@dataclass
class InMemory:
    """A catalog; ``status``: what it answers to everything, if that is set."""

    url: str = ""
    tables: dict[str, str] = field(default_factory=dict)  # where their metadata is
    namespaces: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)
    tokens: set[str | None] = field(default_factory=set)
    status: int = 0

    def answer(self, method: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        parts = path.partition("?")[0].strip("/").split("/")[1:]
        if self.status:
            return self.status, {"error": {"message": "not now", "type": "Odd", "code": self.status}}
        match method, parts:
            case "GET", ["config"]:
                return 200, {"defaults": {}, "overrides": {}}
            case "POST", ["namespaces"]:
                self.namespaces.add(body["namespace"][0])
                return 200, {"namespace": body["namespace"], "properties": {}}
            case "POST", ["namespaces", _, "register"]:
                if body["name"] in self.tables and not body.get("overwrite"):
                    return 409, {"error": {"message": "it is there", "type": "AlreadyExistsException", "code": 409}}
                self.tables[body["name"]] = body["metadata-location"]
                return 200, self.loaded(body["name"])
            case "GET", ["namespaces", _, "tables", name] if Path(self.tables.get(name, "/none")).exists():
                return 200, self.loaded(name)
            case "DELETE", ["namespaces", _, "tables", name]:
                del self.tables[name]
                return 204, None
            case _:
                return 404, {"error": {"message": "there is none", "type": "NoSuchTableException", "code": 404}}

    def loaded(self, name: str) -> dict[str, Any]:
        location = self.tables[name]
        return {"metadata-location": location, "metadata": json.loads(Path(location).read_text()), "config": {}}


@pytest.fixture
def catalog() -> Iterator[InMemory]:
    found = InMemory()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_one(self) -> None:
            sent = self.rfile.read(int(self.headers.get("content-length") or 0))
            found.requests.append(f"{self.command} {self.path}")
            found.tokens.add(self.headers.get("authorization"))
            status, value = found.answer(self.command, self.path, json.loads(sent or b"{}"))
            data = b"" if value is None else json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data if self.command != "HEAD" else b"")

        do_GET = do_POST = do_DELETE = do_HEAD = handle_one

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def published(lake: str) -> lakebed.Table:
    orders = make(lake, "public/orders")
    orders.set_properties({"lakebed.iceberg": "on"})
    orders.maintenance.publish_iceberg()
    return orders


def settled(orders: lakebed.Table) -> str:
    """The metadata of a new version."""
    orders.apply(changes())
    orders.settle()
    return orders.maintenance.publish_iceberg().metadata


def test_a_name_is_registered_again_in_one_request(
    tmp_path: Path, catalog: InMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_SECRET_REST", "a-token")
    orders = published(str(tmp_path / "lake"))
    target = Catalog(url=catalog.url, config={"token": "${LAKEBED_SECRET_REST}"})
    follower = Follower(str(tmp_path / "lake"), target)
    assert follower.step() == "" and catalog.namespaces == {"public"}
    newest = settled(orders)
    catalog.requests.clear()
    assert follower.step() == "" and catalog.tables == {"orders": newest}
    assert [request.split()[0] for request in catalog.requests] == ["GET", "POST"]
    catalog.requests.clear()
    assert Follower(str(tmp_path / "lake"), target).step() == ""
    assert not [request for request in catalog.requests if request.startswith("POST")], "it is so already"
    assert catalog.tokens == {"Bearer a-token"}
    orders.drop()
    follower.step(2)
    assert catalog.tables == {}


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_an_answer_that_is_none_is_asked_for_again(tmp_path: Path, catalog: InMemory, status: int) -> None:
    """A right that is missing may concern one table; all else concerns all."""
    orders = published(str(tmp_path / "lake"))
    follower = Follower(str(tmp_path / "lake"), Catalog(url=catalog.url))
    follower.step()
    newest = settled(orders)
    catalog.status = status
    error = follower.step(2)
    assert error.startswith(
        f"public.orders: {catalog.url} refuses" if status == 403 else f"{catalog.url} does not answer"
    )
    assert "not now" in error
    assert follower.behind_seconds() > 0
    catalog.status = 0
    assert follower.step(2) == "" and catalog.tables == {"orders": newest}
    assert follower.behind_seconds() == 0


def test_a_catalog_that_does_not_let_a_name_be_registered_again_says_so(
    tmp_path: Path, rest_catalog: RestCatalogServer
) -> None:
    orders = published(str(tmp_path / "lake"))
    target = Catalog(url=rest_catalog.url, database=f"ns_{tmp_path.parent.name[-6:].replace('-', '_')}_again")
    follower = Follower(str(tmp_path / "lake"), target)
    assert follower.step() == ""
    settled(orders)
    error = follower.step(2)
    assert "be registered again" in error and "--config replace=yes removes the entry each time" in error


def test_an_entry_that_can_not_be_loaded_says_what_to_do(tmp_path: Path, catalog: InMemory) -> None:
    """Its metadata was deleted while nobody delivered, as by a purge."""
    orders = published(str(tmp_path / "lake"))
    follower = Follower(str(tmp_path / "lake"), Catalog(url=catalog.url))
    follower.step()
    newest = settled(orders)
    Path(catalog.tables["orders"]).unlink()
    error = follower.step(2)
    assert f"{catalog.url} has public.orders and can't load it" in error and "drop it there without its files" in error
    catalog.tables.clear()
    assert follower.step(2) == "" and catalog.tables == {"orders": newest}


def test_a_name_that_another_table_has_is_left_as_it_is(tmp_path: Path, catalog: InMemory) -> None:
    published(str(tmp_path / "other"))
    published(str(tmp_path / "lake"))
    assert Follower(str(tmp_path / "other"), Catalog(url=catalog.url)).step() == ""
    before = dict(catalog.tables)
    follower = Follower(str(tmp_path / "lake"), Catalog(url=catalog.url))
    assert f"public.orders is taken in the catalog by the table at {tmp_path}/other/public/orders" in follower.step()
    lakebed.open(tmp_path / "lake/public/orders").drop(purge=True)
    follower.step(3)
    assert catalog.tables == before
