"""The doctor and the status look at a table in S3 as at one on a local disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.errors import Corrupt
from lakebed.parts import deletion_vector_cache
from lakebed.storage.data_files import open_part_storage
from tests.infra.s3 import S3Server

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string())])


def test_a_lost_object_of_a_table_in_s3_is_named(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(deletion_vector_cache, "_INLINE_BYTES_MAX", 0)
    table = lakebed.create(f"s3://{s3.create_bucket()}/lake/t", SCHEMA, keys=["id"], sort_key=["v"])
    for start in (0, 5):
        table.apply(pa.table({"id": range(start, start + 10), "v": ["x"] * 10}, SCHEMA))
        table.settle()
    table.apply(pa.table({"id": [1], "v": ["y"]}, SCHEMA))
    assert table.doctor(deep=True).findings == table.status(deep=True).findings == ()
    lost = table.inspect.parts()["path"][0].as_py()
    open_part_storage(table.path).delete(lost)
    for findings in (table.doctor(deep=True).findings, table.status().findings):
        assert [(finding.check, finding.where) for finding in findings] == [("G1", lost)]


def test_a_damaged_object_is_found_and_no_merge_copies_it(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    settings = {"lakebed.read_budget": "1"}
    table = lakebed.create(f"s3://{s3.create_bucket()}/lake/t", SCHEMA, keys=["id"], properties=settings)
    for start in (0, 5):
        table.apply(pa.table({"id": range(start, start + 10), "v": ["x"] * 10}, SCHEMA))
        table.settle()
    path, storage = table.inspect.parts()["path"][0].as_py(), open_part_storage(table.path)
    whole = storage.read_bytes(path)
    before = table.inspect.parts()
    storage.write_bytes(path, whole[:-30] + bytes([whole[-30] ^ 1]) + whole[-29:])  # in the footer
    [finding] = table.doctor(deep=True).findings
    assert (finding.check, finding.where) == ("file", path)
    with pytest.raises(Corrupt, match=path):
        table.maintenance.compact()
    assert table.inspect.parts() == before
    storage.write_bytes(path, whole)
    assert main(["resume", table.path]) == 0  # the merge that failed is parked
    lakebed.open(table.path).maintenance.compact()
    assert table.inspect.parts().num_rows == 1
    assert table.doctor(deep=True).findings == ()
