"""The public surface: ``create``, ``open`` and ``convert`` make a ``Table``. The rooms below do the work.

table = lakebed.create("lake/orders", schema, keys=["id"], sequence_by="updated_at")
table.apply(changes, apply_as_deletes="op = 'd'")
table.settle()
table.to_arrow(where="region = 'EU'")
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Literal

import pyarrow as pa

from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.operations.create import NewTable
from lakebed.operations.create import convert as convert_table
from lakebed.operations.create import create as create_table
from lakebed.operations.drop import undrop as undrop_table
from lakebed.schema.change import column_names
from lakebed.schema.conversion import SparkSchema
from lakebed.settings import PropertyValue, TableSettings, property_texts, wrong_properties
from lakebed.storage.data_files import open_part_storage
from lakebed.table.internals import Internals, open_log
from lakebed.table.table import Table

__all__ = ["Internals", "Table", "convert", "create", "internals_of", "open", "undrop"]

_logger = logging.getLogger("lakebed.table")


def create(
    path: str | os.PathLike[str],
    schema: pa.Schema | SparkSchema,
    keys: Sequence[str] = (),
    sort_key: Sequence[str] = (),
    *,
    sequence_by: str | None = None,
    partition_by: Sequence[str] = (),
    properties: Mapping[str, PropertyValue] | None = None,
    types: Literal["given", "wide"] = "given",
) -> Table:
    """Create a table at a local path or an ``s3://`` one.

    Raises TableExists, TableDropped, InvalidSchema, InvalidInput, UnsafeStore.

    Args:
        path: A folder, or ``s3://bucket/prefix``.
        schema: The columns, as a schema of pyarrow or Spark.
        keys: Columns that identify a row. Without keys the table is append-only.
        sort_key: What parts are sorted by: columns, or terms such as ``date(ts) desc``. By default the keys.
        sequence_by: A column of the table or of the changes that orders the changes of a key. By default the order of arrival.
        partition_by: Columns whose values divide the table into partitions.
        properties: See docs/format.md.
        types: ``wide`` makes integers long, floats double, and gives decimals 38 digits, at any depth. So no column has to be
            widened later, which not every reader can read.
    """
    table = NewTable(
        schema=schema,
        keys=column_names(keys, "keys"),
        sort_key=column_names(sort_key, "sort_key"),
        sequence_by=sequence_by,
        partition_by=column_names(partition_by, "partition_by"),
        properties=property_texts(properties or {}),
        types=types,
    )
    root = _root(path)
    log = TableLog(open_store(root))
    create_table(root, log, table)
    return Table(Internals(root, log))


def open(path: str | os.PathLike[str]) -> Table:
    """Open a table.

    Args:
        path: A folder, or ``s3://bucket/prefix``.

    Raises:
        TableNotFound: There is no table at the path.
        TableDropped: There was one; ``undrop`` brings it back.
        Unsupported: The table uses a feature that lakebed lacks.
    """
    root = _root(path)
    log = open_log(root, os.fspath(path))
    for wrong in wrong_properties(log.refresh().metadata.configuration).values():
        _logger.warning("a property of %s counts as not set: %s", path, wrong)
    return Table(Internals(root, log))


def convert(
    path: str | os.PathLike[str], keys: Sequence[str] = (), sort_key: Sequence[str] = (), sequence_by: str | None = None
) -> Table:
    """Adopt an existing Delta table without rewriting its files; from then on only lakebed writes to it.

    Args:
        path: The folder of the table, or ``s3://bucket/prefix``.
        keys: Columns that identify a row. They are checked: no key is null, and none occurs twice.
        sort_key: As for ``create``.
        sequence_by: As for ``create``.

    Raises:
        TableNotFound: There is no table at the path.
        InvalidInput: A key occurs twice; the error names it.
        Unsupported: The table has a feature or property that lakebed lacks; the error names it.
        Corrupt: A file is missing or damaged; the error names it.
        Contention: Other writers keep committing.
    """
    settings = TableSettings(
        keys=column_names(keys, "keys"), sort_key=column_names(sort_key, "sort_key"), sequence_by=sequence_by
    )
    root = _root(path)

    def read_columns(log: TableLog, snapshot: Snapshot, columns: list[str]) -> pa.Table:
        return Internals(root, log).view.arrow(snapshot, columns, None)

    convert_table(root, open_log(root, os.fspath(path)), open_part_storage(root), settings, read_columns)
    return open(path)


def undrop(path: str | os.PathLike[str]) -> Table:
    """Bring back a table that ``Table.drop`` has dropped, as it was; a table that is there is only opened.

    Args:
        path: A folder, or ``s3://bucket/prefix``.

    Raises:
        TableNotFound: There is no table at the path.
        TableDropped: Its files are being deleted.
        Contention, StoreUnavailable
    """
    storage = open_part_storage(os.fspath(path))
    undrop_table(TableLog(open_store(storage.root)), storage)
    return open(path)


def internals_of(table: Table) -> Internals:
    """The log, storage and caches of the table."""
    return table._internals


def _root(path: str | os.PathLike[str]) -> str:
    return open_part_storage(os.fspath(path)).root
