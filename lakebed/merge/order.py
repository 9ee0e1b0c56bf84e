"""The order of a merge's output, as its provenance (step 2 of ``merge.kernel``).

1. Only the sort columns of the wanted rows are read. Rows with equal keys follow each other by (source, row).
2. Keys that fit in the budget are sorted in memory (``parts.order``; as numbers 19 million of 12 bytes in 512 MB).
3. More are sorted by DuckDB, which spills; values that are no plain column are computed by Arrow, batch by batch, first.
4. Without a sort key the order is source after source, and nothing is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from lakebed.merge.budget import Budget
from lakebed.merge.inputs import Selection
from lakebed.merge.provenance import Provenance
from lakebed.merge.reader import ORDINAL, ROW, SourceReader
from lakebed.parts.arrow_source import Rows
from lakebed.parts.order import key_numbers, sort_order
from lakebed.sortkey.order_values import order_values
from lakebed.sortkey.sort_key import SortTerm
from lakebed.sql.pieces import aliases, named, registered
from lakebed.storage.engine import cursor_of

_BATCH_ROWS = 122_880


def output_order(
    cursor: duckdb.DuckDBPyConnection,
    reader: SourceReader,
    selection: Selection,
    terms: Sequence[SortTerm],
    budget: Budget,
) -> Provenance:
    """The provenance of all rows of the output."""
    counts = [int(np.count_nonzero(wanted)) for wanted in selection.wanted]
    ordinals = np.repeat(np.arange(len(counts), dtype=np.uint16), counts)
    rows = np.concatenate([np.flatnonzero(wanted).astype(np.uint32) for wanted in selection.wanted])
    if not terms or not len(rows):
        return Provenance(ordinals, rows)
    if len(rows) <= max(budget.key_rows, budget.number_rows):
        order = _sorted_in_memory(reader, selection, terms, len(rows) <= budget.key_rows)
        if order is not None:
            return Provenance(ordinals[order], rows[order])
    at = 0
    for batch in _sorted_by_duckdb(cursor, reader, terms):
        ordinals[at : at + len(batch)] = batch.column(0).to_numpy()
        rows[at : at + len(batch)] = batch.column(1).to_numpy()
        at += len(batch)
    return Provenance(ordinals, rows)


def _sorted_in_memory(
    reader: SourceReader, selection: Selection, terms: Sequence[SortTerm], keys_fit: bool
) -> Rows | None:
    """The places of the wanted rows in order. None if only numbers in place of the keys would fit, and there are none."""
    keys = _keys(reader, selection, terms)
    if keys_fit:
        return sort_order(keys, terms)
    numbers = key_numbers(keys, terms)
    del keys
    return None if numbers is None else np.argsort(numbers, kind="stable")


def _keys(reader: SourceReader, selection: Selection, terms: Sequence[SortTerm]) -> pa.Table:
    """The sort columns of all wanted rows, source after source."""
    rows = selection.rows()
    tables = []
    for table, found in reader.read(_columns(terms), rows, [list(rows)]):
        chosen = table if len(found) == len(table) else table.take(pa.array(found))
        columns = {
            name: chosen[name].dictionary_encode() if name in reader.kept_dictionaries else chosen[name]
            for name in chosen.column_names  # Arrow has read the dictionaries, DuckDB has not
        }
        tables.append(pa.table(columns))
    return pa.concat_tables(tables)


def _sorted_by_duckdb(
    cursor: duckdb.DuckDBPyConnection, reader: SourceReader, terms: Sequence[SortTerm]
) -> Iterator[pa.RecordBatch]:
    """Ordinal and row of all wanted rows, in order."""
    columns = _columns(terms)
    scan, alias = reader.scan_wanted(columns), aliases(columns)
    if all(term.is_plain for term in terms):
        plain = [alias[term.columns[0]] for term in terms]
        yield from cursor.sql(_sort(f"({scan})", plain, terms)).to_arrow_reader(_BATCH_ROWS)
        return
    names = [f"k{place}" for place in range(len(terms))]
    with cursor_of(cursor) as sorter:  # its temporary table goes with it
        make = "create temp table keys as"
        for batch in cursor.sql(scan).to_arrow_reader(_BATCH_ROWS):
            table = named(pa.Table.from_batches([batch]), columns)
            values = [order_values(table, term) for term in terms]
            keys = pa.table([*values, table[ORDINAL], table[ROW]], [*names, ORDINAL, ROW])
            with registered(sorter, "computed", keys) as computed:
                sorter.execute(f"{make} select * from {computed}")
            make = "insert into keys"
        yield from sorter.sql(_sort("keys", names, terms)).to_arrow_reader(_BATCH_ROWS)


def _sort(relation: str, names: Sequence[str], terms: Sequence[SortTerm]) -> str:
    """The query that sorts rows by the terms, whose values are in the columns of these names."""
    by = [
        f"{name} {'desc' if term.is_descending else 'asc'} nulls {'last' if term.nulls_last else 'first'}"
        for name, term in zip(names, terms, strict=True)
    ]
    return f"select {ORDINAL}, {ROW} from {relation} order by {', '.join([*by, ORDINAL, ROW])}"


def _columns(terms: Sequence[SortTerm]) -> list[str]:
    return list(dict.fromkeys(name for term in terms for name in term.columns))
