"""Sorts rows by a sort key: NaN is above all numbers, strings are compared by their bytes, equal rows keep their order.

1. The values of each term are computed (``sortkey.order_values``).
2. If all are whole numbers, dates, times or dictionaries, and their ranges fit into 63 bits together, a row's key is one
   number: the distances of its values from the first value of each term, side by side. Rows of parts come in runs that are
   sorted already. These are merged run by run (Timsort, by numpy), which costs far less than step 3.
3. Otherwise Arrow sorts the values.

Memory: for step 2, 8 bytes a row beside the keys, and 20 when the keys are freed; for step 3, the keys once more and 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

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
    numbers = key_numbers(keys, terms)
    if numbers is not None:
        return np.argsort(numbers, kind="stable")
    values = [order_values(keys.unify_dictionaries().combine_chunks(), term) for term in terms]
    columns: dict[str, pa.ChunkedArray] = {}
    sort_keys = []
    for key, term in zip(values, terms, strict=True):
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


def key_numbers(keys: pa.Table, terms: Sequence[SortTerm]) -> Places | None:
    """One number a row, in the order of its key; None if there is none (step 2)."""
    keys = keys.unify_dictionaries()
    out = np.zeros(len(keys), dtype=np.int64)
    bits = 0
    for term in terms:
        values = order_values(keys, term)
        chunks = values.chunks if isinstance(values, pa.ChunkedArray) else [values]
        whole = _as_whole(values.type, chunks)
        if whole is None:
            return None
        low, high = _ends(map(whole, chunks))
        null = high - low + 2 if term.nulls_last and any(chunk.null_count for chunk in chunks) else 0
        width = max(high - low + 1, null).bit_length()
        bits += width
        if bits > _KEY_BITS:
            return None
        out <<= width
        start = 0
        for numbers in map(whole, chunks):
            distances = np.asarray(pc.fill_null(numbers, low))
            distances = np.int64(high) - distances if term.is_descending else distances - np.int64(low)
            distances += 1
            if numbers.null_count:
                distances[np.asarray(pc.is_null(numbers))] = null
            out[start : start + len(numbers)] |= distances
            start += len(numbers)
    return out


def _as_whole(kind: pa.DataType, chunks: Sequence[pa.Array]) -> Callable[[pa.Array], pa.Int64Array] | None:
    """What makes the values of a chunk whole numbers in their order, if anything does. All chunks have one dictionary."""
    if pa.types.is_dictionary(kind):
        values = chunks[0].dictionary if chunks else pa.array([], kind.value_type)
        ranks = pc.rank(values, tiebreaker="dense").cast(pa.int64())
        return None if values.null_count else lambda chunk: pc.take(ranks, chunk.indices)
    if not is_whole(kind):
        return None
    if pa.types.is_timestamp(kind):
        return lambda chunk: chunk.view(pa.int64())
    return lambda chunk: (chunk.view(pa.int32()) if pa.types.is_date32(kind) else chunk).cast(pa.int64())


def is_whole(kind: pa.DataType) -> bool:
    """Whether values of this type are whole numbers in the same order."""
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind) or pa.types.is_date32(kind))


def _ends(chunks: Iterable[pa.Int64Array]) -> tuple[int, int]:
    """The least and the greatest value, 0 if there is none."""
    ends = [pc.min_max(chunk) for chunk in chunks]
    found = [(end["min"].as_py(), end["max"].as_py()) for end in ends if end["min"].is_valid]
    return min((low for low, _ in found), default=0), max((high for _, high in found), default=0)
