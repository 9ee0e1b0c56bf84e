"""The two names of a column: the stored one, in files and in all that the log says about files, and the logical one of its user.

Delta calls this column mapping, mode ``name``. Each field of the schema, at any depth, has a *physical name* in its metadata.

1. Everything inside works with the *stored schema*: parts, statistics, partition values, the key index, sort keys, merges. So a
   rename or a drop changes no file, and what is under way stays right.
2. The *logical schema* is what a user sees and writes. The two meet at the boundary, and only there.
3. Without column mapping both are one object, and nothing is translated.

Mode ``id`` (columns found by numbers in the files) is refused: files that lakebed's tables have may lack these numbers.

**Whether parts that were written in one shape can be read in another** is the invariant C1, for two schemas.

Both have stored names, which never change and are never given again. So a column belongs to the column of its name:

1. A column that the parts have and the schema lacks was dropped, and is not read.
2. A column that the schema has and the parts lack was added after them, and is null in them. So it may not be NOT NULL.
3. A column of both has the same type, or the schema has a wider one: ``schema.widening`` says which types hold every value of
   another. Structs, lists and maps are compared field by field, in the same way. Of a struct, the parts have one of the fields at
   least: readers can't tell a struct without any of its fields from a null.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import orjson
import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema, Unsupported
from lakebed.schema.change import all_fields
from lakebed.schema.conversion import is_storable, schema_from_fields, type_from_json
from lakebed.schema.iceberg_columns import COLUMN_ID, inner_ids
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.schema.widening import TYPE_CHANGES, widening
from lakebed.settings import TableSettings, suggest
from lakebed.sortkey.sort_key import renamed_sort_key


def by_case(columns: Iterable[str], given: Collection[str]) -> dict[str, str]:
    """The column of each given name that has one: the column of this name; else, if no given name is the column's own, the one
    whose name differs by case alone. Of several such names the first has it.
    """
    names = {name.lower(): name for name in columns}
    found = {name: name for name in given if names.get(name.lower()) == name}
    taken = set(found)
    for name in given:
        column = names.get(name.lower())
        if column is not None and column not in taken:
            found[name] = column
            taken.add(column)
    return found


COLUMN_MAPPING = "columnMapping"
"""The table feature."""
MODE = "delta.columnMapping.mode"
MAX_ID = "delta.columnMapping.maxColumnId"
PHYSICAL_NAME = "delta.columnMapping.physicalName"
_FIELD_ID = "delta.columnMapping.id"

StoredPath = tuple[str, ...]
"""Stored names from a column down to a field; ``element``, ``key`` and ``value`` are the steps into lists and maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnMapping:
    """The stored and the logical schema of a table, and the way between them.

    Both schemas have the same fields in the same order, with the same types; only names differ. ``field_ids``: the number of each
    struct field, for Parquet's ``field_id``; empty without column mapping.
    """

    stored: pa.Schema
    logical: pa.Schema
    field_ids: Mapping[StoredPath, int]
    is_identity: bool
    _stored_names: Mapping[str, str]
    _logical_names: Mapping[str, str]

    def stored_name(self, logical: str) -> str:
        """The stored name of a column. Raises InvalidInput for a column that the table lacks."""
        found = self._stored_names.get(logical)
        if found is None:
            raise InvalidInput(f"there is no column {logical!r}{suggest(logical, self._stored_names)}")
        return found

    def stored_names(self, logical: Iterable[str]) -> tuple[str, ...]:
        """The stored names of several columns. Raises InvalidInput for a column that the table lacks."""
        return tuple(self.stored_name(name) for name in logical)

    def logical_name(self, stored: str) -> str:
        """The name that a user gave a stored column; a name that is no column's is returned as it is."""
        return self._logical_names.get(stored, stored)

    def logical_names(self, stored: Iterable[str]) -> tuple[str, ...]:
        """The names that a user gave several stored columns."""
        return tuple(self.logical_name(name) for name in stored)

    def stored_sort_key(self, texts: Sequence[str]) -> tuple[str, ...]:
        """The terms of a sort key with stored names. Raises InvalidInput, InvalidSchema for a text that is no term."""
        return renamed_sort_key(texts, self.logical, self._stored_names)

    def to_stored(self, table: pa.Table) -> pa.Table:
        """The table with stored names, at any depth, without copying. Columns that are not the table's stay as they are."""
        return table if self.is_identity else _renamed_table(table, self._stored_schema(table.schema))

    def to_logical(self, table: pa.Table) -> pa.Table:
        """The table with the user's names, at any depth, without copying. Columns that are not the table's stay as they are."""
        return table if self.is_identity else _renamed_table(table, self.logical_schema(table.schema))

    def _stored_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of rows, perhaps of some columns or narrower types, with stored names."""
        return _renamed_schema(schema, self.logical, self.stored)

    def logical_schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of rows, perhaps of some columns or narrower types, with the user's names."""
        return _renamed_schema(schema, self.stored, self.logical)


def is_mapped(metadata: Metadata, protocol: Protocol) -> bool:
    """Whether columns have stored names of their own. Raises Unsupported for a mode that lakebed does not read."""
    mode = metadata.configuration.get(MODE, "none")
    if mode == "none" or not (COLUMN_MAPPING in protocol.reader_features or protocol.min_reader_version == 2):
        return False
    if mode != "name":
        raise Unsupported(
            f"the table maps columns by {mode!r} ({MODE}); lakebed reads tables that map them by 'name': write a new table "
            "with that mode, or without column mapping"
        )
    return True


def columns_of(metadata: Metadata, protocol: Protocol) -> ColumnMapping:
    """The columns of a table. Raises InvalidSchema, Unsupported."""
    return _columns(metadata.schema_string, is_mapped(metadata, protocol))


@lru_cache(maxsize=4_096)
def _columns(schema_string: str, mapped: bool) -> ColumnMapping:
    fields: list[dict[str, Any]] = orjson.loads(schema_string)["fields"]
    _require_known_widenings(fields)
    logical = schema_from_fields(fields)
    stored = schema_from_fields(stored_fields(fields)) if mapped else logical
    is_identity = stored.equals(logical)
    if is_identity:
        stored = logical
    return ColumnMapping(
        stored=stored,
        logical=logical,
        field_ids=_field_ids(stored_fields(fields)) if mapped else {},
        is_identity=is_identity,
        _stored_names=dict(zip(logical.names, stored.names, strict=True)),
        _logical_names=dict(zip(stored.names, logical.names, strict=True)),
    )


def _require_known_widenings(fields: Sequence[dict[str, Any]]) -> None:
    """Raises Unsupported naming a column whose type changed in a way that readers of files can't follow."""
    for path, each in all_fields(fields):
        for change in (each.get("metadata") or {}).get(TYPE_CHANGES, ()):
            try:
                name = ".".join(path)
                known = widening(type_from_json(change["fromType"], name), type_from_json(change["toType"], name))
            except InvalidSchema:
                known = False
            if not known:
                raise Unsupported(
                    f"the type of {name!r} was changed from {change['fromType']} to {change['toType']}, which is no widening "
                    "that lakebed knows; write a new table with that type"
                )


def stored_settings(settings: TableSettings, columns: ColumnMapping) -> TableSettings:
    """Settings with stored names in place of the user's."""
    sequence, ttl = settings.sequence_by, settings.ttl  # the former is perhaps not a column
    return replace(
        settings,
        keys=columns.stored_names(settings.keys),
        sort_key=columns.stored_sort_key(settings.sort_key),
        sequence_by=columns.stored_name(sequence) if sequence and sequence in columns.logical.names else sequence,
        groups=tuple(group.stored(columns.logical.names).renamed(columns.stored_name) for group in settings.groups),
        aggregates=tuple(replace(one, column=columns.stored_name(one.column)) for one in settings.aggregates),
        ttl=replace(ttl, column=columns.stored_name(ttl.column))
        if ttl and ttl.column in columns.logical.names
        else None,
    )


def stored_fields(fields: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Fields of Delta's JSON under their stored names, at any depth."""
    return [
        {**field, "name": physical_name(field), "type": _with_structs(field["type"], stored_fields)} for field in fields
    ]


def stored_paths(metadata: Metadata, protocol: Protocol) -> dict[tuple[str, ...], StoredPath]:
    """The stored path of each struct field, at any depth, by its logical path."""
    fields: list[dict[str, Any]] = orjson.loads(metadata.schema_string)["fields"]
    stored = stored_fields(fields) if is_mapped(metadata, protocol) else fields
    return dict(zip((path for path, _ in all_fields(fields)), (path for path, _ in all_fields(stored)), strict=True))


def new_stored_name() -> str:
    """A stored name that no file has."""
    return f"col-{uuid.uuid4()}"


def map_columns(
    fields: list[dict[str, Any]],
    configuration: dict[str, str],
    new_name: Callable[[], str] = new_stored_name,
    *,
    has_files: bool = False,
) -> None:
    """Turn on column mapping for fields of Delta's JSON and the properties of their table, in place.

    The name of a field becomes its stored name, unless Delta forbids it in files and no file has it. Numbers that fields have for
    Iceberg become Delta's.
    """
    configuration[MODE] = "name"
    configuration.pop(MAX_ID, None)
    every = [each for _, each in all_fields(fields)]
    for each in every:
        metadata = each.get("metadata") or {}
        kept = {name: value for name, value in metadata.items() if name not in (_FIELD_ID, PHYSICAL_NAME, COLUMN_ID)}
        each["metadata"] = kept | ({_FIELD_ID: metadata[COLUMN_ID]} if COLUMN_ID in metadata else {})
    number(every, fields, configuration, lambda name: name if has_files or is_storable(name) else new_name())


def with_mapped_columns(schema_string: str, configuration: dict[str, str], *, has_files: bool = False) -> str:
    """The schema of a table with column mapping. ``configuration`` gets the properties for it.

    ``has_files``: whether files have the columns under their names already, whatever these are.
    """
    document = orjson.loads(schema_string)
    map_columns(document["fields"], configuration, has_files=has_files)
    return orjson.dumps(document).decode()


def number(
    new: Iterable[dict[str, Any]],
    fields: Sequence[dict[str, Any]],
    configuration: dict[str, str],
    stored_name: Callable[[str], str],
) -> None:
    """Give ``new`` fields of Delta's JSON their numbers and stored names. ``fields``: those that the table has."""
    known = [each["metadata"].get(_FIELD_ID, 0) for _, each in all_fields(fields) if each.get("metadata")]
    inner = [one for _, each in all_fields(fields) for one in inner_ids(each).values()]
    highest = max(int(configuration.get(MAX_ID, 0)), *known, *inner, 0)
    for each in new:
        if _FIELD_ID not in each["metadata"]:
            highest += 1
        each["metadata"] = {_FIELD_ID: highest, **each["metadata"], PHYSICAL_NAME: stored_name(each["name"])}
    configuration[MAX_ID] = str(highest)


def physical_name(field: Mapping[str, Any]) -> str:
    """The stored name of a field of Delta's JSON in a table with column mapping."""
    return str((field.get("metadata") or {}).get(PHYSICAL_NAME, field["name"]))


def _with_structs(kind: Any, change: Callable[[Sequence[Mapping[str, Any]]], list[dict[str, Any]]]) -> Any:
    """A type of Delta's JSON with the fields of its outer structs changed."""
    if not isinstance(kind, dict):
        return kind
    match kind["type"]:
        case "struct":
            return {**kind, "fields": change(kind["fields"])}
        case "array":
            return {**kind, "elementType": _with_structs(kind["elementType"], change)}
        case "map":
            key, value = (_with_structs(kind[each], change) for each in ("keyType", "valueType"))
            return {**kind, "keyType": key, "valueType": value}
    return kind


def _field_ids(fields: Sequence[dict[str, Any]]) -> dict[StoredPath, int]:
    numbered = ((steps, (each.get("metadata") or {}).get(_FIELD_ID)) for steps, each in all_fields(fields))
    found = {steps: int(number) for steps, number in numbered if number is not None}
    for steps, each in all_fields(fields):
        found |= {(*steps, *path.split(".")): int(one) for path, one in inner_ids(each).items()}
    return found


# -- renaming Arrow's schemas and tables --------------------------------------------------------------------------------


def _renamed_schema(schema: pa.Schema, source: pa.Schema, target: pa.Schema) -> pa.Schema:
    if source is target:
        return schema
    return pa.schema(_renamed_fields(schema, source, target), schema.metadata)


def _renamed_fields(
    fields: Iterable[pa.Field], source: Sequence[pa.Field], target: Sequence[pa.Field]
) -> list[pa.Field]:
    """``fields`` with the names that ``target`` has where ``source`` has theirs; others stay as they are."""
    known = {before.name: (before, after) for before, after in zip(source, target, strict=True)}
    out = []
    for field in fields:
        if field.name in known:
            before, after = known[field.name]
            field = field.with_name(after.name).with_type(_renamed_type(field.type, before.type, after.type))
        out.append(field)
    return out


def _renamed_type(kind: pa.DataType, source: pa.DataType, target: pa.DataType) -> pa.DataType:
    if source.equals(target):
        return kind
    if pa.types.is_struct(kind) and pa.types.is_struct(source):
        return pa.struct(_renamed_fields(kind, list(source), list(target)))
    if pa.types.is_map(kind) and pa.types.is_map(source):
        key = kind.key_field.with_type(_renamed_type(kind.key_type, source.key_type, target.key_type))
        item = kind.item_field.with_type(_renamed_type(kind.item_type, source.item_type, target.item_type))
        return pa.map_(key, item, kind.keys_sorted)
    if pa.types.is_list(source) and _is_any_list(kind):
        return _list_of(kind, _renamed_type(kind.value_type, source.value_type, target.value_type))
    return kind


def in_case_of(kind: pa.DataType, wanted: pa.DataType) -> pa.DataType:
    """A type with the names that ``wanted`` has for fields, at any depth, whose names differ by case alone."""
    if pa.types.is_struct(kind) and pa.types.is_struct(wanted):
        types = {field.name: field.type for field in wanted}
        columns = by_case(types, [field.name for field in kind])
        return pa.struct(
            [
                field.with_name(columns[field.name]).with_type(in_case_of(field.type, types[columns[field.name]]))
                if field.name in columns
                else field
                for field in kind
            ]
        )
    if pa.types.is_map(kind) and pa.types.is_map(wanted):
        item = kind.item_field.with_type(in_case_of(kind.item_type, wanted.item_type))
        return pa.map_(kind.key_field.with_type(in_case_of(kind.key_type, wanted.key_type)), item, kind.keys_sorted)
    if _is_any_list(kind) and pa.types.is_list(wanted):
        return _list_of(kind, in_case_of(kind.value_type, wanted.value_type))
    return kind


def _list_of(kind: pa.DataType, element: pa.DataType) -> pa.DataType:
    """The list type with other elements."""
    inner = kind.value_field.with_type(element)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def _is_any_list(kind: pa.DataType) -> bool:
    """Whether an Arrow type is a list of any layout that rows come in."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _renamed_table(table: pa.Table, schema: pa.Schema) -> pa.Table:
    if not table.num_columns:
        return table  # made again, it would lose the number of its rows
    columns = [
        column if column.type.equals(field.type) else retyped(column, field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def retyped(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """The column under a type that differs in names alone, without copying."""
    return pa.chunked_array([pa.array(_Renamed(chunk, kind)) for chunk in column.chunks], kind)


@dataclass(frozen=True, slots=True)
class _Renamed:
    """An array under a type that differs in names alone: Arrow's C data interface hands over the buffers and the type apart."""

    array: pa.Array
    kind: pa.DataType

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        return self.kind.__arrow_c_schema__(), self.array.__arrow_c_array__()[1]


def numbers_stay(known: Mapping[StoredPath, int], now: Mapping[StoredPath, int], number_max: int) -> Iterator[str]:
    """The numbers of columns and fields are those of their stored names for ever; a new field has a new number."""
    if not known:
        return
    if not now:
        yield "the table forgets its stored names"
        return
    at = {number: path for path, number in known.items()}
    for path, number in now.items():
        if path in known and known[path] != number:
            yield f"{'.'.join(path)!r} had the number {known[path]} and gets {number}"
        elif number in at and at[number] != path:
            yield f"{'.'.join(path)!r} has the number {number}, which is that of {'.'.join(at[number])!r}"
        elif path not in known and number <= number_max:
            yield f"the new {'.'.join(path)!r} has the number {number}, which an earlier column had"


# -- Whether parts can be read in another shape ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Misfit:
    """A column, or a field within one, that can't be read, and why."""

    path: StoredPath
    reason: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path)!r} {self.reason}"


def misfit(
    written: Iterable[pa.Field],
    wanted: Iterable[pa.Field],
    constant: Collection[str] = (),
    within: StoredPath = (),
    *,
    is_footer: bool = False,
) -> _Misfit | None:
    """The first column that parts with the columns ``written`` can't be read by as it is ``wanted``; None if they can.

    Both have stored names. ``constant``: columns whose value is that of the part's partition, whatever its file holds.
    ``is_footer``: ``written`` is what a file says of itself, which promises of no column that it is never null.
    """
    have = {field.name: field for field in written}
    for field in wanted:
        path, found = (*within, field.name), have.get(field.name)
        if field.name in constant:
            continue
        if found is None:
            if not field.nullable:
                return _Misfit(path, "is missing, and it is NOT NULL")
            continue
        if why := _of_types(found.type, field.type, path, is_footer):
            return why
        if found.nullable and not field.nullable and not is_footer:
            return _Misfit(path, "may be null, and it is NOT NULL")
    return None


def _of_types(written: pa.DataType, wanted: pa.DataType, path: StoredPath, is_footer: bool) -> _Misfit | None:
    if written.equals(wanted):
        return None
    if pa.types.is_struct(written) and pa.types.is_struct(wanted):
        if {field.name for field in written}.isdisjoint(field.name for field in wanted):
            return _Misfit(path, "has none of the fields that it had")
        return misfit(written, wanted, within=path, is_footer=is_footer)
    if pa.types.is_map(written) and pa.types.is_map(wanted):
        return misfit(_sides(written), _sides(wanted), within=path, is_footer=is_footer)
    if pa.types.is_list(written) and pa.types.is_list(wanted):
        old, new = (kind.value_field.with_name("element") for kind in (written, wanted))
        return misfit([old], [new], within=path, is_footer=is_footer)
    return None if widening(written, wanted) else _Misfit(path, f"is {written}, which can't be read as {wanted}")


def _sides(kind: pa.MapType) -> list[pa.Field]:
    return [kind.key_field.with_name("key"), kind.item_field.with_name("value")]
