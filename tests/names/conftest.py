"""A catalog of its own for each test, in the session that all tests share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import lakebed
from lakebed.sparks.names import conf_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Sql = Callable[[str], list[tuple[Any, ...]]]
_numbers = count()


@pytest.fixture
def catalog(spark: SparkSession, tmp_path: Path) -> Iterator[str]:
    """The name of a catalog whose folder is ``tmp_path``."""
    name = f"lake{next(_numbers)}"
    settings = conf_of({name: str(tmp_path)})
    for view in spark.catalog.listTables():
        if view.isTemporary:  # another test's: Spark takes it for a table of that name
            spark.catalog.dropTempView(view.name)
    for key, value in settings.items():
        spark.conf.set(key, value)
    yield name
    spark.sql("use spark_catalog.default")
    for key in settings:
        spark.conf.unset(key)


@pytest.fixture
def sql(spark: SparkSession, catalog: str) -> Sql:
    """Runs a statement in which ``lake`` is the test's catalog; returns the rows."""

    def run(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(re.sub(r"\blake\b", catalog, text)).collect()]

    return run


@pytest.fixture
def orders(tmp_path: Path) -> lakebed.Table:
    """The table ``lake.shop.orders``, by its key ``id``, with three rows in the tail."""
    import pyarrow as pa

    schema = pa.schema([pa.field("id", pa.int64(), False), ("region", pa.string()), ("n", pa.int64())])
    table = lakebed.create(tmp_path / "shop" / "orders", schema, keys=["id"])
    table.apply(pa.table({"id": [1, 2, 3], "region": ["a", "b", "c"], "n": [10, 20, 30]}))
    return table


@pytest.fixture
def sold(orders: lakebed.Table) -> lakebed.Table:
    """``lake.shop.orders``: two settled rows, a third that a deletion vector hides, and changes of all in the tail."""
    import pyarrow as pa

    orders.settle()
    orders.delete("id = 2")
    orders.settle()
    orders.apply(pa.table({"id": [1, 4], "region": ["z", "d"], "n": [11, 40]}))
    return orders
