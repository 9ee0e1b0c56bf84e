"""The pieces of SQL that queries over parts are made of."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from lakebed.sql import sql_type


def test_types_are_named_in_several_threads_at_once() -> None:
    decimals = [pa.decimal128(38, scale) for scale in range(38)]  # each is asked for once: an answer is kept
    kinds = [pa.int64(), pa.string(), *decimals, pa.list_(pa.timestamp("us", "UTC"))]
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(sql_type, kinds))
    wide = [f"DECIMAL(38,{scale})" for scale in range(38)]
    assert names == ["BIGINT", "VARCHAR", *wide, "TIMESTAMP WITH TIME ZONE[]"]
