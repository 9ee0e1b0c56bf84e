"""Which values of an event's old row (``before``) were sent, and which the connector filled in.

Of a row that is deleted, or whose key changes, PostgreSQL sends the columns of the table's replica identity: those of the primary
key, those of another index, or all. Debezium writes null for each other column or, if that may not be null, its default or else a
zero: 0, false, "", 1970-01-01. Such a *filling* looks like a value that was sent. The rules never take it for one:

    1.  A value that is neither a zero nor a default was sent.
    2.  A row is *whole* if all of it was sent. Other databases than PostgreSQL send whole rows. Else a column shows it that has a
        value though it may be null, since neither a primary key nor the index of a replica identity has such columns. Where the
        defaults are not known, nothing shows it.
    3.  A zero was sent if the row is whole, or if its column is in the message key. But if the message key has zeros alone, and
        another column has a value, then the replica identity is another index, and the message key was filled in too.
    4.  Without a message key that names its fields, the key of the table stands for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.json.connect_types import connect_fields
from lakebed.decode.json.text import Number, Unreadable
from lakebed.decode.source_order import ORDERS
from lakebed.remarks import Remark
from lakebed.settings import suggest

SEND_WHOLE_ROWS = ("mysql", "mariadb", "sqlserver", "oracle", "db2", "informix")
"""Connectors of databases whose events have whole old rows."""
_ZEROS = (
    r"|[+-]?0+(?:\.0*)?|0?0:00(?::00(?:\.0+)?)?(?:Z|[+-]00(?::?00)?)?|\{\}|\[\]|P0Y0M0DT0H0M0(?:\.0+)?S"
    r"|1970-01-01(?:[T ]00:00(?::00(?:\.0+)?)?(?:Z|[+-]00(?::?00)?)?)?"
)
"""Texts for zeros of other types."""
_ZERO_TEXT = re.compile(_ZEROS, re.ASCII)
_ZERO_BYTES = re.compile(r"AA==|AQEAAA[A=]+|\0+", re.ASCII)
"""Decimals and the point 0 0 as base64, and bytes as they are."""


class UnsentKey(Unreadable):
    """A change that may be about another row than it says."""

    def __init__(self, column: str, reason: str) -> None:
        super().__init__(reason)
        self.remarks = ((Remark.UNSENT_KEY, column),)


class UnorderedDelete(Unreadable):
    """A delete without the column that orders the changes of the table."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(
            f"a delete {why} column {column!r}, which orders the changes (sequence_by): send whole old rows "
            "(REPLICA IDENTITY FULL), or order by what every change carries, such as source.lsn"
        )
        self.remarks = ((Remark.UNORDERED_DELETE, column),)


class Unordered(Unreadable):
    """A change without the metadata that orders the changes of the table, at ``path``; ``members``: what is beside it."""

    def __init__(self, path: tuple[str, str], members: Mapping[str, Any]) -> None:
        name = ".".join(filter(None, path))
        needs = ORDERS[path].needs if path in ORDERS else ""
        near = "" if path[1] in members else suggest(path[1], [str(member) for member in members])
        super().__init__(f"sequence_by {name!r}{needs} is null, missing or not an integer{near}")
        if path[1] not in members and path[0] != "kafka":
            self.remarks = ((Remark.UNORDERED_CHANGE, f"{name}{near}"),)


ANY_VALUE = object()
"""A default that no value can be compared with."""


@dataclass(frozen=True, slots=True)
class RowFields:
    """What the schema of events says of the columns of rows."""

    names: frozenset[str] = frozenset()
    nullable: frozenset[str] = frozenset()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of those whose default is no zero."""
    filled: frozenset[str] = frozenset()
    """Those that have a value in every row, since they may not be null or have a default."""

    @staticmethod
    def given(nullable: Mapping[str, bool], defaults: Mapping[str, Any]) -> RowFields:
        """``nullable``: of every field, whether it may be null; ``defaults``: of those that have one."""
        return RowFields(
            frozenset(nullable),
            frozenset(name for name, may_be_null in nullable.items() if may_be_null),
            {name: one for name, one in defaults.items() if not is_zero(one)},
            frozenset(name for name, may_be_null in nullable.items() if not may_be_null or name in defaults),
        )

    def by_column(self, decoder_schema: DecoderSchema) -> RowFields:
        """Under the names of the columns that fields go to."""
        names, nullable, filled = (
            frozenset(decoder_schema.column_for(name) or name for name in some)
            for some in (self.names, self.nullable, self.filled)
        )
        return RowFields(names, nullable, decoder_schema.types_by_column(self.defaults), filled)

    def is_default(self, column: str, value: Any) -> bool:
        """Whether a parsed value may be the default of its column."""
        default = self.defaults.get(column)
        if isinstance(default, Number) and isinstance(value, Number):
            return default.text == value.text
        return default is not None and (default is ANY_VALUE or bool(default == value))


def row_fields(schema: Any) -> RowFields | None:
    """The fields of rows in an inline schema of events; None if it does not say them. Raises ``Unreadable``."""
    images = {one["field"]: one for one in connect_fields(schema)}
    for side in ("before", "after"):
        if side in images and (fields := connect_fields(images[side])):
            return RowFields.given(
                {one["field"]: one.get("optional") is True for one in fields},
                {one["field"]: one["default"] for one in fields if one.get("default") is not None},
            )
    return None


@dataclass(frozen=True)
class OldRow:
    """An old row, to be asked which of its values were sent."""

    values: Mapping[str, Any]
    """As parsed, by column, without those that are known not to have been sent."""
    message_key: frozenset[str]
    """The columns of the message key, or else those of the table's key."""
    fields: RowFields | None
    """None: nobody knows which columns have defaults."""
    connector: str | None = None

    def was_sent(self, column: str) -> bool:
        """Whether a zero or a default in a column was sent."""
        if self.is_whole:
            return True
        in_key = self._certain & self.message_key
        return column in self.message_key and (bool(in_key) or not self._certain)

    def is_default(self, column: str) -> bool:
        """Whether the value of a column may be its default, filled in."""
        return self.fields is not None and self.fields.is_default(column, self.values.get(column))

    def described(self) -> str:
        """The message key, for people."""
        return f"the message key has {', '.join(sorted(self.message_key))}"

    @cached_property
    def is_whole(self) -> bool:
        """Whether all of the row was sent."""
        if self.connector in SEND_WHOLE_ROWS:
            return True
        if self.fields is None:
            return False
        return bool(self._certain & self.fields.nullable)

    @cached_property
    def _certain(self) -> frozenset[str]:
        """The columns whose values were certainly sent."""
        return frozenset(
            name for name, value in self.values.items() if not is_zero(value) and not self.is_default(name)
        )


def is_zero(value: Any) -> bool:
    """Whether a parsed value is null, or what Debezium writes for a value that was not sent and may not be null."""
    match value:
        case None | False:
            return True
        case int():
            return value == 0
        case Number():
            return not value.text.strip("-+.0")
        case float():
            return value == 0
        case str():
            return _ZERO_TEXT.fullmatch(value) is not None or _ZERO_BYTES.fullmatch(value) is not None
        case bytes():
            return not value.strip(b"\0")
        case list():
            return all(map(is_zero, value))
        case dict():
            return all(map(is_zero, value.values()))
    return False


def zeros(values: pa.Array) -> np.ndarray[Any, Any]:
    """Which values of a column of the table may be zeros that Debezium filled in. A null is none."""
    kind = values.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        zero = Decimal(0) if pa.types.is_decimal(kind) else 0
        found = pc.equal(values, pa.scalar(zero, kind))
    elif pa.types.is_boolean(kind):
        found = pc.invert(values)
    elif pa.types.is_temporal(kind):
        found = pc.equal(values.view(pa.int32() if kind.bit_width == 32 else pa.int64()), 0)
    elif pa.types.is_string(kind):
        found = pc.match_substring_regex(values, f"^(?:{_ZEROS})$")
    elif pa.types.is_binary(kind):
        found = pc.or_(pc.equal(pc.binary_length(values), 0), pc.starts_with(values, b"\0"))
    else:
        found = values.is_valid()
    return np.asarray(pc.fill_null(found, False), dtype=bool)
