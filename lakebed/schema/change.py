"""A change of a table's schema as a value, the paths of columns and fields in it, and what one schema lacks of another. Pure.

A path names a column, or a field at any depth: ``address.zip``; ``tags.element`` is what a list holds, ``prices.key`` and
``prices.value`` what a map holds. A name that has a dot is quoted with backticks: `` `a.b`.c ``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.quoting import quote_for_spark
from lakebed.schema.conversion import canonical_type, type_from_json, type_to_json
from lakebed.schema.type_names import parse_type, type_text
from lakebed.schema.widening import common_type
from lakebed.settings import suggest

_STEP = re.compile(r"`((?:[^`]|``)+)`|([^.`]+)")
_OF_TYPES = ("add", "widen")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """What to change of a schema. All paths use the names from before the change, except those of ``add``.

    Drops and renames come first, so a name that becomes free may be added again.
    """

    # columns and fields to add at the end, nullable, with their canonical types
    add: Mapping[str, pa.DataType] = field(default_factory=dict)
    widen: Mapping[str, pa.DataType] = field(default_factory=dict)  # new types
    relax: tuple[str, ...] = ()  # what may be null from then on
    rename: Mapping[str, str] = field(default_factory=dict)  # new names, by path
    drop: tuple[str, ...] = ()  # what goes
    # texts, also of what is added; an empty one removes the comment
    comment: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(getattr(self, each.name) for each in fields(self))

    def __str__(self) -> str:
        """As people say it: ``add coupon string, rename note to comment``."""
        words = [f"add {path} {type_text(kind)}" for path, kind in self.add.items()]
        words += [f"widen {path} to {type_text(kind)}" for path, kind in self.widen.items()]
        words += [f"rename {path} to {name}" for path, name in self.rename.items()]
        words += [f"{verb} {path}" for verb, paths in (("drop", self.drop), ("relax", self.relax)) for path in paths]
        words += [f"comment on {path}" for path in self.comment]
        return ", ".join(words)

    def to_json(self) -> dict[str, Any]:
        """As JSON has it, with Delta's names of types; without what is empty."""
        out: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            if not value:
                continue
            if each.name in _OF_TYPES:
                value = {path: type_to_json(kind) for path, kind in value.items()}
            out[each.name] = list(value) if isinstance(value, tuple) else dict(value)
        return out

    @staticmethod
    def of(
        *,
        add: Mapping[str, str | pa.DataType] | None = None,
        widen: Mapping[str, str | pa.DataType] | None = None,
        rename: Mapping[str, str] | None = None,
        drop: Sequence[str] = (),
        relax: Sequence[str] = (),
        comment: Mapping[str, str] | None = None,
    ) -> SchemaChange:
        """A change as a user gives it: types may be texts. Raises InvalidSchema with the column, InvalidInput."""
        return SchemaChange(
            add=_canonical(add or {}),
            widen=_canonical(widen or {}),
            relax=column_names(relax, "relax"),
            rename=dict(rename or {}),
            drop=column_names(drop, "drop"),
            comment=dict(comment or {}),
        )

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> SchemaChange:
        """The inverse of ``to_json``. Raises InvalidSchema."""
        given: dict[str, Any] = {}
        for each in fields(SchemaChange):
            if each.name not in value:
                continue
            one = value[each.name]
            if each.name in _OF_TYPES:
                one = {path: type_from_json(kind, path) for path, kind in one.items()}
            given[each.name] = tuple(one) if isinstance(one, list) else dict(one)
        return SchemaChange(**given)

    def without(self, kinds: Iterable[str]) -> SchemaChange:
        """The change without these kinds (``add``, ``widen``, …)."""
        left = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in set(kinds)}
        return SchemaChange(**left)


def _canonical(types: Mapping[str, str | pa.DataType]) -> dict[str, pa.DataType]:
    return {
        path: parse_type(path, kind) if isinstance(kind, str) else canonical_type(kind, path)
        for path, kind in types.items()
    }


def steps_of(path: str) -> tuple[str, ...]:
    """The names along a path. Raises InvalidSchema for a text that is no path."""
    steps, at = [], 0
    while match := _STEP.match(path, at):
        steps.append(match[1].replace("``", "`") if match[1] is not None else match[2])
        at = match.end()
        if at == len(path):
            return tuple(steps)
        if path[at] != ".":
            break
        at += 1
    raise InvalidSchema(
        f"{path!r} is no path of a column; write names with dots between them, and a name that has a dot in backticks"
    )


def path_of(steps: Iterable[str]) -> str:
    """The path along these names: the inverse of ``steps_of``."""
    return ".".join(quote_for_spark(step) if "." in step or "`" in step else step for step in steps)


def difference(table: pa.Schema, wanted: pa.Schema) -> SchemaChange:
    """What must be added, widened and relaxed in ``table`` so that rows of ``wanted`` fit. Both have logical names.

    What ``table`` has beyond ``wanted`` stays, and may be null from then on. A type that neither holds the other's values nor can
    be widened to do so is left as it is: whoever decodes a value decides whether it fits.
    """
    found = _Difference({}, {}, [])
    found.of_fields(table, wanted, ())
    return SchemaChange(add=found.add, widen=found.widen, relax=tuple(found.relax))


@dataclass(frozen=True, slots=True)
class _Difference:
    add: dict[str, pa.DataType]
    widen: dict[str, pa.DataType]
    relax: list[str]

    def of_fields(self, table: Iterable[pa.Field], wanted: Iterable[pa.Field], at: tuple[str, ...]) -> None:
        ours, theirs = {each.name: each for each in table}, {each.name: each for each in wanted}
        for name, one in theirs.items():
            if name in ours:
                self.of_field(ours[name], one, (*at, name))
            else:
                self.add[path_of((*at, name))] = one.type
        self.relax.extend(path_of((*at, name)) for name, one in ours.items() if name not in theirs and not one.nullable)

    def of_field(self, ours: pa.Field, theirs: pa.Field, at: tuple[str, ...]) -> None:
        if theirs.nullable and not ours.nullable:
            self.relax.append(path_of(at))
        one, other = ours.type, theirs.type
        if pa.types.is_struct(one) and pa.types.is_struct(other):
            self.of_fields(one, other, at)
        elif pa.types.is_map(one) and pa.types.is_map(other):
            self.of_field(one.key_field, other.key_field, (*at, "key"))
            self.of_field(one.item_field, other.item_field, (*at, "value"))
        elif pa.types.is_list(one) and pa.types.is_list(other):
            self.of_field(one.value_field, other.value_field, (*at, "element"))
        elif (kind := common_type(one, other)) is not None and not kind.equals(one):
            self.widen[path_of(at)] = kind


def column_names(names: Sequence[str], purpose: str) -> tuple[str, ...]:
    """The names as a tuple; a single name may be given alone. Raises InvalidInput."""
    if isinstance(names, str):
        return (names,)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"{purpose} must be column names, not {list(names)!r}")
    return tuple(names)


# -- The fields of a schema in Delta's JSON, found by their paths and changed in place -------------------------------------
#
# Only what is changed is touched: metadata of other tools stays as it was, at every depth. Metadata belongs to struct fields.
# What a list or a map holds has none of its own, so its changes of type are kept at the field around it, with a ``fieldPath``.


Json = dict[str, Any]
_HELD = {
    "array": {"element": ("elementType", "containsNull")},
    "map": {"key": ("keyType", ""), "value": ("valueType", "valueContainsNull")},
}
"""For each kind of container the steps into it, with the members of its JSON that say the type and whether it may be null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a path leads. ``field``: the struct field that has the metadata; ``siblings``: the fields beside it.

    ``holder`` has the type and the nullability, in its members ``type_key`` and ``null_key`` (a map's keys have none);
    ``field_path``: the steps from ``field`` into lists and maps, "" for the field itself.
    """

    steps: tuple[str, ...]
    field: Json
    siblings: list[Json]
    holder: Json
    type_key: str = "type"
    null_key: str = "nullable"
    field_path: str = ""

    @property
    def path(self) -> str:
        return path_of(self.steps)

    @property
    def is_column(self) -> bool:
        return len(self.steps) == 1

    @property
    def type(self) -> Any:
        return self.holder[self.type_key]

    @property
    def is_nullable(self) -> bool:
        return bool(self.null_key) and bool(self.holder.get(self.null_key, True))

    @property
    def metadata(self) -> Json:
        """The metadata of the field, which may be changed."""
        if not isinstance(self.field.get("metadata"), dict):
            self.field["metadata"] = {}
        metadata: Json = self.field["metadata"]
        return metadata


def find(fields: list[Json], steps: Sequence[str]) -> Place:
    """Where a path leads from the top. Raises InvalidSchema naming the path and what is there instead."""
    place = _field_of(fields, tuple(steps[:1]), "the table")
    for at in range(1, len(steps)):
        here, step = tuple(steps[: at + 1]), steps[at]
        kind = place.type
        inner = fields_of(place)
        if inner is not None:
            place = _field_of(inner, here, repr(place.path))
            continue
        held = _HELD.get(kind["type"], {}) if isinstance(kind, dict) else {}
        if step not in held:
            has = f"has {' and '.join(map(repr, held))}" if held else "has no fields"
            named = kind["type"] if isinstance(kind, dict) else kind
            raise InvalidSchema(f"there is no {path_of(here)!r}: {place.path!r} is of type {named} and {has}")
        type_key, null_key = held[step]
        place = Place(
            steps=here,
            field=place.field,
            siblings=place.siblings,
            holder=kind,
            type_key=type_key,
            null_key=null_key,
            field_path=f"{place.field_path}.{step}" if place.field_path else step,
        )
    return place


def fields_of(place: Place) -> list[Json] | None:
    """The fields of a struct, None for another type."""
    kind = place.type
    return kind["fields"] if isinstance(kind, dict) and kind["type"] == "struct" else None


def named(fields: Sequence[Json], name: str) -> Json | None:
    """The field of this name. Names that differ by case alone are one name."""
    return next((each for each in fields if each["name"].lower() == name.lower()), None)


def all_fields(fields: Sequence[Json], at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """All struct fields at any depth with their paths, each before those within it."""
    for each in fields:
        here = (*at, each["name"])
        yield here, each
        for steps, inner in _structs(each["type"], ()):
            yield from all_fields(inner, (*here, *steps))


def _structs(kind: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], list[Json]]]:
    if not isinstance(kind, dict):
        return
    if kind["type"] == "struct":
        yield at, kind["fields"]
    for step, (type_key, _) in _HELD.get(kind["type"], {}).items():
        yield from _structs(kind[type_key], (*at, step))


def _field_of(fields: list[Json], steps: tuple[str, ...], where: str) -> Place:
    name = steps[-1]
    names = [each["name"] for each in fields]
    if name not in names:
        raise InvalidSchema(f"{where} has no column or field {path_of(steps)!r}{suggest(name, names)}")
    found = fields[names.index(name)]
    return Place(steps=steps, field=found, siblings=fields, holder=found)
