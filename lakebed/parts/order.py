"""The order of rows by their sort columns: nulls first, NaN last, strings by their bytes, equal rows as they are.

1. If every column is of whole numbers, dates, times or dictionaries, and their ranges fit into 63 bits together, a row's key is
   one number: the columns' distances from their smallest value, side by side. Rows that come in runs which are sorted
   already, as those of parts do, are then merged run by run (Timsort, by numpy), which costs far less than step 2.
2. Else Arrow sorts the columns.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_KEY_BITS = 63

Places = npt.NDArray[np.int64]


def sort_order(keys: pa.Table) -> Places:
    """The places of the rows in their order."""
    keys = keys.unify_dictionaries().combine_chunks()
    numbers = _numbers(keys)
    if numbers is not None:
        return np.argsort(numbers, kind="stable")
    columns: list[pa.ChunkedArray] = []
    for key in keys.columns:
        if pa.types.is_dictionary(key.type):
            key = key.cast(key.type.value_type)
        columns += [pc.is_nan(key), key] if pa.types.is_floating(key.type) else [key]
    batch = pa.table(columns, [str(place) for place in range(len(columns))]).combine_chunks().to_batches()[0]
    order = pc.sort_indices(batch, sort_keys=[(name, "ascending", "at_start") for name in batch.schema.names])
    return np.asarray(order).astype(np.int64)


def _numbers(keys: pa.Table) -> Places | None:
    """One number a row, in the order of its key; None if there is none."""
    out = np.zeros(len(keys), dtype=np.int64)
    bits = 0
    for column in keys.columns:
        if column.num_chunks != 1:
            return None
        values = _whole(column.chunk(0))
        if values is None:
            return None
        ends = pc.min_max(values)
        low = ends["min"].as_py() or 0
        span = (ends["max"].as_py() or 0) - low + 1  # 0 is for null
        bits += span.bit_length()
        if bits > _KEY_BITS:
            return None
        distances = np.asarray(pc.fill_null(values, low)) - np.int64(low)
        distances += 1
        if values.null_count:
            distances[np.asarray(pc.is_null(values))] = 0
        out <<= span.bit_length()
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
