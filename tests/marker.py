"""Whether a file holds a text: in its bytes, in the values of its columns, or spelled in base64 or hex."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq


def holds(data: bytes, name: str, text: str) -> bool:
    """Whether a file has the text. Pages of Parquet are compressed, so these files are also read by columns, with the values of
    dictionaries that no row uses. One that is still being written has no columns yet."""
    spellings = _spellings(text)
    if any(each in data for each in spellings):
        return True
    if not name.endswith(".parquet") or not data.endswith(b"PAR1"):
        return False
    file = pq.ParquetFile(pa.BufferReader(data))
    rows = json.dumps([file.read().to_pylist(), *_dictionaries(data)], default=repr).encode()
    return any(each in rows for each in spellings)


def _dictionaries(data: bytes) -> Iterator[list[object]]:
    """Of texts and bytes that are in no struct or list."""
    schema = pq.ParquetFile(pa.BufferReader(data)).schema
    leaves = [schema.column(number) for number in range(len(schema.names))]
    names = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY" and leaf.path == leaf.name]
    table = pq.ParquetFile(pa.BufferReader(data), read_dictionary=names).read(names)
    for column in table.columns:
        for chunk in column.chunks:
            if pa.types.is_dictionary(chunk.type):
                yield chunk.dictionary.to_pylist()


def _spellings(text: str) -> list[bytes]:
    """The text as it is, and as JSON has the bytes of a binary column: in base64 it depends on the place of its first byte."""
    plain = text.encode()
    spelled = [base64.b64encode(b"-" * shift + plain) for shift in range(3)]
    # The first and the last characters also depend on the bytes beside the text.
    return [plain, plain.hex().encode(), *(each[4 * (shift > 0) : -4] for shift, each in enumerate(spelled))]
