"""Open the table of a pipeline, create it if it is missing, and compare it with the pipeline file.

Values are compared, not spellings: a property that the table lacks has its default, sort keys are parsed, and a key is
never null, whether the file says so or not. A setting that the file leaves out is not compared.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakebed import table as tables
from lakebed.errors import InvalidInput, TableDropped, TableExists, TableNotFound
from lakebed.log.snapshot import Snapshot
from lakebed.pipeline.sections import TableSection
from lakebed.pipeline.settings import Pipeline
from lakebed.pipeline.transforming import with_upstream
from lakebed.schema.conversion import canonical_schema
from lakebed.schema.fitting import RESCUED_COLUMN, EvolvePolicy, may_have_become
from lakebed.settings import property_value, suggest
from lakebed.sortkey.sort_key import parse_sort_key
from lakebed.table import Table, internals_of


def open_or_create(pipeline: Pipeline) -> Table:
    """The table that the pipeline writes to. Raises InvalidInput with each difference from the file, TableDropped."""
    section = pipeline.table
    try:
        return check(pipeline, tables.open(section.path))
    except TableDropped:
        raise
    except TableNotFound:
        section = with_upstream(pipeline).table
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
    found = differences(pipeline.table, pipeline.policy, table)
    if found:
        raise refusal(found, pipeline.path, pipeline.document.file, ANOTHER_PATH)
    return table


def refusal(found: Sequence[Difference], path: str, file: str, otherwise: str) -> InvalidInput:
    """The error that lists differences, and what to do; ``otherwise``: a way that is always there."""
    ways = dict.fromkeys(one.way for one in found if one.way)
    what = "; ".join(one.text for one in found)
    return InvalidInput(
        f"the table at {path} differs from {file}: {what}. Change the file, or {', or '.join([*ways, otherwise])}"
    )


ANOTHER_PATH = "choose another table.path, where a new table is created"


@dataclass(frozen=True, slots=True)
class Difference:
    """Something in which table and file differ. ``key``: of the section ``table``, with what is below it; ``way``: how the
    table can be changed, if it can.
    """

    key: tuple[str, ...]
    text: str
    way: str = ""


def differences(section: TableSection, policy: EvolvePolicy, table: Table) -> list[Difference]:
    """All differences between a table and the file."""
    path = section.path
    snapshot = internals_of(table).log.refresh()
    columns, settings = snapshot.logical_schema, snapshot.logical_settings
    found = [*_fixed_differences(section, snapshot), *_column_differences(section, columns, policy)]
    command = shlex.join(["lakebed", "alter", path, "--sort-key", ", ".join(section.sort_key)])
    way = f"give the table the file's sort key ({command})"
    found += [replace(one, way=way) for one in _sort_key_difference(section, list(settings.sort_key), columns)]
    properties, wanted = _property_differences(section, table.properties)
    way = f"set the table's properties (lakebed.open({path!r}).set_properties({wanted!r}))"
    return found + [replace(one, way=way) for one in properties]


def _fixed_differences(section: TableSection, snapshot: Snapshot) -> Iterator[Difference]:
    settings = snapshot.logical_settings
    for name, columns, given in (
        ("keys", settings.keys, section.keys),
        ("partition_by", snapshot.metadata.partition_columns, section.partition_by),
    ):
        there, wanted = list(columns), list(given)
        if there != wanted and (wanted or section.schema):
            yield Difference((name,), f"{name} is {there} in the table and {wanted} in the file")
    if settings.sequence_by != section.sequence_by and (section.sequence_by or section.schema):
        text = f"sequence_by is {settings.sequence_by} in the table and {section.sequence_by} in the file"
        yield Difference(("sequence_by",), text)


def _sort_key_difference(section: TableSection, present: list[str], schema: pa.Schema) -> Iterator[Difference]:
    wanted = list(section.sort_key)
    if (wanted or section.schema) and not _is_same_order(present, wanted, schema):
        yield Difference(("sort_key",), f"sort_key is {present} in the table and {wanted} in the file")


def _is_same_order(one: Sequence[str], other: Sequence[str], schema: pa.Schema) -> bool:
    """Whether two sort keys are the same, however they are spelled."""
    if list(one) == list(other):
        return True
    try:
        return parse_sort_key(one, schema) == parse_sort_key(other, schema)
    except InvalidInput:
        return False


def _column_differences(section: TableSection, present: pa.Schema, policy: EvolvePolicy) -> Iterator[Difference]:
    """What evolution may have done to the table since the file was written is no difference."""
    if section.columns is None:
        return
    wanted = canonical_schema(section.columns)
    named = {one: name for name in present.names for one in policy.names_of(name)}
    for field in wanted:
        key = ("schema", field.name)
        name = named.get(field.name, field.name)
        field = field.with_name(name)
        if present.get_field_index(field.name) < 0:
            near = suggest(field.name, set(present.names) - set(wanted.names))
            yield Difference(key, f"the column {field.name} is only in the file{near}")
            continue
        found = present.field(field.name)
        if not may_have_become(found.type, field.type, policy):
            yield Difference(key, f"the column {field.name} is {found.type} in the table and {field.type} in the file")
        is_relaxed = found.nullable and "relax" in policy.allowed
        if found.nullable != field.nullable and not is_relaxed and field.name not in section.keys:
            here, there = ("may be null", "is NOT NULL") if found.nullable else ("is NOT NULL", "may be null")
            yield Difference(key, f"the column {field.name} {here} in the table and {there} in the file")
    names = [named.get(name, name) for name in wanted.names]
    for name in present.names:
        is_added = "add" in policy.allowed or (policy.rescues and name == RESCUED_COLUMN)
        if name not in names and not is_added:
            yield Difference(("schema",), f"the column {name} is only in the table")
    orders = [
        [name for name in one if name in other] for one, other in ((present.names, names), (names, present.names))
    ]
    if orders[0] != orders[1]:
        text = (
            f"the columns are in the order {', '.join(orders[0])} in the table and {', '.join(orders[1])} in the file"
        )
        yield Difference(("schema",), text)


def _property_differences(section: TableSection, present: Mapping[str, str]) -> tuple[list[Difference], dict[str, str]]:
    """The differences, and the properties to set so that there are none."""
    found, wanted = list[Difference](), dict[str, str]()
    for name, text in section.properties.items():
        value = present.get(name)
        if _value(name, value) != property_value(name, text):
            here = "not set" if value is None else repr(value)
            said = f"the property {name} is {here} in the table and {text!r} in the file"
            found.append(Difference(("properties", name), said))
            wanted[name] = text
    return found, wanted


def _value(name: str, text: str | None) -> Any:
    """The value of a table's property; a text that can't be read counts as not set (``lakebed.settings``)."""
    try:
        return property_value(name, text)
    except InvalidInput:
        return property_value(name, None)
