"""The columns of change rows, which a reader keeps while the schema of its table moves on.

Invariants
- A reader has the columns that it began with, whatever is altered later: a column that was added is not among them, one that was
  renamed keeps the name that it had, one that was dropped is null from then on.
- A value is never changed to fit. One that a narrower type can't hold ends the reader with an error that says to start it again.

Algorithm
1. While the table's schema is still the one of the columns, parts are read in its types; they can't have wider ones.
2. After that a part is read in the types that its footer has, where they are wider (``read_as``), and the values are
   compared with what the narrower type makes of them (``narrowed``).
"""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pyarrow as pa

from lakebed.errors import InvalidSchema
from lakebed.far_times import python_values
from lakebed.log.snapshot import Snapshot
from lakebed.parts.changes import SEQUENCE_COLUMN, WriteSpec, write_spec_of
from lakebed.schema.column_mapping import ColumnMapping
from lakebed.schema.conversion import ChangeNames
from lakebed.schema.nested import first_missing, nullable
from lakebed.schema.widening import widening
from lakebed.sql import registered, sql_type

START_AGAIN = "start the query again: it then has the columns of today, and goes on where it stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """The columns of a table at the version that a reader of its changes goes by; small and picklable."""

    spec: WriteSpec
    mapping: ColumnMapping

    @property
    def stored(self) -> pa.Schema:
        """The table's columns by their stored names; each may be null, since a change may lack it."""
        return pa.schema([field.with_nullable(True) for field in self.spec.schema])

    @property
    def extra(self) -> list[pa.Field]:
        """What follows the table's columns."""
        names = self.names
        return [
            pa.field(names.type, pa.string()),
            *([pa.field(names.sequence, pa.int64())] if self.hides_sequence else []),
            pa.field(names.version, pa.int64()),
            pa.field(names.time, pa.timestamp("us", "UTC")),
        ]

    @property
    def names(self) -> ChangeNames:
        """What these are called beside the table's columns."""
        return ChangeNames.beside(self.mapping.logical.names)

    @property
    def hides_sequence(self) -> bool:
        """Whether what orders the changes is no column of the table."""
        return self.spec.sequence_column == SEQUENCE_COLUMN

    def schema(self) -> pa.Schema:
        """The columns of change rows."""
        return pa.schema([*self.mapping.logical_schema(self.stored), *self.extra])


def columns_at(snapshot: Snapshot) -> ChangeColumns:
    """The columns of change rows by the schema of a version."""
    return ChangeColumns(spec=write_spec_of(snapshot), mapping=snapshot.columns)


def read_as(declared: pa.Schema, found: pa.Schema) -> pa.Schema:
    """The fields of ``declared``, each in the wider one of its types in both schemas."""
    return pa.schema(_fields_read_as(declared, found))


def _fields_read_as(declared: pa.Schema | pa.StructType, found: pa.Schema | pa.StructType) -> list[pa.Field]:
    types = {field.name: field.type for field in found}
    return [field.with_type(_type_read_as(field.type, types.get(field.name, field.type))) for field in declared]


def _type_read_as(declared: pa.DataType, found: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(declared) and pa.types.is_struct(found):
        return pa.struct(_fields_read_as(declared, found))
    if pa.types.is_map(declared) and pa.types.is_map(found):
        return pa.map_(
            declared.key_field.with_type(_type_read_as(declared.key_type, found.key_type)),
            declared.item_field.with_type(_type_read_as(declared.item_type, found.item_type)),
        )
    if pa.types.is_list(declared) and pa.types.is_list(found):
        return pa.list_(declared.value_field.with_type(_type_read_as(declared.value_type, found.value_type)))
    return found if widening(declared, found) else declared


def narrowed(
    rows: pa.Table, wide: pa.Schema, columns: ChangeColumns, version: int, connection: duckdb.DuckDBPyConnection
) -> pa.Table:
    """Rows that were read in the types of ``wide``, in those of ``columns``. Raises InvalidSchema if a value does not fit."""
    for at, (field, declared) in enumerate(zip(wide, columns.stored, strict=True)):
        name = columns.mapping.logical_name(field.name)
        values = rows.column(at).cast(nullable(field.type))
        if field.type != declared.type:
            _require_fitting(values, field, declared, name, version, connection)
            values = values.cast(nullable(declared.type))
        if first_missing(values, declared.type) is not None:
            raise InvalidSchema(
                f"version {version} has a null within column {name!r}, where there was none when this query was defined; "
                f"{START_AGAIN}",
                version=version,
            )
        rows = rows.set_column(at, field.name, values)
    return rows


def _require_fitting(
    values: pa.ChunkedArray,
    wide: pa.Field,
    declared: pa.Field,
    name: str,
    version: int,
    connection: duckdb.DuckDBPyConnection,
) -> None:
    """By what comes back of a value, since a cast may round it, or cut it off, without an error."""
    back = f"try_cast(try_cast(c0 as {sql_type(declared.type)}) as {sql_type(wide.type)})"
    with registered(connection, "lakebed_wide", pa.table({"c0": values})) as table:
        lost = connection.sql(f"select c0 from {table} where {back} is distinct from c0 limit 1").to_arrow_table()
    if len(lost):
        [value] = python_values(lost["c0"])
        raise InvalidSchema(
            f"column {name!r} has the value {value!r} in version {version}, which does not fit {declared.type}, "
            f"its type when this query was defined; {START_AGAIN}",
            version=version,
        )
