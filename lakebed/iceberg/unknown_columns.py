"""Columns that another writer dropped before lakebed had the table: its files may hold them, and nothing says their names. Pure.

Files that were written before a table had column mapping lack numbers, so readers of Iceberg go by the name mapping. Where that
lacks a column of a file, PyIceberg fails, and DuckDB gives null for *other* columns without a word. Of the columns that a table
had, the log keeps one thing: their numbers are never given again. So a number that belongs to no column is one that was dropped,
and files that lakebed did not write may hold it. Whether they do, no log says.

When a table is adopted, the names of what its files have are remembered (``operations.columns_of_files``). Two cases are left: a
table that was adopted before they were, and names that differ from a column's in case alone, which DuckDB can't tell apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from lakebed.errors import InvalidSchema
from lakebed.iceberg.columns import former_columns
from lakebed.log.snapshot import Snapshot
from lakebed.schema.column_mapping import is_mapped, physical_name
from lakebed.schema.iceberg_columns import missing_numbers

Json = dict[str, Any]
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
