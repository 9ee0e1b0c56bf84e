"""Damaged files: the deep doctor finds what can be found, names the file, and never stops on the way."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import lakebed
from lakebed.errors import Corrupt
from lakebed.health.examination import examine
from tests.internals import log_of

FLIPS = int(os.environ.get("LAKEBED_FLIPS", "40"))
"""Damaged files a test; for more: ``LAKEBED_FLIPS=5000 pytest tests/table/test_damaged_files.py``."""
SCHEMA = pa.schema([pa.field("id", pa.int64(), False), ("text", pa.string()), ("ratio", pa.float64())])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))


def rows(ids: range) -> pa.Table:
    return pa.table([list(ids), [f"text {id % 7}" for id in ids], [id / 3 for id in ids]], schema=SCHEMA)


def flip(file: Path, rng: random.Random, in_footer: bool = False) -> bytes:
    """One bit; returns what the file was."""
    whole = file.read_bytes()
    data = bytearray(whole)
    first = len(data) - 8 - int.from_bytes(data[-8:-4], "little") if in_footer else 0
    data[rng.randrange(first, len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return whole


def test_every_damaged_part_is_found(tmp_path: Path) -> None:
    settings = {"lakebed.read_budget": "1"}  # so that a part is merged
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sort_key=["text"], properties=settings)
    table.apply(rows(range(300)))
    table.settle()
    table.apply(rows(range(200, 400)))
    table.settle()
    table.maintenance.compact()
    table.apply(rows(range(350, 450)))
    table.settle()
    table.apply(rows(range(10)))
    parts, rng = table.inspect.parts()["path"].to_pylist(), random.Random(0)
    assert {part["level"] for part in table.inspect.parts().to_pylist()} == {0, 1}
    assert examine(table.path, deep=True).findings == ()
    for _ in range(FLIPS):
        path = rng.choice(parts)
        whole = flip(Path(table.path, path), rng)
        assert path in {finding.where for finding in examine(table.path, deep=True).findings}
        Path(table.path, path).write_bytes(whole)
    assert examine(table.path, deep=True).findings == ()


def converted(tmp_path: Path, **configuration: str) -> lakebed.Table:
    path = str(tmp_path / "t")
    for start in (0, 100, 200):
        more = rows(range(start, start + 100))
        write_deltalake(path, more, mode="append", configuration=configuration)
    DeltaTable(path).create_checkpoint()
    return lakebed.convert(path, keys=["id"])


def test_damage_of_files_without_checksums_never_stops_the_doctor(tmp_path: Path) -> None:
    table, rng = converted(tmp_path), random.Random(0)
    parts, found = table.inspect.parts()["path"].to_pylist(), 0
    for turn in range(FLIPS):
        path = rng.choice(parts)
        whole = flip(Path(table.path, path), rng, in_footer=turn % 2 == 0)
        findings = examine(table.path, deep=True).findings
        found += any(path in finding.where + finding.what for finding in findings)
        Path(table.path, path).write_bytes(whole)
    assert found > FLIPS // 4


STATISTICS_AS_STRUCTS = {
    "delta.checkpoint.writeStatsAsStruct": "true",
    "delta.checkpoint.writeStatsAsJson": "false",
}


def test_a_whole_table_of_others_has_no_finding(tmp_path: Path) -> None:
    """With statistics as structs in its checkpoint, too, which say as much as the texts in the log."""
    table = converted(tmp_path, **STATISTICS_AS_STRUCTS)
    assert examine(table.path, deep=True).findings == ()
    stored = log_of(table).read_checkpoint(2)
    assert {part.rows for part in stored.parts.values()} == {100}
    assert stored.parts.keys() == log_of(table).at_version(2).parts.keys()
    text = stored.parts[min(stored.parts)].stats or ""
    assert '"minValues":{"id":' in text
    assert '"text":"text 0"' in text


def test_a_merge_says_which_file_is_damaged_and_leaves_the_table(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "1"})
    for start in (0, 50):
        table.apply(rows(range(start, start + 100)))
        table.settle()
    path, version = table.inspect.parts()["path"][0].as_py(), table.version
    whole = flip(Path(table.path, path), random.Random(0))
    with pytest.raises(Corrupt, match=path):
        table.maintenance.compact()
    Path(table.path, path).write_bytes(whole)
    assert table.inspect.parts() == table.inspect.parts(version)
    assert table.to_arrow().num_rows == 150
