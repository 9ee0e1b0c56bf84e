"""A table in another format than this version's is refused, with what to do.

``format_1`` is the log of a small table that was written before the format had a number: a table with keys, a batch of a
stream, and a settle of it. The bytes are as they were written then.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput, Unsupported
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.schema.metadata import FORMAT
from lakebed.version import __version__

SCHEMA = pa.schema([("id", pa.int64())])
FORMAT_1 = Path(__file__).with_name("format_1")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A table of format 1."""
    return Path(shutil.copytree(FORMAT_1, tmp_path / "old"))


def new(path: Path) -> lakebed.Table:
    table = lakebed.create(path, SCHEMA, keys=["id"])
    table.apply(pa.table({"id": [1, 2]}))
    return table


@pytest.mark.parametrize(
    "opening", [lakebed.open, lakebed.convert, lambda path: TableLog(open_store(str(path))).refresh()]
)
def test_a_table_of_before_is_refused_with_what_to_do(opening: Callable[[Path], Any], old: Path) -> None:
    with pytest.raises(Unsupported) as raised:
        opening(old)
    assert str(raised.value) == (
        f"the table at {old} is in format 1 of lakebed, and lakebed {__version__} reads format {FORMAT} alone; write it again "
        f"with lakebed {__version__}, into a new table, from its source or from rows that the lakebed which wrote it exports"
    )


def test_a_table_of_before_stays_as_it_is(old: Path) -> None:
    before = {path: path.read_bytes() for path in old.rglob("*") if path.is_file()}
    with pytest.raises(Unsupported):
        lakebed.open(old)
    assert {path: path.read_bytes() for path in old.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (str(FORMAT + 1), "use the version of lakebed that wrote it, or a later one"),
        ("two", "use the version of lakebed that wrote it, or a later one"),
        ("1", "write it again"),
    ],
)
def test_a_table_of_another_format_is_refused_by_its_number(text: str, advice: str, tmp_path: Path) -> None:
    table = new(tmp_path / "t")
    [first, *_] = sorted(Path(table.path, "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in first.read_bytes().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["configuration"]["lakebed.format"] = text
    first.write_bytes(b"".join(json.dumps(line).encode() + b"\n" for line in lines if "commitInfo" not in line))
    for later in sorted(Path(table.path, "_delta_log").glob("*.json"))[1:]:
        later.unlink()
    with pytest.raises(Unsupported, match=f"in format {text} of lakebed.*; {advice}"):
        lakebed.open(table.path)


def test_a_new_table_has_the_format_of_this_version_and_nobody_changes_it(tmp_path: Path) -> None:
    table = new(tmp_path / "t")
    assert table.properties["lakebed.format"] == str(FORMAT)
    with pytest.raises(InvalidInput, match=r"lakebed\.format is no property to set"):
        table.set_properties({"lakebed.format": "1"})
    with pytest.raises(InvalidInput, match=r"lakebed\.format is no property to set"):
        lakebed.create(tmp_path / "other", SCHEMA, properties={"lakebed.format": "1"})
    table.set_sort_key(["id"])
    assert lakebed.open(table.path).properties["lakebed.format"] == str(FORMAT)
