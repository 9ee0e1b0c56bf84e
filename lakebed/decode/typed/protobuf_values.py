"""From raw columns of Protobuf messages to natural ones (``protobuf_fields``), whole columns at once.

What no value of the type can be is a fault: a mask of the values with it, and the reason. A fault in an element of a list is one
of the list, and so on up to the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError
from google.protobuf.struct_pb2 import ListValue, Struct, Value
from google.protobuf.unknown_fields import UnknownFieldSet

from lakebed.decode.typed.protobuf_fields import Meaning, ProtobufField
from lakebed.far_times import finite

_Mask = np.ndarray[Any, np.dtype[np.bool_]]
_NANOS_MAX = 999_999_999
_SECONDS_MIN, _SECONDS_MAX = -(2**63) // 1_000_000, (2**63 - 1) // 1_000_000
"""Those with microseconds of 64 bits. By its definition a google.protobuf.Timestamp has the years 1 to 9999 only."""
_DURATION_SECONDS_MAX = 315_576_000_000
_JSON_CLASSES = {cls.DESCRIPTOR.full_name: cls for cls in (Struct, ListValue, Value)}


@dataclass(slots=True)
class Column:
    """Natural values, and the faults of some of them."""

    values: pa.Array
    faults: list[tuple[_Mask, str]] = field(default_factory=list)


def natural(described: ProtobufField, raw: pa.Array, path: str = "") -> Column:
    """The values of a field. ``raw`` begins at offset 0."""
    path = f"{path}{described.name}"
    if described.default is not None:
        raw = raw.fill_null(pa.scalar(described.default, raw.type))
    match described.meaning:
        case Meaning.ENUM:
            return _enum(described, raw, path)
        case Meaning.EMPTY:
            present = np.asarray(raw.is_valid())
            return Column(pa.array(present, mask=~present))
        case Meaning.WRAPPER:
            return natural(described.children[0], raw.flatten()[0], f"{path}.")
        case Meaning.JSON:
            return _json(described, raw, path)
        case Meaning.TIMESTAMP:
            return _timestamp(described, raw, path)
        case Meaning.DURATION:
            return _duration(described, raw, path)
        case Meaning.DATE:
            return _date(described, raw, path)
        case Meaning.TIME:
            return _time(described, raw, path)
        case Meaning.DECIMAL:
            return _decimal(described, raw, path)
    if described.is_list or described.is_map:
        return _items(described, raw, path)
    if described.children:
        return _struct(described, raw, path)
    return _scalar(described, raw, path)


def _scalar(described: ProtobufField, raw: pa.Array, path: str) -> Column:
    if described.type.equals(raw.type):
        return Column(raw)
    if pa.types.is_integer(described.type) and described.type.bit_width < 32:
        limit = 1 << (described.type.bit_width - 1)
        plain = _plain(raw)
        beyond = (plain < -limit) | (plain >= limit)
        values = raw.cast(described.type, safe=False)
        return Column(values, _faults(beyond, f"{path} is out of the range of {described.type}"))
    return Column(raw.cast(described.type))


def _struct(described: ProtobufField, raw: pa.StructArray, path: str) -> Column:
    columns = [
        natural(child, values, f"{path}.") for child, values in zip(described.children, raw.flatten(), strict=True)
    ]
    values = pa.StructArray.from_arrays(
        [column.values for column in columns], fields=list(described.type), mask=_mask(raw)
    )
    return Column(values, [fault for column in columns for fault in column.faults])


def _items(described: ProtobufField, raw: pa.Array, path: str) -> Column:
    (item,) = described.children
    values = raw.values
    if described.is_map:
        path, item_path = f"{path}", f"{path}."
        values = pa.StructArray.from_arrays([raw.keys, raw.items], fields=list(item.raw))
        column = _struct(item, values, item_path.rstrip("."))
        keys, items = column.values.flatten()
        out = pa.MapArray.from_arrays(_offsets(raw), keys, items, type=described.type)
    else:
        column = natural(item, values, f"{path}.")
        out = pa.ListArray.from_arrays(_offsets(raw), column.values, type=described.type)
    offsets = np.asarray(raw.offsets)
    faults = []
    for mask, reason in column.faults:
        before = np.concatenate([[0], np.cumsum(mask)])
        faults.append((before[offsets[1:]] != before[offsets[:-1]], reason))
    return Column(out, faults)


def _offsets(raw: pa.Array) -> pa.Int32Array:
    """The offsets of a list, null where the list is: so ``from_arrays`` takes it."""
    if not raw.null_count:
        return raw.offsets
    return pa.array(np.asarray(raw.offsets), pa.int32(), mask=np.append(~np.asarray(raw.is_valid()), False))


def _enum(described: ProtobufField, raw: pa.Int32Array, path: str) -> Column:
    kind = described.descriptor.enum_type
    distinct = pc.unique(raw)
    names, strange = [], []
    for number in distinct.to_pylist():
        known = None if number is None else kind.values_by_number.get(number)
        names.append(known.name if known is not None else None if number is None else str(number))
        if known is None and number is not None and kind.is_closed:
            strange.append(number)
    values = pa.array(names, pa.string()).take(pc.index_in(raw, value_set=distinct))
    if not strange:
        return Column(values)
    hits = np.asarray(pc.is_in(raw, value_set=pa.array(strange, raw.type)))
    return Column(values, _faults(hits, f"{path} is {strange[0]}, which is no value of the enum {kind.name}"))


def _json(described: ProtobufField, raw: pa.BinaryArray, path: str) -> Column:
    kind = _JSON_CLASSES[described.descriptor.message_type.full_name]
    texts: list[str | None] = []
    hits, reason = np.zeros(len(raw), bool), ""
    for number, encoded in enumerate(raw.to_pylist()):
        try:
            texts.append(None if encoded is None else _json_text(kind.FromString(encoded)))
        except (DecodeError, ValueError, RecursionError) as error:
            hits[number], reason = (
                True,
                f"{path} is no {kind.DESCRIPTOR.full_name}: {str(error) or 'it is nested too deep'}",
            )
            texts.append(None)
    return Column(pa.array(texts, pa.string()), _faults(hits, reason))


def _json_text(message: Any) -> str:
    return json.dumps(_json_value(message), ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _json_value(message: Any) -> Any:
    for stray in UnknownFieldSet(message):
        if stray.field_number in message.DESCRIPTOR.fields_by_number:
            raise ValueError(f"field {stray.field_number} has another wire type")
    if isinstance(message, Struct):
        return {name: _json_value(value) for name, value in message.fields.items()}
    if isinstance(message, ListValue):
        return [_json_value(value) for value in message.values]
    kind = message.WhichOneof("kind")
    value: Any = getattr(message, kind) if kind else None
    match kind:
        case None | "null_value":
            return None
        case "struct_value" | "list_value":
            return _json_value(value)
        case "number_value" if value.is_integer() and abs(value) < 2**53:
            return int(value)
    return value


def _timestamp(described: ProtobufField, raw: pa.StructArray, path: str) -> Column:
    seconds, nanos = _parts(raw)
    bad = (seconds < _SECONDS_MIN) | (seconds > _SECONDS_MAX) | (nanos < 0) | (nanos > _NANOS_MAX)
    # Some microseconds of the first and the last second have more bits; all of both seconds are infinities.
    micros = np.clip(np.where(bad, 0, seconds), _SECONDS_MIN + 1, _SECONDS_MAX - 1) * 1_000_000 + nanos // 1000
    values = finite(pa.array(micros, pa.int64(), mask=_mask_or_none(raw)).view(described.type))
    return Column(values, _faults(bad, f"{path} is no timestamp that a table can hold"))


def _duration(described: ProtobufField, raw: pa.StructArray, path: str) -> Column:
    seconds, nanos = _parts(raw)
    bad = (np.abs(seconds) > _DURATION_SECONDS_MAX) | (seconds < -_DURATION_SECONDS_MAX) | (np.abs(nanos) > _NANOS_MAX)
    bad |= (seconds > 0) & (nanos < 0) | (seconds < 0) & (nanos > 0)
    whole = pa.array(np.where(bad, 0, seconds), pa.int64()).cast(pa.decimal128(21, 0)).cast(pa.decimal256(40, 9))
    part = pc.multiply(
        pa.array(nanos, pa.int64()).cast(pa.decimal256(20, 0)), pa.scalar(Decimal("1e-9"), pa.decimal256(9, 9))
    )
    total = pc.add(whole, part).cast(described.type)
    if raw.null_count:
        total = pc.if_else(raw.is_valid(), total, pa.scalar(None, total.type))
    return Column(
        total,
        _faults(bad, f"{path} is not a duration of at most 10,000 years, or its parts differ in sign"),
    )


def _date(described: ProtobufField, raw: pa.StructArray, path: str) -> Column:
    years, months, days = _parts(raw)
    bad = (years < 1) | (years > 9999) | (months < 1) | (months > 12) | (days < 1) | (days > 31)
    bad &= np.asarray(raw.is_valid())
    years, months, days = (np.where(bad, 1, part).astype(np.int64) for part in (years, months, days))
    first = (years - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (months - 1)
    date = first.astype("datetime64[D]") + (days - 1)
    bad |= (date.astype("datetime64[M]") != first) & np.asarray(raw.is_valid())
    values = pa.array(date.astype(np.int64).astype(np.int32), pa.int32(), mask=_mask_or_none(raw)).view(described.type)
    return Column(values, _faults(bad, f"{path} is no date: it needs a year of 1 to 9999, a month and a day"))


def _time(described: ProtobufField, raw: pa.StructArray, path: str) -> Column:
    hours, minutes, seconds, nanos = (part.astype(np.int64) for part in _parts(raw))
    limits = ((hours, 24), (minutes, 60), (seconds, 60), (nanos, _NANOS_MAX + 1))
    bad = np.zeros(len(raw), bool)
    for part, limit in limits:
        bad |= (part < 0) | (part >= limit)
    ticks = np.where(bad, 0, ((hours * 60 + minutes) * 60 + seconds) * 1_000_000_000 + nanos)
    values = pa.array(ticks, pa.int64(), mask=_mask_or_none(raw))
    return Column(values, _faults(bad, f"{path} is no time of a day"))


def _decimal(described: ProtobufField, raw: pa.StructArray, path: str) -> Column:
    unscaled, _, scales = raw.flatten()
    if pa.types.is_struct(described.type):
        values = pa.StructArray.from_arrays([scales, unscaled], fields=list(described.type), mask=_mask(raw))
        return Column(values)
    wanted = described.logical_type.scale if pa.types.is_binary(described.type) else described.type.scale
    other = _plain(scales) != wanted
    other &= np.asarray(raw.is_valid())
    faults = list(_faults(other, f"{path} is a decimal of another scale than {wanted}, which the schema says"))
    if pa.types.is_binary(described.type):
        return Column(unscaled, faults)
    values, beyond = _unscaled_decimals(unscaled, described.type)
    return Column(values, [*faults, *_faults(beyond, f"{path} does not fit {described.type}")])


def _unscaled_decimals(unscaled: pa.BinaryArray, target: pa.Decimal128Type) -> tuple[pa.Array, _Mask]:
    """Decimals from big-endian two's complement, and a mask of those that have too many digits. No bytes are 0."""
    limit = 10**target.precision
    beyond = np.zeros(len(unscaled), bool)
    words = np.zeros((len(unscaled), 16), np.uint8)
    offsets = np.frombuffer(unscaled.buffers()[1], np.int32)[unscaled.offset :][: len(unscaled) + 1].astype(np.int64)
    data = np.frombuffer(unscaled.buffers()[2] or b"", np.uint8)
    lengths = np.diff(offsets)
    lengths[~np.asarray(unscaled.is_valid())] = 0
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        if length > 16:
            short = [(row, int.from_bytes(unscaled[int(row)].as_py(), "big", signed=True)) for row in rows]
            for row, value in short:
                if abs(value) < limit:
                    words[row] = np.frombuffer(value.to_bytes(16, "little", signed=True), np.uint8)
                beyond[row] = abs(value) >= limit
        elif length:
            raw = data[offsets[rows, None] + np.arange(length)]
            words[rows] = np.where(raw[:, :1] & 0x80, np.uint8(255), np.uint8(0))
            words[rows, :length] = raw[:, ::-1]
    validity = pa.array(unscaled.is_valid()).buffers()[1] if unscaled.null_count else None
    values = pa.Array.from_buffers(target, len(unscaled), [validity, pa.py_buffer(words)])
    high, low = words.view(np.int64)[:, 1], words.view(np.uint64)[:, 0]
    top, bottom = np.int64(limit >> 64), np.uint64(limit & (2**64 - 1))
    beyond |= (high > top) | ((high == top) & (low >= bottom))
    least = -limit
    top, bottom = np.int64(least >> 64), np.uint64(least & (2**64 - 1))
    beyond |= (high < top) | ((high == top) & (low <= bottom))
    return values, beyond


def _parts(raw: pa.StructArray) -> list[np.ndarray[Any, Any]]:
    """The members of a struct of integers; 0 where the struct is null."""
    return [_plain(part) for part in raw.flatten()]


def _plain(values: pa.Array) -> np.ndarray[Any, Any]:
    return np.asarray(values.fill_null(0) if values.null_count else values)


def _mask(raw: pa.Array) -> pa.BooleanArray | None:
    return raw.is_null() if raw.null_count else None


def _mask_or_none(raw: pa.Array) -> _Mask | None:
    return np.asarray(raw.is_null()) if raw.null_count else None


def _faults(mask: _Mask, reason: str) -> list[tuple[_Mask, str]]:
    return [(mask, reason)] if mask.any() else []


def faults_by_row(columns: list[Column]) -> Iterator[tuple[int, str]]:
    """The rows with faults, each with a reason; a row may come more than once."""
    for column in columns:
        for mask, reason in column.faults:
            for row in np.flatnonzero(mask):
                yield int(row), reason
