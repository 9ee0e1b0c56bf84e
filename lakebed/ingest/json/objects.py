"""Parse a slice of records, each a JSON object, into Arrow columns of given types.

The native parser does it where it is built. A record that it is not sure of becomes a row of nulls, and the caller reads that
record one by one. Else Arrow's JSON parser does it. That one raises for the whole slice if it is not sure of one record.

Both refuse a value that does not fit its type (a fraction in an integer, a number out of range, a lone surrogate, a repeated
member), so no value changes unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakebed.ingest.json.columns import ColumnReader, Missed
from lakebed.ingest.native.json_parser import JsonParser, Parsed, Path

TOP_LEVEL_NULL = r"\}\s*null"


class ObjectParser:
    """Parses the records of one plan. ``watched`` as in ``JsonParser``; Arrow's parser does not tell unknown members."""

    def __init__(
        self, schema: pa.Schema, readers: Mapping[str, ColumnReader], watched: Mapping[Path, tuple[str, ...]]
    ) -> None:
        self._schema = schema
        self._refused = refusal_of(readers)
        self._native = JsonParser.of(schema, watched)

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """``values`` has no nulls. Raises one of ``MISSES``."""
        if self._native is not None:
            return self._native.parse(values)
        return Parsed(parse_objects(values, self._schema, self._refused), np.ones(len(values), bool))


def refusal_of(readers: Mapping[str, ColumnReader]) -> str:
    """A pattern of texts that ``parse_objects`` must not read.

    Arrow's parser crashes on a bare null between two objects. It reads a decimal from a number and from a text alike, but
    a text of digits may be base64 of another number. So the pattern finds texts by the name of their member, and it also
    refuses names with escapes, which it could not recognize.
    """
    pattern = TOP_LEVEL_NULL
    if names := [re.escape(name) for name, reader in readers.items() if reader.numbers_only]:
        pattern += rf'|"({"|".join(names)})"\s*:\s*"|[{{,]\s*"[^"\\]*(\\.[^"\\]*)+"\s*:'
    return pattern


def parse_objects(values: pa.Array, schema: pa.Schema, refused: str = TOP_LEVEL_NULL) -> pa.RecordBatch:
    """One row per JSON object, by Arrow's parser; members that are not in the schema are skipped. Raises one of ``MISSES``.

    1.  Every value must begin and end with a brace.
    2.  The values are joined by newlines, which are illegal inside a JSON string, so no value can extend into the next.
        The text must be UTF-8, and nothing in it may match ``refused``.
    3.  If there are as many rows as values, each value was exactly one object.
    """
    if not _braced(values):
        raise Missed("not one JSON object per record")
    whole = pa.LargeListArray.from_arrays(pa.array([0, len(values)], pa.int64()), values)
    text = pc.binary_join(whole, b"\n").cast(pa.string())  # checks that it is UTF-8
    if pc.match_substring_regex(text, refused)[0].as_py():
        raise Missed("text that Arrow's parser would read wrongly")
    joined = text.buffers()[2]
    table = pj.read_json(
        pa.BufferReader(joined),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(joined) + 1),
        parse_options=pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(values):
        raise Missed("not one JSON object per record")
    return pa.RecordBatch.from_arrays([_whole(column) for column in table.columns], schema=table.schema)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _braced(values: pa.Array) -> bool:
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    if (np.diff(offsets) < 2).any():
        return False
    data = np.frombuffer(values.buffers()[2], np.uint8)
    return bool((data[offsets[:-1]] == ord("{")).all() and (data[offsets[1:] - 1] == ord("}")).all())
