"""A change of a table's schema as a value, the paths of columns and fields in it, and what one schema lacks of another. Pure.

A path names a column, or a field at any depth: ``address.zip``; ``tags.element`` is what a list holds, ``prices.key`` and
``prices.value`` what a map holds. A name that has a dot is quoted with backticks: `` `a.b`.c ``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.quoting import quote_for_spark
from lakebed.schema.conversion import canonical_type, type_from_json, type_to_json
from lakebed.schema.type_names import parse_type, type_text
from lakebed.schema.widening import common_type

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
