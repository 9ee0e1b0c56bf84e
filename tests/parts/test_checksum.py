"""A file that is not what was written is told, whatever is damaged in it, and nothing is made of it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.log.actions import AddChangePart, AddPart, Part
from lakebed.log.commit_codec import from_json, to_json
from lakebed.merge.kernel import MergeSource, merge_parts
from lakebed.parts.changes import WriteSpec
from lakebed.parts.intact import checksum_of, stage, verify, verify_pages
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect

FLAT = pa.schema([("id", pa.int64()), ("text", pa.string())])
NESTED = FLAT.append(pa.field("more", pa.struct([("a", pa.int64())])))  # of which DuckDB reads the files


def written(folder: Path, schema: pa.Schema = FLAT) -> WrittenPart:
    columns = [range(5_000), [f"text {number}" for number in range(5_000)], [{"a": number} for number in range(5_000)]]
    rows = pa.table(columns[: len(schema)], schema=schema)
    [part] = write_parts(rows, WriteSpec(schema=schema, keys=("id",)), open_part_storage(folder))
    return part


def flip(file: Path, at: int, bit: int = 0) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= 1 << bit
    file.write_bytes(data)


def test_one_bit_anywhere_is_found_and_the_file_named(tmp_path: Path) -> None:
    part = written(tmp_path).base_part(False)
    storage, file, rng = open_part_storage(tmp_path), tmp_path / part.path, random.Random(0)
    verify(part, storage)
    for at in (0, part.bytes - 1, part.bytes - 5, *(rng.randrange(part.bytes) for _ in range(100))):
        bit = rng.randrange(8)
        flip(file, at, bit)
        with pytest.raises(Corrupt, match=part.path):
            verify(part, storage)
        flip(file, at, bit)
    verify(part, storage)


@pytest.mark.parametrize("how", [lambda data: data[:-1], lambda data: data + b"\0", lambda _: b""])
def test_a_file_of_another_length_is_reported(how: object, tmp_path: Path) -> None:
    part = written(tmp_path).base_part(False)
    file = tmp_path / part.path
    file.write_bytes(how(file.read_bytes()))  # type: ignore[operator]
    with pytest.raises(Corrupt, match="the log says"):
        verify(part, open_part_storage(tmp_path))


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    part = written(tmp_path).base_part(False)
    (tmp_path / part.path).unlink()
    for one in (part, replace(part, checksum=None)):
        with pytest.raises(Corrupt, match=part.path):
            verify(one, open_part_storage(tmp_path))


def test_the_log_keeps_the_checksum_of_base_and_tail(tmp_path: Path) -> None:
    part = written(tmp_path)
    assert part.checksum == checksum_of(str(tmp_path / part.path))
    base, change = AddPart(part.base_part(False)), AddChangePart(part.change_part(0))
    assert from_json(to_json(base)) == base
    assert from_json(to_json(change)) == change
    assert change.part.settled(None).checksum == part.checksum


def test_of_a_file_without_a_checksum_the_pages_are_verified(tmp_path: Path) -> None:
    file = tmp_path / "others.parquet"
    pq.write_table(pa.table({"id": range(5_000)}), file, write_page_checksum=True, use_dictionary=False)
    part = Part(path="others.parquet", rows=5_000, bytes=file.stat().st_size)
    verify(part, open_part_storage(tmp_path))
    chunk = pq.read_metadata(file).row_group(0).column(0)
    flip(file, chunk.data_page_offset + chunk.total_compressed_size // 2)
    with pytest.raises(Corrupt, match=r"others\.parquet"):
        verify(part, open_part_storage(tmp_path))


def test_a_damaged_footer_of_others_is_shown_by_name(tmp_path: Path) -> None:
    file, rng = tmp_path / "others.parquet", random.Random(0)
    pq.write_table(pa.table({"id": range(100)}), file)
    whole, told = file.read_bytes(), 0
    footer = int.from_bytes(whole[-8:-4], "little")
    for _ in range(60):
        flip(file, len(whole) - 8 - rng.randrange(footer), rng.randrange(8))
        try:
            verify_pages("others.parquet", str(file))
        except Corrupt as error:
            told += "others.parquet" in str(error)
        file.write_bytes(whole)
    assert told > 5


@pytest.mark.parametrize("schema", [FLAT, NESTED], ids=["read by Arrow", "read by DuckDB"])
@pytest.mark.parametrize("place", ["page", "footer"])
def test_a_merge_of_a_damaged_part_writes_nothing(schema: pa.Schema, place: str, tmp_path: Path) -> None:
    storage, spec = open_part_storage(tmp_path), WriteSpec(schema=schema, keys=("id",))
    parts = [written(tmp_path, schema).base_part(False) for _ in range(2)]
    sources = [MergeSource(part, BitMap64(), False, storage.duckdb_url(part.path)) for part in parts]
    file = tmp_path / parts[1].path
    chunk = pq.read_metadata(file).row_group(0).column(0)
    inside_page = chunk.data_page_offset + chunk.total_compressed_size // 2
    flip(file, inside_page if place == "page" else parts[1].bytes - 40)
    out = open_part_storage(tmp_path / "out")
    with pytest.raises(Corrupt, match=parts[1].path):
        merge_parts(sources, spec, out, connect(), read_from=storage)
    assert not list(out.list())


def test_a_merge_of_a_damaged_file_of_others_writes_nothing(tmp_path: Path) -> None:
    """DuckDB casts its numbers, and looks at no checksum."""
    file = tmp_path / "others.parquet"
    rows = pa.table({"id": pa.array(range(5_000), pa.int32()), "text": ["text"] * 5_000})
    pq.write_table(rows, file, write_page_checksum=True, use_dictionary=False)
    chunk = pq.read_metadata(file).row_group(0).column(0)
    flip(file, chunk.data_page_offset + chunk.total_compressed_size // 2)
    source = MergeSource(
        Part(path="others.parquet", rows=5_000, bytes=file.stat().st_size), BitMap64(), False, str(file)
    )
    with pytest.raises(Corrupt, match=r"others\.parquet"):
        merge_parts([source], WriteSpec(schema=FLAT, keys=("id",)), open_part_storage(tmp_path / "out"), connect())


def test_what_is_staged_is_what_was_verified(tmp_path: Path) -> None:
    part = written(tmp_path).base_part(False)
    copy = tmp_path / "copy"
    stage(part, open_part_storage(tmp_path), copy)
    assert copy.read_bytes() == (tmp_path / part.path).read_bytes()
    flip(tmp_path / part.path, 100)
    with pytest.raises(Corrupt, match=part.path):
        stage(part, open_part_storage(tmp_path), copy)
