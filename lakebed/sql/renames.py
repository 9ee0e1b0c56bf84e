"""Values in SQL with the fields of their structs renamed, at any depth.

Files have a table's stored names, users' SQL has the logical ones. A column gets its name by ``as``; a field within a value is
renamed here. Both types have the same shape, so fields belong together by their place.
"""

from __future__ import annotations

import pyarrow as pa

from lakebed.quoting import literal, quote


def renamed_sql(value: str, kind: pa.DataType, wanted: pa.DataType, depth: int = 0) -> str:
    """SQL for ``value``, of the type ``kind``, with the field names of ``wanted``; ``value`` itself if they are equal.

    ``value``: the name of a column, as SQL. A null stays null, and so does a null within it.
    """
    if kind == wanted:
        return value
    if pa.types.is_struct(kind):
        fields = [
            f"{quote(new.name)} := {renamed_sql(f'struct_extract({value}, {literal(old.name)})', old.type, new.type, depth)}"
            for old, new in zip(kind, wanted, strict=True)
        ]
        return f"case when {value} is null then null else struct_pack({', '.join(fields)}) end"
    each = f"_lakebed_each{depth}"
    if pa.types.is_map(kind):
        key = renamed_sql(f"{each}.key", kind.key_type, wanted.key_type, depth + 1)
        item = renamed_sql(f"{each}.value", kind.item_type, wanted.item_type, depth + 1)
        entries = f"list_transform(map_entries({value}), lambda {each}: struct_pack(key := {key}, value := {item}))"
        return f"map_from_entries({entries})"
    if pa.types.is_list(kind):
        element = renamed_sql(each, kind.value_type, wanted.value_type, depth + 1)
        return f"list_transform({value}, lambda {each}: {element})"
    return value
