"""A key that is widened: its index stays where it can, else it is built in the background while look-ups read the parts."""

from __future__ import annotations

import datetime
import decimal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.events import KeyIndexRebuilt
from lakebed.keyindex.key_index import KeyIndex
from lakebed.log.actions import Part
from lakebed.parts.changes import WriteSpec
from lakebed.parts.write import write_parts
from lakebed.resolve import locate
from lakebed.resolve.locate import IndexLocator, IndexRebuild, read_keys
from lakebed.resolve.locators import Locators
from lakebed.storage.data_files import open_part_storage
from tests.heard import SECONDS_MAX


def shape(kind: pa.DataType) -> WriteSpec:
    return WriteSpec(schema=pa.schema([("id", kind)]), keys=("id",))


def part_of(values: list[Any], kind: pa.DataType, folder: Path) -> Part:
    rows = pa.table({"id": pa.array(values, kind)})
    [written] = write_parts(rows, shape(kind), open_part_storage(folder))
    return written.base_part(has_op_column=False)


def found(locators: Locators, kind: pa.DataType, value: Any, *parts: Part) -> list[tuple[str, int]]:
    base = {part.path: part for part in parts}
    hits = locators.for_settling(shape(kind)).lookup(base, pa.table({"id": pa.array([value], kind)}))
    return sorted(zip(hits["part"].to_pylist(), hits["row"].to_pylist(), strict=True))


def until_built() -> None:
    """Waits for the thread that builds an index, if one runs."""
    for thread in threading.enumerate():
        if thread.name == "lakebed-key-index":
            thread.join(SECONDS_MAX)


@pytest.fixture
def heard() -> Iterator[list[KeyIndexRebuilt]]:
    said: list[KeyIndexRebuilt] = []
    end = events.listen(lambda event: said.append(event) if isinstance(event, KeyIndexRebuilt) else None)
    yield said
    end()


Case: TypeAlias = tuple[pa.DataType, pa.DataType, Any, Any]
"""A type, a wider one, a key of the first and one of the second."""
D = decimal.Decimal
STAY: list[Case] = [
    (pa.int8(), pa.int64(), 5, 2**40),
    (pa.int16(), pa.int32(), 5, 2**20),
    (pa.int32(), pa.int64(), 5, 2**40),
    (pa.float32(), pa.float64(), 0.5, 0.1),
    (pa.decimal128(5, 2), pa.decimal128(12, 2), D("1.25"), D("123456.75")),
]
REBUILT: list[Case] = [
    (pa.int32(), pa.float64(), 5, 2**40 + 0.5),
    (pa.int32(), pa.decimal128(12, 2), D(5), D("7.25")),
    (pa.decimal128(5, 2), pa.decimal128(12, 4), D("1.2500"), D("7.1234")),
    (pa.date32(), pa.timestamp("us"), datetime.date(2026, 1, 1), datetime.datetime(2026, 1, 2, 5)),
]


@pytest.mark.parametrize("case", STAY)
def test_an_index_of_whole_numbers_and_digits_stays(
    case: Case, tmp_path: Path, heard: list[KeyIndexRebuilt], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, wide, old, new = case
    monkeypatch.setattr(locate, "AT_ONCE_ROWS", 0)
    locators = Locators(open_part_storage(tmp_path), tmp_path / "index")
    first = part_of([old], narrow, tmp_path)
    assert found(locators, narrow, old, first) == [(first.path, 0)]
    second = part_of([new], wide, tmp_path)
    assert found(locators, wide, old, first, second) == [(first.path, 0)]
    assert found(locators, wide, new, first, second) == [(second.path, 0)]
    assert heard == []


@pytest.mark.parametrize("case", REBUILT)
def test_an_index_that_can_not_stay_is_built_anew(
    case: Case, tmp_path: Path, heard: list[KeyIndexRebuilt], monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow, wide, old, new = case
    monkeypatch.setattr(locate, "AT_ONCE_ROWS", 0)
    locators = Locators(open_part_storage(tmp_path), tmp_path / "index")
    first = part_of([old], narrow, tmp_path)
    assert found(locators, narrow, old, first) == [(first.path, 0)]
    second = part_of([new], wide, tmp_path)
    as_wide = pa.scalar(old, narrow).cast(wide).as_py()
    for _ in range(2):
        assert found(locators, wide, as_wide, first, second) == [(first.path, 0)], "right from the first moment"
        assert found(locators, wide, new, first, second) == [(second.path, 0)]
        until_built()
    assert [event.parts_left for event in heard] == [2, 0]


def test_look_ups_do_not_wait_for_an_index_that_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locate, "AT_ONCE_ROWS", 0)
    monkeypatch.setattr(locate, "PIECE_ROWS", 1)
    storage, spec = open_part_storage(tmp_path), shape(pa.int64())
    parts = [part_of([number], pa.int64(), tmp_path) for number in range(3)]
    base = {part.path: part for part in parts}
    index = KeyIndex(tmp_path / "index", {"id": pa.int64()})
    reached, may_go_on = threading.Event(), threading.Event()

    def held(part: Part) -> Iterator[pa.RecordBatch]:
        reached.set()
        assert may_go_on.wait(60)
        return read_keys(part, spec, storage)

    rebuild = IndexRebuild(index, "t")
    assert not rebuild.covers(base, held)
    assert reached.wait(60)
    locator = IndexLocator(index, spec, storage, rebuild)
    assert locator.lookup(base, pa.table({"id": [2]}))["part"].to_pylist() == [parts[2].path]
    locator.learn(parts[2].path, pa.table({"id": [2]}))  # as a settle does; the thread has the index
    may_go_on.set()
    until_built()
    assert index.parts == base.keys() and not rebuild.is_running
    assert locator.lookup(base, pa.table({"id": [1]}))["part"].to_pylist() == [parts[1].path]


def test_a_part_that_is_gone_ends_the_thread_and_the_next_look_up_begins_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locate, "AT_ONCE_ROWS", 0)
    storage, spec = open_part_storage(tmp_path), shape(pa.int64())
    stays, goes, comes = (part_of([number], pa.int64(), tmp_path) for number in range(3))
    storage.delete(goes.path)
    index = KeyIndex(tmp_path / "index", {"id": pa.int64()})
    rebuild = IndexRebuild(index, "t")

    def keys_of(part: Part) -> Iterator[pa.RecordBatch]:
        return read_keys(part, spec, storage)

    assert not rebuild.covers({goes.path: goes, stays.path: stays}, keys_of)
    until_built()
    base = {stays.path: stays, comes.path: comes}
    assert not rebuild.covers(base, keys_of), "it is built again"
    until_built()
    assert rebuild.covers(base, keys_of) and index.parts == base.keys()


def test_a_table_whose_key_is_widened_finds_its_rows_also_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[KeyIndexRebuilt]
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(locate, "AT_ONCE_ROWS", 0)
    schema = pa.schema([pa.field("day", pa.date32(), nullable=False), pa.field("v", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["day"])
    days = [datetime.date(2026, 1, 1) + datetime.timedelta(days=number) for number in range(4)]
    for value, day in enumerate(days):
        table.apply([{"day": day, "v": value}])
        table.settle()
    table.alter(widen={"day": "timestamp_ntz"})
    moments = [datetime.datetime(day.year, day.month, day.day) for day in days]
    for reopened in (False, True):
        table = lakebed.open(tmp_path / "t") if reopened else table
        table.apply([{"day": moments[1], "v": 10}, {"day": moments[1].replace(hour=5), "v": 11}])
        table.settle()
        assert table.to_arrow(where="v >= 10")["v"].to_pylist() == [10, 11]
        assert table.to_arrow().num_rows == 5
    until_built()
    assert heard[-1].parts_left == 0
