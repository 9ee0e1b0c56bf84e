"""A table of another program's in S3 is adopted as one on a local disk."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Corrupt
from lakebed.storage.data_files import open_part_storage
from tests.infra.s3 import S3Server
from tests.table.others import File, table_of_others

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string())])


def test_a_table_in_s3_is_adopted_and_a_lost_file_of_it_named(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    rows = [pa.table({"id": range(start, start + 5), "v": ["old"] * 5}) for start in range(0, 50, 5)]
    local = table_of_others(tmp_path / "t", SCHEMA, [File(some, None) for some in rows])
    storage = open_part_storage(f"s3://{s3.create_bucket()}/lake/t")
    files = [file for file in Path(local).rglob("*") if file.is_file()]
    for file in files:
        storage.write_bytes(str(file.relative_to(local)), file.read_bytes())
    lost = next(file for file in files if file.suffix == ".parquet")
    storage.delete(lost.name)
    with pytest.raises(Corrupt, match=lost.name):
        lakebed.convert(storage.root, keys=["id"])
    storage.write_bytes(lost.name, lost.read_bytes())
    table = lakebed.convert(storage.root, keys=["id"])
    table.apply(pa.table({"id": [1, 99], "v": ["new", "new"]}))
    table.settle()
    table.maintenance.compact()
    assert table.to_arrow().num_rows == 51
    assert table.doctor(deep=True).findings == ()
