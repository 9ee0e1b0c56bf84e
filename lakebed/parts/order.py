"""Sorts rows by a sort key: NaN is above all numbers, strings are compared by their bytes, equal rows keep their order.

1. The values of each term are computed (``sortkey.order_values``).
2. If all are whole numbers, dates, times or dictionaries, and their ranges fit into 63 bits together, a row's key is one
   number: the distances of its values from the first value of each term, side by side. Rows of parts come in runs that are
   sorted already. These are merged run by run (Timsort, by numpy), which costs far less than step 3.
3. Otherwise Arrow sorts the values.

Memory: for step 2, 8 bytes a row beside the keys, and 20 when the keys are freed; for step 3, the keys once more and 16.

The newest change of each key is found by the order of changes (``newest_per_key``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.parts.changes import FEW_ROWS_MAX, WriteSpec
from lakebed.sortkey.order_values import order_values
from lakebed.sortkey.sort_key import SortTerm, parse_sort_key
from lakebed.sql import aliases, by_place, registered

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


def newest_per_key(changes: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> pa.Table:
    """One row a key, in the order of arrival. ``changes`` as ``prepare`` returns it; returned as is without keys."""
    if not spec.keys or len(changes) < 2:
        return changes
    if _are_few_and_plain(changes, spec):
        return _newest_of_few(changes, spec)
    names = list(dict.fromkeys([*spec.keys, *([spec.sequence_column] if spec.sequence_column else [])]))
    alias = aliases(names)
    numbered = by_place(changes, names).append_column("position", pa.array(np.arange(len(changes))))
    order = f"{{'s': {alias[spec.sequence_column]}, 'p': position}}" if spec.sequence_column else "position"
    with registered(connection, "lakebed_numbered", numbered) as name:
        grouped = ", ".join(alias[key] for key in spec.keys)
        query = f"select arg_max(position, {order}) from {name} group by {grouped}"
        newest = connection.sql(query).fetchnumpy()
    positions = next(iter(newest.values()))
    if len(positions) == len(changes):
        return changes
    return changes.take(pa.array(np.sort(np.asarray(positions))))


def _are_few_and_plain(changes: pa.Table, spec: WriteSpec) -> bool:
    """Whether a query costs more than its work, and Arrow's equality and order are DuckDB's."""
    if len(changes) > FEW_ROWS_MAX:
        return False
    keys = [changes.schema.field(name).type for name in spec.keys]
    if not all(pa.types.is_integer(kind) or pa.types.is_string(kind) for kind in keys):
        return False
    sequence = None if spec.sequence_column is None else changes[spec.sequence_column]
    return sequence is None or (pa.types.is_integer(sequence.type) and not sequence.null_count)


def _newest_of_few(changes: pa.Table, spec: WriteSpec) -> pa.Table:
    places = np.arange(len(changes))
    if spec.sequence_column is not None:  # a stable sort, so that of equal sequences the last is the newest
        places = np.argsort(changes[spec.sequence_column].to_numpy(), kind="stable")
    columns = [changes[name] for name in spec.keys]
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        found = np.unique(columns[0].to_numpy()[places[::-1]], return_index=True)[1]
        newest = len(changes) - 1 - found
    else:
        ranks = np.empty(len(changes), dtype=np.int64)
        ranks[places] = np.arange(len(changes))
        names = [f"k{number}" for number in range(len(columns))]
        ranked = pa.Table.from_arrays([*columns, pa.array(ranks)], names=[*names, "rank"])
        newest = ranked.group_by(names, use_threads=False).aggregate([("rank", "max")])["rank_max"].to_numpy()
    return changes if len(newest) == len(changes) else changes.take(pa.array(np.sort(places[newest])))
