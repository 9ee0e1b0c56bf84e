"""What sends the requests is all that an object store needs of its own: here a dictionary takes the place of S3."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from lakebed.storage import data_files
from lakebed.storage.data_files import SINGLE_PUT_BYTES_MAX, RemotePartStorage
from lakebed.storage.roots import S3Root

STORED: dict[str, bytes] = {}
ASKED: list[str] = []


class ObjectsInMemory:
    """The requests of ``S3Objects`` that data files need, answered from a dictionary."""

    root = "memory://bucket/prefix"

    def put(self, path: str, data: bytes) -> None:
        STORED[path] = data

    def upload(self, path: str, local: str, size: int) -> None:
        STORED[path] = Path(local).read_bytes()
        assert len(STORED[path]) == size

    def read_tail(self, path: str, length: int) -> tuple[bytes, int]:
        ASKED.append(path)
        size = self.size(path)
        return STORED[path][-length:], size

    def read_range(self, path: str, begin: int, end: int) -> bytes:
        ASKED.append(path)
        return STORED[path][begin:end]

    def size(self, path: str) -> int:
        if path not in STORED:
            raise FileNotFoundError(path)
        return len(STORED[path])

    def delete(self, path: str) -> None:
        STORED.pop(path, None)


def open_in_memory(place: S3Root) -> Any:
    return ObjectsInMemory()


def in_another_process() -> RemotePartStorage:
    """The storage as a process gets it that has read nothing yet."""
    storage = RemotePartStorage(S3Root("bucket", "prefix"), open_in_memory)
    data_files._after_fork_in_child()
    ASKED.clear()
    return cast("RemotePartStorage", pickle.loads(pickle.dumps(storage)))


def test_a_part_is_written_queried_cached_and_deleted() -> None:
    in_another_process().write_file("part.parquet", lambda local: pq.write_table(pa.table({"id": range(1000)}), local))
    storage = in_another_process()
    for _ in range(2):
        with duckdb.connect() as connection:
            storage.attach(connection)
            query = f"select sum(id) from '{storage.duckdb_url('part.parquet')}'"
            assert connection.sql(query).fetchall() == [(499_500,)]
        assert ASKED == ["part.parquet"], "the first query asks for the tail, the second for nothing"
    assert storage.exists("part.parquet")
    storage.delete("part.parquet")
    assert not storage.exists("part.parquet")


def test_a_large_file_is_uploaded_and_read_by_ranges() -> None:
    data = bytes(range(256)) * (SINGLE_PUT_BYTES_MAX // 256 + 1)
    in_another_process().write_file("large", lambda local: Path(local).write_bytes(data))
    storage = in_another_process()
    assert storage.read_range("large", 1000, 500) == data[1000:1500]
    assert storage.size("large") == len(data)


def test_storages_of_one_place_are_equal() -> None:
    assert in_another_process() == in_another_process()
