"""How deep a column may nest, so that whatever writes and reads it can.

A struct is one level, a list or a map two. What they cost differs: Arrow's interface to DuckDB and to native code has 64 levels,
of which a map takes two; Parquet's readers have 100, of which a list or a map takes two; readers of Delta in Rust take 128 levels
of the schema's JSON, of which a struct takes three. A record's row is inside an event, which takes some of them too.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from lakebed.errors import InvalidSchema

LEVELS_MAX = 40


def levels_of(kind: pa.DataType) -> int:
    """How many levels a type has; a type that is not nested has none."""
    t = pa.types
    if t.is_struct(kind):
        return 1 + max((levels_of(child.type) for child in kind), default=0)
    if t.is_map(kind):
        return 2 + max(levels_of(kind.key_type), levels_of(kind.item_type))
    return 2 + levels_of(kind.value_type) if t.is_list(kind) else 0


def check_levels(columns: Iterable[pa.Field]) -> None:
    """Raises InvalidSchema naming a column that is nested too deep."""
    for column in columns:
        levels = levels_of(column.type)
        if levels > LEVELS_MAX:
            raise InvalidSchema(
                f"column {column.name!r} is nested {levels} levels deep, of which a list or a map is two; a column may have "
                f"{LEVELS_MAX}"
            )
