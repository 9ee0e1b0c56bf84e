"""Find records with the same inline schema, which Kafka Connect's JSON converter writes before the payload of each record.

Its text is a common prefix of the records. The prefix is parsed once, and what is left of a record is its payload and a brace.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.decode.json.columns import MISSES, Missed
from lakebed.decode.json.text import DECODER

SCHEMA_FIRST = b'{"schema":'
SCHEMAS_PER_SLICE_MAX = 4
SCHEMAS_KEPT_MAX = 64
_PAYLOAD_NEXT = re.compile(r'[ \t\n\r]*,[ \t\n\r]*"payload"[ \t\n\r]*:[ \t\n\r]*')

S = TypeVar("S")
Mask = np.ndarray[Any, Any]


class InlineSchemas(Generic[S]):
    """What is kept for each inline schema; ``made`` makes it of the parsed schema. For records without one it is ``none``."""

    def __init__(self, none: S, made: Callable[[Any], S]) -> None:
        self.none = none
        self._made = made
        self._kept: dict[bytes, S] = {}

    def groups(self, values: pa.BinaryArray, present: Mask) -> list[tuple[bytes, S, Mask]]:
        """Row numbers, grouped by the prefix that holds their schema. Rows in no group are read one by one."""
        inline = _have_schema(values)
        if not inline.any():
            return [(b"", self.none, np.flatnonzero(present))] if present.any() else []
        groups = []
        plain = present & ~inline
        if plain.any():
            groups.append((b"", self.none, np.flatnonzero(plain)))
        for _ in range(SCHEMAS_PER_SLICE_MAX):
            if not inline.any():
                break
            prefix, source = self._of(values[int(np.argmax(inline))].as_py())
            same = inline & _begin_with(values, prefix) & np.asarray(pc.fill_null(pc.ends_with(values, b"}"), False))
            if not same.any():
                break
            groups.append((prefix, source, np.flatnonzero(same)))
            inline &= ~same
        return groups

    def all_of(self, values: pa.BinaryArray) -> list[tuple[int, S]]:
        """The first record of each schema, and what is kept for it, as far as they are found quickly and can be read."""
        found, inline = [], _have_schema(values).copy()
        for _ in range(SCHEMAS_KEPT_MAX):
            if not inline.any():
                break
            first = int(np.argmax(inline))
            inline[first] = False
            try:
                prefix, source = self._of(values[first].as_py())
            except MISSES:
                continue
            found.append((first, source))
            inline &= ~_begin_with(values, prefix)
        return found

    def _of(self, value: bytes) -> tuple[bytes, S]:
        """The part of a value before its payload, and what is kept for the schema in it."""
        for prefix, source in self._kept.items():
            if value.startswith(prefix):
                return prefix, source
        text = value.decode("utf-8")
        schema, end = DECODER.raw_decode(text, len(SCHEMA_FIRST))
        payload = _PAYLOAD_NEXT.match(text, end)
        if payload is None:
            raise Missed("no payload after the schema")
        prefix = text[: payload.end()].encode()
        if len(self._kept) >= SCHEMAS_KEPT_MAX:
            self._kept.clear()
        source = self._kept[prefix] = self._made(schema)
        return prefix, source


def payloads_of(values: pa.BinaryArray, prefix: bytes) -> pa.BinaryArray:
    """The payloads of records that begin with a prefix."""
    return pc.binary_slice(values, len(prefix), -1) if prefix else values


def _have_schema(values: pa.BinaryArray) -> Mask:
    return _begin_with(values, SCHEMA_FIRST)


def _begin_with(values: pa.BinaryArray, prefix: bytes) -> Mask:
    return np.array(pc.fill_null(pc.starts_with(values, prefix), False))
