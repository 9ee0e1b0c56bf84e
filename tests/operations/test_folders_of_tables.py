"""A folder is one table's: no table is made inside another one, and what drops a table leaves alone what is not the table's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.errors import InvalidInput
from lakebed.fleet.worker import FleetWorker
from lakebed.operations.references import drop
from lakebed.service.catalog import Catalog
from lakebed.table import internals_of
from tests.infra.s3 import S3Server

ROWS = pa.table({"id": [1, 2]})
SCHEMA = pa.schema([pa.field("id", pa.int64(), False)])


def made(path: Path | str) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["id"])
    table.apply(ROWS)
    table.settle()
    return table


def adopted(path: Path) -> lakebed.Table:
    write_deltalake(str(path), ROWS)
    return lakebed.convert(path, keys=["id"])


def dropped(table: lakebed.Table) -> None:
    internals = internals_of(table)
    drop(internals.log, internals.storage)


@pytest.mark.parametrize("inner", ["public/orders", "public/shop/deep/orders", "public/_lakebed/orders"])
def test_no_table_is_made_inside_another_one(inner: str, tmp_path: Path) -> None:
    made(tmp_path / "public")
    with pytest.raises(InvalidInput, match=f"{inner} lies inside the table {tmp_path}/public; .*beside it"):
        lakebed.create(tmp_path / inner, SCHEMA)
    write_deltalake(str(tmp_path / "public" / "foreign"), ROWS)
    with pytest.raises(InvalidInput, match="lies inside"):
        lakebed.convert(tmp_path / "public" / "foreign")


@pytest.mark.parametrize("inner", ["orders", "a/b/orders"])
def test_no_table_is_made_around_another_one(inner: str, tmp_path: Path) -> None:
    made(tmp_path / "public" / inner)
    with pytest.raises(InvalidInput, match=f"the table {tmp_path}/public/{inner} lies inside {tmp_path}/public"):
        lakebed.create(tmp_path / "public", SCHEMA)
    write_deltalake(str(tmp_path / "public"), ROWS)
    with pytest.raises(InvalidInput, match="lies inside"):
        lakebed.convert(tmp_path / "public")


@pytest.mark.parametrize("make", [made, adopted])
def test_a_drop_leaves_the_tables_that_are_inside(make: Callable[[Path], lakebed.Table], tmp_path: Path) -> None:
    outer = make(tmp_path / "public")
    write_deltalake(str(tmp_path / "public" / "orders"), ROWS)  # by a writer who asks nobody
    dropped(outer)
    assert lakebed.convert(tmp_path / "public" / "orders").to_arrow().num_rows == 2
    assert not (tmp_path / "public" / "_delta_log").exists()


def test_a_drop_leaves_files_that_are_not_the_tables(tmp_path: Path) -> None:
    table = made(tmp_path / "orders")
    (tmp_path / "orders" / "notes").mkdir()
    (tmp_path / "orders" / "notes" / "why.parquet").write_bytes(b"x")
    dropped(table)
    assert [one.name for one in (tmp_path / "orders").rglob("*") if one.is_file()] == ["why.parquet"]


def test_a_drop_leaves_no_file_of_an_adopted_table(tmp_path: Path) -> None:
    table = adopted(tmp_path / "orders")
    table.apply(ROWS)
    dropped(table)
    assert not (tmp_path / "orders").exists()


def test_roots_that_overlap_are_refused(tmp_path: Path) -> None:
    for roots in ([tmp_path, tmp_path / "shop"], [tmp_path / "a" / "b", tmp_path / "c", tmp_path / "a"]):
        with pytest.raises(InvalidInput, match="lies inside the root"):
            Catalog([str(root) for root in roots])
        with pytest.raises(InvalidInput, match="lies inside the root"):
            FleetWorker([str(root) for root in roots])
    Catalog([str(tmp_path / "shop"), str(tmp_path / "shop2")]).close()


@pytest.mark.slow
def test_no_table_is_made_inside_another_one_in_s3(s3: S3Server) -> None:
    bucket = s3.create_bucket()
    made(f"s3://{bucket}/lake/public/orders")
    for path in ("lake/public/orders/x", "lake/public", "lake", ""):
        with pytest.raises(InvalidInput, match="lies inside"):
            lakebed.create(f"s3://{bucket}/{path}".rstrip("/"), SCHEMA)
    made(f"s3://{bucket}/lake/public/orders2")
