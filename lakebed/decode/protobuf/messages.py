"""Read Protobuf messages one by one with google.protobuf: what is not done by native code, and all where there is none.

It is stricter than the library in two ways, for a value must not get lost. A field of the schema with another wire type is an
error, and so is a number that a closed enum does not have: the library takes both for unknown fields. And as few bytes can
stand for very many values (an empty message in a list has two bytes, and a null in each column), a record may have so many and
no more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from lakebed.decode.json.text import Unreadable
from lakebed.decode.protobuf.fields import Meaning, ProtobufField

VALUES_MIN, VALUES_A_BYTE = 20_000, 32
"""As in protobuf_to_arrow.c."""
TOO_MANY = (
    f"it has more than {VALUES_MIN} values and {VALUES_A_BYTE} for each of its bytes;"
    " fields that messages in lists lack are counted too"
)


class MessageReader:
    """Reads messages of one type into the raw values of ``fields``."""

    def __init__(self, descriptor: Any, fields: tuple[ProtobufField, ...]) -> None:
        self._name = descriptor.full_name
        self._class = message_factory.GetMessageClass(descriptor)
        self._fields = fields
        self._nodes = {id(field): field.nodes for field in fields}
        self.raw = pa.struct([pa.field(field.name, field.raw) for field in fields])

    def read(self, encoded: bytes) -> Mapping[str, Any]:
        """Raises ``Unreadable``."""
        try:
            message = self._class.FromString(encoded)
        except DecodeError as error:
            raise Unreadable(f"not a Protobuf message {self._name}: {error}") from error
        if missing := self._class.FindInitializationErrors(message):
            raise Unreadable(f"not a Protobuf message {self._name}: it lacks {', '.join(missing)[:200]}")
        reading = _Reading(VALUES_MIN + VALUES_A_BYTE * len(encoded))
        try:
            return reading.message(message, self._fields)
        except UnicodeDecodeError as error:
            raise Unreadable(f"not a Protobuf message {self._name}: a string is not UTF-8") from error


class _Reading:
    """One record. ``left``: how many values it may still have."""

    def __init__(self, left: int) -> None:
        self._left = left
        self._spend(1)

    def message(self, message: Any, fields: tuple[ProtobufField, ...]) -> dict[str, Any]:
        self._refuse_strays(message)
        return {field.name: self._field(message, field) for field in fields}

    def _field(self, message: Any, field: ProtobufField) -> Any:
        if field.is_list:
            self._spend(1)
            return [self._value(value, field.children[0]) for value in getattr(message, field.name)]
        if field.is_map:
            self._spend(1)
            (entry,) = field.children
            key, value = entry.children
            pairs = getattr(message, field.name)
            self._spend(len(pairs))
            return [(self._value(one, key), self._value(pairs[one], value)) for one in sorted(pairs)]
        if field.descriptor.has_presence and not type(message).HasField(message, field.name):
            self._spend(field.nodes)
            return None
        return self._value(getattr(message, field.name), field)

    def _value(self, value: Any, field: ProtobufField) -> Any:
        self._spend(1)
        if field.meaning is Meaning.JSON:
            return type(value).SerializeToString(value, deterministic=True)
        if field.descriptor.message_type is not None and pa.types.is_struct(field.raw):
            return self.message(value, field.children)
        if isinstance(value, bytes) and pa.types.is_string(field.raw):  # a string of proto2, which may be anything
            raise Unreadable(f"{field.name} is not UTF-8")
        return value

    def _spend(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise Unreadable(TOO_MANY)

    @staticmethod
    def _refuse_strays(message: Any) -> None:
        known = type(message).DESCRIPTOR.fields_by_number
        for stray in UnknownFieldSet(message):
            field = known.get(stray.field_number)
            if field is None:
                continue
            if field.message_type is not None and field.message_type.GetOptions().map_entry:
                raise Unreadable(f"{field.name} (field {stray.field_number}) has an entry of unknown values")
            if field.enum_type is not None and field.enum_type.is_closed:
                raise Unreadable(
                    f"{field.name} is {stray.data!r}, which is no value of the enum {field.enum_type.name}"[:200]
                )
            if field is not None:
                raise Unreadable(
                    f"{field.name} (field {stray.field_number}) has wire type {stray.wire_type}, not its own"
                )
