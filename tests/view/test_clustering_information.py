"""What a table says of its clustering."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import InvalidInput

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("region", pa.string())])


def filled(folder: Path, *batches: range, sort_key: tuple[str, ...] = ()) -> lakebed.Table:
    table = lakebed.create(folder, SCHEMA, keys=["id"], sort_key=sort_key)
    for batch in batches:
        rows = [{"id": number, "region": f"r{number % 3}"} for number in batch]
        table.apply(pa.Table.from_pylist(rows, SCHEMA))
    table.settle()
    return table


def test_parts_side_by_side_have_depth_one_and_interleaved_ones_their_number(tmp_path: Path) -> None:
    beside = filled(tmp_path / "beside", range(0, 10), range(10, 20), range(20, 30))
    across = filled(tmp_path / "across", range(0, 30, 3), range(1, 30, 3), range(2, 30, 3))
    of_all, level_0 = beside.inspect.clustering().to_pylist()
    assert (of_all["level"], level_0["level"]) == (None, 0)
    assert (of_all["average_depth"], of_all["average_overlaps"], of_all["max_depth"]) == (1.0, 0.0, 1)
    assert of_all["deepest"] == []
    found = across.inspect.clustering().to_pylist()[0]
    assert (found["average_depth"], found["average_overlaps"], found["total_part_count"]) == (3.0, 2.0, 3)
    assert found["part_depth_histogram"] == [(3, 3)]
    assert found["deepest"][0] == {"depth": 3, "from": "(2)", "to": "(27)"}


def test_merging_brings_the_depth_down_and_adds_a_level(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", *[range(start, 400, 20) for start in range(20)])
    before = table.inspect.clustering()["max_depth"][0].as_py()
    table.set_properties({"lakebed.read_budget": "2"})
    table.maintenance.compact()
    after = table.inspect.clustering()
    assert before == 20 and after["max_depth"][0].as_py() <= 2
    assert after["level"].to_pylist()[0] is None and max(after["level"].to_pylist()[1:]) >= 1


def test_a_sort_key_goes_before_the_keys_and_is_named(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", range(0, 10), range(10, 20), sort_key=("region",))
    found = table.inspect.clustering().to_pylist()[0]
    assert found["cluster_by"] == "(region)"
    assert found["max_depth"] == 2
    assert found["deepest"][0]["from"] == "(r0)"


def test_a_table_without_an_order_has_no_clustering(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA)
    with pytest.raises(InvalidInput, match="neither a sort key nor keys"):
        table.inspect.clustering()


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    table = filled(tmp_path / "t", range(0, 30, 3), range(1, 30, 3), range(40, 50))
    table.inspect.draw_clustering(tmp_path / "t.png")
    assert (tmp_path / "t.png").read_bytes().startswith(b"\x89PNG")
