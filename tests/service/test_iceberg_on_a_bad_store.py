"""Iceberg's REST catalog beside a store that does not answer: it says that, and goes on when the store does."""

from __future__ import annotations

import lakebed
from tests.infra.fault_proxy import FaultProxy, FaultRates
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
