"""Looking keys up: what shares an index sees it at its own base, and parts are left out only where no key can be."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

from lakebed.keyindex.key_index import KeyIndex
from lakebed.manifest.actions import Part
from lakebed.parts.changes import WriteSpec
from lakebed.parts.locate import IndexLocator, ScanLocator
from lakebed.parts.part_filter import parts_that_may_overlap
from lakebed.parts.write import write_parts
from lakebed.storage.engine import connect
from lakebed.storage.open import open_part_storage

SHAPE = WriteSpec(schema=pa.schema([("id", pa.int64())]), keys=("id",))


def part_of(ids: range, folder: Path) -> Part:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    [written] = write_parts(rows, SHAPE, open_part_storage(folder))
    return written.base_part(has_op_column=False)


class SlowIndex(KeyIndex):
    """Lets others in just before it looks keys up."""

    others = threading.Event()
    reached = threading.Event()

    def lookup(self, keys: pa.Table) -> pa.Table:
        self.reached.set()
        self.others.wait(0.5)
        return super().lookup(keys)


def test_a_view_of_an_older_version_does_not_hide_parts_from_a_look_up_under_way(tmp_path: Path) -> None:
    old, new = part_of(range(10), tmp_path), part_of(range(10, 20), tmp_path)
    index = SlowIndex(tmp_path / "index", {"id": pa.int64()})
    locator = IndexLocator(index, SHAPE, open_part_storage(tmp_path))
    keys = pa.table({"id": pa.array([3, 13], pa.int64())})
    found: dict[str, list[str]] = {}

    def look_up(name: str, *parts: Part) -> None:
        found[name] = locator.lookup({part.path: part for part in parts}, keys)["part"].to_pylist()

    settle = threading.Thread(target=look_up, args=("settle", old, new))
    settle.start()
    assert index.reached.wait(10)
    view = threading.Thread(target=look_up, args=("view", old))
    view.start()
    time.sleep(0.2)
    index.others.set()
    settle.join()
    view.join()
    assert found == {"settle": [old.path, new.path], "view": [old.path]}


def test_parts_that_can_not_hold_a_key_are_not_opened(tmp_path: Path) -> None:
    stats = '{"numRecords":1,"minValues":{"id":%d},"maxValues":{"id":%d}}'
    base = {f"p{n}": Part(path=f"p{n}", rows=1, bytes=1, stats=stats % (n, n)) for n in range(10_000)}
    near = part_of(range(20_000, 20_010), tmp_path)
    found = ScanLocator(SHAPE, open_part_storage(tmp_path)).lookup(
        base | {near.path: near}, pa.table({"id": pa.array([20_003], pa.int64())})
    )
    assert found["row"].to_pylist() == [3]


@pytest.mark.parametrize(("micros", "may"), [(123_000, True), (123_999, True), (124_001, False), (122_999, False)])
def test_a_maximum_that_spark_cut_to_its_millisecond_still_holds(micros: int, may: bool) -> None:
    bound = '"at":"2026-01-01T00:00:00.123Z"'
    part = Part(path="p", rows=1, bytes=1, stats=f'{{"numRecords":1,"minValues":{{{bound}}},"maxValues":{{{bound}}}}}')
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    moment = pa.table({"at": pa.array([1_767_225_600_000_000 + micros], pa.timestamp("us", "UTC"))})
    assert (
        part in parts_that_may_overlap(connect(), [part, Part(path="other", rows=1, bytes=1)], schema, moment)
    ) is may
