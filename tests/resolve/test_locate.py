"""Looking keys up: what shares an index sees it at its own base, and parts are left out only where no key can be."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed.keyindex.key_index import IndexState, KeyIndex
from lakebed.log.actions import Part
from lakebed.parts.changes import WriteSpec
from lakebed.parts.part_filter import parts_that_may_overlap
from lakebed.parts.write import write_parts
from lakebed.resolve import locate
from lakebed.resolve.locate import IndexLocator, ScanLocator, read_keys
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect

SHAPE = WriteSpec(schema=pa.schema([("id", pa.int64())]), keys=("id",))


def part_of(ids: range, folder: Path) -> Part:
    rows = pa.table({"id": pa.array(ids, pa.int64())})
    [written] = write_parts(rows, SHAPE, open_part_storage(folder))
    return written.base_part(has_op_column=False)


class HeldIndex(KeyIndex):
    """Look-ups of the first thread that comes wait until they may go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {"id": pa.int64()})
        self.reached, self.may_go_on = threading.Event(), threading.Event()

    def lookup(self, keys: pa.Table, state: IndexState | None = None) -> pa.Table:
        if not self.reached.is_set():
            self.reached.set()
            assert self.may_go_on.wait(60)
        return super().lookup(keys, state)


def test_a_view_of_an_older_version_and_a_look_up_under_way_neither_disturb_nor_await_each_other(
    tmp_path: Path,
) -> None:
    old, new = part_of(range(10), tmp_path), part_of(range(10, 20), tmp_path)
    index = HeldIndex(tmp_path / "index")
    locator = IndexLocator(index, SHAPE, open_part_storage(tmp_path))

    def paths_found(*parts: Part) -> list[str]:
        keys = pa.table({"id": pa.array([3, 13], pa.int64())})
        return list(locator.lookup({part.path: part for part in parts}, keys)["part"].to_pylist())

    with ThreadPoolExecutor(2) as pool:
        settle = pool.submit(paths_found, old, new)
        assert index.reached.wait(60)
        assert pool.submit(paths_found, old).result(60) == [old.path], "while the other is at work still"
        assert index.parts == {old.path}
        index.may_go_on.set()
        assert settle.result(60) == [old.path, new.path]


def test_a_look_up_at_the_parts_of_the_index_does_not_wait_for_parts_that_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = part_of(range(10), tmp_path), part_of(range(10, 20), tmp_path)
    index = KeyIndex(tmp_path / "index", {"id": pa.int64()})
    locator = IndexLocator(index, SHAPE, open_part_storage(tmp_path))
    keys = pa.table({"id": pa.array([3], pa.int64())})
    locator.lookup({old.path: old}, keys)
    reached, may_go_on = threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        reached.set()
        assert may_go_on.wait(60)
        return read_keys(*arguments)

    monkeypatch.setattr(locate, "read_keys", held)
    with ThreadPoolExecutor(2) as pool:
        reads = pool.submit(locator.lookup, {old.path: old, new.path: new}, keys)
        assert reached.wait(60)
        assert len(pool.submit(locator.lookup, {old.path: old}, keys).result(60)) == 1
        assert not reads.done()
        may_go_on.set()
        assert len(reads.result(60)) == 1


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
