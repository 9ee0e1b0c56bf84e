"""A table that is dropped and made again in the same place, while somebody has it open."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed


@pytest.mark.parametrize("versions", [1, 2, 3, 6])
def test_another_table_in_the_same_place_is_noticed_within_a_minute(versions: int, tmp_path: Path) -> None:
    """However many versions the new table has, and whatever of it was read before it was noticed."""
    schema = pa.schema([("id", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    table.apply(pa.table({"id": [1]}))
    table.settle()
    assert table.to_arrow()["id"].to_pylist() == [1]
    shutil.rmtree(tmp_path / "t")
    anew = lakebed.create(tmp_path / "t", schema, keys=["id"])
    for number in range(versions):
        anew.apply(pa.table({"id": [10 + number]}))
    if versions == 6:
        assert table.version == 6  # mistaken for later versions of the table before
    log = table._log
    log._clock = lambda: time.time() + 61
    assert table.to_arrow()["id"].to_pylist() == anew.to_arrow()["id"].to_pylist()
    assert log.refresh() == anew._log.refresh()


def test_a_table_that_stays_is_not_read_again(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1]}))
    snapshot = table._log.refresh()
    table._log._clock = lambda: time.time() + 61
    assert table._log.refresh() is snapshot
