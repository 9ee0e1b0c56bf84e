"""The order of rows by a sort key: NaN above all numbers, strings by their bytes, equal rows as they are.

1. The values of each term are computed (``sortkey.order_values``).
2. If all are whole numbers, dates, times or dictionaries, and their ranges fit into 63 bits together, a row's key is one number:
   the values' distances from that which comes first, side by side. Rows that come in runs which are sorted already, as
   those of parts do, are then merged run by run (Timsort, by numpy), which costs far less than step 3.
3. Else Arrow sorts the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.sortkey.order_values import order_values
from lakebed.sortkey.sort_key import SortTerm, parse_sort_key

_KEY_BITS = 63

Places = npt.NDArray[np.int64]


def sort_order(keys: pa.Table, terms: Sequence[SortTerm] | None = None) -> Places:
    """The places of the rows in the order of these terms; without any, of the table's columns, ascending and nulls first."""
    if terms is None:
        terms = parse_sort_key(keys.column_names, keys.schema)
    keys = keys.unify_dictionaries().combine_chunks()
    names = [str(place) for place in range(len(terms))]
    keys = pa.table([order_values(keys, term) for term in terms], names)
    numbers = _numbers(keys, terms)
    if numbers is not None:
        return np.argsort(numbers, kind="stable")
    columns: dict[str, pa.ChunkedArray] = {}
    sort_keys = []
    for key, term in zip(keys.columns, terms, strict=True):
        if pa.types.is_dictionary(key.type):
            key = key.cast(key.type.value_type)
        direction = "descending" if term.is_descending else "ascending"
        for column in (pc.is_nan(key), key) if pa.types.is_floating(key.type) else (key,):
            sort_keys.append((str(len(columns)), direction, "at_end" if term.nulls_last else "at_start"))
            columns[str(len(columns))] = column
    table = pa.table(columns).combine_chunks()
    batches = table.to_batches()  # texts of more than 2 GiB stay in several
    rows = batches[0] if len(batches) == 1 else table
    return np.asarray(pc.sort_indices(rows, sort_keys=sort_keys)).astype(np.int64)


def _numbers(keys: pa.Table, terms: Sequence[SortTerm]) -> Places | None:
    """One number a row, in the order of its key; None if there is none."""
    out = np.zeros(len(keys), dtype=np.int64)
    bits = 0
    for column, term in zip(keys.columns, terms, strict=True):
        if column.num_chunks != 1:
            return None
        values = _whole(column.chunk(0))
        if values is None:
            return None
        ends = pc.min_max(values)
        low, high = ends["min"].as_py() or 0, ends["max"].as_py() or 0
        null = high - low + 2 if values.null_count and term.nulls_last else 0
        width = max(high - low + 1, null).bit_length()
        bits += width
        if bits > _KEY_BITS:
            return None
        distances = np.asarray(pc.fill_null(values, low))
        distances = np.int64(high) - distances if term.is_descending else distances - np.int64(low)
        distances += 1
        if values.null_count:
            distances[np.asarray(pc.is_null(values))] = null
        out <<= width
        out |= distances
    return out


def _whole(values: pa.Array) -> pa.Int64Array | None:
    """The values as whole numbers in their order, or None."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        if values.dictionary.null_count:
            return None
        return pc.take(pc.rank(values.dictionary, tiebreaker="dense").cast(pa.int64()), values.indices)
    if pa.types.is_signed_integer(kind):
        return values.cast(pa.int64())
    if pa.types.is_timestamp(kind):
        return values.view(pa.int64())
    if pa.types.is_date32(kind):
        return values.view(pa.int32()).cast(pa.int64())
    return None
