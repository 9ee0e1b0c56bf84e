"""What the service says of a table is what the library says of it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput, LakebedError, TableNotFound, VersionNotFound
from tests.service.conftest import Serve, orders
from tests.service.reader import read


def rows(table: lakebed.Table, **which: Any) -> list[dict[str, Any]]:
    return sorted(table.to_arrow(**which).to_pylist(), key=repr)


def test_a_client_finds_the_tables_and_what_they_are(lake: Path, serve: Serve) -> None:
    client = serve(lake).client("reader")
    assert client.tables() == ("orders", "public.items")
    assert client.tables(search="ITEM") == ("public.items",)
    table, remote = lakebed.open(lake / "public" / "items"), client.table("public.items")
    assert remote.version == table.version and remote.path == table.path
    assert remote.schema == table.schema and remote.properties == table.properties
    with pytest.raises(TableNotFound, match=r"no table 'public.item' here"):
        client.table("public.item")


def test_metadata_tables_come_through_the_service_as_they_are(lake: Path, serve: Serve) -> None:
    table, remote = lakebed.open(lake / "orders"), serve(lake).client("reader").table("orders")
    table.maintenance.compact()
    table.alter(add={"note": "array<string>"}, reason="for a test")
    for name in ("parts", "timeline", "schemas", "claims", "compactions"):
        ours, theirs = getattr(table.inspect, name)(), getattr(remote.inspect, name)()
        assert theirs == ours, name
    assert remote.inspect.parts(version=2) == table.inspect.parts(version=2)
    assert remote.maintenance.plan() == table.maintenance.plan()


@pytest.mark.parametrize("partitioned", [True, False])
def test_who_reads_what_a_scan_lists_has_the_rows_of_the_table(tmp_path: Path, serve: Serve, partitioned: bool) -> None:
    table = orders(tmp_path / "orders", partitioned=partitioned)
    remote = serve(tmp_path).client("reader").table("orders")
    versions = [None, *range(1, table.version + 1)]
    for version in versions:
        assert sorted(read(remote.scan(version=version), table.schema), key=repr) == rows(table, version=version)
    table.settle()
    assert sorted(read(remote.scan(settled=True), table.schema), key=repr) == rows(table)


@pytest.mark.slow
def test_a_scan_leaves_out_files_and_never_a_row_that_matches(lake: Path, serve: Serve) -> None:
    table, remote = lakebed.open(lake / "orders"), serve(lake).client("reader").table("orders")
    for where in (
        "day = '2026-01-02'",
        "id between 20 and 25",
        "amount > 400",
        "id in (1, 31) and day > '2026'",
        "false",
    ):
        scan = remote.scan(where=where)
        found = pa.Table.from_pylist(read(scan, table.schema), table.schema)
        kept = [row for row in found.to_pylist() if row["id"] in {each["id"] for each in rows(table, where=where)}]
        assert sorted(kept, key=repr) == rows(table, where=where)
    assert len(remote.scan(where="day = '2026-01-02'").files) < remote.scan().files_of_version


def test_columns_that_were_renamed_are_found_by_their_new_names(lake: Path, serve: Serve) -> None:
    table, remote = lakebed.open(lake / "orders"), serve(lake).client("reader").table("orders")
    table.alter(rename={"amount": "total"})
    scan = remote.scan(columns=["id", "total"], where="total = 501")
    assert set(scan.stored_names) == {"id", "total"} and scan.stored_names["total"] != "total"
    assert {"id": 0, "total": 501, "day": "2026-01-01"} in read(scan, table.schema)
    assert all("total" in file["stats"]["minValues"] for file in scan.files)


def test_partitions_have_their_rows_and_are_filtered(lake: Path, serve: Serve) -> None:
    remote = serve(lake).client("reader").table("orders")
    found = remote.inspect.partitions().to_pylist()
    assert [dict(each["partition"])["day"] for each in found] == [f"2026-01-0{day}" for day in range(1, 6)]
    assert [each["rows"] for each in found][:2] == [9, 9] and found[4]["tail_rows"] == 10
    [one] = remote.inspect.partitions(where="day = '2026-01-03'").to_pylist()
    assert one == found[2]
    with pytest.raises(InvalidInput, match="has no partitions"):
        serve(lake).client().table("public.items").inspect.partitions()


def test_the_timeline_says_which_partitions_and_files_each_commit_touched(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    newest, *_ = served.json("/v1/tables/orders/timeline?last=1&files=true")["commits"]
    assert newest["kind"] == "append" and newest["files_added"] == len(newest["files"]) == 2
    assert {each["day"] for each in newest["partitions"]} == {"2026-01-04", "2026-01-05"}
    older = served.json(f"/v1/tables/orders/timeline?last=2&before={newest['version']}")["commits"]
    assert [each["version"] for each in older] == [newest["version"] - 1, newest["version"] - 2]


def test_a_scan_is_read_page_by_page_at_one_version(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    first = served.json("/v1/tables/orders/scan", "POST", {"limit": 2})
    orders_table = lakebed.open(lake / "orders")
    orders_table.apply([{"id": 999, "day": "2026-02-01", "amount": 1}])
    rest = served.json("/v1/tables/orders/scan", "POST", {"limit": 100, "after": 2, "version": first["version"]})
    assert first["next"] == 2 and rest["next"] is None and rest["version"] == first["version"]
    paths = [each["path"] for each in first["files"] + rest["files"]]
    assert len(paths) == len(set(paths)) == first["files_matched"]


def test_two_services_give_the_same_answer_at_a_version(lake: Path, serve: Serve) -> None:
    one, other = serve(lake), serve(lake)
    lakebed.open(lake / "orders").maintenance.compact()
    for target in ("", "/partitions", "/timeline", "/schemas", "/claims", "/compactions", "/parts", "/plan"):
        assert one.json(f"/v1/tables/orders{target}") == other.json(f"/v1/tables/orders{target}")
    for version in range(1, lakebed.open(lake / "orders").version + 1):
        body = {"version": version, "where": "id < 25"}
        assert one.json("/v1/tables/orders/scan", "POST", body) == other.json("/v1/tables/orders/scan", "POST", body)


def test_a_version_that_is_not_there_is_reported_as_the_library_does(lake: Path, serve: Serve) -> None:
    remote = serve(lake).client("reader").table("orders")
    with pytest.raises(VersionNotFound, match="there is no version 99") as caught:
        remote.scan(version=99)
    assert caught.value.version == 99 and caught.value.newest == remote.version


def test_a_table_that_is_dropped_is_gone_and_one_that_is_made_anew_is_there(lake: Path, serve: Serve) -> None:
    client = serve(lake).client("reader")
    before = client.table("orders").describe()["id"]
    shutil.rmtree(lake / "orders")
    with pytest.raises(LakebedError):  # its log is in memory, its files are gone
        client.table("orders").scan()
    with pytest.raises(TableNotFound):
        client.table("orders")
    orders(lake / "orders", settled=1)
    assert client.table("orders").describe()["id"] != before
