"""Changes the schema of a table: metadata and protocol in, metadata and protocol out. Pure.

1. The change is applied to Delta's JSON of the schema, in place. What it does not name stays byte for byte.
2. Adding a nullable column and relaxing NOT NULL need no feature of Delta's. The first rename or drop, and the first name that
   files can't have, turn on column mapping: each field gets its name as stored name. A field that is added later gets a stored
   name of its own, so a column that is dropped and added again never shows old values. The first widening turns on type
   widening.
3. Properties and partition columns have logical names; a rename changes them too.
4. ``is_compatible`` says whether what was written for the old schema is as good as any older part under the new one.

Changes that are there already are left out, so the same change made twice changes nothing. ``evolve`` then returns the metadata
that it was given.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakebed.column_groups import AGGREGATE
from lakebed.errors import InvalidSchema
from lakebed.schema.change import Json, Place, SchemaChange, all_fields, fields_of, find, named, path_of, steps_of
from lakebed.schema.column_mapping import (
    COLUMN_MAPPING,
    MAX_ID,
    MODE,
    columns_of,
    is_mapped,
    map_columns,
    new_stored_name,
    number,
    physical_name,
    stored_settings,
)
from lakebed.schema.conversion import (
    ChangeNames,
    all_names,
    canonical_type,
    needs_column_mapping,
    schema_from_fields,
    type_from_json,
    type_to_json,
    uses_timestamp_ntz,
    why_no_field_name,
    why_no_name,
)
from lakebed.schema.fitting import check_levels
from lakebed.schema.metadata import Metadata, Protocol
from lakebed.schema.widening import ENABLED, TYPE_CHANGES, TYPE_WIDENING, common_type, spelled, widening, wider_than
from lakebed.settings import PREFIX, read_settings
from lakebed.sortkey.sort_key import CURVES, parse_sort_key, renamed_sort_key

_TIMESTAMP_NTZ = "timestampNtz"
_STATISTICS_COLUMNS = "delta.dataSkippingStatsColumns"
_FOLLOWS_THE_SCHEMA = frozenset(
    {
        MODE,
        MAX_ID,
        ENABLED,
        _STATISTICS_COLUMNS,
        *(PREFIX + name for name in ("keys", "sort_key", "sequence_by", "groups", "ttl")),
    }
)
"""Properties that a change of the schema sets or rewrites."""
_COSTS = {
    COLUMN_MAPPING: "from now on the table needs readers that know Delta's column mapping: Delta for Spark, DuckDB and delta-rs "
    "do",
    TYPE_WIDENING: "from now on the table needs readers that know Delta's type widening: Delta for Spark since 4.0 and DuckDB "
    "do; delta-rs (deltalake for Python), up to 1.6.6 at least, refuses the table",
    _TIMESTAMP_NTZ: "from now on the table needs readers that know Delta's timestamps without time zone: Delta for Spark, DuckDB "
    "and delta-rs do",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolved:
    """The metadata and protocol after a change, the same objects where nothing changed.

    ``notes``: sentences for people, such as which readers the change costs.
    """

    metadata: Metadata
    protocol: Protocol
    notes: tuple[str, ...] = ()


def evolve(
    metadata: Metadata,
    protocol: Protocol,
    change: SchemaChange,
    stored_name: Callable[[], str] = new_stored_name,
) -> Evolved:
    """The schema after a change. ``stored_name`` makes those of new fields, where the table has column mapping.

    Raises InvalidSchema naming the path, what is wrong and the way out.
    """
    work = _Evolution(metadata, protocol, stored_name)
    work.apply(change)
    return work.result()


class _Evolution:
    """A schema while it is changed."""

    def __init__(self, metadata: Metadata, protocol: Protocol, stored_name: Callable[[], str]) -> None:
        self._before, self._protocol = metadata, protocol
        self._document: Json = json.loads(metadata.schema_string)
        self._fields: list[Json] = self._document["fields"]
        self._added_to = set[str]()  # columns, in lower case
        self._configuration = dict(metadata.configuration)
        self._settings = read_settings(metadata.configuration)
        self._partitions = metadata.partition_columns
        self._mapped = is_mapped(metadata, protocol)
        self._logical = columns_of(metadata, protocol).logical
        self._features: list[str] = []
        self._notes: list[str] = []
        self._stored_name = stored_name
        self._changed = False

    def apply(self, change: SchemaChange) -> None:
        leaving = {steps_of(path) for path in (*change.rename, *change.drop)}
        wanted = ((self._to_rename(path, name, leaving), name) for path, name in change.rename.items())
        renames = [(place, name) for place, name in wanted if place]
        drops = [self._to_drop(path) for path in change.drop]
        widens = [(self._at(path), kind) for path, kind in change.widen.items()]
        relaxes = [self._at(path) for path in change.relax]
        comments = {path: self._found(path) for path in change.comment}
        for place, kind in widens:
            self._widen(place, kind)
        for place in relaxes:
            self._relax(place)
        if renames or drops:
            self._map_columns()
        for place in drops:
            self._drop(place)
        self.rename(renames)
        for path, kind in change.add.items():
            self._add(path, kind)
        for path, text in change.comment.items():
            self._comment(comments[path] or self._at(path), text)

    def result(self) -> Evolved:
        if not self._changed:
            return Evolved(metadata=self._before, protocol=self._protocol, notes=tuple(self._notes))
        schema = schema_from_fields(self._fields)
        check_levels(column for column in schema if column.name.lower() in self._added_to)
        if renamed := ChangeNames.beside(self._logical.names).renamed(ChangeNames.beside(schema.names)):
            self._notes.append(
                f"from now on change rows have other names beside the table's columns: {', '.join(renamed)}"
            )
        if set(schema.names) <= set(self._partitions):
            raise InvalidSchema("only partition columns would be left; at least one other column must stay")
        if uses_timestamp_ntz(schema):
            self._need(_TIMESTAMP_NTZ)
        metadata = replace(
            self._before,
            schema_string=json.dumps(self._document, ensure_ascii=False, separators=(",", ":")),
            configuration=self._configuration,
            partition_columns=self._partitions,
        )
        protocol = self._protocol
        if self._features:
            readers, writers = (
                each | set(self._features) for each in (protocol.reader_features, protocol.writer_features)
            )
            protocol = replace(protocol, reader_features=readers, writer_features=writers)
        self._require_same_order(metadata, protocol)
        return Evolved(metadata=metadata, protocol=protocol, notes=tuple(self._notes))

    def _require_same_order(self, metadata: Metadata, protocol: Protocol) -> None:
        """Raises InvalidSchema if a name now reads like a term of the sort key, such as ``day desc``."""
        texts = read_settings(metadata.configuration).sort_key
        old, new = columns_of(self._before, self._protocol), columns_of(metadata, protocol)
        before, after = (
            [term.name for term in parse_sort_key(columns.stored_sort_key(key), columns.stored)]
            for columns, key in ((old, self._settings.sort_key), (new, texts))
        )
        if before != after:
            names = sorted({*texts} & {each["name"] for each in self._fields})
            raise InvalidSchema(f"column {names[0]!r}: the sort key has a term of that text; choose another name")

    # -- one kind of change each -----------------------------------------------------------------------------------

    def _to_rename(self, path: str, name: str, leaving: Collection[tuple[str, ...]]) -> Place | None:
        """The field to rename, None if it has the name already and keeps it. ``leaving``: what the change renames or drops."""
        place = self._found(path)
        if place is None:
            *above, old = steps_of(path)
            beside = [each for each in self._inside(above) or () if each["name"] == name]
            if self._mapped and any(physical_name(each) == old for each in beside) and (*above, name) not in leaving:
                return None
            place = self._at(path)  # raises
        self._require_field(place, "renamed")
        if place.is_column:
            self._require_free(name)
        elif (why := why_no_field_name(name)) is not None:
            raise InvalidSchema(f"{path!r} can't be renamed to {name!r}: {why}")
        return None if place.field["name"] == name else place

    def rename(self, renames: list[tuple[Place, str]]) -> None:
        columns: dict[str, str] = {}
        for place, name in renames:
            if place.is_column:
                columns[place.field["name"]] = name
            place.field["name"] = name
            self._changed = True
        if columns:
            self._rename_in_properties(columns)

    def _to_drop(self, path: str) -> Place:
        place = self._at(path)
        self._require_field(place, "dropped")
        if place.is_column:
            self._require_unused(place.field["name"])
        elif place.siblings[0] is place.field:
            raise InvalidSchema(
                f"{path!r} can't be dropped: it is the first field of its struct, and DuckDB reads no struct of which a file has "
                f"none of the fields; drop the whole column {place.steps[0]!r}, or keep the field"
            )
        return place

    def _drop(self, place: Place) -> None:
        place.siblings[:] = [each for each in place.siblings if each is not place.field]
        if place.is_column:
            self._follow_in_statistics(place.field["name"], None)
        self._changed = True

    def _widen(self, place: Place, kind: pa.DataType) -> None:
        if pa.types.is_nested(kind) or isinstance(place.type, dict):
            raise InvalidSchema(
                f"{place.path!r} can't be widened as a whole; widen what is in it, such as {path_of((*place.steps, 'field'))!r}"
            )
        before = type_from_json(place.type, place.path)
        if before.equals(kind):
            return
        if widening(kind, before):
            self._notes.append(f"{place.path!r} is {place.type} already, which holds every {spelled(kind)}")
            return
        if not widening(before, kind):
            raise InvalidSchema(
                f"{place.path!r} is {place.type} and can't be widened to {spelled(kind)}: {wider_than(before)}; for any other "
                "type add a column of that type, fill it, and drop this one"
            )
        if place.is_column:
            self._require_widenable(place.field["name"], before, kind)
        step = {"fieldPath": place.field_path} if place.field_path else {}
        change = {"toType": type_to_json(kind), "fromType": place.type, **step}
        place.metadata[TYPE_CHANGES] = [*place.metadata.get(TYPE_CHANGES, []), change]
        place.holder[place.type_key] = change["toType"]
        self._configuration[ENABLED] = "true"
        self._need(TYPE_WIDENING)
        self._changed = True

    def _relax(self, place: Place) -> None:
        if not place.null_key:
            raise InvalidSchema(f"{place.path!r} is the key of a map, which can't be null")
        if place.is_column and place.field["name"] in self._settings.keys:
            raise InvalidSchema(f"{place.path!r} is a key of the table, and a key has a value in every row")
        if not place.is_nullable:
            place.holder[place.null_key] = True
            self._changed = True

    def _add(self, path: str, kind: pa.DataType) -> None:
        *above, name = steps_of(path)
        kind = canonical_type(kind, path)
        siblings = self._inside(above)
        if siblings is None:
            raise InvalidSchema(f"{path_of(above)!r} is no struct, so nothing can be added as {path!r}")
        there = named(siblings, name)
        if there is not None:
            existing = type_from_json(there["type"], path)
            fits = common_type(existing, kind)
            if there["name"] == name and fits is not None and fits.equals(existing):
                return
            raise InvalidSchema(
                f"{path!r} can't be added: there is {there['name']!r} of type {spelled(existing)} already; widen it, or choose "
                "another name"
            )
        if not above:
            self._require_free(name)
        for each in all_names(pa.schema([(name, kind)])):
            if (why := why_no_field_name(each)) is not None:
                raise InvalidSchema(f"{path!r}: {why}")
        new: Json = {"name": name, "type": type_to_json(kind), "nullable": True, "metadata": {}}
        if needs_column_mapping(pa.schema([(name, kind)])):
            self._map_columns()
        if self._mapped:
            every = [each for _, each in all_fields([new])]
            number(every, self._fields, self._configuration, lambda _: self._stored_name())
        siblings.append(new)
        self._added_to.add(steps_of(path)[0].lower())
        self._changed = True

    def _comment(self, place: Place, text: str) -> None:
        self._require_field(place, "commented on")
        if place.metadata.get("comment", "") == text:
            return
        place.metadata["comment"] = text
        if not text:
            del place.metadata["comment"]
        self._changed = True

    # -- column mapping and properties -----------------------------------------------------------------------------

    def _map_columns(self) -> None:
        """Turn on column mapping, if it is off: each field's name becomes its stored name."""
        if self._mapped:
            return
        self._mapped = self._changed = True
        map_columns(self._fields, self._configuration)
        self._need(COLUMN_MAPPING)

    def _rename_in_properties(self, names: Mapping[str, str]) -> None:
        settings = self._settings
        renamed = replace(
            settings,
            keys=tuple(names.get(name, name) for name in settings.keys),
            sort_key=renamed_sort_key(settings.sort_key, self._logical, names),
            sequence_by=names.get(settings.sequence_by, settings.sequence_by) if settings.sequence_by else None,
            groups=tuple(group.renamed(lambda name: names.get(name, name)) for group in settings.groups),
            aggregates=tuple(replace(one, column=names.get(one.column, one.column)) for one in settings.aggregates),
            ttl=replace(settings.ttl, column=names.get(settings.ttl.column, settings.ttl.column))
            if settings.ttl
            else None,
        )
        texts = renamed.to_properties()
        for one in settings.aggregates:
            self._configuration.pop(AGGREGATE + one.column, None)
        for name in texts:
            if name in _FOLLOWS_THE_SCHEMA or name.startswith(AGGREGATE):
                self._configuration[name] = texts[name]
        self._partitions = tuple(names.get(name, name) for name in self._partitions)
        for name, new in names.items():
            self._follow_in_statistics(name, new)

    def _follow_in_statistics(self, name: str, new: str | None) -> None:
        """Rename a column in the property that lists the columns which another tool keeps statistics of, or take it out."""
        listed = self._configuration.get(_STATISTICS_COLUMNS)
        if not listed:
            return
        paths = [each.strip().split(".") for each in listed.split(",")]
        kept = [[new or name, *rest] if head == name else [head, *rest] for head, *rest in paths if new or head != name]
        self._configuration[_STATISTICS_COLUMNS] = ",".join(".".join(each) for each in kept)
        if not kept:
            del self._configuration[_STATISTICS_COLUMNS]

    def _need(self, feature: str) -> None:
        features = self._protocol.reader_features & self._protocol.writer_features
        if feature not in features and feature not in self._features:
            self._features.append(feature)
            self._notes.append(_COSTS[feature])

    # -- what may not be changed -----------------------------------------------------------------------------------

    def _require_field(self, place: Place, done: str) -> None:
        if place.field_path:
            raise InvalidSchema(f"{place.path!r} is what a list or a map holds; only columns and fields can be {done}")

    def _require_free(self, name: str) -> None:
        if (why := why_no_name(name)) is not None:
            raise InvalidSchema(f"column {name!r}: {why}; choose another name")
        orders = {group.sequence_by: f"the group {group.name!r}" for group in self._settings.groups}
        orders[self._settings.sequence_by or ""] = "the changes of the table"
        if name in orders and name not in self._logical.names:
            raise InvalidSchema(
                f"column {name!r}: the {name!r} of events orders {orders[name]} (sequence_by), which is no column; choose "
                "another name"
            )

    def _require_unused(self, name: str) -> None:
        """Raises InvalidSchema if a column can't be dropped."""
        settings = self._settings
        instead = "write a new table without it"
        uses = [
            (name in settings.keys, f"a key of the table; keys are fixed when a table is created: {instead}"),
            (name == settings.sequence_by, f"orders the changes of a key (sequence_by), which is fixed: {instead}"),
            (name in self._partitions, f"a partition column; {instead}"),
            (
                any(name in term.columns for term in parse_sort_key(settings.sort_key, self._logical)),
                "in the sort key; give the table another sort key first (set_sort_key, lakebed alter --sort-key)",
            ),
            (
                any(name in group.columns for group in settings.groups),
                "in a group of columns (lakebed.groups); take it out of the group first",
            ),
            (
                any(name == one.column for one in settings.aggregates),
                f"aggregated ({AGGREGATE}{name}); set that property to 'last' first",
            ),
            (
                settings.ttl is not None and name == settings.ttl.column,
                "the column that says when rows expire (lakebed.ttl); set that property to '' first",
            ),
        ]
        for is_used, use in uses:
            if is_used:
                verb = "" if use.startswith("orders") else "is "
                raise InvalidSchema(f"{name!r} can't be dropped: it {verb}{use}")

    def _require_widenable(self, name: str, before: pa.DataType, after: pa.DataType) -> None:
        """Raises InvalidSchema where a value of the wider type is not the same text in the log, or sorts elsewhere."""
        if pa.types.is_integer(before) and pa.types.is_integer(after):
            return
        if name in self._partitions:
            raise InvalidSchema(
                f"{name!r} is a partition column; the log spells {spelled(after)} and {spelled(before)} differently, so it can "
                "only be widened to a wider integer: write a new table with that type"
            )
        for term in parse_sort_key(self._settings.sort_key, self._logical):
            if name in term.columns and term.function in ("bucket", *CURVES):
                raise InvalidSchema(
                    f"{name!r} is in the sort key as {term.name}, which sorts {spelled(after)} differently from "
                    f"{spelled(before)}; give the table another sort key first (set_sort_key, lakebed alter --sort-key), and "
                    "this one again afterwards"
                )

    # -- finding ---------------------------------------------------------------------------------------------------

    def _at(self, path: str) -> Place:
        return find(self._fields, steps_of(path))

    def _found(self, path: str) -> Place | None:
        try:
            return self._at(path)
        except InvalidSchema:
            steps_of(path)
            return None

    def _inside(self, above: list[str]) -> list[Json] | None:
        """The fields that a path leads into, None if it leads to no struct. Raises InvalidSchema if it leads nowhere."""
        return fields_of(find(self._fields, above)) if above else self._fields


# -- compatible changes ----------------------------------------------------------------------------------------------

_ANY_FEATURE = Protocol(3, 7, frozenset({COLUMN_MAPPING}), frozenset({COLUMN_MAPPING}))


def is_compatible(old: Metadata, new: Metadata) -> bool:
    """Whether parts that were written for the old schema are as good as any older part of the table under the new one.

    So what was planned before the change may commit after it. Columns may have been added, widened, relaxed, renamed and
    commented on. Everything else must be as it was: keys, sort key, sequence, partitions, properties. A dropped column is not
    compatible: who writes it must notice.
    """
    if old == new:
        return True
    if (old.id, old.format_provider, _others(old)) != (new.id, new.format_provider, _others(new)):
        return False
    before, after = columns_of(old, _ANY_FEATURE), columns_of(new, _ANY_FEATURE)
    return (
        before.stored_names(old.partition_columns) == after.stored_names(new.partition_columns)
        and stored_settings(read_settings(old.configuration), before)
        == stored_settings(read_settings(new.configuration), after)
        and rows_fit(before.stored, after.stored)
    )


def only_adds_features(old: Protocol, new: Protocol) -> bool:
    """Whether a protocol asks for no more than the features that a compatible change of the schema brings."""
    versions = (old.min_reader_version, old.min_writer_version) == (new.min_reader_version, new.min_writer_version)
    both = ((old.reader_features, new.reader_features), (old.writer_features, new.writer_features))
    return versions and all(before <= after and after - before <= _COSTS.keys() for before, after in both)


def _others(metadata: Metadata) -> dict[str, str]:
    return {
        name: text
        for name, text in metadata.configuration.items()
        if name not in _FOLLOWS_THE_SCHEMA and not name.startswith(AGGREGATE)
    }


def rows_fit(old: Any, new: Any) -> bool:
    """Whether rows with the old stored fields are rows with the new ones: fields are found by name."""
    known = {each.name: each for each in old}
    wanted = {each.name: each for each in new}
    return known.keys() <= wanted.keys() and all(
        _field_fits(known[name], each) if name in known else each.nullable for name, each in wanted.items()
    )


def _field_fits(old: pa.Field, new: pa.Field) -> bool:
    if old.nullable and not new.nullable:
        return False
    one, other = old.type, new.type
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        return rows_fit(one, other)
    if pa.types.is_map(one) and pa.types.is_map(other):
        return _field_fits(one.key_field, other.key_field) and _field_fits(one.item_field, other.item_field)
    if pa.types.is_list(one) and pa.types.is_list(other):
        return _field_fits(one.value_field, other.value_field)
    return bool(one.equals(other)) or widening(one, other)
