"""The record format ``json-schema``: JSON documents with a JSON Schema to Arrow batches.

The schema gives the columns (``json_schema_types``). The documents are read as those of the format ``json``: fast by columns, and
one by one where that fails (``json.columns``, ``json.values``). What a document has beyond the columns is left out; its names are
counted in a sample (``unknown_fields``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lakebed.decode.decoder import Message, ReadRecords, RecordReader
from lakebed.decode.json.columns import MISSES, ColumnReader, Missed, reader_for
from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.objects import ObjectParser
from lakebed.decode.json.text import Unreadable, parse
from lakebed.decode.json.values import JsonOptions, convert
from lakebed.decode.json_schema_types import JsonColumn, columns_of
from lakebed.decode.unknown_fields import KnownFields, names_in, sample_of

_OPTIONS = JsonOptions(decimal_text="string", unavailable_value="", exact_names=True)
_SAMPLES = 64
# up to this many documents are read one by one, rather than halved, if they can't be read as a whole
ONE_BY_ONE_ROWS = 64


@dataclass(frozen=True, slots=True)
class JsonSchemaFormat:
    """JSON Schema, drafts 4 to 2020-12."""

    def compile(self, schema_text: str, references: Mapping[str, str], message: Message = None) -> RecordReader:
        """Raises ``Unreadable``. ``message`` means nothing to JSON."""
        return JsonSchemaReader(*columns_of(schema_text, references))


@dataclass(frozen=True, slots=True)
class _Plan:
    """How documents are read as a whole."""

    readers: Mapping[str, ColumnReader]
    parser: ObjectParser


class JsonSchemaReader:
    """Reads documents by columns. ``is_object``: they are objects of the columns; else each is the value of the one column."""

    def __init__(self, columns: Mapping[str, JsonColumn], is_object: bool) -> None:
        self._columns = columns
        self._is_object = is_object
        self.schema = pa.schema([pa.field(name, column.type, column.nullable) for name, column in columns.items()])
        self._rows = pa.schema([field.with_nullable(True) for field in self.schema])
        self.logical_types: Mapping[str, LogicalType] = {
            name: column.logical_type for name, column in columns.items() if column.logical_type != PLAIN
        }
        self.defaults: Mapping[str, Mapping[str, Any]] = {name: column.defaults for name, column in columns.items()}
        self._known = KnownFields(self.schema, _OPTIONS.placeholder, exact_names=True)
        self._plan: _Plan | None = None

    def read(self, values: pa.BinaryArray) -> ReadRecords:
        """Raises ``MemoryError``."""
        errors: dict[int, str] = {}
        if not len(values):
            return ReadRecords(_empty(self._rows), errors)
        rows = pa.Table.from_batches(self._read(values, 0, errors)).combine_chunks().to_batches()[0]
        return ReadRecords(rows, errors, self._unknown_fields(values))

    def _unknown_fields(self, values: pa.BinaryArray) -> Mapping[str, int]:
        """What some of the documents have beyond the schema."""
        if not self._is_object:
            return {}
        return names_in(values, sample_of(values), lambda one: one if isinstance(one, dict) else None, self._known)[0]

    def _read(self, values: pa.BinaryArray, first: int, errors: dict[int, str]) -> Iterable[pa.RecordBatch]:
        """Reads as a whole; else the halves; and few one by one."""
        try:
            plan = self._plan = self._plan or self._planned(values)
        except Missed:
            return [self._read_one_by_one(values, range(len(values)), first, errors)]
        try:
            return [self._read_whole(plan, values, first, errors)]
        except MISSES:
            self._plan = None
        if len(values) <= ONE_BY_ONE_ROWS:
            return [self._read_one_by_one(values, range(len(values)), first, errors)]
        half = len(values) // 2
        return [*self._read(values[:half], first, errors), *self._read(values[half:], first + half, errors)]

    def _read_whole(self, plan: _Plan, values: pa.BinaryArray, first: int, errors: dict[int, str]) -> pa.RecordBatch:
        """Raises one of ``MISSES``."""
        parsed = plan.parser.parse(values)
        arrays = [reader.read(parsed.rows.column(name)) for name, reader in plan.readers.items()]
        sure = parsed.sure.copy()
        for field, array in zip(self.schema, arrays, strict=True):
            if not field.nullable and array.null_count:
                sure &= np.asarray(array.is_valid())
        whole = pa.RecordBatch.from_arrays(arrays, schema=self._rows)
        unsure = np.flatnonzero(~sure)
        if not len(unsure):
            return whole
        if len(unsure) * 2 > len(values):
            self._plan = None  # the next documents may be of another form
        others = self._read_one_by_one(values, unsure.tolist(), first, errors)
        order = np.arange(len(values))
        order[unsure] = len(values) + np.arange(len(unsure))
        return pa.Table.from_batches([whole, others]).take(pa.array(order)).combine_chunks().to_batches()[0]

    def _read_one_by_one(
        self, values: pa.BinaryArray, rows: Iterable[int], first: int, errors: dict[int, str]
    ) -> pa.RecordBatch:
        columns: dict[str, list[Any]] = {name: [] for name in self._columns}
        for row in rows:
            try:
                read = self._read_document(values[row].as_py())
            except Unreadable as error:
                read = dict.fromkeys(self._columns)
                errors[first + row] = str(error)
            for name, value in read.items():
                columns[name].append(value)
        arrays = [pa.array(column, self._columns[name].type) for name, column in columns.items()]
        return pa.RecordBatch.from_arrays(arrays, schema=self._rows)

    def _read_document(self, encoded: bytes) -> dict[str, Any]:
        """Raises ``Unreadable``."""
        document = parse(encoded)
        if not self._is_object:
            document = {"value": document}
        if not isinstance(document, dict):
            raise Unreadable("not a JSON object")
        out = {}
        for name, column in self._columns.items():
            value = document.get(name)
            if value is None and not column.nullable:
                raise Unreadable(
                    f"{name!r} is {'null' if name in document else 'missing'}, and its schema does not allow that"
                )
            try:
                out[name] = convert(value, column.type, column.read_as, _OPTIONS)
            except Unreadable as error:
                raise Unreadable(f"{name}: {error}") from error
        return out

    def _planned(self, values: pa.BinaryArray) -> _Plan:
        """Raises ``Missed`` if a column is of a type that is read one by one."""
        if not self._is_object:
            raise Missed("not an object")
        seen = self._samples(values)
        readers = {}
        for name, column in self._columns.items():
            reader = reader_for(column.type, column.read_as, _sample(column.type, seen.get(name)), _OPTIONS)
            if reader is None:
                raise Missed(f"column {name} is read one by one")
            readers[name] = reader
        schema = pa.schema([pa.field(name, reader.parsed) for name, reader in readers.items()])
        return _Plan(readers, ObjectParser(schema, readers, {}))

    def _samples(self, values: pa.BinaryArray) -> dict[str, Any]:
        seen: dict[str, Any] = {}
        for row in np.unique(np.linspace(0, len(values) - 1, _SAMPLES, dtype=np.int64)):
            try:
                document = parse(values[int(row)].as_py())
            except Unreadable:
                continue
            for name in self._columns if isinstance(document, dict) else ():
                if document.get(name) not in (None, [], {}):
                    seen.setdefault(name, document[name])
        return seen


def _sample(kind: pa.DataType, seen: Any) -> Any:
    """What a value of the type looks like in JSON: as the schema says, and where it leaves that open, as one that was seen."""
    if pa.types.is_struct(kind):
        members = seen if isinstance(seen, dict) else {}
        return {field.name: _sample(field.type, members.get(field.name)) for field in kind}
    if pa.types.is_list(kind):
        items = seen if isinstance(seen, list) else []
        return [_sample(kind.value_type, next((item for item in items if item is not None), None))]
    if pa.types.is_temporal(kind) or pa.types.is_binary(kind):
        return ""
    if pa.types.is_string(kind) or pa.types.is_decimal(kind):
        return seen if seen is not None else "" if pa.types.is_string(kind) else None
    return True if pa.types.is_boolean(kind) else 0


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)
