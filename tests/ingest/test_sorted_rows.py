"""Tasks that write rows of the base: sorted, in parts of the target size, under names that tell whose they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from lakebed.decode.decoder import Decoded
from lakebed.decode.row_changes import RowChanges
from lakebed.errors import StoreUnavailable
from lakebed.ingest.sorted_rows import SortedWriteTask
from lakebed.parts.changes import WriteSpec, prepare
from lakebed.parts.quarantine import QUARANTINE_SCHEMA
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from lakebed.storage.local_folders import process_folder
from tests.compaction.test_disk_trouble import disk_full_after

SCHEMA = pa.schema([("id", pa.int64()), ("p", pa.string()), ("value", pa.float64())])
ROWS = pa.table({"id": range(3000), "p": ["a", "b"] * 1500, "value": np.random.default_rng(1).random(3000)})


def in_pieces(spec: WriteSpec, pieces: int) -> Iterator[Decoded]:
    """The rows as a task meets them."""
    size = len(ROWS) // pieces
    for start in range(0, len(ROWS), size):
        changes = prepare(ROWS.slice(start, size), spec, connect())
        yield Decoded(changes=changes, quarantined=QUARANTINE_SCHEMA.empty_table())


def writing(spec: WriteSpec, root: Path, rows_max: int = 1000) -> SortedWriteTask:
    return SortedWriteTask(
        spec=spec, root=str(root), stream=RowChanges(spec), names="mine-", rows_max=rows_max, bytes_max=1 << 30
    )


@pytest.mark.parametrize("pieces", [1, 3])
@pytest.mark.parametrize("keys", [("id",), ()])
@pytest.mark.parametrize("sort_key", [("value desc",), ()])
def test_what_does_not_fit_in_memory_at_once_comes_out_as_one_sequence_of_sorted_parts(
    pieces: int, keys: tuple[str, ...], sort_key: tuple[str, ...], tmp_path: Path
) -> None:
    spec = WriteSpec(schema=SCHEMA, keys=keys, sort_key=sort_key, partition_by=("p",))
    parts = writing(spec, tmp_path).write(in_pieces(spec, pieces)).parts
    storage = open_part_storage(tmp_path)
    assert sorted(path for path, *_ in storage.list("_lakebed/")) == sorted(part.path for part in parts)
    assert all(part.path.startswith("_lakebed/mine-") for part in parts)
    if pieces > 1:
        assert [part.rows for part in parts] == [1000, 500, 1000, 500]
    found = []
    for partition in ("a", "b"):
        own = [part for part in parts if part.partition_values == {"p": partition}]
        read = pa.concat_tables([connect().read_parquet(str(tmp_path / part.path)).to_arrow_table() for part in own])
        assert read.column_names == SCHEMA.names
        if sort_key:
            assert read["value"].to_pylist() == sorted(read["value"].to_pylist(), reverse=True)
        elif keys:
            assert read["id"].to_pylist() == sorted(read["id"].to_pylist())
        found += read.select(SCHEMA.names).to_pylist()
    assert sorted(found, key=lambda one: one["id"]) == ROWS.to_pylist()


@pytest.mark.parametrize(("bytes_max", "place"), [(2_000, "sorted-runs-"), (9_000, "_lakebed/")])
def test_a_disk_that_is_full_of_runs_or_of_parts_is_named_and_no_run_stays_on_it(
    bytes_max: int, place: str, tmp_path: Path
) -> None:
    """A run of a partition has 4,400 bytes, and its part, of three of them, 12,000."""
    spec = WriteSpec(schema=SCHEMA, keys=("id",), partition_by=("p",))
    with disk_full_after(bytes_max), pytest.raises(StoreUnavailable, match=f"{place}.* check the disk") as caught:
        writing(spec, tmp_path, rows_max=3000).write(in_pieces(spec, 3))
    assert (str(tmp_path) in str(caught.value)) == (place == "_lakebed/")
    assert not list(process_folder().glob("*/_lakebed/*")) and not list(tmp_path.rglob("*.parquet"))


def test_a_task_without_rows_writes_nothing(tmp_path: Path) -> None:
    spec = WriteSpec(schema=SCHEMA)
    task = SortedWriteTask(spec=spec, root=str(tmp_path), stream=RowChanges(spec), names="x-", rows_max=9, bytes_max=9)
    assert task.write(iter([])).parts == () and not list(tmp_path.iterdir())
