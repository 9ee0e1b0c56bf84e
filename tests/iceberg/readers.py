"""A table through readers of Iceberg, in the form in which ``tests.foreign.readers`` compares rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyiceberg.table import StaticTable

import lakebed
from tests.foreign.readers import comparable
from tests.infra.foreign_duckdb import ForeignDuckDB


def opened(table: lakebed.Table) -> StaticTable:
    """The table as PyIceberg opens it, without a catalog."""
    folder = Path(table.path) / "_lakebed/iceberg/metadata"
    number = (folder / "version-hint.text").read_text()
    return StaticTable.from_metadata(str(folder / f"v{number}.metadata.json"))


def pyiceberg(table: lakebed.Table, version: int | None = None, where: str | None = None) -> pa.Table:
    found = opened(table)
    scan = found.scan(snapshot_id=None if version is None else version + 1, row_filter=where or "true")
    return scan.to_arrow()


def duckdb_rows(
    table: lakebed.Table, duckdb: ForeignDuckDB, version: int | None = None, where: str = "true"
) -> pa.Table:
    of = "" if version is None else f", snapshot_from_id = {version + 1}"
    return duckdb.query(f"select * from iceberg_scan('{table.path}/_lakebed/iceberg'{of}) where {where}")


def all_agree(table: lakebed.Table, duckdb: ForeignDuckDB, version: int | None = None) -> list[str]:
    """What readers of Iceberg and lakebed read of a version that is settled and published."""
    own = table.to_arrow(version=version)
    schema = own.schema
    rows = comparable(own, schema)
    theirs = comparable(duckdb_rows(table, duckdb, version), schema)
    assert theirs == rows, f"DuckDB, version {version}: {theirs[:9]} instead of {rows[:9]}"
    loose = comparable(_without_empty(own), schema)
    theirs = comparable(_without_empty(pyiceberg(table, version)), schema)
    assert theirs == loose, f"PyIceberg, version {version}: {theirs[:9]} instead of {loose[:9]}"
    return rows


def _without_empty(rows: pa.Table) -> pa.Table:
    """PyIceberg (0.12) gives an empty list of structs, or an empty map, in place of null, whoever wrote the table."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_map(field.type) or pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
            values = [each or None for each in rows[field.name].to_pylist()]
            rows = rows.set_column(at, field.with_nullable(True), pa.chunked_array([pa.array(values, field.type)]))
    return rows
