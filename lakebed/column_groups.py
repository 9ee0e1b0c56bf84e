"""Groups of columns: each is filled by a stream of its own, in an order of its own.

A row with groups is a join by key. What a change of a group brings counts if no newer change of the same group came, whatever
came of other groups. The columns that are in no group, and whether there is a row at all, are the *owner's*: the stream whose
changes carry the table's ``sequence_by``.

1. A change says something of a group if it has a value in the group's ``sequence_by``; of the owner, if in the table's.
2. The newest of a group wins; of equal ones the later.
3. A delete of the owner removes the row, and nothing of a group. A delete of a group makes its columns null.
4. Without a row of the owner the values of groups wait: no reader sees them. A group that ``creates`` makes a row of them, unless
   the owner has deleted it.

The idea, and the word for it, are those of Paimon's sequence groups (https://paimon.apache.org/docs/master/primary-key-table/
merge-engine/partial-update/), but for 3 and 4: there a group has no part in whether a row exists.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, get_args

import orjson
import pyarrow as pa

from lakebed.errors import InvalidInput

GROUPS = "lakebed.groups"
AGGREGATE = "lakebed.aggregate."
"""Before the name of a column."""
Aggregate = Literal["last", "last_non_null", "first", "max", "min", "sum"]
AGGREGATES: tuple[Aggregate, ...] = get_args(Aggregate)
_OF_ALL_CHANGES = ("first", "max", "min", "sum")
"""What depends on more changes than the newest of a group."""
_MEMBERS = {"columns", "sequence_by", "creates"}
_HIDDEN_ORDER = "_lakebed_order."
"""Before the name of a group and what orders it."""


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """Columns of a row that have an order of their own."""

    name: str
    columns: tuple[str, ...]
    """With ``sequence_by``."""
    sequence_by: str
    creates: bool = False
    """Whether its changes make a row that the owner neither brought nor deleted."""
    field: str | None = None
    """What the changes call their order, if ``sequence_by`` is a hidden column; None if it is a column of the table."""

    def renamed(self, name_of: Callable[[str], str]) -> ColumnGroup:
        """The group with other names of its columns. A hidden column keeps its name."""

        def new(name: str) -> str:
            return name if name == self.sequence_by and self.field is not None else name_of(name)

        return replace(self, columns=tuple(map(new, self.columns)), sequence_by=new(self.sequence_by))

    def stored(self, columns: Collection[str]) -> ColumnGroup:
        """The group as a part has it, of a table with these columns: an order that is none of them is hidden."""
        if self.field is not None or self.sequence_by in columns:
            return self
        hidden = f"{_HIDDEN_ORDER}{self.name}.{self.sequence_by}"
        own = tuple(hidden if name == self.sequence_by else name for name in self.columns)
        return replace(self, columns=own, sequence_by=hidden, field=self.sequence_by)

    def is_ordered(self, given: Collection[str]) -> bool:
        """Whether changes with these columns say how new they are."""
        return self.sequence_by in given or self.field in given


def parse_groups(text: str) -> tuple[ColumnGroup, ...]:
    """The groups of a property's text. Raises InvalidInput that says what is accepted."""
    try:
        document = orjson.loads(text) if text else {}
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict):
        raise InvalidInput(
            'a JSON object such as {"profile": {"columns": ["name", "mail"], "sequence_by": "changed_at"}}'
        )
    return tuple(_group(name, members) for name, members in document.items())


def _group(name: str, members: Any) -> ColumnGroup:
    match members:
        case {"columns": [_, *_] as columns, "sequence_by": str(sequence)} if members.keys() <= _MEMBERS:
            creates = members.get("creates", False)
            if all(isinstance(column, str) for column in columns) and isinstance(creates, bool):
                return ColumnGroup(name, tuple(dict.fromkeys([*columns, sequence])), sequence, creates)
    raise InvalidInput(
        f"an object in which {name!r} has the members columns (a list of names), sequence_by (a name), and perhaps creates "
        "(true or false), and no others"
    )


def groups_text(groups: Sequence[ColumnGroup]) -> str:
    """The groups as the text of a property."""
    return orjson.dumps(
        {
            group.name: {"columns": group.columns, "sequence_by": group.sequence_by}
            | ({"creates": True} if group.creates else {})
            for group in groups
        }
    ).decode()


@dataclass(frozen=True, slots=True)
class Aggregated:
    """A column whose value comes from all changes of a row, not from the newest alone."""

    column: str
    function: Aggregate

    @property
    def counts_all(self) -> bool:
        """Whether changes count that are not the newest."""
        return self.function in _OF_ALL_CHANGES

    @property
    def order_column(self) -> str | None:
        """The hidden column of a part that says how new the value is; None if none is needed."""
        return f"_lakebed_first.{self.column}" if self.function == "first" else None


def check_aggregates(settings: _Settings, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises InvalidInput if columns of a table can't be aggregated so."""
    orders = {settings.sequence_by, *(group.sequence_by for group in settings.groups)}
    names = set(schema.names)
    for one in settings.aggregates:
        name, what = one.column, f"{AGGREGATE}{one.column} is {one.function!r}"
        if settings.sequence_by is None:
            raise InvalidInput(
                f"{what}, and the table has no sequence_by; only a table with keys and an order aggregates"
            )
        if name not in names:
            raise InvalidInput(f"{what}, and the table has no such column")
        if name in settings.keys or name in orders or name in partition_by:
            raise InvalidInput(f"{what}, but keys, partition columns and what orders changes have the newest value")
        field = schema.field(name)
        kind = field.type
        if one.counts_all and not field.nullable:
            raise InvalidInput(
                f"{what}, but the column is NOT NULL, and a row may exist before a change with a value comes"
            )
        is_number = pa.types.is_floating(kind) or pa.types.is_decimal(kind) or kind == pa.int64()
        if one.function == "sum" and not is_number:
            raise InvalidInput(f"{what}, but the column is {kind}; a sum is a long, a double, a float or a decimal")
        if one.function in ("max", "min") and pa.types.is_nested(kind):
            raise InvalidInput(f"{what}, but the column is {kind}, which has no order")


def order_of_stream(columns: Collection[str], settings: _Ordered, names: Collection[str]) -> str | None:
    """What orders the changes of a stream that fills these columns: its group's order, or else the table's.

    Args:
        columns: Those that the stream fills; none if its changes are whole rows.
        settings: The table's.
        names: The columns of the table.

    Raises InvalidInput for columns of several groups without one of the owner, and if a record would need two orders that are no
    columns.
    """
    own = set(columns).difference(settings.keys)
    groups = [group for group in settings.groups if not own.isdisjoint(group.columns)]
    if not columns or not groups or own.difference(*(group.columns for group in groups)):
        for group in groups if columns else settings.groups:
            if group.sequence_by not in (*names, settings.sequence_by):
                raise InvalidInput(
                    f"the group {group.name!r} is ordered by {group.sequence_by!r}, which is no column of the table; give the "
                    "group a stream of its own (columns)"
                )
        return settings.sequence_by
    if len(groups) > 1:
        raise InvalidInput(
            f"columns has columns of the groups {' and '.join(repr(group.name) for group in groups)}, and none of the rows' "
            "owner; give each group a stream of its own"
        )
    return groups[0].sequence_by


class _Ordered(Protocol):
    """What of a table's settings orders changes."""

    @property
    def keys(self) -> tuple[str, ...]: ...
    @property
    def sequence_by(self) -> str | None: ...
    @property
    def groups(self) -> tuple[ColumnGroup, ...]: ...


class _Settings(_Ordered, Protocol):
    """What of a table's settings the groups must fit."""

    @property
    def aggregates(self) -> tuple[Aggregated, ...]: ...


def check_groups(settings: _Settings, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raises InvalidInput if a table with these columns can't have its groups."""
    groups, keys, sequence_by = settings.groups, settings.keys, settings.sequence_by
    if groups and sequence_by is None:
        raise InvalidInput(
            f"{GROUPS} needs keys and sequence_by: the latter orders the inserts and deletes of the rows' owner"
        )
    names, taken = set(schema.names), dict[str, str]()
    for group in groups:
        is_hidden = group.sequence_by not in names
        if is_hidden and "." in group.name:
            raise InvalidInput(
                f"{GROUPS}: {group.sequence_by!r}, which orders the group {group.name!r}, is no column of the table; the name of "
                "such a group must not have a dot"
            )
        for name in group.columns:
            if is_hidden and name == group.sequence_by:
                continue
            why = (
                "is no column of the table"
                if name not in names
                else "is a key"
                if name in keys
                else "orders the changes of the owner (sequence_by)"
                if name == sequence_by
                else "is a partition column, and a group must not move rows to another partition"
                if name in partition_by
                else "is NOT NULL, but a row may exist before its group comes"
                if not schema.field(name).nullable
                else f"is in the group {taken[name]!r} too"
                if name in taken
                else None
            )
            if why is not None:
                raise InvalidInput(f"{GROUPS}: column {name!r} of the group {group.name!r} {why}")
            taken[name] = group.name
        needed = [one.name for one in schema if not one.nullable and one.name not in keys]
        if group.creates and needed:
            raise InvalidInput(
                f"{GROUPS}: the group {group.name!r} creates rows, and column {needed[0]!r} is NOT NULL; only the owner gives "
                "it a value"
            )
        if is_hidden:
            continue
        kind = schema.field(group.sequence_by).type
        if not (
            pa.types.is_integer(kind)
            or pa.types.is_temporal(kind)
            or pa.types.is_decimal(kind)
            or pa.types.is_string(kind)
        ):
            raise InvalidInput(
                f"{GROUPS}: {group.sequence_by!r}, which orders the group {group.name!r}, is {kind}; an order is a whole "
                "number, a decimal, a date, a timestamp or a text"
            )
