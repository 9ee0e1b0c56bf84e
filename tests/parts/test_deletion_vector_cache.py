"""Deletion vectors are kept for parts of the base, and read again for others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyroaring import BitMap64

import lakebed
from lakebed.log.actions import Part
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.storage.data_files import LocalPartStorage
from tests.internals import deletion_vectors_of


def test_vectors_of_parts_that_left_the_base_are_let_go_and_can_be_read_again(tmp_path: Path) -> None:
    deletion_vectors = DeletionVectorCache(LocalPartStorage(str(tmp_path)))
    bitmaps = {f"{number}.parquet": BitMap64(range(number, 9000, 3)) for number in range(200)}
    vectors = deletion_vectors.write(bitmaps)
    parts = {path: Part(path=path, rows=9000, bytes=1, deletion_vector=vectors[path]) for path in bitmaps}
    deletion_vectors.forget_removed(parts)
    assert len(deletion_vectors.kept) == 200
    deletion_vectors.forget_removed({path: parts[path] for path in list(parts)[:10]})
    assert list(deletion_vectors.kept) == list(parts)[:10]
    assert {path: deletion_vectors.of(part) for path, part in parts.items()} == bitmaps


@pytest.mark.slow
def test_a_process_that_settles_and_merges_for_long_keeps_no_vectors_of_parts_that_are_gone(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False)])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], properties={"lakebed.read_budget": "1"})
    for number in range(90):
        table.apply(pa.table({"id": [number, number + 1, number + 2]}))
        table.settle()
        if number % 3 == 2:
            table.maintenance.compact()
    assert len(deletion_vectors_of(table).kept) <= 2 * len(table.inspect.parts()) + 66
