"""A SQL query over several tables, each at one version, by DuckDB.

Only tables that the query names are read. It may read these tables and nothing else.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from lakebed.log.snapshot import Snapshot
from lakebed.parts.intact import require_intact_reads
from lakebed.quoting import quote
from lakebed.sql.expression import mistakes, tables_in
from lakebed.storage.engine import connect_sealed
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import local_file
from lakebed.view.arrow_scan import register_view, without_dead_rows
from lakebed.view.merge_on_read import Pinned
from lakebed.view.query_reads import failures

_ALONE = "main"


@dataclass(frozen=True, slots=True)
class TableOfQuery:
    """A table at one version."""

    storage: PartStorage
    pinned: Pinned
    snapshot: Snapshot


def query_tables(sql: str, names: Sequence[str], open_table: Callable[[str], TableOfQuery]) -> pa.Table:
    """The result of one SELECT over tables of these names, ``schema.table``.

    Raises InvalidInput, and what ``open_table`` raises.
    """
    tables = {name: open_table(name) for name in _named_in(sql, names)}
    files = [file for table in tables.values() for file in table.pinned.files]
    for table in tables.values():
        require_intact_reads(table.pinned.files, table.storage, table.snapshot.settings.verify_reads)

    def run(hides_dead_rows: bool) -> pa.Table:
        connection = connect_sealed(_folders(list(tables.values())))
        catalog = f"moment_{uuid.uuid4().hex}"  # the database is shared, and only temporary views are of one connection
        connection.execute(f"attach ':memory:' as {catalog}")
        try:
            for number, (name, table) in enumerate(tables.items()):
                inner = f"_lakebed_{number}"
                table.storage.attach(connection)
                register_view(
                    connection,
                    inner,
                    table.storage,
                    table.pinned.files,
                    table.snapshot.schema,
                    completed=table.pinned.completed,
                    hides_dead_rows=hides_dead_rows,
                    mapping=table.snapshot.columns,
                )
                for schema, own in _known_as(name, names):
                    connection.execute(f"create schema if not exists {catalog}.{quote(schema)}")
                    view = f"{catalog}.{quote(schema)}.{quote(own)}"
                    connection.execute(f"create view {view} as select * from {quote(inner)}")
            connection.execute(f"use {catalog}")
            with ExitStack() as blame:
                for table in tables.values():
                    blame.enter_context(failures("the query failed", table.pinned.files, table.storage))
                blame.enter_context(
                    mistakes("the query failed", [local_file(file.path) or file.path for file in files])
                )
                return connection.sql(sql).to_arrow_table()
        finally:
            connection.execute("use memory")
            connection.execute(f"detach {catalog}")

    return without_dead_rows(files, run)


def _known_as(name: str, names: Sequence[str]) -> list[tuple[str, str]]:
    """The schema and name by which a query may call a table: its own, and in ``main`` its name alone if no other has it."""
    schema, _, own = name.rpartition(".")
    alone = sum(one.rpartition(".")[2].lower() == own.lower() for one in names) == 1
    found = [(schema, own)] if schema else []
    if alone and schema != _ALONE:
        found.append((_ALONE, own))
    return found


def _named_in(sql: str, names: Sequence[str]) -> list[str]:
    """The tables that a query names; DuckDB ignores case."""
    asked = {(schema.lower() or _ALONE, name.lower()) for schema, name in tables_in(sql)}
    return sorted(
        name
        for name in names
        if not asked.isdisjoint((schema.lower(), own.lower()) for schema, own in _known_as(name, names))
    )


def _folders(tables: Sequence[TableOfQuery]) -> list[str]:
    """The folders that the query may read."""
    found = set()
    for table in tables:
        inside = os.path.join(table.storage.duckdb_folder, "")
        found.add(table.storage.duckdb_folder)
        urls = (table.storage.duckdb_url(file.path) for file in table.pinned.files)
        found |= {os.path.dirname(url) for url in urls if not url.startswith(inside)}
    return sorted(found)
