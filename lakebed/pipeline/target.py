"""The table of a pipeline: opened, created when it is missing, and compared with what the file says."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from lakebed import table as tables
from lakebed.errors import InvalidInput, TableExists, TableNotFound
from lakebed.manifest.schema import canonical_schema
from lakebed.pipeline.settings import Pipeline, TableSection
from lakebed.sortkey.sort_key import parse_sort_key
from lakebed.table import Table


def open_or_create(pipeline: Pipeline) -> Table:
    """The table that the pipeline writes to. Raises InvalidInput naming each thing that differs from the file."""
    section = pipeline.table
    try:
        return check(pipeline, tables.open(section.path))
    except TableNotFound:
        if section.columns is None:
            raise InvalidInput(
                f"there is no table at {section.path}, and {pipeline.document.file} has no table.schema to create it "
                "with; add one"
            ) from None
    try:
        return tables.create(
            section.path, section.columns, section.keys, section.sort_key, section.sequence_by, section.partition_by,
            section.properties,
        )  # fmt: skip
    except TableExists:  # another process was faster
        return check(pipeline, tables.open(section.path))


def check(pipeline: Pipeline, table: Table) -> Table:
    """The table, if it is what the file says."""
    differences = list(_differences(pipeline.table, table))
    if differences:
        raise InvalidInput(
            f"the table at {pipeline.table.path} is not what {pipeline.document.file} says: {'; '.join(differences)}. "
            "Change the file, or choose another table.path"
        )
    return table


def _differences(section: TableSection, table: Table) -> Iterator[str]:
    detail = table.detail().to_pylist()[0]
    columns = section.columns
    if columns is None:  # the file leaves it to the table
        return
    for name in ("keys", "sort_key", "partition_by"):
        wanted = list(getattr(section, name))
        if name == "sort_key" and _is_same_order(detail[name], wanted, table.schema):
            continue
        if list(detail[name]) != wanted:
            yield f"{name} is {detail[name]} in the table and {wanted} in the file"
    if detail["sequence_by"] != section.sequence_by:
        yield f"sequence_by is {detail['sequence_by']} in the table and {section.sequence_by} in the file"
    yield from _column_differences(canonical_schema(columns), table.schema)
    properties = table.properties
    for name, value in section.properties.items():
        if name in properties and properties[name] != value:
            yield f"the property {name} is {properties[name]!r} in the table and {value!r} in the file"


def _is_same_order(one: Sequence[str], other: Sequence[str], schema: pa.Schema) -> bool:
    """Whether two sort keys are the same, however they are spelled."""
    try:
        return parse_sort_key(one, schema) == parse_sort_key(other, schema)
    except InvalidInput:
        return False


def _column_differences(wanted: pa.Schema, present: pa.Schema) -> Iterator[str]:
    for field in wanted:
        if field.name not in present.names:
            yield f"the column {field.name} is only in the file"
        elif present.field(field.name).type != field.type:
            found = present.field(field.name).type
            yield f"the column {field.name} is {found} in the table and {field.type} in the file"
    for name in present.names:
        if name not in wanted.names:
            yield f"the column {name} is only in the table"
