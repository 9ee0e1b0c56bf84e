"""Changes and schemas that can't be: each is refused with an error that names what is wrong, and nothing of it is there."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidChanges, InvalidSchema

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])


def not_text(kind: pa.DataType) -> pa.Array:
    """Arrow believes whoever says that bytes are a text."""
    return pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"], pa.binary()).buffers()).cast(kind)


def test_a_column_that_comes_twice_is_refused(table: lakebed.Table) -> None:
    rows = pa.Table.from_arrays([pa.array([1]), pa.array(["a"]), pa.array(["b"])], names=["id", "v", "v"])
    with pytest.raises(InvalidChanges, match="column 'v' more than once"):
        table.apply(rows)
    assert table.version == 0


def test_a_text_that_is_not_utf8_is_refused(table: lakebed.Table) -> None:
    with pytest.raises(InvalidChanges, match=r"'v' is not valid in row 1: .*UTF8"):
        table.apply(pa.table({"id": [1, 2], "v": not_text(pa.string())}))
    with pytest.raises(InvalidChanges, match="'v'"):
        table.apply(pa.table({"id": [1, 2], "v": not_text(pa.large_string())}))
    assert table.version == 0


def test_a_number_is_no_time(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    table = lakebed.create(tmp_path / "p", schema, keys=["id"])
    with pytest.raises(InvalidChanges, match=r"'at': int64 does not fit the table's timestamp.*convert it"):
        table.apply(pa.table({"id": [1], "at": [1_700_000_000_000]}))


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pa.struct([]), "'n' is a struct without fields"),
        (pa.list_(pa.struct([("x", pa.struct([]))])), r"'n\.x' is a struct without fields"),
        (pa.struct([("a", pa.int64()), ("A", pa.int64())]), "two fields of 'n' are named 'A'"),
        (
            pa.map_(pa.string(), pa.struct([("a", pa.int64()), ("a", pa.int64())])),
            r"two fields of 'n\.value' are named 'a'",
        ),
    ],
    ids=str,
)
def test_a_struct_that_no_file_can_hold_is_refused(kind: pa.DataType, said: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match=said):
        lakebed.create(tmp_path / "n", pa.schema([("id", pa.int64()), ("n", kind)]))
