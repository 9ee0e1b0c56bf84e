"""Open the table of a pipeline, create it if it is missing, and compare it with the pipeline file.

Values are compared, not spellings: a property that the table lacks has its default, sort keys are parsed, and a key is
never null, whether the file says so or not. A setting that the file leaves out is not compared.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from lakebed import table as tables
from lakebed.errors import InvalidInput, TableExists, TableNotFound
from lakebed.manifest.schema import canonical_schema
from lakebed.pipeline.settings import Pipeline, TableSection
from lakebed.settings import property_value
from lakebed.sortkey.sort_key import parse_sort_key
from lakebed.table import Table


def open_or_create(pipeline: Pipeline) -> Table:
    """The table that the pipeline writes to. Raises InvalidInput with each difference from the file."""
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
            section.path,
            section.columns,
            section.keys,
            sort_key=section.sort_key,
            sequence_by=section.sequence_by,
            partition_by=section.partition_by,
            properties=section.properties,
        )
    except TableExists:  # another process was faster
        return check(pipeline, tables.open(section.path))


def check(pipeline: Pipeline, table: Table) -> Table:
    """The table, if it agrees with the file. Raises InvalidInput with each difference, and what to do."""
    section, path = pipeline.table, pipeline.table.path
    detail = table.inspect.detail().to_pylist()[0]
    fixed = [*_fixed_differences(section, detail), *_column_differences(section, table.schema)]
    sorting = list(_sort_key_difference(section, detail, table.schema))
    properties, wanted = _property_differences(section, table.properties)
    differences = [*fixed, *sorting, *properties]
    if not differences:
        return table
    ways = []
    if sorting:
        command = shlex.join(["lakebed", "set-sort-key", path, *section.sort_key])
        ways.append(f"give the table the file's sort key ({command})")
    if properties:
        ways.append(f"set the table's properties (lakebed.open({path!r}).set_properties({wanted!r}))")
    ways.append("choose another table.path, where a new table is created")
    raise InvalidInput(
        f"the table at {path} differs from {pipeline.document.file}: {'; '.join(differences)}. "
        f"Change the file, or {', or '.join(ways)}"
    )


def _fixed_differences(section: TableSection, detail: Mapping[str, Any]) -> Iterator[str]:
    for name in ("keys", "partition_by"):
        wanted = list(getattr(section, name))
        if list(detail[name]) != wanted and (wanted or section.schema):
            yield f"{name} is {detail[name]} in the table and {wanted} in the file"
    if detail["sequence_by"] != section.sequence_by and (section.sequence_by or section.schema):
        yield f"sequence_by is {detail['sequence_by']} in the table and {section.sequence_by} in the file"


def _sort_key_difference(section: TableSection, detail: Mapping[str, Any], schema: pa.Schema) -> Iterator[str]:
    wanted = list(section.sort_key)
    if (wanted or section.schema) and not _is_same_order(detail["sort_key"], wanted, schema):
        yield f"sort_key is {detail['sort_key']} in the table and {wanted} in the file"


def _is_same_order(one: Sequence[str], other: Sequence[str], schema: pa.Schema) -> bool:
    """Whether two sort keys are the same, however they are spelled."""
    if list(one) == list(other):
        return True
    try:
        return parse_sort_key(one, schema) == parse_sort_key(other, schema)
    except InvalidInput:
        return False


def _column_differences(section: TableSection, present: pa.Schema) -> Iterator[str]:
    if section.columns is None:
        return
    wanted = canonical_schema(section.columns)
    for field in wanted:
        if field.name not in present.names:
            yield f"the column {field.name} is only in the file"
            continue
        found = present.field(field.name)
        if found.type != field.type:
            yield f"the column {field.name} is {found.type} in the table and {field.type} in the file"
        if found.nullable != field.nullable and field.name not in section.keys:
            here, there = ("may be null", "is NOT NULL") if found.nullable else ("is NOT NULL", "may be null")
            yield f"the column {field.name} {here} in the table and {there} in the file"
    for name in present.names:
        if name not in wanted.names:
            yield f"the column {name} is only in the table"
    orders = [
        [name for name in one.names if name in other.names] for one, other in ((present, wanted), (wanted, present))
    ]
    if orders[0] != orders[1]:
        yield f"the columns are in the order {', '.join(orders[0])} in the table and {', '.join(orders[1])} in the file"


def _property_differences(section: TableSection, present: Mapping[str, str]) -> tuple[list[str], dict[str, str]]:
    """The differences as texts, and the properties to set so that there are none."""
    differences, wanted = [], {}
    for name, text in section.properties.items():
        found = present.get(name)
        if _value(name, found) != property_value(name, text):
            here = "not set" if found is None else repr(found)
            differences.append(f"the property {name} is {here} in the table and {text!r} in the file")
            wanted[name] = text
    return differences, wanted


def _value(name: str, text: str | None) -> Any:
    """The value of a table's property; a text that can't be read counts as not set (``lakebed.settings``)."""
    try:
        return property_value(name, text)
    except InvalidInput:
        return property_value(name, None)
