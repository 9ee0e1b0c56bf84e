"""The key index finds every row of a key, trusts nothing on disk, and never stands in the way."""

from __future__ import annotations

import datetime as dt
import logging
import multiprocessing
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidInput, InvalidSchema, MissingPrerequisite
from lakebed.keyindex import key_index, key_runs
from lakebed.keyindex.key_index import KeyIndex
from lakebed.keyindex.key_words import KeyEncoding
from tests.waiting import wait_until
from tests.worlds import examples

LONG = {"k": pa.int64()}

Found = list[tuple[Any, ...]]


@pytest.fixture(autouse=True)
def small_runs_are_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is a file, but in tests that say otherwise."""
    monkeypatch.setattr(key_index, "HELD_BYTES_MAX", -1)


def rows(*keys: Any, type_: pa.DataType = LONG["k"], **payload: list[Any]) -> pa.Table:
    return pa.table({"k": pa.array(keys, type_), **payload})


def found(index: KeyIndex, *keys: Any, type_: pa.DataType = LONG["k"]) -> Found:
    table = index.lookup(rows(*keys, type_=type_))
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_a_key_is_found_in_every_part_that_holds_it(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows(10, 20, 30))
        index.add("b", rows(30, 10))
        assert index.parts == {"a", "b"}
        assert found(index, 30, 99, 10) == [(0, "a", 2), (0, "b", 0), (2, "a", 0), (2, "b", 1)]


def test_a_key_asked_for_twice_is_answered_twice(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows(7))
        assert found(index, 7, 7) == [(0, "a", 0), (1, "a", 0)]


def test_a_lookup_returns_typed_columns_in_the_order_of_the_keys_also_when_nothing_is_found(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG, {"seq": pa.timestamp("us", "UTC")}) as index:
        nothing = index.lookup(rows(1))
        moments = [dt.datetime(2024, 5, day, tzinfo=dt.UTC) for day in (1, 2)]
        index.add("a", rows(1, 2, seq=pa.array(moments, pa.timestamp("us", "UTC"))))
        something = index.lookup(rows(2, 1))
    assert nothing.schema == something.schema
    assert something.schema.types[:2] == [pa.int64(), pa.dictionary(pa.int32(), pa.string())]
    assert something.column("probe").to_pylist() == [0, 1]
    assert something.column("seq").to_pylist() == moments[::-1]


def test_payload_columns_may_hold_nulls_and_strings(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG, {"op": pa.string(), "seq": pa.int64()}) as index:
        index.add("a", rows(1, 2, op=["u", None], seq=[None, 5]))
        assert index.lookup(rows(2, 1)).select(["op", "seq"]).to_pylist() == [
            {"op": None, "seq": 5},
            {"op": "u", "seq": None},
        ]


def test_removed_parts_are_not_found_and_may_come_back(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.sync(["a", "b"], {"a": rows(1, 2), "b": rows(2, 3)}.__getitem__)
        index.remove(["a", "unknown"])
        assert index.parts == {"b"}
        assert found(index, 1, 2) == [(1, "b", 0)]
        index.add("a", rows(1, 2))
        assert found(index, 2) == [(0, "a", 1), (0, "b", 0)]


def test_adding_a_part_again_changes_nothing(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows(1))
        index.add("a", rows(1))
        assert found(index, 1) == [(0, "a", 0)]


def test_an_empty_part_is_still_present_when_the_index_is_opened_once_more(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows())
    for _ in range(2):
        with KeyIndex(tmp_path, LONG) as index:
            assert index.parts == {"a"}


def test_sync_reads_only_what_is_missing_and_forgets_what_left(tmp_path: Path) -> None:
    contents = {"a": rows(1), "b": rows(2), "c": rows(3)}
    read: list[str] = []

    def read_keys(part: str) -> Iterator[pa.RecordBatch]:
        read.append(part)
        yield from contents[part].to_batches()

    with KeyIndex(tmp_path, LONG) as index:
        index.sync(["a", "b"], read_keys)
        index.sync(["b", "c"], read_keys)
        assert read == ["a", "b", "c"]
        assert index.parts == {"b", "c"}
        assert found(index, 1, 2, 3) == [(1, "b", 0), (2, "c", 0)]


def test_a_part_read_in_batches_keeps_its_positions_over_several_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_runs, "ROWS_MAX", 100)
    monkeypatch.setattr(key_index, "ROWS_MAX", 100)
    keys = np.random.default_rng(1).permutation(1000)
    table = pa.table({"k": keys})
    with KeyIndex(tmp_path, LONG) as index:
        index.sync(["small", "big"], lambda part: rows(-1) if part == "small" else table.to_batches(max_chunksize=70))
        assert index.runs >= 10
        assert found(index, -1, int(keys[0]), int(keys[999])) == [(0, "small", 0), (1, "big", 0), (2, "big", 999)]


def test_when_reading_a_part_fails_the_parts_before_it_stay_and_nothing_of_it_does(tmp_path: Path) -> None:
    def read_keys(part: str) -> Iterator[pa.RecordBatch]:
        yield from rows(1, 2).to_batches()
        if part == "b":
            raise ConnectionError("the store went away")

    with KeyIndex(tmp_path, LONG) as index:
        with pytest.raises(ConnectionError):
            index.sync(["a", "b", "c"], read_keys)
        assert index.parts == {"a"}
        assert not index.abandoned
        assert found(index, 1) == [(0, "a", 0)]
        index.add("b", rows(2, 1))
        assert found(index, 1) == [(0, "a", 0), (0, "b", 1)]


# -- keys of all types -------------------------------------------------------------------------------------------------

UTC = dt.UTC
BEFORE_1970 = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC)
TYPED = [
    (pa.int8(), [-128, 0, 127]),
    (pa.int16(), [-(2**15), 5]),
    (pa.int32(), [-(2**31), 2**31 - 1]),
    (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
    (pa.bool_(), [False, True]),
    (pa.date32(), [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]),
    (pa.timestamp("us"), [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4)]),
    (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), dt.datetime(2024, 1, 1, tzinfo=UTC)],
    ),
    (pa.float64(), [0.0, 0.1, -1e308, float("inf"), -float("inf"), float("nan")]),
    (pa.float32(), [0.5, float("nan")]),
    (pa.decimal128(38, 10), [Decimal("-9" * 1 + "9" * 27 + ".0000000001"), Decimal("0"), Decimal("1.5")]),
    (pa.decimal128(9, 2), [Decimal("12.34"), Decimal("-12.34")]),
    (pa.string(), ["", "a", "a\0", "ä", "a\u0308", "漢字", "🙂", "x" * 100_000]),
    (pa.large_string(), ["b", "c"]),
    (pa.binary(), [b"", b"\0", b"\0\0", bytes(range(256))]),
]


@pytest.mark.parametrize(("type_", "values"), TYPED, ids=[str(type_) for type_, _ in TYPED])
def test_keys_of_every_type_are_distinguished(tmp_path: Path, type_: pa.DataType, values: list[Any]) -> None:
    with KeyIndex(tmp_path, {"k": type_}) as index:
        index.add("p", rows(*values, type_=type_))
        assert found(index, *values[::-1], type_=type_) == [(i, "p", len(values) - 1 - i) for i in range(len(values))]


def test_floats_are_equal_as_in_sql(tmp_path: Path) -> None:
    other_nan = np.array([0x7FF8000000000001], np.int64).view(np.float64)[0]
    with KeyIndex(tmp_path, {"k": pa.float64()}) as index:
        index.add("p", rows(-0.0, other_nan, type_=pa.float64()))
        assert found(index, 0.0, float("nan"), type_=pa.float64()) == [(0, "p", 0), (1, "p", 1)]


def test_keys_of_several_columns_match_only_as_a_whole(tmp_path: Path) -> None:
    types = {"tenant": pa.string(), "id": pa.int64()}
    with KeyIndex(tmp_path, types) as index:
        index.add("p", pa.table({"id": [1, 2, 1], "other": [0, 0, 0], "tenant": ["a", "a", "b"]}))
        keys = pa.table({"tenant": ["b", "b", "a"], "id": [1, 2, 2]})
        assert index.lookup(keys).select(["probe", "row"]).to_pylist() == [
            {"probe": 0, "row": 2},
            {"probe": 2, "row": 1},
        ]


def test_keys_with_one_hash_are_still_distinguished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyEncoding, "words", lambda _, encoded: np.full(encoded.num_rows, 42, np.int64))
    with KeyIndex(tmp_path, {"k": pa.string()}) as index:
        index.add("p", rows("a", "b", "c", type_=pa.string()))
        assert found(index, "c", "x", "a", type_=pa.string()) == [(0, "p", 2), (2, "p", 0)]


def test_slices_and_chunks_and_other_widths_of_a_type_are_understood(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("p", pa.concat_tables([rows(0, 1, 2).slice(1), rows(3, 4).slice(1)]))
        narrow = pa.table({"k": pa.array([9, 4, 1], pa.int16()).slice(1)})
        assert index.lookup(narrow).column("row").to_pylist() == [2, 0]


def test_wrong_input_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidSchema, match="'k' of type list"):
        KeyIndex(tmp_path, {"k": pa.list_(pa.int64())})
    with pytest.raises(InvalidSchema, match="'row'"):
        KeyIndex(tmp_path, LONG, {"row": pa.int64()})
    with KeyIndex(tmp_path, LONG) as index:
        with pytest.raises(InvalidInput, match="'k' holds 1 nulls"):
            index.add("p", rows(1, None))
        with pytest.raises(InvalidInput, match="'k' is missing"):
            index.lookup(pa.table({"x": [1]}))
        with pytest.raises(InvalidInput, match="does not fit int64"):
            index.lookup(rows("no number", type_=pa.string()))
        assert index.parts == frozenset()


# -- runs --------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_thousands_of_parts_make_few_runs(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        for part in range(400):
            index.add(str(part), rows(part, 1000 + part))
        assert index.runs <= 4
        assert found(index, 17, 1399) == [(0, "17", 0), (1, "399", 1)]


def test_merging_drops_the_rows_of_removed_parts(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.sync(["a", "b", "c"], lambda part: pa.table({"k": np.arange(10_000)}))
        before = index.bytes
        index.remove(["a", "b"])
        assert index.bytes < before / 2
        assert found(index, 9_999) == [(0, "c", 9_999)]
        assert sum(path.stat().st_size for path in tmp_path.glob("*.run")) == index.bytes


def test_a_lookup_goes_on_while_runs_are_merged_and_parts_removed(tmp_path: Path) -> None:
    stop = threading.Event()
    wrong: list[list[int]] = []
    with KeyIndex(tmp_path, LONG) as index:
        index.add("stays", pa.table({"k": np.arange(1000)}))

        def look() -> None:
            while not stop.is_set():
                hits = [row for _, part, row in found(index, 5) if part == "stays"]
                if hits != [5]:
                    wrong.append(hits)

        thread = threading.Thread(target=look)
        thread.start()
        for part in range(100):
            index.add(str(part), pa.table({"k": np.arange(part, 1000)}))
            index.remove([str(part - 2)])
        index.merge_runs()
        stop.set()
        thread.join()
    assert wrong == []


@examples(25)
@given(data=st.data())
def test_any_sequence_of_changes_finds_what_a_dictionary_finds(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    type_ = data.draw(st.sampled_from([pa.int64(), pa.string()]))
    with patch.object(key_index, "HELD_BYTES_MAX", data.draw(st.sampled_from([-1, 700, 128 << 10]))):
        change_at_random(data, type_, tmp_path_factory.mktemp("index"))


def change_at_random(data: st.DataObject, type_: pa.DataType, folder: Path) -> None:
    oracle: dict[str, list[int]] = {}
    key = st.integers(0, 30)
    index = KeyIndex(folder, {"k": type_})
    try:
        for step in range(data.draw(st.integers(1, 15))):
            match data.draw(st.sampled_from(["add", "add", "add", "remove", "sync", "merge", "reopen", "kill"])):
                case "add":
                    oracle[f"p{step}"] = data.draw(st.lists(key, max_size=40))
                    index.add(f"p{step}", as_keys(oracle[f"p{step}"], type_))
                case "remove":
                    for part in data.draw(st.lists(st.sampled_from(sorted(oracle) or ["none"]), max_size=3)):
                        oracle.pop(part, None)
                        index.remove([part])
                case "sync":
                    oracle = {p: keys for p, keys in oracle.items() if data.draw(st.booleans())}
                    oracle[f"s{step}"] = data.draw(st.lists(key, max_size=40))
                    tables = {part: as_keys(keys, type_).to_batches(max_chunksize=7) for part, keys in oracle.items()}
                    index.sync(oracle, tables.__getitem__)
                case "merge":
                    index.merge_runs()
                case "reopen":
                    index.close()
                    index = KeyIndex(folder, {"k": type_})
                case "kill":
                    folder = as_if_killed(index, folder, step)
                    index.close()
                    index = KeyIndex(folder, {"k": type_})
                    index.sync(oracle, {part: as_keys(keys, type_) for part, keys in oracle.items()}.__getitem__)
            probes = data.draw(st.lists(key, max_size=20))
            table = index.lookup(as_keys(probes, type_))
            assert sorted(zip(*(column.to_pylist() for column in table.columns), strict=True)) == sorted(
                (probe, part, row)
                for probe, wanted in enumerate(probes)
                for part, keys in oracle.items()
                for row, key_ in enumerate(keys)
                if key_ == wanted
            )
            assert index.parts == oracle.keys()
    finally:
        index.close()


def as_if_killed(index: KeyIndex, folder: Path, number: int) -> Path:
    """A folder as the end of its process would leave that of an index that is not closed."""
    left = folder.with_name(f"{folder.name}-{number}")
    shutil.copytree(folder, left)
    return left


def as_keys(numbers: list[int], type_: pa.DataType) -> pa.Table:
    return pa.table({"k": pa.array(numbers, pa.int64()).cast(type_)})


# -- small parts are held in memory --------------------------------------------------------------------------------------


def held_index(folder: Path, held_bytes_max: int, monkeypatch: pytest.MonkeyPatch) -> KeyIndex:
    monkeypatch.setattr(key_index, "HELD_BYTES_MAX", held_bytes_max)
    return KeyIndex(folder, LONG)


def files(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir() if path.name != "lock")


def test_small_parts_make_one_run_and_no_file_until_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_index(tmp_path, 14 * 100, monkeypatch) as index:
        for part in range(50):
            index.add(str(part), rows(part, -part))
        assert (files(tmp_path), index.runs, index.bytes) == ([], 1, 0)
        index.add("one more", rows(7))
        assert (files(tmp_path), index.runs) == ([".json", ".run"], 1)
        assert found(index, 7, -49) == [(0, "7", 0), (0, "one more", 0), (1, "49", 1)]


def test_a_part_that_leaves_makes_room_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_index(tmp_path, 14 * 100, monkeypatch) as index:
        for part in range(100):
            index.add(str(part), rows(*range(20)))
            index.remove([str(part - 2)])
        assert (files(tmp_path), index.runs) == ([], 1)
        assert found(index, 19) == [(0, "98", 19), (0, "99", 19)]


def test_a_large_part_is_a_file_beside_what_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with held_index(tmp_path, 14 * 100, monkeypatch) as index:
        index.add("small", rows(1))
        index.add("large", rows(*range(200)))
        assert (files(tmp_path), index.runs) == ([".json", ".run"], 2)
        with KeyIndex(as_if_killed(index, tmp_path, 1), LONG) as again:
            assert again.parts == {"large"}
            read: list[str] = []
            again.sync(["small", "large"], lambda part: read.append(part) or rows(1))
            assert (read, found(again, 1)) == (["small"], [(0, "large", 1), (0, "small", 0)])


def test_what_is_held_is_there_again_after_the_index_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held_index(tmp_path, 1 << 20, monkeypatch) as index:
        index.add("a", rows(1, 2))
        index.add("b", rows(2))
        index.remove(["a"])
    with KeyIndex(tmp_path, LONG) as index:
        assert (index.parts, found(index, 1, 2)) == ({"b"}, [(1, "b", 0)])


def test_what_is_held_does_not_keep_the_table_that_it_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_index, "HELD_BYTES_MAX", 1 << 20)
    with KeyIndex(tmp_path, {"k": pa.string()}) as index:
        before = pa.total_allocated_bytes()
        index.add("a", pa.table({"k": [f"key {number:020}" for number in range(100_000)]}).slice(50_000, 10))
        assert pa.total_allocated_bytes() - before < 100_000
        assert found(index, f"key {50_001:020}", type_=pa.string()) == [(0, "a", 1)]


# -- what is on disk is not trusted -----------------------------------------------------------------------------------


def test_an_index_is_there_again_after_it_was_closed(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows(1, 2))
        index.add("b", rows(2))
        index.remove(["a"])
    with KeyIndex(tmp_path, LONG) as index:
        assert index.parts == {"b"}
        assert found(index, 1, 2) == [(1, "b", 0)]


def damage_by_cutting(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_by_flipping_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def damage_by_losing_the_content(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize(
    "damage", [damage_by_cutting, damage_by_flipping_a_byte, damage_by_losing_the_content, Path.unlink]
)
def test_a_damaged_run_costs_the_parts_in_it_and_no_others(
    tmp_path: Path, damage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows(1))
        before = set(tmp_path.glob("*.run"))
        index.add("b", rows(2))
    (second,) = set(tmp_path.glob("*.run")) - before
    damage(second)
    with caplog.at_level(logging.WARNING), KeyIndex(tmp_path, LONG) as index:
        assert index.parts == {"a"}
        assert found(index, 1, 2) == [(0, "a", 0)]
        index.sync(["a", "b"], lambda part: rows(2))
        assert found(index, 1, 2) == [(0, "a", 0), (1, "b", 0)]
    assert "damaged" in caplog.text
    assert len(list(tmp_path.glob("*.run"))) == 2


def test_a_part_that_lost_one_of_its_runs_is_gone_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_runs, "ROWS_MAX", 10)
    monkeypatch.setattr(key_index, "ROWS_MAX", 10)
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", pa.table({"k": np.arange(30)}))
        assert index.runs == 3
    next(tmp_path.glob("*.run")).unlink()
    with KeyIndex(tmp_path, LONG) as index:
        assert index.parts == frozenset()
    assert list(tmp_path.glob("*.run")) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"format":1}'])
def test_a_catalog_that_can_not_be_read_means_an_empty_index(tmp_path: Path, content: bytes) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows(1))
    (tmp_path / "catalog.json").write_bytes(content)
    with KeyIndex(tmp_path, LONG) as index:
        assert index.parts == frozenset()
        assert list(tmp_path.glob("*.run")) == []


def test_an_index_of_other_columns_is_not_used(tmp_path: Path) -> None:
    with KeyIndex(tmp_path, LONG) as index:
        index.add("a", rows(1))
    with KeyIndex(tmp_path, LONG, {"seq": pa.int64()}) as index:
        assert index.parts == frozenset()


def test_files_of_a_process_that_died_while_adding_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "left-over.run").write_bytes(b"x")
    (tmp_path / "left-over.run.tmp").write_bytes(b"x")
    (tmp_path / "somebody-elses.txt").write_bytes(b"x")
    with KeyIndex(tmp_path, LONG):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["lock", "somebody-elses.txt"]


@pytest.mark.slow
def test_a_process_killed_at_any_moment_leaves_an_index_that_is_right(tmp_path: Path) -> None:
    program = """
        import sys, numpy as np, pyarrow as pa
        from pathlib import Path
        from lakebed.keyindex.key_index import KeyIndex
        index = KeyIndex(Path(sys.argv[1]), {"k": pa.int64()})
        print("ready", flush=True)
        for part in range(100000):
            index.add(f"{part}", pa.table({"k": np.arange(part, part + 2000)}))
            if part % 3 == 0:
                index.remove([f"{part - 30}"])
    """
    for seconds in (0.05, 0.2, 0.4):
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(seconds)
        process.kill()
        process.wait()
        process.stdout.close()
        with KeyIndex(tmp_path, LONG) as index:
            assert index.folder == tmp_path
            for part in index.parts:
                first = int(part)
                assert {(row, first + row) for _, name, row in found(index, first, first + 1999) if name == part} == {
                    (0, first),
                    (1999, first + 1999),
                }
            named = {placed.run.file.name for placed in index._state.placed}
            assert {path.name for path in tmp_path.glob("*.run*")} == named


# -- one process, one folder; a full disk -----------------------------------------------------------------------------


def _hold(folder: Path, ready: Any, done: Any) -> None:
    with KeyIndex(folder, LONG) as index:
        index.add("a", rows(1))
        ready.set()
        done.wait()


@pytest.mark.slow
def test_a_second_process_builds_its_own_index_elsewhere(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path, ready, done), daemon=True)
    process.start()
    try:
        wait_until(ready.is_set)
        with KeyIndex(tmp_path, LONG) as index:
            own = index.folder
            assert (own != tmp_path, index.parts) == (True, frozenset())
            index.add("b", rows(2))
            assert found(index, 2) == [(0, "b", 0)]
        assert not own.exists()
    finally:
        done.set()
        process.join()
    with KeyIndex(tmp_path, LONG) as index:
        assert index.folder == tmp_path
        assert index.parts == {"a"}


def test_a_disk_that_refuses_a_write_ends_the_index_with_a_warning_and_nothing_else(tmp_path: Path) -> None:
    program = """
        import logging, resource, signal, sys, numpy as np, pyarrow as pa
        from pathlib import Path
        from lakebed.errors import MissingPrerequisite
        from lakebed.keyindex.key_index import KeyIndex
        logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
        index = KeyIndex(Path(sys.argv[1]), {"k": pa.int64()})
        index.add("a", pa.table({"k": [1]}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
        index.add("b", pa.table({"k": np.arange(100_000)}))
        assert index.abandoned and index.parts == frozenset()
        index.add("c", pa.table({"k": [1]}))
        index.remove(["a"])
        index.merge_runs()
        assert index.parts == frozenset()
        try:
            index.lookup(pa.table({"k": [1]}))
        except MissingPrerequisite as error:
            print("refused:", error)
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    warning, refused = result.stdout.splitlines()
    assert "is given up" in warning
    assert "look the keys up in the parts" in refused
    assert [path.name for path in tmp_path.iterdir()] == ["lock"]


def test_a_folder_that_can_not_be_made_means_no_index(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    index = KeyIndex(tmp_path / "file", LONG)
    assert index.abandoned
    with pytest.raises(MissingPrerequisite):
        index.lookup(rows(1))
