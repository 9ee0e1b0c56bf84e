"""Work of several tables in shared tasks: spread evenly, in the order of each partition, and the failure of one is its own."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.errors import LakebedError, StoreUnavailable, Unexpected
from lakebed.ingest.batch_writer import WriteTask
from lakebed.ingest.database_runner import (
    Piece,
    answered,
    pieces_of,
    run_in_tasks,
    run_piece,
    run_task,
    shares_of,
    spread,
)
from lakebed.ingest.table_batch import WriteWork
from lakebed.parts.changes import write_spec_of
from lakebed.sources.generator import COLUMNS, KEYS, GeneratorReader, OrderStream
from lakebed.sources.source import Range, RangeChanges
from tests.internals import log_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(slots=True)
class Broken(GeneratorReader):
    """A source that fails."""

    def read(self, chosen: Range) -> Any:
        raise StoreUnavailable(f"{chosen.topic} can't be read")


def work(path: Path, *sizes: int, reader: type[GeneratorReader] = GeneratorReader) -> WriteWork:
    """Work of a table, with so many events in each partition."""
    table = lakebed.create(path, COLUMNS, keys=KEYS, sequence_by="kafka.offset")
    changes = RangeChanges(
        reader(OrderStream(), tasks=len(sizes)),
        decoder("debezium-json", DecoderSchema(COLUMNS, KEYS, "kafka.offset"), {}),
    )
    ranges = tuple(Range(path.name, number, 0, size, 0) for number, size in enumerate(sizes))
    return WriteWork(WriteTask(write_spec_of(log_of(table).refresh()), table.path, changes), ranges)


def piece(topic: str, number: int, size: int) -> Piece:
    return Piece(topic, number, WriteWork(None, (Range(topic, number, 0, size),)))  # type: ignore[arg-type]


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=60), st.integers(1, 16))
def test_pieces_are_spread_over_tasks_so_that_none_has_much_more_than_its_share(sizes: list[int], tasks: int) -> None:
    pieces = [piece("t", number, size) for number, size in enumerate(sizes)]
    chosen = spread(pieces, tasks)
    assert sorted(one.number for each in chosen for one in each) == list(range(len(sizes)))
    assert all(chosen) and len(chosen) <= tasks
    loads = [sum(one.records for one in each) for each in chosen]
    assert max(loads) <= sum(sizes) / len(chosen) + max(sizes)


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(1, 1_000_000), min_size=1), st.integers(1, 500_000))
def test_large_tables_share_what_small_ones_leave(unread: dict[str, int], records: int) -> None:
    shares = shares_of(unread, records)
    assert shares.keys() == unread.keys() and all(1 <= shares[topic] <= unread[topic] for topic in unread)
    assert sum(shares.values()) <= max(records, 0) + len(unread)
    if sum(unread.values()) <= records:
        assert shares == unread


def test_ranges_of_a_partition_stay_in_one_piece_and_in_order() -> None:
    ranges = (Range("t", 0, 0, 5), Range("t", 0, 5, 9), Range("t", 1, 0, 4))
    found = pieces_of({"t": WriteWork(None, ranges)})  # type: ignore[arg-type]
    assert [one.work.ranges for one in found] == [ranges[:2], ranges[2:]]


def test_the_failure_of_a_piece_is_the_answer_of_its_table_alone(tmp_path: Path) -> None:
    works = {"good": work(tmp_path / "good", 30, 20), "bad": work(tmp_path / "bad", 10, reader=Broken)}
    rows = list(run_task(iter([pickle.dumps(pieces_of(works))])))
    check(works, answered(works, rows))


def check(works: dict[str, WriteWork], found: dict[str, Any]) -> None:
    assert isinstance(found["bad"], StoreUnavailable) and "bad can't be read" in str(found["bad"])
    written = found["good"]
    assert not isinstance(written, LakebedError) and written.rows > 0
    assert [(one.partition, one.start, one.end) for one in written.read] == [(0, 0, 30), (1, 0, 20)]


def test_what_nobody_foresaw_is_an_answer_too() -> None:
    assert isinstance(run_piece(piece("t", 3, 1)), Unexpected)


@pytest.mark.slow
def test_tasks_of_spark_do_the_same(spark: SparkSession, tmp_path: Path) -> None:
    works = {"good": work(tmp_path / "good", 30, 20), "bad": work(tmp_path / "bad", 10, reader=Broken)}
    check(works, run_in_tasks(spark, works))
