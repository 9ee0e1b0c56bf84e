"""Iceberg's REST catalog: every answer is as its specification says, whoever asks for whatever."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lakebed
from lakebed.discovery import TableName
from lakebed.iceberg.metadata import HINT, metadata_name
from lakebed.service import iceberg_routes
from lakebed.service.iceberg_routes import reached_by
from lakebed.service.iceberg_tables import DEFAULT, identifier_of
from lakebed.service.tokens import Role
from lakebed.storage.object_store import Folders
from tests.iceberg.specification import check, is_as_described
from tests.service.conftest import SCHEMA, Serve, Served

ON = {"lakebed.iceberg": "on"}
OPERATIONS = {
    "getConfig": ("GET", "/v1/config"),
    "listNamespaces": ("GET", "/v1/namespaces"),
    "loadNamespaceMetadata": ("GET", "/v1/namespaces/{}"),
    "namespaceExists": ("HEAD", "/v1/namespaces/{}"),
    "listTables": ("GET", "/v1/namespaces/{}/tables"),
    "loadTable": ("GET", "/v1/namespaces/{}/tables/{}"),
    "tableExists": ("HEAD", "/v1/namespaces/{}/tables/{}"),
    "reportMetrics": ("POST", "/v1/namespaces/{}/tables/{}/metrics"),
}
WRITES = {
    "createNamespace": ("POST", "/v1/namespaces"),
    "dropNamespace": ("DELETE", "/v1/namespaces/{}"),
    "updateProperties": ("POST", "/v1/namespaces/{}/properties"),
    "createTable": ("POST", "/v1/namespaces/{}/tables"),
    "registerTable": ("POST", "/v1/namespaces/{}/register"),
    "updateTable": ("POST", "/v1/namespaces/{}/tables/{}"),
    "dropTable": ("DELETE", "/v1/namespaces/{}/tables/{}"),
    "renameTable": ("POST", "/v1/tables/rename"),
    "commitTransaction": ("POST", "/v1/transactions/commit"),
    "createView": ("POST", "/v1/namespaces/{}/views"),
    "registerView": ("POST", "/v1/namespaces/{}/register-view"),
    "replaceView": ("POST", "/v1/namespaces/{}/views/{}"),
    "dropView": ("DELETE", "/v1/namespaces/{}/views/{}"),
    "renameView": ("POST", "/v1/views/rename"),
}


class Catalog:
    """The catalog of a service, each answer of which is held against the specification."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def ask(
        self,
        operation: str,
        *names: str,
        query: str = "",
        body: Any = None,
        role: str | None = "reader",
        **headers: str,
    ) -> tuple[int, dict[str, str], Any]:
        """``names``: as they stand in the path."""
        method, path = (OPERATIONS | WRITES)[operation]
        target = f"/iceberg{path.format(*names)}{query and '?'}{query}"
        status, sent, raw = self.served.ask(method, target, body, role, **headers)
        return status, sent, check(operation, status, raw)

    def get(self, operation: str, *names: str, query: str = "", role: str | None = "reader") -> Any:
        status, _, value = self.ask(operation, *names, query=query, role=role)
        assert status in (200, 204), value
        return value

    def paged(self, size: int, operation: str, *names: str) -> list[Any]:
        """All of a list, page by page."""
        found, token = list[Any](), ""
        while token is not None:
            answer = self.get(operation, *names, query=f"pageSize={size}&pageToken={quote(token)}")
            some = answer.get("namespaces", answer.get("identifiers"))
            assert len(some) <= size
            assert some or not found, "a page that is empty was not needed"
            found, token = found + some, answer["next-page-token"]
        return found

    def refused(self, operation: str, *names: str, **more: Any) -> tuple[int, str, str]:
        status, _, value = self.ask(operation, *names, **more)
        assert status >= 400
        return status, value["error"]["type"], value["error"]["message"]


def make(root: Path, *, publish: bool = True, on: bool = True) -> lakebed.Table:
    table = lakebed.create(root, SCHEMA, keys=["id"], properties=ON if on else {})
    change(table, publish=publish)
    return table


def change(table: lakebed.Table, *, publish: bool = True) -> None:
    table.apply([{"id": key, "day": "2026-01-01", "amount": table.version} for key in range(10)])
    table.settle()
    if publish:
        table.maintenance.publish_iceberg()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """Tables that have published something, and some that have not."""
    for name in ("items", "shop.orders", "a.b.c", "a.b.d"):
        make(tmp_path / "lake" / TableName(name).folder)
    make(tmp_path / "lake/plain")
    make(tmp_path / "lake/shop/new", publish=False)
    make(tmp_path / "lake/shop/off", publish=False, on=False)
    return tmp_path / "lake"


@pytest.fixture
def catalog(shop: Path, serve: Serve) -> Catalog:
    return Catalog(serve(shop))


def test_it_says_what_is_served(catalog: Catalog) -> None:
    found = catalog.get("getConfig", query="warehouse=anything")
    served = {f"{method} {path}".replace("/v1/", "/v1/{prefix}/", 1) for method, path in OPERATIONS.values()}
    shapes = {each.replace("{namespace}", "{}").replace("{table}", "{}") for each in found["endpoints"]}
    assert shapes == served - {"GET /v1/{prefix}/config"}
    assert found["overrides"] == {}


def test_namespaces_have_levels(catalog: Catalog) -> None:
    assert catalog.get("listNamespaces")["namespaces"] == [["a"], ["default"], ["shop"]]
    for parent in ("a", "%61", "%2561"):  # some clients encode it twice
        assert catalog.get("listNamespaces", query=f"parent={parent}")["namespaces"] == [["a", "b"]]
    assert catalog.get("listNamespaces", query="parent=a%1Fb")["namespaces"] == []
    assert catalog.get("listNamespaces", query="parent=")["namespaces"] == [["a"], ["default"], ["shop"]]
    for namespace in ("a", "a%1fb", "a%1Fb", "default"):
        catalog.get("namespaceExists", namespace)
        found = catalog.get("loadNamespaceMetadata", namespace)
        assert found == {"namespace": namespace.lower().split("%1f"), "properties": {}}
    assert catalog.get("listTables", "a")["identifiers"] == []
    names = [{"namespace": ["a", "b"], "name": name} for name in ("c", "d")]
    assert catalog.get("listTables", "a%1Fb")["identifiers"] == names


def test_a_table_has_one_identifier_and_a_namespace_always() -> None:
    assert identifier_of("shop.orders") == (("shop",), "orders")
    assert identifier_of("a.b.c") == (("a", "b"), "c")
    for name in ("orders", "a..b", ".a", "a.", "."):
        assert identifier_of(name) == (DEFAULT, name)


def test_tables_are_those_that_have_published_something(catalog: Catalog) -> None:
    def names(namespace: str) -> list[str]:
        return [each["name"] for each in catalog.get("listTables", namespace)["identifiers"]]

    assert (names("shop"), names("default")) == (["orders"], ["items", "plain"])
    for name, is_there in (("orders", True), ("off", False), ("a", False)):
        assert (catalog.ask("tableExists", "shop", name)[0] == 204) is is_there
    assert catalog.ask("tableExists", "a%1Fb", "c")[0] == 204
    assert catalog.ask("tableExists", "a", "b.c")[0] == 404, "it has another identifier"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_pages(catalog: Catalog, size: int) -> None:
    assert catalog.paged(size, "listNamespaces") == [["a"], ["default"], ["shop"]]
    assert [each["name"] for each in catalog.paged(size, "listTables", "a%1Fb")] == ["c", "d"]
    assert [each["name"] for each in catalog.paged(size, "listTables", "default")] == ["items", "plain"]
    for query in ("pageToken=%FF", "pageToken=a", "pageSize=0", "pageSize=x", "pageToken=&pageSize=-1"):
        assert catalog.refused("listTables", "shop", query=query)[:2] == (400, "BadRequestException")


def test_a_thousand_namespaces_take_one_look_at_each_folder(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lakebed.service.iceberg_tables._LISTED_SECONDS", 3600.0)
    expected = [[f"shop{number:03}"] for number in range(1_000)]
    for [name] in expected:
        (tmp_path / "lake" / name / "orders/_delta_log").mkdir(parents=True)
    looks, below = list[str](), Folders.below
    monkeypatch.setattr(Folders, "below", lambda self, folder="": looks.append(folder) or below(self, folder))
    catalog = Catalog(serve(tmp_path / "lake"))
    assert catalog.get("listNamespaces")["namespaces"] == expected
    assert catalog.paged(300, "listNamespaces") == expected
    assert catalog.get("namespaceExists", "shop999") is None
    assert len(looks) == len(set(looks)) == 1 + 2 * len(expected)


def test_a_load_gives_what_was_published(catalog: Catalog, shop: Path) -> None:
    table = lakebed.open(shop / "shop/orders")
    for number in (1, 2, 3):
        found = catalog.get("loadTable", "shop", "orders")
        path = Path(table.path) / metadata_name(number)
        assert found["metadata-location"] == str(path)
        assert found["metadata"] == json.loads(path.read_bytes())
        assert found["config"] == {}
        change(table)
    refs = catalog.get("loadTable", "shop", "orders", query="snapshots=refs&unknown=1")["metadata"]
    every = catalog.get("loadTable", "shop", "orders", query="snapshots=all")["metadata"]
    assert (len(refs["snapshots"]), len(every["snapshots"])) == (1, 4)
    assert refs["snapshots"] == every["snapshots"][-1:] and refs["snapshot-log"] == every["snapshot-log"][-1:]
    assert catalog.refused("loadTable", "shop", "orders", query="snapshots=some")[0] == 400


def test_who_has_it_already_gets_nothing_more(catalog: Catalog, shop: Path) -> None:
    table, tags = lakebed.open(shop / "shop/orders"), list[str]()
    for mode in ("all", "refs", "all", "refs"):
        status, headers, _ = catalog.ask("loadTable", "shop", "orders", query=f"snapshots={mode}")
        assert status == 200
        tags.append(headers["etag"])
        for known in tags:
            again, _, _ = catalog.ask("loadTable", "shop", "orders", query=f"snapshots={mode}", If_None_Match=known)
            assert again == (304 if known == headers["etag"] else 200)
        if len(tags) == 2:
            change(table)
    assert len(set(tags)) == 4


def test_two_services_over_one_warehouse_say_the_same_while_it_is_written(
    catalog: Catalog, shop: Path, serve: Serve
) -> None:
    table, services = lakebed.open(shop / "shop/orders"), (catalog, Catalog(serve(shop)))
    writer, seen, tag = Thread(target=lambda: [change(table) for _ in range(8)]), 0, ""
    writer.start()
    for number in range(60):
        status, headers, found = services[number % 2].ask("loadTable", "shop", "orders", If_None_Match=tag)
        if status == 200:
            newest = found["metadata"]["current-snapshot-id"]
            assert newest > seen and found["metadata"] == json.loads(Path(found["metadata-location"]).read_bytes())
            seen, tag = newest, headers["etag"]
        assert status in (200, 304)
    writer.join()
    table.restore(version=table.version - 2)
    table.maintenance.publish_iceberg()
    first, second = (each.ask("loadTable", "shop", "orders") for each in services)
    assert first[1]["etag"] == second[1]["etag"] != tag and first[2] == second[2]
    assert first[2]["metadata"]["current-snapshot-id"] == table.version + 1


def test_who_has_no_token_gets_nothing(catalog: Catalog) -> None:
    for operation in OPERATIONS | WRITES:
        for role in (None, "no such token", ""):
            status, headers, value = catalog.ask(operation, "shop", "orders", role=role)
            assert status == 401 and headers["www-authenticate"] == "Bearer"
            assert value is None or value["error"]["type"] == "NotAuthorizedException"


def test_on_loopback_without_tokens_everybody_reads(shop: Path, serve: Serve) -> None:
    catalog = Catalog(serve(shop, nobody=Role.READER))
    assert catalog.get("loadTable", "shop", "orders", role=None)["metadata"]["format-version"] == 3
    assert catalog.refused("dropTable", "shop", "orders", role=None)[:2] == (403, "ForbiddenException")
    assert catalog.refused("loadTable", "shop", "new", role=None)[0] == 503


@pytest.mark.parametrize("operation", WRITES)
def test_what_writes_is_refused_with_what_to_do_instead(catalog: Catalog, shop: Path, operation: str) -> None:
    before = sorted(shop.rglob("*"))
    for role in ("reader", "operator"):
        status, kind, text = catalog.refused(operation, "shop", "orders", body={"name": "x"}, role=role)
        assert (status, kind) == (403, "ForbiddenException")
        assert text.startswith("nobody writes through Iceberg's catalog here: ") and len(text) > 60
    assert sorted(shop.rglob("*")) == before


def test_no_token_is_made_for_a_client_and_its_secret(catalog: Catalog) -> None:
    status, _, raw = catalog.served.ask("POST", "/iceberg/v1/oauth/tokens", b"grant_type=client_credentials", None)
    assert status == 400
    is_as_described("OAuthError", json.loads(raw))
    assert "lakebed serve token" in raw.decode()


def test_what_is_not_published_yet_is_published_for_an_operator_alone(catalog: Catalog, shop: Path) -> None:
    status, headers, value = catalog.ask("loadTable", "shop", "new")
    assert status == 503 and headers["retry-after"] == "10"
    assert (
        value["error"]["type"] == "ServiceUnavailableException" and "lakebed.iceberg is on" in value["error"]["message"]
    )
    assert catalog.ask("tableExists", "shop", "new")[0] == 503
    assert not (shop / "shop/new" / HINT).exists()
    found = catalog.get("loadTable", "shop", "new", role="operator")
    assert found["metadata"]["current-snapshot-id"] == lakebed.open(shop / "shop/new").version + 1
    assert catalog.get("loadTable", "shop", "new") == found
    status, kind, text = catalog.refused("loadTable", "shop", "off", role="operator")
    assert (status, kind) == (404, "NoSuchTableException") and "lakebed.iceberg is off for shop.off" in text


def test_a_table_that_is_turned_off_dropped_or_gone_is_not_served(catalog: Catalog, shop: Path) -> None:
    table = lakebed.open(shop / "shop/orders")
    before = catalog.get("loadTable", "shop", "orders")

    def is_gone(why: str) -> None:
        status, kind, text = catalog.refused("loadTable", "shop", "orders")
        assert (status, kind) == (404, "NoSuchTableException") and why in text

    table.set_properties({"lakebed.iceberg": "off"})
    is_gone("is off")
    table.set_properties(ON)
    assert catalog.refused("loadTable", "shop", "orders")[0] == 503
    [found] = table.doctor().findings
    assert found.severity.value == "warning" and "publish" in found.remedy
    table.maintenance.publish_iceberg()
    assert table.doctor().findings == ()
    assert catalog.get("loadTable", "shop", "orders") == before
    table.drop()
    is_gone("there is no table")
    lakebed.undrop(shop / "shop/orders")
    assert catalog.get("loadTable", "shop", "orders") == before
    lakebed.open(shop / "shop/orders").drop(purge=True)
    is_gone("there is no table")


@pytest.mark.parametrize("rows", [0, 10])
def test_a_table_that_is_made_anew_is_served_as_the_new_one(catalog: Catalog, shop: Path, rows: int) -> None:
    """Its metadata has the numbers of the old one's, and so have its snapshots."""

    def made_anew() -> tuple[str, dict[str, str]]:
        if (shop / "shop/orders").exists():
            lakebed.open(shop / "shop/orders").drop(purge=True)
        table = lakebed.create(shop / "shop/orders", SCHEMA, keys=["id"], properties=ON)
        table.apply([{"id": key, "day": "2026-01-01", "amount": 1} for key in range(rows)])
        table.settle()
        table.maintenance.publish_iceberg()
        status, headers, value = catalog.ask("loadTable", "shop", "orders", **held)
        assert status == 200, "what the caller has is of the old one"
        return value["metadata"]["table-uuid"], {"If_None_Match": headers["etag"]}

    held: dict[str, str] = {}
    before, held = made_anew()
    after, _ = made_anew()
    assert before != after


def test_cleanup_takes_the_hint_that_a_killed_process_left(catalog: Catalog, shop: Path) -> None:
    table = lakebed.open(shop / "shop/orders")
    hint = (Path(table.path) / HINT).read_bytes()
    table.set_properties({"lakebed.iceberg": "off"})
    (Path(table.path) / HINT).write_bytes(hint)
    table.maintenance.vacuum(dry_run=False)
    assert not (Path(table.path) / HINT).exists() and (Path(table.path) / metadata_name(1)).exists()


def test_a_moved_table_is_served_once_it_is_published_there(catalog: Catalog, shop: Path) -> None:
    (shop / "shop/orders").rename(shop / "shop/moved")
    assert catalog.refused("loadTable", "shop", "orders")[0] == 404
    assert catalog.refused("loadTable", "shop", "moved")[0] == 503
    found = catalog.get("loadTable", "shop", "moved", role="operator")
    assert found["metadata"]["location"].endswith("shop/moved/_lakebed/iceberg")


def test_of_damaged_metadata_what_was_before_is_served(catalog: Catalog, shop: Path) -> None:
    table = lakebed.open(shop / "shop/orders")
    before = catalog.get("loadTable", "shop", "orders")
    change(table)
    (Path(table.path) / metadata_name(2)).write_bytes(b"{")
    assert catalog.get("loadTable", "shop", "orders") == before
    table.maintenance.publish_iceberg()
    assert catalog.get("loadTable", "shop", "orders")["metadata-location"].endswith("v3.metadata.json")


def test_two_roots_with_a_table_of_one_name(tmp_path: Path, serve: Serve) -> None:
    for root in ("one", "two"):
        make(tmp_path / root / "shop/orders")
    catalog = Catalog(serve(tmp_path / "one", tmp_path / "two"))
    status, _, text = catalog.refused("loadTable", "shop", "orders")
    assert status == 400 and "several roots have a table 'shop.orders'" in text
    assert len(catalog.get("listTables", "shop")["identifiers"]) == 1


def test_a_schema_that_is_called_default(tmp_path: Path, serve: Serve) -> None:
    make(tmp_path / "lake" / TableName("default.own").folder)
    table = make(tmp_path / "lake" / TableName("default.both").folder)
    catalog = Catalog(serve(tmp_path / "lake"))
    assert [each["name"] for each in catalog.get("listTables", "default")["identifiers"]] == ["both", "own"]
    assert catalog.get("loadTable", "default", "both")["metadata-location"].startswith(table.path)
    plain = make(tmp_path / "lake/both")
    assert (
        Catalog(serve(tmp_path / "lake"))
        .get("loadTable", "default", "both")["metadata-location"]
        .startswith(plain.path)
    )


HOSTILE = [
    "..", ".", "%2e%2e", "..%2F..%2Fetc", "%2Fetc%2Fpasswd", "a%2Fb", "a.b", "a..b", ".a", "a.", "%00", "a%00b", "%", "%zz",
    "%FF", "%C3%28", "%ED%A0%80", "%1F", "a%1F", "%1Fa", "a%1F%1Fb", "%E2%98%83", "a%20b", "a+b", "%2B", "~", "*", "a;b", "a:b",
    "CON", "x" * 300, "x" * 20_000, "%22%27%3B--", "_lakebed", "_delta_log", "default", "${jndi:x}", "a%0d%0aX-Y:1", "%25%31",
    "a%1F" * 2_000 + "b",
]  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_hostile_name_is_not_there_or_a_bad_request(catalog: Catalog, operation: str) -> None:
    for name in HOSTILE:
        for names in ((name, name), ("shop", name), (name, "orders")):
            query = f"parent={name}&pageToken={name}" if operation == "listNamespaces" else ""
            status, _, _ = catalog.ask(
                operation, *names, query=query, body={} if operation == "reportMetrics" else None
            )
            is_named = OPERATIONS[operation][1].format(*names) != OPERATIONS[operation][1] or query
            is_there = (
                not is_named
                or "default" in names[:1]
                or (names[0] == "shop" and "tables/" not in OPERATIONS[operation][1])
            )
            assert status in ((200, 204, 400, 404) if is_there else (400, 404)), (names, status)
    assert catalog.get("loadTable", "shop", "orders")


@settings(max_examples=60, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    operation=st.sampled_from(sorted(OPERATIONS | WRITES)),
    names=st.tuples(*[st.text() | st.binary().map(lambda data: data.decode("latin-1"))] * 2),
    query=st.dictionaries(
        st.sampled_from(["pageToken", "pageSize", "parent", "snapshots", "warehouse", "x"]), st.text()
    ),
    body=st.none() | st.binary(max_size=100) | st.dictionaries(st.text(), st.integers()),
)
def test_whatever_is_asked_the_answer_is_as_described_and_no_failure(
    described: Catalog, operation: str, names: tuple[str, str], query: dict[str, str], body: Any
) -> None:
    def spelled(text: str) -> str:
        return quote(text, safe="", errors="surrogatepass") or "x"

    asked = "&".join(f"{name}={quote(text, errors='surrogatepass')}" for name, text in query.items())
    status, _, _ = described.ask(operation, *map(spelled, names), query=asked, body=body, role="operator")
    assert status < 500


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from lakebed.http import Listening
    from lakebed.service import app
    from lakebed.service.catalog import Catalog as Tables
    from tests.service.conftest import tokens_for_tests

    folder = tmp_path_factory.mktemp("iceberg")
    make(folder / "lake/shop/orders")
    tables = Tables([str(folder / "lake")])
    service = app.Service(tables, tokens_for_tests())
    server = app.Server(service, Listening(port=0))
    server.start()
    yield Catalog(Served(server, service, tables))
    server.close()


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("GET", "/iceberg/v1", 404), ("GET", "/iceberg/", 404), ("GET", "/iceberg/v2/config", 404),
        ("PUT", "/iceberg/v1/config", 405),
        ("GET", "/iceberg/v1/namespaces/shop/views", 405), ("GET", "/iceberg/v1/namespaces/", 404),
        ("GET", "/iceberg/v1/namespaces/shop/tables/", 404), ("POST", "/iceberg/v1/namespaces/shop/tables/orders/plan", 404),
        ("PATCH", "/iceberg/v1/namespaces/shop/tables/orders", 405), ("GET", "/iceberg//v1/config", 404),
    ],
)  # fmt: skip
def test_what_is_not_served_is_an_error_of_icebergs(catalog: Catalog, method: str, target: str, status: int) -> None:
    found, _, raw = catalog.served.ask(method, target)
    assert found == status
    is_as_described("IcebergErrorResponse", json.loads(raw))


def test_reports_of_readers_are_taken(catalog: Catalog) -> None:
    report = {"report-type": "scan-report", "table-name": "orders", "metrics": {}}
    assert catalog.ask("reportMetrics", "shop", "orders", body=report)[0] == 204
    assert catalog.ask("reportMetrics", "shop", "none", body=report)[0] == 404
    for body in (b"", b"[", b"[]", b"3"):
        assert catalog.ask("reportMetrics", "shop", "orders", body=body)[0] == 400
    assert catalog.ask("reportMetrics", "shop", "orders", body=b"a=b", Content_Type="text/plain")[0] == 415


def test_a_log_that_is_damaged_is_a_failure_that_is_said(catalog: Catalog, shop: Path) -> None:
    for path in (shop / "shop/new/_delta_log").glob("*.json"):
        path.write_text("{nonsense")
    status, kind, text = catalog.refused("loadTable", "shop", "new")
    assert (status, kind) == (500, "InternalServerError") and "lakebed verify" in text
    assert catalog.get("listTables", "shop")["identifiers"]


class _Meta:
    def __init__(self, endpoint: str, region: str | None) -> None:
        self.endpoint_url, self.region_name = endpoint, region


class _Keys:
    access_key, secret_key, token = "id", "secret", None


def test_the_settings_of_the_store() -> None:
    own = {"s3.endpoint": "http://127.0.0.1:9000", "s3.path-style-access": "true"}
    regions = {"s3.region": "eu-north-1", "client.region": "eu-north-1"}
    assert reached_by(_Meta("https://s3.eu-north-1.amazonaws.com", "eu-north-1")) == regions
    assert reached_by(_Meta("http://127.0.0.1:9000", "eu-north-1")) == own | regions
    assert reached_by(_Meta("http://127.0.0.1:9000", None)) == own
    keys = {"s3.access-key-id": "id", "s3.secret-access-key": "secret"}
    assert reached_by(_Meta("http://127.0.0.1:9000", None), _Keys()) == own | keys


def test_keys_are_shared_only_as_the_service_was_started(
    s3: Any, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = f"s3://{s3.create_bucket()}/lake"
    table = lakebed.create(f"{root}/shop/orders", SCHEMA, keys=["id"], properties=ON)
    change(table)
    wanted = {"X_Iceberg_Access_Delegation": "vended-credentials"}

    def config(served: Served, role: str | None, **headers: str) -> dict[str, str]:
        status, _, value = Catalog(served).ask("loadTable", "shop", "orders", role=role, **headers)
        assert status == 200
        return value["config"]

    plain = {
        "s3.endpoint": s3.endpoint,
        "s3.path-style-access": "true",
        "s3.region": "us-east-1",
        "client.region": "us-east-1",
    }
    silent, sharing = serve(root), serve(root, nobody=Role.READER, shares_keys=True)
    assert config(silent, "operator", **wanted) == plain
    assert config(sharing, None, **wanted) == plain, "for nobody without a token"
    assert config(sharing, "reader") == plain, "for nobody who does not ask"
    shared = config(sharing, "reader", **wanted)
    assert shared.items() > plain.items() and shared["s3.secret-access-key"] == os.environ["AWS_SECRET_ACCESS_KEY"]
    known = Catalog(sharing).ask("loadTable", "shop", "orders", **wanted)[1]["etag"]
    assert Catalog(sharing).ask("loadTable", "shop", "orders", If_None_Match=known, **wanted)[0] == 304
    monkeypatch.setattr(iceberg_routes, "store_settings", lambda root, with_keys: {"s3.secret-access-key": "another"})
    assert Catalog(sharing).ask("loadTable", "shop", "orders", If_None_Match=known, **wanted)[0] == 200, "other keys"
