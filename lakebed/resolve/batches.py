"""What of a batch is written: the newest change of each key, and what it needs of older ones.

Within a batch the table's row is not known. Without a sequence that does not matter: the batch's rows are newer, and what none
of them has stays missing. With a sequence, a row that gives a value may itself be late, and only the table can decide that. So
such rows are kept beside the newest, in layers of one row a key, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.parts.changes import UNAVAILABLE_COLUMN, WriteSpec
from lakebed.parts.key_moves import folded
from lakebed.parts.order import newest_per_key
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, IncompleteRow, records_of_incomplete
from lakebed.resolve.first_rows import layers_of_first
from lakebed.resolve.groups import layers_of_groups
from lakebed.resolve.unavailable_values import NOWHERE, Chains, Completed, Rows, completed, ranked, required_columns

_Places = npt.NDArray[np.int64]


def newest_in_layers(
    changes: pa.Table, spec: WriteSpec, connection: duckdb.DuckDBPyConnection
) -> tuple[Iterable[pa.Table], pa.Table]:
    """The newest change of each key, as ``prepare`` returns changes; before it, if need be, what it depends on.

    Each table holds a key once, and is newer than the tables before it. The second value are records for the quarantine:
    changes that can't be whole, whatever the table holds.
    """
    nothing = QUARANTINE_SCHEMA.empty_table()
    if spec.keeps_first and spec.keys:
        return layers_of_first(changes, spec, connection), nothing
    if spec.resolves_by_group:
        return layers_of_groups(changes, spec, connection), nothing
    if spec.keys:
        changes = folded(changes, spec, connection)
    if not spec.keys or len(changes) < 2 or not _lacks_values(changes):
        return [newest_per_key(changes, spec, connection)], nothing
    of = ranked(changes, spec, connection)
    if spec.sequence_column is None:
        filled, left_out = _filled(changes, of, spec)
        return [filled], left_out
    return _layers(changes, of, spec, connection), nothing


def _layers(changes: pa.Table, of: Rows, spec: WriteSpec, connection: duckdb.DuckDBPyConnection) -> Iterator[pa.Table]:
    """The rows that the newest of a key may take values from, one of each key a layer; then the newest."""
    chains = Chains.of(of)
    newest = chains.newest()
    found = [chains.giver(names)[newest[chains.lacks(names)[newest]]] for names in of.lacking_alike()]
    places = np.unique(np.concatenate(found))
    places = places[places >= 0]
    starts = chains.start[places]
    depth = np.arange(len(places)) - np.searchsorted(starts, starts)
    for layer in range(int(depth.max(initial=NOWHERE)) + 1):
        yield changes.take(pa.array(np.sort(chains.order[places[depth == layer]])))
    yield newest_per_key(changes, spec, connection)


def _lacks_values(changes: pa.Table) -> bool:
    if UNAVAILABLE_COLUMN not in changes.column_names:
        return False
    return bool(pc.max(pc.list_value_length(changes[UNAVAILABLE_COLUMN])).as_py())


def _filled(changes: pa.Table, of: Rows, spec: WriteSpec) -> tuple[pa.Table, pa.Table]:
    """The newest change of each key with the values that older ones of the batch give, and records of those left out."""
    done = completed(of, required_columns(spec), base_is_known=False)
    left_out = IncompleteRow(changes.take(pa.array(list(done.left_out), pa.int64())), list(done.left_out.values()))
    in_order = np.argsort(done.newest)
    newest = done.newest[in_order]
    filled = changes.take(pa.array(newest))
    for name, found in done.givers.items():
        giver = np.where(done.unknown[name][in_order], newest, found[in_order])
        values = changes[name].take(pa.array(giver, mask=giver == NOWHERE))
        filled = filled.set_column(filled.schema.get_field_index(name), changes.schema.field(name), values)
    at = filled.column_names.index(UNAVAILABLE_COLUMN)
    unsent = _still_unknown(filled[UNAVAILABLE_COLUMN].combine_chunks(), of, done, in_order)
    return filled.set_column(at, UNAVAILABLE_COLUMN, unsent), records_of_incomplete(left_out, spec)


def _still_unknown(unsent: pa.Array, of: Rows, done: Completed, in_order: _Places) -> pa.Array:
    """What each of the newest rows lacks after it was filled; most lack what they lacked before."""
    lacked = np.array([len(each) for each in of.patterns])[of.pattern[done.newest[in_order]]]
    unknown = np.zeros(len(in_order), dtype=np.int64)
    for mask in done.unknown.values():
        unknown += mask[in_order]
    filled = np.flatnonzero(lacked != unknown)
    lists = [[name for name, mask in done.unknown.items() if mask[in_order[place]]] for place in filled]
    places = np.arange(len(unsent))
    places[filled] = len(unsent) + np.arange(len(filled))
    return pa.concat_arrays([unsent, pa.array(lists, unsent.type)]).take(pa.array(places))
