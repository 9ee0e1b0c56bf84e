"""The numbers by which Iceberg's metadata names columns, and what of a schema Iceberg can't say. Pure.

Iceberg finds a column, a field of a struct, and what a list or a map holds, by a number that is never given again.

1. In a table with column mapping a struct field has the number that Delta gave it. In another one it has its own
   (``COLUMN_ID``), which becomes Delta's when column mapping is turned on: with Delta's numbers and no
   column mapping delta-kernel, and so DuckDB, refuses the table. Spark and delta-rs read it.
2. What a list or a map holds has no metadata. Its numbers are kept at the struct field around it (``_INNER_IDS``), by the steps
   from there, and in a table with column mapping they are written into files like Delta's.
3. Numbers are given in the commit that turns ``lakebed.iceberg`` on, and in each later one that adds a field. A table can only
   drop a field with column mapping, where ``maxColumnId`` says which numbers are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from typing import Any

from lakebed.errors import InvalidSchema
from lakebed.schema.change import Json, all_fields, path_of
from lakebed.schema.widening import TYPE_CHANGES

COLUMN_ID = "lakebed.column_id"
_INNER_IDS = "lakebed.inner_ids"
_DELTA_ID = "delta.columnMapping.id"
_NESTED_IDS = "delta.columnMapping.nested.ids"  # what other writers give to lists and maps
_MAX_ID = "delta.columnMapping.maxColumnId"
_INTEGERS = ("byte", "short", "integer", "long")
_HELD = {"array": (("element", "elementType"),), "map": (("key", "keyType"), ("value", "valueType"))}


def number_columns(fields: Sequence[Json], configuration: MutableMapping[str, str], *, is_mapped: bool) -> bool:
    """Number what has no number yet, in place; returns whether anything was. ``is_mapped``: the table has column mapping."""
    every = [each for _, each in all_fields(fields)]
    taken = {int(number) for each in every for number in _numbers(_metadata(each))}
    first = highest = max([int(configuration.get(_MAX_ID, 0)), *taken])
    for each in every:
        metadata = each["metadata"] = dict(_metadata(each))
        if not is_mapped and COLUMN_ID not in metadata:
            highest += 1
            metadata[COLUMN_ID] = highest
        inner = dict(metadata.get(_INNER_IDS) or {})
        for path in _inner_paths(each["type"]):
            if path not in inner:
                highest += 1
                inner[path] = highest
        if inner:
            metadata[_INNER_IDS] = inner
    if is_mapped:
        configuration[_MAX_ID] = str(highest)
    return highest > first


def missing_numbers(fields: Sequence[Json], configuration: Mapping[str, str]) -> set[int]:
    """The numbers that were given in a table with column mapping, and that no column has now."""
    metadata = [_metadata(each) for _, each in all_fields(fields)]
    taken = {int(number) for each in metadata for number in _numbers(each)}
    taken |= {int(number) for each in metadata for number in (each.get(_NESTED_IDS) or {}).values()}
    return set(range(1, int(configuration.get(_MAX_ID, 0)) + 1)) - taken


def column_id(field: Mapping[str, Any], *, is_mapped: bool) -> int | None:
    """The number of a struct field of Delta's JSON, None if it has none yet."""
    found = _metadata(field).get(_DELTA_ID if is_mapped else COLUMN_ID)
    return None if found is None else int(found)


def inner_ids(field: Mapping[str, Any]) -> Mapping[str, int]:
    """The numbers of what the lists and maps in a struct field hold, by the steps from the field, dotted."""
    return _metadata(field).get(_INNER_IDS) or {}


def _inner_paths(kind: Any, above: str = "") -> Iterator[str]:
    """The dotted steps to what the lists and maps of a type hold, outside of structs in it."""
    if isinstance(kind, dict):
        for step, member in _HELD.get(kind["type"], ()):
            path = f"{above}.{step}" if above else step
            yield path
            yield from _inner_paths(kind[member], path)


def _can_widen(before: Any, after: Any) -> bool:
    """Whether Iceberg can say that a column of one type of Delta's JSON became another: readers know no other such changes.

    Iceberg has one type for byte, short and integer, and asks decimals to keep the digits behind the point.
    """
    if before in _INTEGERS and after in _INTEGERS:
        return _INTEGERS.index(before) <= _INTEGERS.index(after)
    if str(before).startswith("decimal(") and str(after).startswith("decimal("):
        return str(before).rstrip(")").split(",")[-1].strip() == str(after).rstrip(")").split(",")[-1].strip()
    return (before, after) == ("float", "double")


def require_sayable(fields: Sequence[Json]) -> None:
    """Raises InvalidSchema naming a column that Iceberg can't say."""
    for steps, each in all_fields(fields):
        for change in _metadata(each).get(TYPE_CHANGES, ()):
            if not _can_widen(change["fromType"], change["toType"]):
                raise InvalidSchema(
                    f"{path_of(steps)!r} is widened from {change['fromType']} to {change['toType']}, which Iceberg can't say, so "
                    "lakebed.iceberg can't be on: add a column of the wider type, or leave the property off"
                )


def _metadata(field: Mapping[str, Any]) -> Mapping[str, Any]:
    return field.get("metadata") or {}


def _numbers(metadata: Mapping[str, Any]) -> Iterator[int]:
    for name in (COLUMN_ID, _DELTA_ID):
        if name in metadata:
            yield metadata[name]
    yield from (metadata.get(_INNER_IDS) or {}).values()
