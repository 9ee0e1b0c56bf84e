"""Changes that fill some columns of their rows: which columns they keep, and which values they do not say.

A change says in ``UNAVAILABLE_COLUMN`` which columns it lacks. When the tail is resolved, their values come from the row that
the table has (``resolve.unavailable_values``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.column_groups import Aggregated, ColumnGroup
from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.schema.fitting import RESCUED_COLUMN
from lakebed.settings import suggest


class _TableShape(Protocol):
    """What of a table decides how its columns are filled (``changes.WriteSpec``)."""

    @property
    def schema(self) -> pa.Schema: ...
    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def sequence_by(self) -> str | None: ...
    @property
    def sequence_column(self) -> str | None: ...
    @property
    def groups(self) -> tuple[ColumnGroup, ...]: ...
    @property
    def aggregates(self) -> tuple[Aggregated, ...]: ...
    def order_of(self, column: str) -> str: ...


@dataclass(frozen=True, slots=True)
class Fill:
    """Changes that fill some columns of their rows. The other columns keep their values, or are null in a row that is new."""

    columns: tuple[str, ...] | None = None
    """The columns that the changes fill; None for those that they have."""
    ignores_nulls: bool = False
    """Whether a null keeps the value of its column too (``ignore_null_updates``)."""
    rescues: bool = False
    """Whether a change also fills ``RESCUED_COLUMN``, if it has something to keep there; else the text of other changes stays."""
    order: str | None = None
    """What of a record the hidden sequence of its change is (``kafka.offset``); None for changes that are no records."""

    def kept(self, spec: _TableShape, given: Collection[str]) -> list[str]:
        """The columns of a table that changes with the columns ``given`` do not fill; also the hidden sequence, if it is kept.

        Raises InvalidInput for a table without keys and for an unknown column, InvalidChanges for a column that is not given.
        """
        if not spec.keys:
            raise InvalidInput("changes fill columns of rows by their keys, and this table has no keys")
        names = spec.schema.names
        for name in self.columns or ():
            if name not in names:
                raise InvalidInput(f"columns has {name!r}, which is no column of the table{suggest(name, names)}")
            if name not in given:
                raise lacks(name, list(given))
        filled = set(given if self.columns is None else self.columns)
        fields = [group.field for group in spec.groups]
        groups = [
            group
            for group in spec.groups
            if not filled.isdisjoint(group.columns)
            or (self.columns is None and group.field in given and fields.count(group.field) == 1)
        ]
        for group in groups:
            if not group.is_ordered(given) and group.field != (self.order or group.sequence_by):
                raise lacks_order(group)
        filled.update(spec.keys, (group.sequence_by for group in groups))
        if self._are_owners(filled, spec):
            filled.update([str(spec.sequence_by), str(spec.sequence_column)])
            if self.rescues:
                filled.add(RESCUED_COLUMN)
        elif self.rescues:
            raise InvalidInput(
                f"on_mismatch is 'rescue', and {RESCUED_COLUMN!r} is a column of the rows' owner; changes of groups alone "
                "can't fill it"
            )
        orders = [spec.sequence_column, *(group.sequence_by for group in spec.groups)]
        hidden = [name for name in orders if name and name not in names]
        return [name for name in [*names, *hidden] if name not in filled]

    def _are_owners(self, filled: Collection[str], spec: _TableShape) -> bool:
        """Whether the changes say something of columns that are in no group, so of the row itself."""
        if not spec.groups:
            return True
        own = {*spec.schema.names, spec.sequence_by}.difference(
            spec.keys, [RESCUED_COLUMN], *(group.columns for group in spec.groups)
        )
        return not own.isdisjoint(filled) or all(set(group.columns).isdisjoint(filled) for group in spec.groups)


def without_values(
    columns: Mapping[str, Any], kept: Collection[str], spec: _TableShape, deletes: pa.ChunkedArray | None
) -> dict[str, Any]:
    """The columns of the groups that the changes fill, null in deletes.

    A delete of a group has its order. One of the owner says nothing of groups, also if it has the row as it was.
    """
    if deletes is None:
        return {}
    of_owner = spec.sequence_column not in kept
    orders = frozenset[str]() if of_owner else {group.sequence_by for group in spec.groups}
    names = [name for group in spec.groups for name in group.columns if name not in orders and name not in kept]
    return {name: pc.if_else(deletes, pa.scalar(None, columns[name].type), columns[name]) for name in names}


def aggregated(columns: Mapping[str, Any], spec: _TableShape, deletes: pa.ChunkedArray | None) -> dict[str, Any]:
    """The columns for which all changes count, null in deletes; and for the first value of a column, how old it is."""
    out: dict[str, Any] = {}
    for one in spec.aggregates:
        if not one.counts_all:
            continue
        values = columns[one.column]
        if deletes is not None:
            values = out[one.column] = pc.if_else(deletes, pa.scalar(None, values.type), values)
        if one.order_column is not None:
            order = columns[spec.order_of(one.column)]
            out[one.order_column] = pc.if_else(values.is_valid(), order, pa.scalar(None, order.type))
    return out


def unavailable(
    columns: Mapping[str, Any],
    fill: Fill,
    kept: Collection[str],
    unsent: pa.ChunkedArray | None,
    spec: _TableShape,
    *,
    deletes: pa.ChunkedArray | None,
    group_deletes: pa.ChunkedArray | None = None,
) -> pa.Array:
    """By row, what it does not fill: the columns ``kept``, those that its source did not send, and nulls that don't count.

    A delete lacks nothing; ``group_deletes`` are deletes of what groups have of a row, and lack nothing of their groups.
    """
    rows = len(columns[spec.keys[0]])
    masks = {name: np.ones(rows, dtype=bool) for name in kept}
    if unsent is not None:
        masks |= _masks(unsent.combine_chunks())
    if fill.ignores_nulls or fill.rescues:
        filled = set(spec.schema.names).difference(kept, spec.keys, [spec.sequence_by])
        if not fill.ignores_nulls:
            filled &= {RESCUED_COLUMN}
        nulls = {name: columns[name].is_null() for name in columns if name in filled and columns[name].null_count}
        masks |= {name: np.asarray(mask) | masks.get(name, False) for name, mask in nulls.items()}
    no_nulls = [one.column for one in spec.aggregates if one.function == "last_non_null" and one.column not in kept]
    masks |= {name: np.asarray(columns[name].is_null()) | masks.get(name, False) for name in no_nulls}
    if spec.groups:
        masks |= _masks_of_groups(columns, masks, kept, spec, group_deletes)
    upserts = np.ones(rows, dtype=bool) if deletes is None else ~np.asarray(deletes)
    return unavailable_names(masks, upserts)


def _masks_of_groups(
    columns: Mapping[str, Any],
    masks: Mapping[str, npt.NDArray[np.bool_]],
    kept: Collection[str],
    spec: _TableShape,
    deletes: pa.ChunkedArray | None,
) -> dict[str, npt.NDArray[np.bool_]]:
    """Which rows say nothing of a group, for each column of each group. Raises InvalidChanges for a value without an order."""
    out: dict[str, npt.NDArray[np.bool_]] = {}
    says_nothing = np.full(len(columns[spec.keys[0]]), spec.sequence_column in kept)
    for group in spec.groups:
        if group.sequence_by in kept:
            continue
        lacks_order = np.asarray(columns[group.sequence_by].is_null())
        says_nothing &= lacks_order
        for name in group.columns:
            has_value = lacks_order & np.asarray(columns[name].is_valid())
            if has_value.any():
                raise _without_order(group, int(has_value.argmax()), name)
            lacks_value = masks.get(name, False) if deletes is None else masks.get(name, False) & ~np.asarray(deletes)
            out[name] = lacks_order | lacks_value
    if says_nothing.any():
        group = next(one for one in spec.groups if one.sequence_by not in kept)
        raise _without_order(group, int(says_nothing.argmax()), None)
    return out


def _without_order(group: ColumnGroup, row: int, name: str | None) -> InvalidChanges:
    found = "says nothing of any group: it has no value" if name is None else f"has a value of {name!r} but none"
    return InvalidChanges(
        f"row {row} of the changes {found} of {group.field or group.sequence_by!r}, which orders the group {group.name!r}"
    )


def lacks_order(group: ColumnGroup) -> InvalidChanges:
    """The error for changes of a group that do not say how new they are."""
    return InvalidChanges(
        f"the changes lack the column {group.field or group.sequence_by!r}, which orders the group {group.name!r}; every "
        "change of the group needs it"
    )


def _masks(unavailable: pa.ListArray) -> dict[str, npt.NDArray[np.bool_]]:
    """Which rows have each name."""
    names = pc.list_flatten(unavailable).dictionary_encode()
    rows, codes = pc.list_parent_indices(unavailable).to_numpy(), names.indices.to_numpy()
    masks = {}
    for code, name in enumerate(names.dictionary.to_pylist()):
        masks[name] = np.zeros(len(unavailable), dtype=bool)
        masks[name][rows[codes == code]] = True
    return masks


def unavailable_names(masks: Mapping[str, npt.NDArray[np.bool_]], upserts: npt.NDArray[np.bool_]) -> pa.Array:
    """For each row, the columns whose mask has it; null where there are none, and for deletes."""
    counts = np.zeros(len(upserts), dtype=np.int64)
    for mask in masks.values():
        counts += mask & upserts
    offsets = np.concatenate([[0], np.cumsum(counts)])
    numbers, at = np.empty(offsets[-1], dtype=np.int32), offsets[:-1].copy()
    for number, mask in enumerate(masks.values()):
        rows = np.flatnonzero(mask & upserts)
        numbers[at[rows]] = number
        at[rows] += 1
    names = pa.DictionaryArray.from_arrays(numbers, pa.array(list(masks), pa.string())).cast(pa.string())
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names, mask=pa.array(counts == 0))


def lacks(column: str, given: Sequence[str]) -> InvalidChanges:
    """The error for changes, with the columns ``given``, that lack a column of their table.

    A row takes the place of the whole row of its key. So null in place of a value that was not sent would erase a value.
    """
    return InvalidChanges(
        f"the changes lack the column {column!r} of the table{suggest(column, given)}; add it (null where there is no "
        "value), or keep the values that it has (columns='sent')"
    )
