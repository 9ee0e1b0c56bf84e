"""The pieces of SQL that queries over parts are made of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from lakebed.parts.sql import sql_type


def test_types_are_named_in_several_threads_at_once() -> None:
    kinds = [pa.int64(), pa.string(), pa.decimal128(20, 3), pa.list_(pa.timestamp("us", "UTC"))] * 50
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(sql_type, kinds))
    assert names == ["BIGINT", "VARCHAR", "DECIMAL(20,3)", "TIMESTAMP WITH TIME ZONE[]"] * 50
