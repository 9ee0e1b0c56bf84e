"""Data files of a table on local disk and on S3: durable writes, few requests, exact reads."""

from __future__ import annotations

import os
import pickle
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakebed.errors import InvalidInput, StoreUnavailable
from lakebed.storage import data_files
from lakebed.storage.counters import StoreCounters
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.local_folders import process_folder
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.range_files import BLOCK_BYTES, TAIL_BYTES, BlockCache
from tests.infra.fault_proxy import Fault, FaultProxy, FaultRates
from tests.infra.s3 import S3Server, aws_environment
from tests.worlds import examples

S3 = pytest.param("s3", marks=pytest.mark.slow)
BIG_ROWS = 1_500_000


@pytest.fixture(params=["local", S3])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> PartStorage:
    """An empty storage of each kind, under a root with an awkward name."""
    if request.param == "local":
        return open_part_storage(tmp_path / "a täble%20[x]" / "day=1")
    server: S3Server = request.getfixturevalue("s3")
    return open_part_storage(f"s3://{server.create_bucket()}/a täble%20[x]/day=1")


@pytest.fixture
def connection() -> duckdb.DuckDBPyConnection:
    """A DuckDB of its own."""
    return duckdb.connect()


def parquet_writer(connection: duckdb.DuckDBPyConnection, rows: int) -> Callable[[str], int]:
    """Writes ``rows`` rows (i, h, s) to the local path it is called with."""

    def write(local: str) -> int:
        query = f"select range as i, hash(range) as h, 'row ' || range as s from range({rows})"
        connection.execute(f"copy ({query}) to '{local}' (format parquet, row_group_size 122880)")
        return rows

    return write


def scan(storage: PartStorage, paths: list[str], options: str = "") -> str:
    urls = ", ".join("'" + storage.duckdb_url(path).replace("'", "''") + "'" for path in paths)
    return f"read_parquet([{urls}], filename=true, file_row_number=true, hive_partitioning=false{options})"


def cold(storage: PartStorage) -> PartStorage:
    """The same place as a process sees it that has read nothing yet."""
    data_files._after_fork_in_child()
    return pickle.loads(pickle.dumps(storage))  # type: ignore[no-any-return]


# -- what every storage does -------------------------------------------------------------------------------------------


def test_a_written_file_is_there_whole_and_nothing_else(storage: PartStorage) -> None:
    def write(local: str) -> str:
        Path(local).write_bytes(b"0123456789")
        return "done"

    assert storage.write_file("_lakebed/a b%ü.parquet", write) == "done"
    assert storage.read_bytes("_lakebed/a b%ü.parquet") == b"0123456789"
    assert storage.read_range("_lakebed/a b%ü.parquet", 3, 4) == b"3456"
    assert storage.read_range("_lakebed/a b%ü.parquet", 8, 100) == b"89"
    assert storage.read_range("_lakebed/a b%ü.parquet", 10, 5) == b""
    assert storage.size("_lakebed/a b%ü.parquet") == 10
    (path, size, modified), *others = storage.list()
    assert (path, size, others) == ("_lakebed/a b%ü.parquet", 10, [])
    assert abs(modified - time.time()) < 60


def test_many_files_are_deleted_and_each_that_stays_is_reported(tmp_path: Path, storage: PartStorage) -> None:
    paths = [f"_lakebed/a b%ü{number}.parquet" for number in range(7)]
    for path in paths:
        storage.write_bytes(path, b"x")
    assert storage.delete_many([*paths[:5], "_lakebed/nothing.parquet"]) == {}
    assert sorted(path for path, _, _ in storage.list()) == paths[5:]
    assert storage.delete_many([]) == {}


def test_a_local_file_that_cannot_be_deleted_is_named_and_the_others_go(tmp_path: Path) -> None:
    storage = open_part_storage(tmp_path)
    storage.write_bytes("folder/a", b"x")
    storage.write_bytes("b", b"x")
    failed = storage.delete_many(["folder", "b"])
    assert list(failed) == ["folder"]
    assert isinstance(failed["folder"], InvalidInput)
    assert not storage.exists("b")


def test_a_writer_that_fails_leaves_nothing_behind(storage: PartStorage) -> None:
    def write(local: str) -> None:
        Path(local).write_bytes(b"half")
        raise ValueError("no")

    staged = set(os.listdir(process_folder()))
    with pytest.raises(ValueError, match="no"):
        storage.write_file("x.parquet", write)
    assert list(storage.list()) == []
    assert set(os.listdir(process_folder())) == staged


def test_missing_files_are_not_found_and_deleting_them_is_no_error(storage: PartStorage) -> None:
    storage.write_bytes("x", b"1")
    storage.delete("x")
    storage.delete("x")
    assert not storage.exists("x")
    for act in (storage.read_bytes, storage.size, lambda path: storage.read_range(path, 0, 1)):
        with pytest.raises(FileNotFoundError):
            act("x")


def test_files_are_listed_by_prefix_at_any_depth(storage: PartStorage) -> None:
    for path in ("a.parquet", "_lakebed/1.parquet", "_lakebed/2.parquet", "_lakebed/deep/er.bin", "b/a.parquet"):
        storage.write_bytes(path, path.encode())
    assert sorted(path for path, _, _ in storage.list()) == [
        "_lakebed/1.parquet",
        "_lakebed/2.parquet",
        "_lakebed/deep/er.bin",
        "a.parquet",
        "b/a.parquet",
    ]
    assert sorted(path for path, _, _ in storage.list("_lakebed/")) == [
        "_lakebed/1.parquet",
        "_lakebed/2.parquet",
        "_lakebed/deep/er.bin",
    ]
    assert [path for path, _, _ in storage.list("_lakebed/2")] == ["_lakebed/2.parquet"]
    assert list(storage.list("nowhere/at/all")) == []


def test_an_empty_file_is_a_file(storage: PartStorage) -> None:
    storage.write_bytes("e", b"")
    assert cold(storage).read_bytes("e") == b""
    assert storage.exists("e")


def test_duckdb_reads_exact_rows_positions_and_file_names(
    storage: PartStorage, connection: duckdb.DuckDBPyConnection
) -> None:
    storage.write_file("_lakebed/small.parquet", parquet_writer(connection, 1000))
    storage.write_file("big.parquet", parquet_writer(connection, BIG_ROWS))
    for place in (storage, cold(storage)):
        place.attach(connection)
        place.attach(connection.cursor())
        source = scan(place, ["_lakebed/small.parquet", "big.parquet"])
        rows = connection.execute(
            f"select filename, file_row_number, i, s from {source} where i in (7, 999, {BIG_ROWS - 1}) order by all"
        ).fetchall()
        found = [(place.path_of_url(url), position, i, s) for url, position, i, s in rows]
        assert sorted(found) == [
            ("_lakebed/small.parquet", 7, 7, "row 7"), ("_lakebed/small.parquet", 999, 999, "row 999"),
            ("big.parquet", 7, 7, "row 7"), ("big.parquet", 999, 999, "row 999"),
            ("big.parquet", BIG_ROWS - 1, BIG_ROWS - 1, f"row {BIG_ROWS - 1}"),
        ]  # fmt: skip
        columns = [name for name, *_ in connection.execute(f"describe from {source}").fetchall()]
        assert sorted(columns) == ["file_row_number", "filename", "h", "i", "s"]
        total = connection.execute(f"select count(*), sum(i) from {source}").fetchone()
        assert total == (BIG_ROWS + 1000, sum(range(BIG_ROWS)) + sum(range(1000)))


def test_a_missing_part_fails_the_query_and_names_it(
    storage: PartStorage, connection: duckdb.DuckDBPyConnection
) -> None:
    storage.attach(connection)
    with pytest.raises(duckdb.Error, match=r"gone\.parquet"):
        connection.execute(f"from {scan(storage, ['gone.parquet'])}").fetchall()


# -- S3: requests ------------------------------------------------------------------------------------------------------


def s3_storage_of(server: S3Server) -> PartStorage:
    return open_part_storage(f"s3://{server.create_bucket()}/t")


def requests(counters: StoreCounters) -> dict[str, int]:
    return {name: count.requests for name, count in counters.operations.items()}


def test_a_small_part_costs_one_request_once_and_none_where_it_was_written(
    s3: S3Server, connection: duckdb.DuckDBPyConnection
) -> None:
    storage = s3_storage_of(s3)
    storage.write_file("small.parquet", parquet_writer(connection, 10_000))
    assert requests(storage.counters()) == {"put": 1}
    storage.attach(connection)
    connection.execute(f"select sum(i) from {scan(storage, ['small.parquet'])}").fetchall()
    assert requests(storage.counters()) == {"put": 1}

    other = cold(storage)
    fresh = duckdb.connect()
    other.attach(fresh)
    for _ in range(3):
        fresh.execute(f"select sum(i), max(s), max(file_row_number) from {scan(other, ['small.parquet'])}").fetchall()
    assert requests(other.counters()) == {"get_tail": 1}


def test_one_column_of_a_big_part_reads_that_column_in_few_ranges_and_once(
    s3: S3Server, connection: duckdb.DuckDBPyConnection
) -> None:
    storage = cold(s3_storage_of(s3))
    storage.write_file("big.parquet", parquet_writer(connection, BIG_ROWS))
    size = storage.size("big.parquet")
    storage.attach(connection)
    before = storage.counters()
    source = scan(storage, ["big.parquet"])
    query = f"select max(i), max(file_row_number) from {source} where i between 700000 and 710000"
    assert connection.execute(query).fetchall() == [(710_000, 710_000)]
    spent = storage.counters() - before
    assert requests(spent) == {"get_tail": 1, "get_range": 1}
    assert spent.total.bytes_read < size / 8
    connection.execute(query).fetchall()
    assert storage.counters() - before == spent, "a second look costs nothing"
    connection.execute(f"select max(i) from {source} where i % 7 = 3").fetchall()
    row_groups = -(-BIG_ROWS // 122_880)
    assert (storage.counters() - before).total.requests <= 2 + row_groups


def test_a_big_file_is_uploaded_in_parts_and_comes_back_exact(s3: S3Server) -> None:
    storage = s3_storage_of(s3)
    data = os.urandom(1 << 20) * 35 + b"end"

    def write(local: str) -> None:
        Path(local).write_bytes(data)

    storage.write_file("big.bin", write)
    assert requests(storage.counters()) == {"create_upload": 1, "upload_part": 3, "complete_upload": 1}
    assert storage.read_bytes("big.bin") == data


def test_uploads_and_reads_survive_failing_requests(s3: S3Server, flaky_s3: FaultProxy) -> None:
    storage = s3_storage_of(s3)
    data = os.urandom(1 << 20) * 35

    def write(local: str) -> None:
        Path(local).write_bytes(data)

    flaky_s3.fail_next(Fault.AFTER, method="POST", path_contains="uploadId")  # completed, but nobody said so
    flaky_s3.fail_next(Fault.AFTER, method="PUT")
    flaky_s3.fail_next(Fault.BEFORE, method="PUT")
    storage.write_file("big.bin", write)
    flaky_s3.set_rates(FaultRates(before=0.05, reset=0.05, after=0.05), seed=5)
    place = cold(storage)
    assert place.read_bytes("big.bin") == data
    for number in range(100):
        place.write_bytes(f"small/{number}", b"%d" % number)
    assert sorted(int(path[6:]) for path, _, _ in place.list("small/")) == list(range(100))
    assert [cold(storage).read_bytes(f"small/{number}") for number in range(100)] == [b"%d" % n for n in range(100)]
    for number in range(100):
        place.delete(f"small/{number}")
    assert list(place.list("small/")) == []


@pytest.mark.slow
def test_a_server_killed_in_the_middle_of_a_write_is_unavailable_and_leaves_no_file() -> None:
    with S3Server() as server, aws_environment(server.endpoint):
        storage = open_part_storage(f"s3://{server.create_bucket()}/t")

        def write(local: str) -> None:
            Path(local).write_bytes(b"x" * (40 << 20))
            server.kill()

        with pytest.raises(StoreUnavailable):
            storage.write_file("a.parquet", write)
        server.restart()
        assert not storage.exists("a.parquet")


def test_a_forked_child_reads_for_itself(s3: S3Server) -> None:
    storage = s3_storage_of(s3)
    storage.write_bytes("x", b"1" * 1000)
    child = os.fork()
    if child == 0:
        same = storage.read_bytes("x") == b"1" * 1000
        os._exit(0 if same and requests(storage.counters()) == {"get_tail": 1} else 1)
    assert os.waitpid(child, 0)[1] == 0


# -- the cache of ranges -----------------------------------------------------------------------------------------------


class Remote:
    """Bytes that are somewhere else, and every range that was asked of them."""

    def __init__(self, size: int) -> None:
        self.data = bytes((n * 31 + n // 251) % 256 for n in range(1009)) * (size // 1009 + 1)
        self.data = self.data[:size]
        self.ranges: list[tuple[int, int]] = []
        self.delay_seconds = 0.0

    def fetch(self, file: str, start: int, end: int) -> bytes:
        time.sleep(self.delay_seconds)
        self.ranges.append((start, end))
        return self.data[start:end]

    def fetch_tail(self, file: str, length: int) -> tuple[bytes, int]:
        time.sleep(self.delay_seconds)
        start = max(0, len(self.data) - length)
        self.ranges.append((start, len(self.data)))
        return self.data[start:], len(self.data)

    def read(self, cache: BlockCache, start: int, length: int) -> bytes:
        return cache.read("file", start, length, self.fetch, self.fetch_tail)


SIZES = st.one_of(st.integers(0, 2 * TAIL_BYTES), st.sampled_from([0, 1, BLOCK_BYTES, TAIL_BYTES, TAIL_BYTES + 1]))


@examples(30)
@given(
    size=SIZES,
    reads=st.lists(st.tuples(st.integers(0, 2 * TAIL_BYTES), st.integers(0, TAIL_BYTES)), max_size=8),
    bytes_max=st.sampled_from([BLOCK_BYTES, 3 * BLOCK_BYTES, 64 << 20]),
)
def test_any_range_equals_the_slice_and_memory_stays_bounded(
    size: int, reads: list[tuple[int, int]], bytes_max: int
) -> None:
    remote, cache = Remote(size), BlockCache(bytes_max)
    for start, length in reads:
        assert remote.read(cache, start, length) == remote.data[start : start + length]
        assert cache.bytes_kept <= bytes_max
    if bytes_max > 2 * size:
        asked = sorted(remote.ranges)
        whole_blocks = [(start, end) for start, end in asked if start % BLOCK_BYTES == 0]
        assert all(a[1] <= b[0] for a, b in pairwise(whole_blocks)), "nothing asked for twice"


def test_threads_that_want_the_same_bytes_share_one_request() -> None:
    remote, cache = Remote(8 * TAIL_BYTES), BlockCache()
    remote.delay_seconds = 0.02
    start = threading.Barrier(8)

    def read(_: int) -> bytes:
        start.wait()
        return remote.read(cache, 100, 3 * BLOCK_BYTES)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(read, range(8))) == {remote.data[100 : 100 + 3 * BLOCK_BYTES]}
    assert len(remote.ranges) == 2


def test_a_failed_request_fails_those_who_waited_for_it_and_is_made_again_by_the_next() -> None:
    remote, cache = Remote(8 * TAIL_BYTES), BlockCache()
    remote.read(cache, 0, 1)
    failing = threading.Event()

    def fail(file: str, start: int, end: int) -> bytes:
        failing.set()
        time.sleep(0.05)
        raise StoreUnavailable("down")

    def read_while_failing(number: int) -> str:
        if number:
            failing.wait()
        try:
            cache.read("file", 4 * BLOCK_BYTES, 10, fail, remote.fetch_tail)
        except StoreUnavailable:
            return "unavailable"
        return "read"

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(read_while_failing, range(4))) == {"unavailable"}
    assert remote.read(cache, 4 * BLOCK_BYTES, 10) == remote.data[4 * BLOCK_BYTES : 4 * BLOCK_BYTES + 10]


def test_a_long_scan_does_not_push_out_what_is_read_again_and_again() -> None:
    cache = BlockCache(8 * BLOCK_BYTES)
    small, large = Remote(1000), Remote(40 * BLOCK_BYTES)
    name = uuid.uuid4().hex
    cache.read(name, 0, 10, small.fetch, small.fetch_tail)
    large.read(cache, 0, 36 * BLOCK_BYTES)
    cache.read(name, 0, 10, small.fetch, small.fetch_tail)
    assert len(small.ranges) == 1


def test_a_forgotten_file_is_fetched_anew() -> None:
    remote, cache = Remote(1000), BlockCache()
    remote.read(cache, 0, 10)
    cache.forget("file")
    assert cache.bytes_kept == 0
    remote.read(cache, 0, 10)
    assert len(remote.ranges) == 2
