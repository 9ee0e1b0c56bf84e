"""What CREATE TABLE and ALTER TABLE say, as arguments of ``lakebed.create`` and of the verbs of a table. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lakebed.errors import InvalidInput
from lakebed.schema.change import path_of, steps_of
from lakebed.schema.conversion import type_from_json
from lakebed.schema.metadata import FORMAT
from lakebed.settings import FORMAT_PROPERTY

READS, VERSION = "lakebed.reads", "lakebed.version"
"""Properties that a table has for Spark alone: that lakebed reads it, and the version that a query has."""
_KEYS, _SORT_KEY, _SEQUENCE, _TYPES = "lakebed.keys", "lakebed.sort_key", "lakebed.sequence_by", "lakebed.types"
_OF_SPARK = frozenset({"provider", "owner", "location", "external", "is_managed_location", "table_type"})
_MADE_BY_THE_TABLE = (
    READS,
    VERSION,
    "lakebed.sort_key_",  # its version and frame
    "delta.columnMapping.",
    "delta.enableTypeWidening",
    "delta.inCommitTimestampEnablement",
)
"""How properties begin that follow from others: SHOW CREATE TABLE shows them, and a new table gets its own."""
_LISTED = re.compile(r"""(?:`[^`]*`|"[^"]*"|\([^)]*\)|[^,])+""")
_AT_THE_END = "columns are added at the end, and are null in the rows that there are"
_NOT_DONE = {
    "UpdateColumnPosition": "columns keep their places",
    "UpdateColumnDefaultValue": "columns have no defaults: what a row lacks is null",
    "AddConstraint": "a table has no constraints but its keys and NOT NULL",
    "DropConstraint": "a table has no constraints but its keys and NOT NULL",
    "ClusterBy": "a table is clustered by its sort key: set the property lakebed.sort_key",
}


@dataclass(frozen=True, slots=True)
class _Definition:
    """A new table."""

    arguments: dict[str, Any]  # of ``lakebed.create``, but for its path and schema
    comments: dict[str, str]  # of its columns, by path


@dataclass(slots=True)
class _Alteration:
    """What becomes of a table, in the order in which it is done."""

    sort_key: list[str] | None = None
    properties: dict[str, str] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)  # the arguments of ``Table.alter``


def definition_of(schema: Any, partition_by: Sequence[str], given: Mapping[str, str]) -> _Definition:
    """What CREATE TABLE says, with a schema of Spark. Raises InvalidInput."""
    provider = given.get("provider", "lakebed").lower()
    if provider != "lakebed":
        raise InvalidInput(
            f"the tables of this catalog are lakebed's: write USING lakebed in place of USING {provider}"
        )
    if "location" in given:
        raise InvalidInput("a table of a catalog is where its name says, below the warehouse: leave LOCATION out")
    own = {
        name: text
        for name, text in given.items()
        if name not in _OF_SPARK and not name.startswith(("option.", *_MADE_BY_THE_TABLE))
    }
    if own.get(FORMAT_PROPERTY) == str(FORMAT):
        del own[FORMAT_PROPERTY]
    arguments = {
        "keys": listed(own.pop(_KEYS, None)),
        "sort_key": listed(own.pop(_SORT_KEY, None)),
        "sequence_by": own.pop(_SEQUENCE, None),
        "types": "wide" if own.pop(_TYPES, None) == "wide" else "given",
        "partition_by": list(partition_by),
        "properties": own,
    }
    return _Definition(arguments, dict(_comments(json.loads(schema.json()), ())))


def has_properties(properties: Mapping[str, str], given: Mapping[str, str]) -> bool:
    """Whether a table with these properties would be made by a CREATE TABLE with the given ones, if it says no others."""

    def is_same(name: str, text: str) -> bool:
        if name in (_KEYS, _SORT_KEY):
            return listed(text) == listed(properties.get(name))
        return name in _OF_SPARK or name == _TYPES or properties.get(name) == text

    return all(is_same(*item) for item in given.items())


def alteration_of(changes: Sequence[Mapping[str, Any]], properties: Collection[str]) -> _Alteration:
    """What ALTER TABLE says, by Spark's changes of a table that has these properties. Raises InvalidInput."""
    out = _Alteration()
    for one in changes:
        match one["kind"]:
            case "SetProperty" | "RemoveProperty":
                _property(one, properties, out)
            case kind if kind in _NOT_DONE:
                column = f"column {one['column']}: " if "column" in one else ""
                raise InvalidInput(f"{column}{_NOT_DONE[kind]}")
            case _:
                _column(one, out.columns)
    emptied = set(out.columns.get("drop", ())) & set(out.columns.get("add", {}))
    if emptied:
        raise InvalidInput(
            f"column {min(emptied)}: to replace columns by others of the same names would empty them; ALTER, ADD and DROP those "
            "that differ"
        )
    return out


def _property(one: Mapping[str, Any], properties: Collection[str], out: _Alteration) -> None:
    name = one["property"]
    if name in _OF_SPARK:
        raise InvalidInput(f"{name} can't be set: a table of a catalog is lakebed's, and where its name says")
    if one["kind"] == "SetProperty":
        if name == _SORT_KEY:
            out.sort_key = listed(one["value"])
        else:
            out.properties[name] = one["value"]
    elif name in properties:
        raise InvalidInput(f"property {name!r}: set it to the value that it should have; none can be removed")


def _column(one: Mapping[str, Any], out: dict[str, Any]) -> None:
    """Adds a change of a column to the arguments of ``Table.alter``."""
    column = one.get("column", "")
    match one["kind"]:
        case "AddColumn":
            if one["has_default"] or one["position"] or not one["nullable"]:
                raise InvalidInput(f"column {column}: {_AT_THE_END}")
            type_json = json.loads(one["type"])
            out.setdefault("add", {})[column] = type_from_json(type_json, column)
            comments = dict(_inside(type_json, steps_of(column))) | ({column: one["comment"]} if one["comment"] else {})
            if comments:
                out.setdefault("comment", {}).update(comments)
        case "RenameColumn":
            out.setdefault("rename", {})[column] = one["name"]
        case "DeleteColumn":
            out.setdefault("drop", []).append(column)
        case "UpdateColumnType":
            out.setdefault("widen", {})[column] = type_from_json(json.loads(one["type"]), column)
        case "UpdateColumnNullability":
            if not one["nullable"]:
                raise InvalidInput(f"column {column} can't become NOT NULL: rows may have nulls")
            out.setdefault("relax", []).append(column)
        case "UpdateColumnComment":
            out.setdefault("comment", {})[column] = one["comment"] or ""
        case kind:
            raise InvalidInput(f"a table of lakebed's can't be altered so: {kind}")


def _comments(struct: Mapping[str, Any], at: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """The comments of the fields of a Spark type, at any depth, by path."""
    for one in struct["fields"]:
        path = (*at, one["name"])
        if text := one.get("metadata", {}).get("comment"):
            yield path_of(path), text
        yield from _inside(one["type"], path)


def _inside(kind: Any, at: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    match kind:
        case {"type": "struct"}:
            yield from _comments(kind, at)
        case {"type": "array", "elementType": element}:
            yield from _inside(element, (*at, "element"))
        case {"type": "map", "keyType": key, "valueType": value}:
            yield from _inside(key, (*at, "key"))
            yield from _inside(value, (*at, "value"))
        case _:
            pass


def listed(text: str | None) -> list[str]:
    """``a, zorder(b, c)`` or ``["a", "zorder(b, c)"]`` as a list."""
    if text and text.lstrip().startswith("["):
        found: list[str] = json.loads(text)
        return found
    return [one.strip() for one in _LISTED.findall(text or "") if one.strip()]
