"""Whether parts that were written in one shape can be read in another: the invariant C1, for two schemas.

Both schemas have stored names, which never change and are never given again. So a column belongs to the column of its name:

1. A column that the parts have and the schema lacks was dropped, and is not read.
2. A column that the schema has and the parts lack was added after them, and is null in them. So it may not be NOT NULL.
3. A column of both has the same type, or the schema has a wider one: ``schema.widening`` says which types hold every value of
   another. Structs, lists and maps are compared field by field, in the same way. Of a struct, the parts have one of the fields at
   least: readers can't tell a struct without any of its fields from a null.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import pyarrow as pa

from lakebed.schema.column_mapping import StoredPath
from lakebed.schema.widening import widening


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
