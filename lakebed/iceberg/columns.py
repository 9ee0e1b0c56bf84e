"""The schema, partitions and order of a table, as Iceberg's metadata has them. Pure.

1. Fields have the users' names and the numbers of ``schema.iceberg_columns``. None is *required*: files may hold null in rows
   that are dead, and readers look at those too.
2. Files of a table without column mapping have no numbers, so a *name mapping* leads from stored names to numbers. PyIceberg
   and DuckDB want every column of a file in it, so it also has what files hold besides the table's columns: hidden
   ones, and those that were dropped, which an entry of the log remembers.
3. The partition fields are the columns themselves (identity); their values are in the log, and perhaps in no file.
4. Of the sort key the leading terms count that Iceberg knows.
5. The id of a schema is a digest of it, so any process gives the same one.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from lakebed.errors import InvalidSchema
from lakebed.log.actions import Domain
from lakebed.log.entries import FORMER_COLUMNS
from lakebed.log.entry_values import decoded, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.schema.column_mapping import is_mapped, physical_name, stored_fields
from lakebed.schema.iceberg_columns import column_id, inner_ids, missing_numbers, require_sayable
from lakebed.sortkey.sort_key import SortTerm, parse_sort_key

Json = dict[str, Any]
StoredPath = tuple[str, ...]
_TYPES = {
    "string": "string", "long": "long", "integer": "int", "short": "int", "byte": "int", "float": "float", "double": "double",
    "boolean": "boolean", "binary": "binary", "date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
}  # fmt: skip
PARTITION_IDS = 1000
"""The number of the first partition field."""
_HIDDEN_IDS = 2_147_000_000
"""Numbers from here on belong to what files hold besides the table's columns; Iceberg leaves some at the end to itself."""
_HIDDEN: tuple[tuple[str, pa.DataType], ...] = (
    ("_lakebed_op", pa.string()),
    ("_lakebed_seq", pa.int64()),
    ("_lakebed_unavailable", pa.list_(pa.string())),
    ("_lakebed_version", pa.int64()),
    ("_lakebed_needs_row", pa.bool_()),
    (
        "_lakebed_moves",
        pa.list_(pa.struct([(name, pa.int64()) for name in ("transaction", "place", "deletes", "count")])),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """A column that divides the table into partitions."""

    stored: str
    kind: pa.DataType
    type: str  # as Iceberg calls it
    json: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergColumns:
    """What Iceberg's metadata says of a table's columns."""

    schema: Json
    spec: Json
    sort_order: Json
    name_mapping: tuple[Json, ...]
    leaves: Mapping[StoredPath, tuple[int, pa.DataType]]  # columns and fields with bounds of their own
    partitions: tuple[PartitionField, ...]
    last_column_id: int


def iceberg_columns(snapshot: Snapshot) -> IcebergColumns:
    """The columns of a table at a version. Raises InvalidSchema where Iceberg can't say them, or they have no numbers."""
    mapped = is_mapped(snapshot.metadata, snapshot.protocol)
    fields: Sequence[Json] = orjson.loads(snapshot.metadata.schema_string)["fields"]
    require_sayable(list(fields))
    walk = _Walk(mapped)
    schema_fields = walk.fields(fields)
    names = {each["name"]: each for each in schema_fields}
    partitions = tuple(
        PartitionField(
            stored=stored,
            kind=snapshot.schema.field(stored).type,
            type=names[logical]["type"],
            json={
                "source-id": names[logical]["id"],
                "field-id": PARTITION_IDS + at,
                "name": logical,
                "transform": "identity",
            },
        )
        for at, (logical, stored) in enumerate(
            zip(snapshot.metadata.partition_columns, snapshot.partition_columns, strict=True)
        )
    )
    body = {"type": "struct", "fields": schema_fields}
    number = int.from_bytes(hashlib.blake2b(orjson.dumps(body), digest_size=4).digest(), "big") & 0x7FFFFFFF
    by_name = {field.name: field.type for field in snapshot.schema}
    return IcebergColumns(
        schema={"type": "struct", "schema-id": number, "fields": schema_fields},
        spec={"spec-id": 0, "fields": [each.json for each in partitions]},
        sort_order=_sort_order(snapshot, {path[0]: one for path, one in walk.ids.items() if len(path) == 1}),
        name_mapping=tuple(_name_mapping(walk.mapping(fields), snapshot)),
        leaves={path: (one, _at(by_name, path)) for path, one in walk.ids.items() if path in walk.leaves},
        partitions=partitions,
        last_column_id=walk.highest,
    )


class _Walk:
    """A walk over Delta's JSON."""

    def __init__(self, mapped: bool) -> None:
        self._mapped = mapped
        self.ids: dict[StoredPath, int] = {}
        self.leaves: set[StoredPath] = set()
        self.highest = 0

    def fields(self, fields: Iterable[Json], above: StoredPath | None = ()) -> list[Json]:
        """Fields as Iceberg has them. ``above``: the stored names around them, None within a list or a map."""
        return [self._field(each, above) for each in fields]

    def mapping(self, fields: Iterable[Json]) -> list[Json]:
        """The name mapping of fields."""
        return [self._named(self._id(each), [self._stored(each)], each, each["type"], "") for each in fields]

    def _field(self, field: Json, above: StoredPath | None) -> Json:
        path = None if above is None else (*above, self._stored(field))
        number = self._id(field)
        if path is not None:
            self.ids[path] = number
            if not isinstance(field["type"], dict):
                self.leaves.add(path)
        out = {
            "id": number,
            "name": field["name"],
            "required": False,
            "type": self._type(field["type"], field, "", path),
        }
        comment = (field.get("metadata") or {}).get("comment")
        return out | ({"doc": comment} if comment else {})

    def _type(self, kind: Any, field: Json, inside: str, path: StoredPath | None) -> Any:
        if not isinstance(kind, dict):
            if kind in _TYPES:
                return _TYPES[kind]
            if decimal := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", kind):
                return f"decimal({decimal[1]}, {decimal[2]})"
        elif kind["type"] == "struct":
            return {"type": "struct", "fields": self.fields(kind["fields"], path)}
        elif kind["type"] == "array":
            element = self._type(kind["elementType"], field, f"{inside}.element", None)
            number = self._inner(field, f"{inside}.element")
            return {"type": "list", "element-id": number, "element-required": False, "element": element}
        elif kind["type"] == "map":
            key, value = (self._type(kind[f"{step}Type"], field, f"{inside}.{step}", None) for step in ("key", "value"))
            return {
                "type": "map",
                "key-id": self._inner(field, f"{inside}.key"),
                "key": key,
                "value-id": self._inner(field, f"{inside}.value"),
                "value-required": False,
                "value": value,
            }
        raise InvalidSchema(f"column {field['name']!r} has the type {kind!r}, which Iceberg can't say")

    def _named(self, number: int, names: list[str], field: Json, kind: Any, inside: str) -> Json:
        out: Json = {"field-id": number, "names": names}
        if isinstance(kind, dict) and kind["type"] == "struct":
            out["fields"] = self.mapping(kind["fields"])
        elif isinstance(kind, dict):
            steps = ("element",) if kind["type"] == "array" else ("key", "value")
            out["fields"] = [
                self._named(self._inner(field, path), [step], field, kind[f"{step}Type"], path)
                for step in steps
                for path in [f"{inside}.{step}"]
            ]
        return out

    def _id(self, field: Json) -> int:
        number = column_id(field, is_mapped=self._mapped)
        if number is None:
            raise InvalidSchema(
                f"the column {field['name']!r} has no number for Iceberg: set lakebed.iceberg to 'on' again, which gives it one"
            )
        self.highest = max(self.highest, number)
        return number

    def _inner(self, field: Json, inside: str) -> int:
        found = inner_ids(field).get(inside.removeprefix("."))
        if found is None:
            raise InvalidSchema(
                f"what {field['name']!r} holds has no number for Iceberg: set lakebed.iceberg to 'on' again, which gives it one"
            )
        self.highest = max(self.highest, int(found))
        return int(found)

    def _stored(self, field: Json) -> str:
        return physical_name(field) if self._mapped else str(field["name"])


def _at(types: Mapping[str, pa.DataType], path: StoredPath) -> pa.DataType:
    kind = types[path[0]]
    for step in path[1:]:
        kind = kind.field(step).type
    return kind


# -- what files hold besides the columns -------------------------------------------------------------------------------


def _name_mapping(own: Sequence[Json], snapshot: Snapshot) -> list[Json]:
    """The name mapping of columns, of hidden ones (docs/format.md), and of what was dropped."""
    settings, numbers, columns = snapshot.settings, itertools.count(_HIDDEN_IDS), frozenset(snapshot.schema.names)
    orders = [group.sequence_by for group in settings.groups if group.sequence_by not in columns]
    firsts = [one.order_column for one in settings.aggregates if one.order_column]
    every = [*_HIDDEN, *((name, pa.int64()) for name in dict.fromkeys([*orders, *firsts]))]
    hidden = [_hidden_field(name, kind, numbers) for name, kind in every]
    return _with_former([*own, *hidden], former_columns(snapshot), numbers)


def _hidden_field(name: str, kind: pa.DataType, numbers: Iterator[int]) -> Json:
    out: Json = {"field-id": next(numbers), "names": [name]}
    if pa.types.is_list(kind):
        out["fields"] = [_hidden_field("element", kind.value_type, numbers)]
    elif pa.types.is_struct(kind):
        out["fields"] = [_hidden_field(child.name, child.type, numbers) for child in kind]
    return out


@dataclass(frozen=True, slots=True)
class FormerColumns:
    """Stored names that files may have besides the table's, at any depth (``entries.FORMER_COLUMNS``): those that the table had
    before columns were dropped, and those that only files of another writer had when it was adopted.

    A name leads to those within it; an empty one to its number for Iceberg, if it had one: earlier versions have it still.
    """

    columns: dict[str, Any]


def with_former_columns(snapshot: Snapshot) -> Domain:
    """The entry for a commit that drops a column of this version."""
    fields: Sequence[Json] = orjson.loads(snapshot.metadata.schema_string)["fields"]
    mapped = is_mapped(snapshot.metadata, snapshot.protocol)
    names = _names_of({"type": "struct", "fields": stored_fields(fields) if mapped else fields}, mapped)
    return Domain(FORMER_COLUMNS, orjson.dumps({"columns": _joined(former_columns(snapshot), names)}).decode())


def with_columns_of_files(snapshot: Snapshot, names: Json) -> Domain:
    """The entry for a commit that adopts files which have columns of these names besides the table's."""
    return Domain(FORMER_COLUMNS, orjson.dumps({"columns": _joined(former_columns(snapshot), names)}).decode())


def former_columns(snapshot: Snapshot) -> Json:
    """The stored names that files may have besides the table's, as ``FormerColumns`` has them."""
    text = snapshot.domains.get(FORMER_COLUMNS)
    found = readable_or_none(FORMER_COLUMNS, text, partial(decoded, FormerColumns))
    return found.columns if found else {}


def _names_of(kind: Any, mapped: bool, field: Json | None = None, inside: str = "") -> Json:
    if not isinstance(kind, dict):
        return {}
    if kind["type"] == "struct":
        return {
            each["name"]: _numbered(column_id(each, is_mapped=mapped), _names_of(each["type"], mapped, each))
            for each in kind["fields"]
        }
    steps = ("element",) if kind["type"] == "array" else ("key", "value")
    out: Json = {}
    for step in steps:
        path = f"{inside}.{step}".removeprefix(".")
        out[step] = _numbered(inner_ids(field or {}).get(path), _names_of(kind[f"{step}Type"], mapped, field, path))
    return out


def _numbered(number: int | None, inside: Json) -> Json:
    return inside if number is None else {"": number, **inside}


def _joined(one: Json, other: Json) -> Json:
    return one | {name: _joined(one.get(name, {}), inside) if name else inside for name, inside in other.items()}


def _with_former(mapping: Sequence[Json], former: Json, numbers: Iterator[int]) -> list[Json]:
    """The mapping, and what only files have."""
    known = {name: each for each in mapping for name in each["names"]}
    folded = {name.lower() for name in known}
    out = list(mapping)
    for name, inside in former.items():
        before = known.get(name)
        if not name or (before is None and name.lower() in folded):  # DuckDB would take the one for the other
            continue
        new = before or {"field-id": inside.get("") or next(numbers), "names": [name]}
        fields = _with_former(new.get("fields", ()), inside, numbers)
        new = new | ({"fields": fields} if fields else {})
        out = [new if each is before else each for each in out] if before else [*out, new]
    return out


# -- the order ---------------------------------------------------------------------------------------------------------

UNSORTED: Json = {"order-id": 0, "fields": []}
_TRANSFORMS = {"date": "day", "day": "day", "year": "year", "month": "month", "hour": "hour"}


def _sort_order(snapshot: Snapshot, ids: Mapping[str, int]) -> Json:
    settings = snapshot.settings
    fields: list[Json] = []
    for term in parse_sort_key(settings.order_by, snapshot.schema, settings.sort_key_frame):
        transform = _transform(term)
        if transform is None:
            break
        fields.append(
            {
                "transform": transform,
                "source-id": ids[term.columns[0]],
                "direction": "desc" if term.is_descending else "asc",
                "null-order": "nulls-last" if term.nulls_last else "nulls-first",
            }
        )
    return {"order-id": settings.sort_key_version, "fields": fields} if fields else UNSORTED


def _transform(term: SortTerm) -> str | None:
    if term.is_plain:
        return "identity"
    if term.function == "bucket":
        return f"bucket[{term.numbers[0]}]"
    if term.function == "substr" and term.numbers[0] == 1:
        return f"truncate[{term.numbers[1]}]"
    return _TRANSFORMS.get(term.function)


# -- Columns that another writer dropped: files may hold them, and nothing says their names --------------------------------
#
# Files that were written before a table had column mapping lack numbers, so readers of Iceberg go by the name mapping. Where
# that lacks a column of a file, PyIceberg fails, and DuckDB gives null for *other* columns without a word. Of the columns that
# a table had, the log keeps one thing: their numbers are never given again. So a number that belongs to no column is one that
# was dropped, and files that lakebed did not write may hold it. Whether they do, no log says.
#
# When a table is adopted, the names of what its files have are remembered (``operations.columns_of_files``). Two cases are
# left: a table that was adopted before they were, and names that differ from a column's in case alone, which DuckDB can't tell
# apart.


_HELD = frozenset(["element", "key", "value"])


def require_known_columns(snapshot: Snapshot) -> None:
    """Raises InvalidSchema where files of another writer may hold columns that nobody knows any more."""
    files = sorted(path for path, part in snapshot.parts.items() if not part.is_native)
    fields: Sequence[Json] = orjson.loads(snapshot.metadata.schema_string)["fields"] if files else ()
    for name, other in _twins(former_columns(snapshot), fields):
        raise InvalidSchema(
            f"files of another writer, among them {files[0]}, may have a column {name!r} beside {other!r}, and readers of "
            "Iceberg may take the one for the other. Have lakebed write them again first: recluster(final=True), or lakebed "
            "recluster --final, which needs keys or a sort key"
        )
    if files and (unknown := unknown_columns(snapshot)):
        raise InvalidSchema(
            f"another writer dropped {unknown} columns before lakebed had the table, and {len(files)} files that it wrote may "
            f"hold them still, among them {files[0]}: readers of Iceberg would read other columns of these files as null. "
            "Have lakebed write them again first: recluster(final=True), or lakebed recluster --final, which needs keys or a "
            "sort key"
        )


def unknown_columns(snapshot: Snapshot) -> int:
    """How many columns and fields were dropped without lakebed knowing."""
    if not is_mapped(snapshot.metadata, snapshot.protocol):
        return 0  # there columns can't be dropped
    fields: Sequence[Json] = orjson.loads(snapshot.metadata.schema_string)["fields"]
    former = former_columns(snapshot)
    missing = missing_numbers(fields, snapshot.metadata.configuration) - set(_numbers(former))
    # Those that were dropped in the commit that turned column mapping on had no numbers when the log remembered them.
    return max(0, len(missing) - _without_number(former, fields))


def _twins(former: Json, fields: Sequence[Json]) -> Iterator[tuple[str, str]]:
    """Names that only files have, with the column from which each differs in case alone."""
    present = {physical_name(each): each["type"] for each in fields}
    folded = {name.lower(): name for name in present}
    for name, inside in former.items():
        if name and name not in present and name not in _HELD and name.lower() in folded:
            yield name, folded[name.lower()]
        if name:
            yield from _twins(inside, _fields_in(present.get(name)))


def _numbers(former: Json) -> Iterator[int]:
    for name, inside in former.items():
        if not name:
            yield int(inside)
        else:
            yield from _numbers(inside)


def _without_number(former: Json, fields: Sequence[Json]) -> int:
    """Dropped fields that the log remembers without their numbers."""
    present = {physical_name(each): each["type"] for each in fields}
    count = 0
    for name, inside in former.items():
        if name:
            count += name not in present and name not in _HELD and "" not in inside
            count += _without_number(inside, _fields_in(present.get(name)))
    return count


def _fields_in(kind: Any) -> Sequence[Json]:
    """The fields of a struct. What a list or a map holds is like a field of a name that Delta gives."""
    if not isinstance(kind, dict):
        return ()
    if kind["type"] == "struct":
        found: Sequence[Json] = kind["fields"]
        return found
    steps = ("element",) if kind["type"] == "array" else ("key", "value")
    return [{"name": step, "type": kind[f"{step}Type"]} for step in steps]
