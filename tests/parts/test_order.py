"""The order of rows by their sort columns is the same whether it is found by numbers or by comparing values."""

from __future__ import annotations

import datetime
import random
from typing import Any

import pyarrow as pa

from lakebed.parts.order import sort_order
from lakebed.sortkey.order_values import order_values
from lakebed.sortkey.sort_key import parse_sort_key
from tests.sortkey.terms import SCHEMA, random_key, random_rows, sorted_places
from tests.worlds import seeds

_DAY = datetime.date(2026, 1, 1)
COLUMNS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "small": (pa.int16(), [None, -5, 0, 7]),
    "wide": (pa.int64(), [None, -(2**63), 0, 2**63 - 1]),
    "lowest": (pa.int64(), [-(2**63), 1 - 2**63]),
    "date": (pa.date32(), [None, _DAY, _DAY + datetime.timedelta(days=90)]),
    "time": (pa.timestamp("us", "UTC"), [None, datetime.datetime(1969, 1, 1), datetime.datetime(2026, 1, 1)]),
    "text": (pa.string(), [None, "", "a", "ä", "z"]),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), [None, "z", "ä", "", "a"]),
    "nothing": (pa.int32(), [None]),
}


@seeds(25, quick=25)
def test_rows_are_ordered_as_plain_python_orders_them(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.sample(sorted(COLUMNS), rng.randrange(1, 4))
    chunks = [
        pa.table({name: pa.array(rng.choices(COLUMNS[name][1], k=count), COLUMNS[name][0]) for name in names})
        for count in (rng.randrange(0, 20), rng.randrange(1, 20))
    ]
    keys = pa.concat_tables(chunks)
    rows = [
        tuple((value is not None, value.encode() if isinstance(value, str) else value) for value in row.values())
        for row in keys.to_pylist()
    ]
    ordered = sorted(range(len(rows)), key=lambda at: [pair if pair[0] else (False, 0) for pair in rows[at]])
    assert sort_order(keys).tolist() == ordered


@seeds(60, quick=60)
def test_rows_of_every_type_are_ordered_by_any_terms_as_plain_python_orders_their_values(seed: int) -> None:
    rng = random.Random(seed)
    rows = random_rows(rng, rng.choice([1, 60]))
    if rng.random() < 0.3:
        at = rows.column_names.index("string")
        rows = rows.set_column(at, "string", rows["string"].dictionary_encode())
    terms = parse_sort_key(random_key(rng), SCHEMA)
    columns = [order_values(rows, term).to_pylist() for term in terms]
    expected = sorted_places(
        [(term.is_descending, term.nulls_last) for term in terms], [list(row) for row in zip(*columns, strict=True)]
    )
    assert sort_order(rows, terms).tolist() == expected, [term.name for term in terms]
