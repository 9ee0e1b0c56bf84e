"""Keys as 64-bit words: what a key index sorts by and searches for.

Invariants
- Equal keys have equal words. Equality is SQL's: NaN = NaN, -0.0 = 0.0; strings compare byte by byte.
- A key of one integer, date, timestamp or boolean column *is* its word (`exact`): different keys have different words,
  in the order of the values. Any other key has a hash for a word, and its encoded columns must be compared as well.

Algorithm
1. `encode` casts every key column to the table's type and then to a form in which equality is equality of bits:
   int64 for integers, dates, timestamps, booleans and normalized floats; binary for strings; decimal128 for decimals.
2. `words` takes the only column when the key is exact, else lets DuckDB hash the encoded columns: vectorized, some
   12 ms a million uuid strings. The hash belongs to a version of DuckDB, so `identity` includes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.storage.engine import connect

Words = npt.NDArray[np.int64]


class KeyEncoding:
    """How the keys of one table become encoded columns and words."""

    __slots__ = ("_forms", "_types", "exact", "names")

    def __init__(self, key_types: Mapping[str, pa.DataType]) -> None:
        if not key_types:
            raise InvalidSchema("a key index needs at least one key column; none was given")
        self._types = dict(key_types)
        self._forms = {name: _form(name, type_) for name, type_ in key_types.items()}
        self.names = tuple(key_types)
        self.exact = len(key_types) == 1 and _is_exact(next(iter(key_types.values())))

    @property
    def schema(self) -> pa.Schema:
        """The encoded columns, `key0`, `key1`, ..., in the order of the key."""
        return pa.schema([pa.field(f"key{i}", self._forms[name]) for i, name in enumerate(self.names)])

    @property
    def identity(self) -> list[str]:
        """Equal for two encodings exactly when each can read the words of the other."""
        types = [f"{name} {type_}" for name, type_ in self._types.items()]
        return types if self.exact else [*types, f"hash of duckdb {duckdb.__version__}"]

    def encode(self, keys: pa.Table) -> pa.RecordBatch:
        """The key columns of `keys` in comparable form, one chunk. Raises InvalidInput for a null or a wrong type."""
        return pa.RecordBatch.from_arrays([self._encode(keys, name) for name in self.names], schema=self.schema)

    def words(self, encoded: pa.RecordBatch) -> Words:
        """One word a row of what `encode` returned."""
        if self.exact:
            exact: Words = np.frombuffer(encoded.column(0).buffers()[1] or b"", np.int64, encoded.num_rows)
            return exact
        columns = ", ".join(encoded.schema.names)
        with connect() as connection:
            connection.register("encoded", pa.Table.from_batches([encoded]))
            hashes = connection.execute(f"SELECT hash({columns}) AS word FROM encoded").fetchnumpy()["word"]
            connection.unregister("encoded")
        return np.ascontiguousarray(hashes, np.uint64).view(np.int64)

    def _encode(self, keys: pa.Table, name: str) -> pa.Array:
        index = keys.schema.get_field_index(name)
        if index < 0:
            raise InvalidInput(f"key column {name!r} is missing from the rows, which have {keys.schema.names}")
        column = keys.column(index)
        if column.null_count:
            raise InvalidInput(f"key column {name!r} holds {column.null_count} nulls; keys must be NOT NULL")
        type_ = self._types[name]
        try:
            values = column.cast(type_)
            if pa.types.is_floating(type_):
                return _float_bits(values)
            if _is_exact(type_):
                values = values.cast(_integer_of(type_)).cast(pa.int64())
            return _one_chunk(values.cast(self._forms[name]))
        except pa.ArrowInvalid as error:
            raise InvalidInput(f"key column {name!r} of type {column.type} does not fit {type_}: {error}") from error
        except pa.ArrowNotImplementedError as error:
            raise InvalidInput(
                f"key column {name!r} of type {column.type} can't become {type_}: cast it first"
            ) from error


def _is_exact(type_: pa.DataType) -> bool:
    t: Any = pa.types
    unsigned_long = type_ == pa.uint64()
    return bool((t.is_integer(type_) and not unsigned_long) or t.is_temporal(type_) or t.is_boolean(type_))


def _form(name: str, type_: pa.DataType) -> pa.DataType:
    if _is_exact(type_) or pa.types.is_floating(type_):
        return pa.int64()
    if pa.types.is_decimal(type_) and type_.precision <= 38:
        return pa.decimal128(type_.precision, type_.scale)
    if type_ in (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view()):
        return pa.binary()
    if pa.types.is_fixed_size_binary(type_):
        return pa.binary()
    raise InvalidSchema(f"column {name!r} of type {type_} can't be a key: use numbers, strings, binary, dates, times")


def _integer_of(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_boolean(type_):
        return pa.uint8()
    return pa.int32() if pa.types.is_temporal(type_) and type_.bit_width == 32 else pa.int64()


def _float_bits(values: pa.ChunkedArray) -> pa.Array:
    numbers = values.cast(pa.float64()).to_numpy() + 0.0  # adding zero turns -0.0 into 0.0
    numbers[np.isnan(numbers)] = np.nan  # one of the many NaNs
    return pa.array(numbers.view(np.int64))


def _one_chunk(values: pa.ChunkedArray) -> pa.Array:
    if not values.num_chunks:
        return pa.array([], values.type)
    array = values.chunk(0) if values.num_chunks == 1 else pa.concat_arrays(values.chunks)
    # A slice shares its parent's buffers; readers of the raw buffer must see the slice alone.
    return array.take(pa.array(np.arange(len(array)))) if array.offset else array
