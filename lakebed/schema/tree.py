"""The fields of a schema in Delta's JSON, found by their paths and changed in place. Pure.

Only what is changed is touched: metadata of other tools stays as it was, at every depth. Metadata belongs to struct fields. What
a list or a map holds has none of its own, so its changes of type are kept at the field around it, with a ``fieldPath``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lakebed.errors import InvalidSchema
from lakebed.schema.change import path_of
from lakebed.settings import suggest

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
