"""The names of columns that files of another writer have and a table lacks: they are remembered when the table is adopted.

Readers of Delta pass over such columns. Readers of Iceberg go by a list of names where files have no numbers. If it lacks a name
of a file, PyIceberg fails, and DuckDB gives null for other columns. Only the files know these names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from lakebed.iceberg.columns import with_columns_of_files
from lakebed.log.actions import Domain
from lakebed.log.snapshot import Snapshot
from lakebed.sql import file_literal
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage

_Names: TypeAlias = dict[str, Any]
"""Names with those within them. What a list holds is ``element``; a map has ``key`` and ``value``."""
_FILES_AT_ONCE = 8
_READERS = 8
_LISTS, _MAPS = ("LIST",), ("MAP", "MAP_KEY_VALUE")


class _Node(NamedTuple):
    """A row of what Parquet's footer says of columns, which are listed with their children after them."""

    name: str
    children: int | None
    kind: str | None


def columns_of_files(snapshot: Snapshot, storage: PartStorage) -> Domain | None:
    """The entry that remembers them; None if there are none. The footers of all files are read. Raises duckdb.Error."""
    urls = [storage.duckdb_url(part.path) for part in snapshot.parts.values() if not part.is_native]
    pieces = [urls[at : at + _FILES_AT_ONCE] for at in range(0, len(urls), _FILES_AT_ONCE)]
    known, found = _names_of_type(pa.struct(list(snapshot.schema))), _Names()
    with ThreadPoolExecutor(_READERS) as pool:
        shapes = {shape for some in pool.map(lambda piece: set(_shapes(piece, storage)), pieces) for shape in some}
    for shape in sorted(shapes, key=repr):
        found = _joined(found, _beyond(_names_of_shape(shape), known))
    return with_columns_of_files(snapshot, found) if found else None


def _shapes(urls: Sequence[str], storage: PartStorage) -> Iterator[tuple[_Node, ...]]:
    connection = connect()
    storage.attach(connection)
    files = f"[{', '.join(map(file_literal, urls))}]"
    rows = connection.execute(
        f"select file_name, name, num_children, converted_type from parquet_schema({files})"
    ).fetchall()
    for _, some in groupby(rows, key=itemgetter(0)):
        yield tuple(_Node(*row[1:]) for row in some)


@lru_cache(maxsize=256)
def _names_of_shape(shape: tuple[_Node, ...]) -> _Names:
    nodes = iter(shape)
    return _inside(next(nodes), nodes)


def _inside(node: _Node, following: Iterator[_Node]) -> _Names:
    """The names within a column, whose children follow it."""
    if node.kind in _MAPS and node.children:
        names = [_inside(next(following), following) for _ in range(next(following).children or 0)]
        return dict(zip(("key", "value"), names, strict=False))
    if node.kind in _LISTS and node.children:
        repeated = next(following)
        is_around = repeated.children == 1 and repeated.name not in ("array", f"{node.name}_tuple")
        return {"element": _inside(next(following) if is_around else repeated, following)}
    out = _Names()
    for _ in range(node.children or 0):
        child = next(following)
        out[child.name] = _inside(child, following)
    return out


def _names_of_type(kind: pa.DataType) -> _Names:
    if pa.types.is_struct(kind):
        return {field.name: _names_of_type(field.type) for field in kind}
    if pa.types.is_map(kind):
        return {"key": _names_of_type(kind.key_type), "value": _names_of_type(kind.item_type)}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return {"element": _names_of_type(kind.value_type)}
    return {}


def _beyond(names: Mapping[str, Any], known: Mapping[str, Any]) -> _Names:
    """What is not known, below names that may be."""
    out = _Names()
    for name, inside in names.items():
        more = inside if name not in known else _beyond(inside, known[name])
        if name not in known or more:
            out[name] = more
    return out


def _joined(one: Mapping[str, Any], other: Mapping[str, Any]) -> _Names:
    return {**one, **{name: _joined(one.get(name, {}), inside) for name, inside in other.items()}}
