"""Row provenance: for each row of a merge's output, the source and the row of it that it came from.

With it, rows that died in a source while the merge ran also die in the output, and no key has to be looked up.

Bytes (``to_bytes``): ordinals and rows, each compressed. Rows are grouped by source and written as differences. A source's rows
mostly keep their order in the output, so nearly every difference is one or a small gap.

The order of the output is where provenance comes from (``output_order``, step 2 of ``merge.kernel``).

1. Only the sort columns of the wanted rows are read. Rows with equal keys follow each other by (source, row).
2. Keys that fit in the budget are sorted in memory (``parts.order``; as numbers 19 million of 12 bytes in 512 MB).
3. More are sorted by DuckDB, which spills; values that are no plain column are computed by Arrow, batch by batch, first.
4. Without a sort key the order is source after source, and nothing is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Corrupt, InvalidInput
from lakebed.merge.reader import ORDINAL, ROW, Budget, Selection, SourceReader
from lakebed.parts.arrow_source import Rows
from lakebed.parts.order import key_numbers, sort_order
from lakebed.sortkey.order_values import order_values
from lakebed.sortkey.sort_key import SortTerm
from lakebed.sql import aliases, named, registered
from lakebed.storage.engine import cursor_of

SOURCES_MAX = 1 << 16
_CODEC = "zstd"
_HEADER = np.dtype([("rows", "<u8"), ("ordinals_bytes", "<u8")])


@dataclass(frozen=True, slots=True, eq=False)
class Provenance:
    """``ordinals`` (uint16) and ``rows`` (uint32): the source of each output row and its row there; 6 bytes a row."""

    ordinals: npt.NDArray[np.uint16]
    rows: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.rows)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Provenance):
            return NotImplemented
        return np.array_equal(self.ordinals, other.ordinals) and np.array_equal(self.rows, other.rows)

    def __reduce__(self) -> tuple[Callable[[bytes], Provenance], tuple[bytes]]:
        return Provenance.from_bytes, (self.to_bytes(),)

    def slice(self, start: int, rows: int) -> Provenance:
        """That of so many rows of the output, or fewer at its end."""
        return Provenance(self.ordinals[start : start + rows], self.rows[start : start + rows])

    def map_rows(self, ordinal: int, rows: BitMap64) -> BitMap64:
        """The output rows that came from these rows of a source; source rows that did not come along are ignored."""
        if not rows:
            return BitMap64()
        places = np.flatnonzero(self.ordinals == ordinal)
        wanted = np.frombuffer(rows.to_array(), dtype=np.uint64)
        return BitMap64(places[np.isin(self.rows[places], wanted)].astype(np.uint64))

    def compose(self, inner: Sequence[Provenance | int]) -> Provenance:
        """The same output in terms of the original parts, where some of its sources were outputs of earlier merges.

        ``inner[i]`` is the provenance of source i, its ordinals being those of the original parts (see ``renumbered``),
        or the ordinal of source i itself where that is an original part.
        """
        ordinals, rows = self.ordinals.copy(), self.rows.copy()
        for ordinal, origin in enumerate(inner):
            at = self.ordinals == ordinal
            if isinstance(origin, Provenance):
                places = self.rows[at]
                ordinals[at], rows[at] = origin.ordinals[places], origin.rows[places]
            else:
                ordinals[at] = _checked(origin)
        return Provenance(ordinals, rows)

    def renumbered(self, ordinals: Sequence[int]) -> Provenance:
        """The same with the sources numbered otherwise: source i becomes ``ordinals[i]``."""
        numbers = np.array([_checked(ordinal) for ordinal in ordinals], dtype=np.uint16)
        return Provenance(numbers[self.ordinals], self.rows)

    def to_bytes(self) -> bytes:
        """A compact form, about a byte a row or less for sorted sources."""
        by_source = np.argsort(self.ordinals, kind="stable")
        steps = np.diff(self.rows[by_source].astype(np.int64), prepend=0).astype("<i8")
        ordinals = _compress(self.ordinals.astype("<u2"))
        header = np.array([(len(self), len(ordinals))], dtype=_HEADER)
        return header.tobytes() + ordinals + _compress(steps)

    @classmethod
    def from_bytes(cls, data: bytes) -> Provenance:
        """What ``to_bytes`` gave. Raises Corrupt."""
        try:
            count, split = (int(value) for value in np.frombuffer(data, _HEADER, 1)[0])
            start = _HEADER.itemsize
            ordinals = _decompress(data[start : start + split], "<u2", count)
            steps = _decompress(data[start + split :], "<i8", count)
        except (ValueError, OSError, OverflowError) as error:
            raise Corrupt(f"a row provenance of {len(data)} bytes can't be read: {error}") from error
        rows = np.empty(count, dtype=np.uint32)
        rows[np.argsort(ordinals, kind="stable")] = np.cumsum(steps)
        return cls(ordinals.astype(np.uint16), rows)


def _checked(ordinal: int) -> int:
    if not 0 <= ordinal < SOURCES_MAX:
        raise InvalidInput(f"source {ordinal} is out of range; a merge takes at most {SOURCES_MAX:,} parts")
    return ordinal


def _compress(values: npt.NDArray[np.generic]) -> bytes:
    compressed: bytes = pa.Codec(_CODEC).compress(values.tobytes(), asbytes=True)
    return compressed


def _decompress(data: bytes, kind: str, count: int) -> npt.NDArray[np.generic]:
    size = count * np.dtype(kind).itemsize
    return np.frombuffer(pa.Codec(_CODEC).decompress(data, size, asbytes=True), kind, count)


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
