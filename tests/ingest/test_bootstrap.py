"""A table that begins with rows that Spark reads, at a position of its source: each row and each record is in it once."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.ingest import apply as module
from lakebed.table import internals_of
from tests.ingest.crashes import Crash, dying
from tests.sources.memory_source import COLUMNS, MemorySource, Process, ids, row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


def test_rows_and_position_come_in_one_commit_once_and_the_topic_is_followed_from_there(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    source = MemorySource()
    source.add("t", 0, *(row(number) for number in range(10)))
    pq.write_table(pa.table({"id": range(6), "n": range(6)}), tmp_path / "rows.parquet")
    table = lakebed.create(tmp_path / "t", COLUMNS)  # without keys: what is read twice is in it twice
    read: list[int] = []

    def rows() -> DataFrame:
        read.append(1)
        return spark.read.parquet(str(tmp_path / "rows.parquet"))

    def begin(offsets: Mapping[str, Any] = {"t": {0: 6}}) -> int | None:
        return internals_of(lakebed.open(table.path)).bootstrap(rows, offsets)

    def other_first(*args: Any, **more: Any) -> Any:
        with patch.object(module, "commit_written", whole):
            assert begin() is not None
        return whole(*args, **more)

    with dying(module, "commit_written", "before"), suppress(Crash):
        begin()
    assert ids(lakebed.open(table.path)) == []
    whole = module.commit_written
    with patch.object(module, "commit_written", other_first):
        assert begin() is None  # another process was faster
    assert begin() is None and len(read) == 3
    Process(table.path, source).run()
    assert ids(lakebed.open(table.path)) == list(range(10))
    with pytest.raises(InvalidInput, match="has rows already"):
        begin({"other": {0: 0}})

    keyed = lakebed.create(tmp_path / "keyed", COLUMNS, keys=["id"], sequence_by="source.lsn")
    internals_of(keyed).bootstrap(rows, {"t": {0: 6}})
    keyed.apply(pa.table({"id": [1], "n": [100], "source.lsn": [-5]}))  # any change is newer than these rows
    found = {one["id"]: one["n"] for one in lakebed.open(keyed.path).to_arrow().to_pylist()}
    assert found == {**{number: number for number in range(6)}, 1: 100}
    with pytest.raises(InvalidInput, match="no column 'id', which is a key"):
        other = lakebed.create(tmp_path / "other", COLUMNS, keys=["id"])
        internals_of(other).bootstrap(lambda: rows().drop("id"), {"t": {0: 6}})
    with pytest.raises(InvalidInput, match="rows of bootstrap lack the column 'n' of the table; add it"):
        internals_of(other).bootstrap(lambda: rows().drop("n"), {"t": {0: 6}})
