"""Which values of groups of columns wait for the row of their owner (``table.inspect.waiting``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.log.actions import ChangePart, Part
from lakebed.parts.changes import DELETE, OP_COLUMN, WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.quoting import literal
from lakebed.resolve.groups import States, newest_of_groups, numbered_keys
from lakebed.resolve.locate import KeyLocator
from lakebed.resolve.unavailable_values import NOWHERE
from lakebed.resolve.whole_rows import as_rows, row_schema, rows_of_tail
from lakebed.sql.pieces import aliases, named, scan_of, sql_type
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage


def waiting(
    base: Mapping[str, Part],
    change_parts: Sequence[ChangePart],
    spec: WriteSpec,
    storage: PartStorage,
    deletion_vectors: DeletionVectorCache,
    locator: KeyLocator,
) -> pa.Table:
    """A row for each key and group that waits, in base or tail: the key, ``group``, and the ``version`` that brought it.

    ``version`` is that of the newest change where a settle has put the values of several groups into one row.
    """
    listed = [*(spec.schema.field(name) for name in spec.keys), ("group", pa.string()), ("version", pa.int64())]
    if not spec.groups:
        return pa.schema(listed).empty_table()
    schema = row_schema(spec)
    tail, of_part = schema.empty_table(), np.zeros(0, dtype=np.int64)
    if change_parts:
        tail, of_part, _ = rows_of_tail(change_parts, schema, spec, storage)
    probes = pa.concat_tables([tail.select(list(spec.keys)), *_keys_of_states(base, spec, storage)])
    key, first = numbered_keys(probes, spec)
    keys = probes.take(pa.array(first))
    found = States.of_base(keys, base, spec, storage, deletion_vectors, locator)
    rows = pa.concat_tables([found.rows, as_rows(tail, schema)])
    newest = newest_of_groups(
        rows,
        np.concatenate([found.key, key[: len(tail)]]),
        spec,
        is_live=np.concatenate([found.is_live, np.zeros(len(tail), dtype=bool)]),
        known=len(found.rows),
    )
    versions = np.concatenate([found.versions, np.array([part.version for part in change_parts])[of_part]])
    pieces = []
    for group, of_key in zip(spec.groups, newest.rows[1:], strict=False):
        says = np.asarray(rows[group.sequence_by].is_valid())  # a row that was there may have nothing of the group
        waits = np.flatnonzero((of_key != NOWHERE) & says[of_key] & ~newest.exists)
        names = pa.repeat(pa.scalar(group.name), len(waits))
        piece = keys.take(pa.array(waits)).append_column("group", names)
        pieces.append(piece.append_column("version", pa.array(versions[of_key[waits]], pa.int64())))
    return pa.concat_tables(pieces).cast(pa.schema(listed))


def _keys_of_states(base: Mapping[str, Part], spec: WriteSpec, storage: PartStorage) -> list[pa.Table]:
    """The keys of which the base has values of groups without a row, perhaps of before the row came."""
    connection = connect()
    storage.attach(connection)
    orders = [group.sequence_by for group in spec.groups]
    kinds = {name: sql_type(spec.schema.field(name).type) for name in spec.keys}
    kinds |= {name: sql_type(spec.hidden_orders.get(name) or spec.type_of(name)) for name in (*orders, OP_COLUMN)}
    alias, out = aliases(kinds), []
    has_values = " or ".join(f"{alias[name]} is not null" for name in orders)
    for part in (part for part in base.values() if part.deletes):
        scan = scan_of([storage.duckdb_url(part.path)], kinds, part.partition_values)
        condition = f"{alias[OP_COLUMN]} = {literal(DELETE)} and ({has_values})"
        rows = connection.sql(f"select {', '.join(aliases(spec.keys).values())} from ({scan}) where {condition}")
        found = named(rows.to_arrow_table(), list(spec.keys))
        out.append(pa.table({name: pc.cast(found[name], spec.schema.field(name).type) for name in spec.keys}))
    return out
