"""Iceberg's REST catalog beside a store that does not answer: it says that, and goes on when the store does."""

from __future__ import annotations

import pytest

import lakebed
from tests.infra.fault_proxy import Fault, FaultProxy, FaultRates
from tests.infra.s3 import S3Server
from tests.service.conftest import SCHEMA, Serve
from tests.service.test_iceberg_catalog import ON, Catalog, change


def test_a_store_that_does_not_answer_is_said_and_passes(
    flaky_s3: FaultProxy, s3_server: S3Server, serve: Serve
) -> None:
    root = f"s3://{s3_server.create_bucket()}/lake"
    table = lakebed.create(f"{root}/shop/orders", SCHEMA, keys=["id"], properties=ON)
    change(table)
    catalog = Catalog(serve(root))
    first = catalog.get("loadTable", "shop", "orders")
    flaky_s3.set_rates(FaultRates(before=1.0))
    status, kind, said = catalog.refused("loadTable", "shop", "orders")
    assert (status, kind) == (503, "ServiceUnavailableException") and "version-hint.text failed" in said
    flaky_s3.set_rates(FaultRates())
    assert catalog.get("loadTable", "shop", "orders") == first
    change(table)
    assert catalog.get("loadTable", "shop", "orders")["metadata-location"] != first["metadata-location"]


def test_a_service_that_may_not_write_serves_what_is_published_and_says_what_is_not(
    flaky_s3: FaultProxy, s3_server: S3Server, serve: Serve
) -> None:
    root = f"s3://{s3_server.create_bucket()}/lake"
    orders, new = (
        lakebed.create(f"{root}/shop/{name}", SCHEMA, keys=["id"], properties=ON) for name in ("orders", "new")
    )
    change(orders)
    change(new, publish=False)
    catalog = Catalog(serve(root))
    flaky_s3.refusal = (403, "Forbidden", "AccessDenied")
    flaky_s3.set_rates(FaultRates(before=1.0, methods=frozenset({"PUT", "POST", "DELETE"})))
    assert catalog.get("loadTable", "shop", "orders", role="operator")
    status, kind, said = catalog.refused("loadTable", "shop", "new", role="operator")
    assert (status, kind) == (503, "ServiceUnavailableException")
    assert "maintenance does it" in said and "this service can't: " in said and "was denied" in said


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.RESET])
def test_one_request_that_fails_below_is_not_seen(
    flaky_s3: FaultProxy, s3_server: S3Server, serve: Serve, fault: Fault
) -> None:
    root = f"s3://{s3_server.create_bucket()}/lake"
    table = lakebed.create(f"{root}/shop/orders", SCHEMA, keys=["id"], properties=ON)
    change(table)
    catalog = Catalog(serve(root))
    for path in ("version-hint.text", "metadata.json", "dropped", "list-type"):
        for operation, names in (("loadTable", ("shop", "orders")), ("listTables", ("shop",)), ("listNamespaces", ())):
            flaky_s3.fail_next(fault, path_contains=path)
            assert catalog.get(operation, *names)
            change(table)
