"""The key of a record in JSON: an object of fields, or one bare value, with an inline schema or without.

A bare value (``42``, ``"abc"``) names no field. It is the table's key if that has one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakebed.decode.json.connect_types import LogicalType, envelope_of, fields_of, logical_type_of
from lakebed.decode.json.text import Unreadable, parse
from lakebed.decode.slices import Record

SHARD_FIELD = "__dbz__physicalTableIdentifier"
"""The field of a key in which Debezium's ByLogicalTableRouter says which source table a row is of."""


@dataclass(frozen=True, slots=True)
class MessageKey:
    """The members of a key by name, with their logical types."""

    members: Mapping[str, Any]
    logical_types: Mapping[str, LogicalType] = field(default_factory=dict)
    is_bare: bool = False
    """Whether the key is one value, which has the name of the table's key here."""

    @property
    def field_names(self) -> frozenset[str]:
        """Those of its fields, which its schema says too."""
        return frozenset(self.members) | frozenset(self.logical_types)


def message_key(record: Record, names: tuple[str, ...]) -> MessageKey | None:
    """None for a record without a key, or whose key is null. ``names``: the key columns of the table. Raises ``Unreadable``."""
    if record.key is None:
        return None
    try:
        payload, schema = envelope_of(parse(record.key))
        if payload is None:
            return None
        if isinstance(payload, dict):
            return MessageKey(payload, dict(fields_of(schema)))
        if isinstance(payload, list):
            raise Unreadable("it is a list")
        if len(names) != 1:
            raise Unreadable(f"it is one value, but the key of the table is {', '.join(names) or 'empty'}")
        logical_types = {} if schema is None else {names[0]: logical_type_of(schema)}
        return MessageKey({names[0]: payload}, logical_types, is_bare=True)
    except Unreadable as error:
        raise Unreadable(f"message key: {error}") from error
