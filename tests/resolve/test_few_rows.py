"""Few rows of a local part are read by Arrow: with the same result as by DuckDB, which reads all others."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

from lakebed.errors import Corrupt
from lakebed.log.actions import ChangePart
from lakebed.parts.changes import DELETE, OP_COLUMN, SEQUENCE_COLUMN, UPSERT, WriteSpec
from lakebed.parts.write import write_parts
from lakebed.resolve import counted_tail, locate
from lakebed.resolve.counted_tail import read_tail
from lakebed.resolve.locate import read_keys
from lakebed.storage.data_files import open_part_storage

KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "byte": (pa.int8(), [-128, 127, 0]),
    "int": (pa.int32(), [1, -5, 2]),
    "long": (pa.int64(), [2**63 - 1, -(2**63), 0]),
    "text": (pa.string(), ["ä", "", "🙂"]),
    "binary": (pa.binary(), [b"", b"\0", b"x"]),
    "boolean": (pa.bool_(), [True, False, None]),
    "date": (pa.date32(), [dt.date(1, 1, 1), dt.date(2024, 2, 29), dt.date(9999, 12, 31)]),
    "time": (pa.timestamp("us", "UTC"), [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, dt.UTC)] * 3),
    "local time": (pa.timestamp("us"), [dt.datetime(2024, 5, 1, 1, 2, 3, 4)] * 3),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.50"), Decimal("-0.01"), Decimal("0.00")]),
    "long decimal": (pa.decimal128(38, 10), [Decimal("1.5"), Decimal("-9999999999.0000000001"), Decimal(0)]),
    "float": (pa.float32(), [0.5, float("inf"), -0.0]),
    "double": (pa.float64(), [0.1, float("-inf"), -0.0]),
}


def shape_and_rows(name: str, sequence: str | None) -> tuple[WriteSpec, pa.Table]:
    kind, values = KEYS[name]
    schema = pa.schema([("a", kind), ("b", pa.int64()), ("note", pa.string())])
    columns: dict[str, pa.Array] = {
        "a": pa.array(values, kind), "b": pa.array([1, 2, 3]), "note": pa.array(["x", None, "y"]),
        OP_COLUMN: pa.array([UPSERT, DELETE, UPSERT]),
    }  # fmt: skip
    if sequence == SEQUENCE_COLUMN:
        columns[SEQUENCE_COLUMN] = pa.array([7, 8, 9], pa.int64())
    by = {SEQUENCE_COLUMN: "source.lsn"}.get(sequence or "", sequence)
    return WriteSpec(schema=schema, keys=("a", "b"), sequence_by=by), pa.table(columns)


def change_part(rows: pa.Table, shape: WriteSpec, folder: Path, ordinal: int = 0) -> ChangePart:
    [written] = write_parts(rows, shape, open_part_storage(folder))
    return written.change_part(ordinal)


@pytest.mark.parametrize("sequence", [None, "b", SEQUENCE_COLUMN])
@pytest.mark.parametrize("name", KEYS)
def test_arrow_and_duckdb_read_the_same_of_a_tail(tmp_path: Path, name: str, sequence: str | None) -> None:
    shape, rows = shape_and_rows(name, sequence)
    parts = [change_part(rows, shape, tmp_path), change_part(rows.slice(1), shape, tmp_path, 1)]
    storage = open_part_storage(tmp_path)
    with patch.object(counted_tail, "connect", side_effect=AssertionError("DuckDB is asked")):
        few = read_tail(parts, shape, storage)
    with patch.object(counted_tail, "FEW_ROWS_MAX", -1):
        many = read_tail(parts, shape, storage)
    assert few.schema.equals(many.schema) and few.equals(many)


@pytest.mark.parametrize("sequence", [None, "b", SEQUENCE_COLUMN])
@pytest.mark.parametrize("name", KEYS)
def test_arrow_and_duckdb_read_the_same_keys_for_the_index(tmp_path: Path, name: str, sequence: str | None) -> None:
    shape, rows = shape_and_rows(name, sequence)
    storage = open_part_storage(tmp_path)
    for part in (change_part(rows, shape, tmp_path).settled(None), base_part_of_another_writer(rows, shape, tmp_path)):
        few = pa.Table.from_batches(read_keys(part, shape, storage))
        with patch.object(locate, "FEW_ROWS_MAX", -1):
            many = pa.Table.from_batches(read_keys(part, shape, storage))
        assert few.equals(many)


def base_part_of_another_writer(rows: pa.Table, shape: WriteSpec, folder: Path) -> Any:
    """It lacks the hidden columns."""
    [written] = write_parts(
        rows.select(["a", "b", "note"]), replace(shape, sequence_by=None), open_part_storage(folder)
    )
    return written.base_part(has_op_column=False)


def test_a_part_with_a_type_that_was_widened_since_is_read_by_duckdb(tmp_path: Path) -> None:
    shape, rows = shape_and_rows("int", None)
    part = change_part(rows, shape, tmp_path)
    wide = replace(shape, schema=shape.schema.set(0, pa.field("a", pa.int64())))
    storage = open_part_storage(tmp_path)
    tail = read_tail([part], wide, storage)
    assert (tail["a"].type, sorted(tail["a"].to_pylist())) == (pa.int64(), [-5, 1, 2])


def test_a_part_that_is_missing_or_damaged_is_named(tmp_path: Path) -> None:
    shape, rows = shape_and_rows("long", None)
    part = change_part(rows, shape, tmp_path)
    storage = open_part_storage(tmp_path)
    file = tmp_path / part.path
    content = file.read_bytes()
    for damaged in (content[:-10], content[: len(content) // 2], b""):
        file.write_bytes(damaged)
        with pytest.raises(Corrupt, match=part.path):
            read_tail([part], shape, storage)
    file.unlink()
    with pytest.raises(Corrupt, match=part.path):
        read_tail([part], shape, storage)


def test_a_part_with_other_rows_than_the_log_says_is_refused(tmp_path: Path) -> None:
    shape, rows = shape_and_rows("long", None)
    part = replace(change_part(rows, shape, tmp_path), rows=4)
    with pytest.raises(Corrupt, match="have 3 rows, but the log says 4"):
        read_tail([part], shape, open_part_storage(tmp_path))
