"""Reading key columns finds the same rows as the key index and as a nested loop; the engine is one a process."""

from __future__ import annotations

import datetime as dt
import math
import sys
import textwrap
import threading
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidInput
from lakebed.keyindex.key_index import KeyIndex
from lakebed.resolve.locate import find_positions
from lakebed.storage.engine import connect
from tests.waiting import ran
from tests.worlds import examples


def write(path: Path, row_group_rows: int = 1000, **columns: Any) -> str:
    pq.write_table(pa.table(columns), path, row_group_size=row_group_rows)
    return str(path)


def as_rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


def test_positions_are_those_of_the_rows_in_each_file(tmp_path: Path) -> None:
    first = write(tmp_path / "a.parquet", k=[10, 20, 30])
    second = write(tmp_path / "b.parquet", k=[30, 10])
    found = find_positions(connect(), [first, second], pa.table({"k": [30, 99, 10]}), ["k"])
    assert found.schema.types == [pa.int64(), pa.dictionary(pa.int32(), pa.string()), pa.int64()]
    assert as_rows(found) == [(0, first, 2), (0, second, 0), (2, first, 0), (2, second, 1)]


def test_positions_count_over_row_groups_that_are_not_read(tmp_path: Path) -> None:
    url = write(tmp_path / "a.parquet", row_group_rows=2048, k=np.arange(100_000))
    assert as_rows(find_positions(connect(), [url], pa.table({"k": [99_999, 50_000]}), ["k"])) == [
        (0, url, 99_999),
        (1, url, 50_000),
    ]


def test_payload_columns_come_along_and_are_null_in_files_that_lack_them(tmp_path: Path) -> None:
    old = write(tmp_path / "old.parquet", k=[1], other=["x"])
    new = write(tmp_path / "new.parquet", seq=[7], k=[1])
    payload = {"s": ("seq", pa.int64()), "n": ("in_no_file", pa.int64())}
    found = find_positions(connect(), [old, new], pa.table({"k": [1]}), ["k"], payload)
    assert sorted(found.select(["file", "s", "n"]).to_pylist(), key=lambda row: str(row["file"])) == [
        {"file": new, "s": 7, "n": None},
        {"file": old, "s": None, "n": None},
    ]


def test_nothing_to_look_for_or_in_is_an_empty_answer(tmp_path: Path) -> None:
    url = write(tmp_path / "a.parquet", k=[1])
    nowhere = find_positions(connect(), [], pa.table({"k": [1]}), ["k"], {"seq": ("s", pa.int64())})
    nothing = find_positions(
        connect(), [url], pa.table({"k": pa.array([], pa.int64())}), ["k"], {"seq": ("s", pa.int64())}
    )
    assert nowhere.column_names == nothing.column_names == ["probe", "file", "row", "seq"]
    assert nowhere.num_rows == nothing.num_rows == 0


NAMES = ["a[1].parquet", "b*.parquet", "c?.parquet", "p=1%20x.parquet", "it's.parquet", "ä 🙂.parquet"]


@pytest.mark.parametrize("name", NAMES)
def test_a_path_is_taken_as_it_is(tmp_path: Path, name: str) -> None:
    write(tmp_path / "bystander.parquet", k=[1])
    url = write(tmp_path / name, k=[1])
    assert as_rows(find_positions(connect(), [url], pa.table({"k": [1]}), ["k"])) == [(0, url, 0)]


def test_a_folder_named_like_a_partition_does_not_replace_the_column_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "k=2").mkdir()
    url = write(tmp_path / "k=2" / "a.parquet", k=[1])
    assert as_rows(find_positions(connect(), [url], pa.table({"k": [1, 2]}), ["k"])) == [(0, url, 0)]


def test_key_columns_may_have_any_name(tmp_path: Path) -> None:
    names = [
        'say "k"',
        "filename",
        "probe",
        "file_index",
        "FILE_ROW_NUMBER",
        "file",
        "row",
        "c0",
        "c9",
        "rowid",
        "s",
        "p",
    ]
    columns: dict[str, Any] = {name: [1, 2] for name in names}
    url = write(tmp_path / "a.parquet", **columns)
    payload = {"row_of_user": ("row", pa.int64())}
    found = find_positions(connect(), [url], pa.table(columns), names, payload)
    assert as_rows(found) == [(0, url, 0, 1), (1, url, 1, 2)]


def test_null_and_missing_keys_are_refused_by_name(tmp_path: Path) -> None:
    url = write(tmp_path / "a.parquet", k=[1])
    with pytest.raises(InvalidInput, match="'k' holds 1 nulls"):
        find_positions(connect(), [url], pa.table({"k": [1, None]}), ["k"])
    with pytest.raises(InvalidInput, match="'k' is missing"):
        find_positions(connect(), [url], pa.table({"x": [1]}), ["k"])


UTC = dt.UTC
MOMENTS = st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))
VALUES: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"]), max_size=20)),
    (pa.binary(), st.binary(max_size=12)),
    (pa.float64(), st.floats()),
    (pa.bool_(), st.booleans()),
    (pa.date32(), st.dates()),
    (pa.timestamp("us"), MOMENTS),
    (pa.timestamp("us", "UTC"), MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
    (pa.decimal128(38, 4), st.decimals(-(10**30), 10**30, places=4)),
]


def comparable(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value + 0.0
    return value.normalize() if isinstance(value, Decimal) else value


@examples(30)
@given(data=st.data())
def test_index_and_scan_and_nested_loop_agree_for_keys_of_all_types(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    columns = data.draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
    types = {f"key {i}": type_ for i, (type_, _) in enumerate(columns)}
    schema = pa.schema(list(types.items()))
    # A small pool, so that keys repeat in and over parts.
    pool = data.draw(st.lists(st.tuples(*(values for _, values in columns)), min_size=1, max_size=8))
    drawn = st.lists(st.sampled_from(pool), max_size=12)
    parts = data.draw(st.lists(drawn, min_size=1, max_size=4))
    probes = data.draw(drawn)

    def table(keys: list[tuple[Any, ...]]) -> pa.Table:
        return pa.table([pa.array([key[i] for key in keys], type_) for i, type_ in enumerate(types.values())], schema)

    urls = []
    for number, keys in enumerate(parts):
        urls.append(str(folder / f"{number}.parquet"))
        pq.write_table(table(keys), urls[-1], row_group_size=3)
    scanned = as_rows(find_positions(connect(), urls, table(probes), list(types)))
    with KeyIndex(folder / "index", types) as index:
        index.sync(urls, pq.read_table)
        indexed = as_rows(index.lookup(table(probes)))
    expected = sorted(
        (probe, url, row)
        for probe, wanted in enumerate(probes)
        for url, keys in zip(urls, parts, strict=True)
        for row, key in enumerate(keys)
        if tuple(map(comparable, key)) == tuple(map(comparable, wanted))
    )
    assert indexed == expected
    assert scanned == expected


# -- the engine --------------------------------------------------------------------------------------------------------


def test_every_cursor_speaks_utc_and_looks_for_no_extension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    with connect(memory_bytes_max=123 << 20, threads=1) as connection:
        moment = connection.execute("SELECT TIMESTAMPTZ '2024-01-01 00:00:00+00'::VARCHAR").fetchone()
        assert moment == ("2024-01-01 00:00:00+00",)
        for option in ("autoinstall_known_extensions", "autoload_known_extensions"):
            assert connection.execute(f"SELECT current_setting('{option}')").fetchone() == (False,)
        assert connection.execute("SELECT current_setting('memory_limit')").fetchone() == ("123.0 MiB",)


def test_cursors_with_the_same_limits_share_one_database_and_work_in_several_threads() -> None:
    limits = 65 << 20, 2
    connect(*limits).execute("CREATE OR REPLACE TABLE shared_by_cursors AS SELECT 1 AS x")
    results: list[Any] = []
    query = "SELECT sum(x) FROM shared_by_cursors, range(100000)"

    def ask() -> None:
        results.append(connect(*limits).execute(query).fetchone())

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(100_000,)] * 4
    with pytest.raises(duckdb.CatalogException):
        connect(threads=1, memory_bytes_max=64 << 20).execute(query)
    connect(*limits).execute("DROP TABLE shared_by_cursors")


def test_what_does_not_fit_into_memory_spills(tmp_path: Path) -> None:
    connection = connect(memory_bytes_max=48 << 20, threads=1, temp_folder=tmp_path / "spill")
    row = connection.execute(
        "SELECT max(n), count(DISTINCT i) "
        "FROM (SELECT i, row_number() OVER (ORDER BY hash(i)) n FROM range(2000000) t(i))"
    )
    assert row.fetchone() == (2_000_000, 2_000_000)


def test_a_forked_child_makes_its_own_database_and_ends_well() -> None:
    program = """
        import os, sys
        from lakebed.storage.engine import connect
        connection = connect()
        connection.execute("CREATE TABLE t AS SELECT 1")
        connection.close()
        child = os.fork()
        if child == 0:
            import duckdb
            try:
                connect().execute("FROM t")
            except duckdb.CatalogException:
                print(connect().execute("SELECT sum(i) FROM range(1000000) t(i)").fetchone()[0], flush=True)
            sys.exit(0)
        print("child", os.waitpid(child, 0)[1], connect().execute("FROM t").fetchone()[0])
    """
    result = ran([sys.executable, "-c", textwrap.dedent(program)])
    assert result.stdout.split() == ["499999500000", "child", "0", "1"]
