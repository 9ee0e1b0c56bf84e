"""An error of lakebed comes out of Spark and DuckDB as the one that went in."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from lakebed.errors import Contention, Corrupt, InvalidChanges, LakebedError, StoreUnavailable, Unexpected
from lakebed.failures import (
    MARKER,
    Transported,
    as_text,
    crosses_spark,
    decode,
    encode,
    from_spark,
    methods_cross_spark,
    noted,
)
from lakebed.storage.engine import naming_unreadable
from lakebed.storage.range_files import HOST, RangeFileSystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ERROR = Corrupt('the file "a" is\nmissing', table="s3://b/t", version=3, path="a", invariants=("P3",))


def same(found: BaseException | None) -> bool:
    return type(found) is Corrupt and (str(found), found.data()) == (str(ERROR), ERROR.data())


def test_the_line_is_one_line_of_ascii() -> None:
    line = encode(InvalidChanges("\u00fc\n\r\u2028"))
    assert line.isascii() and len(line.splitlines()) == 1


@pytest.mark.parametrize(
    "around", ["{}", "Traceback\n  File x\nCorrupt: y\n{}\n SQLSTATE: 38000\n\tat a.b(C)", "{} {{}}"]
)
def test_the_error_is_found_in_any_text_around_it(around: str) -> None:
    assert same(decode(around.format(encode(ERROR))))


def test_the_last_line_counts() -> None:
    assert isinstance(decode(f"{encode(ERROR)}\n{encode(Contention('x'))}"), Contention)


@pytest.mark.parametrize("rest", ["", "{", "[]", "{}", '{"class": 1}', '{"class": "Corrupt", "text": "x", "data": 1}'])
def test_a_line_that_is_damaged_is_none(rest: str) -> None:
    assert decode(MARKER + rest) is None
    assert same(decode(f"{encode(ERROR)}\n{MARKER}{rest}"))


@pytest.mark.parametrize("name", ["KeyError", "copy", "Self", "_Where"])
def test_a_class_that_is_not_in_the_tree_is_unexpected(name: str) -> None:
    found = decode(MARKER + f'{{"class": "{name}", "text": "x", "data": {{}}}}')
    assert isinstance(found, Unexpected) and str(found) == f"{name}: x"


def test_data_that_the_class_does_not_have_is_left_out() -> None:
    found = decode(MARKER + '{"class": "Retry", "text": "x", "data": {"path": "a", "data": 1, "else": 2}}')
    assert found is not None and found.data() == {"path": "a"}


def test_a_note_is_in_the_trace_once_and_the_error_stays_itself() -> None:
    with pytest.raises(Corrupt) as raised, noted(), noted():
        raise ERROR.with_text(str(ERROR))
    trace = "".join(traceback.format_exception(raised.value))
    assert trace.count(MARKER) == 1 and same(decode(trace))


def test_other_errors_pass_as_they_are() -> None:
    for block in (noted, as_text, from_spark):
        with pytest.raises(KeyError) as raised, block():
            raise KeyError("x")
        assert not getattr(raised.value, "__notes__", None)


def test_what_spark_calls_passes_on_the_error() -> None:
    @methods_cross_spark
    class Reader:
        def rows(self) -> Iterator[int]:
            yield 1
            raise ERROR.with_text(str(ERROR))

        def plan(self) -> None:
            raise ERROR.with_text(str(ERROR))

        def _own(self) -> None:
            raise ERROR.with_text(str(ERROR))

    rows = Reader().rows()
    assert next(rows) == 1
    for call in (lambda: next(rows), Reader().plan):
        with pytest.raises(Corrupt) as raised:
            call()
        assert raised.value.__notes__ == [encode(ERROR)]
    with pytest.raises(Corrupt) as raised:
        Reader()._own()
    assert not getattr(raised.value, "__notes__", None)


def test_what_asks_spark_gets_the_error_itself() -> None:
    with pytest.raises(Corrupt) as raised, from_spark():
        raise RuntimeError(f"Job aborted\n{encode(ERROR)}")
    assert same(raised.value) and isinstance(raised.value.__cause__, RuntimeError)
    with pytest.raises(InvalidChanges) as wrong, from_spark():
        raise RuntimeError(encode(InvalidChanges("row 1")))
    assert wrong.value.__cause__ is None and wrong.value.__suppress_context__


class Silent:
    """A store of one file that never answers."""

    def meet(self, path: str) -> int:
        raise StoreUnavailable('no answer \u2014 "really"', path=path)

    def read(self, path: str, start: int, length: int) -> bytes:
        raise AssertionError


def test_an_error_of_the_store_passes_through_duckdb() -> None:
    files = RangeFileSystem("silent", Silent())
    with pytest.raises(Transported):
        files.open(f"silent://{HOST}/a.parquet")
    connection = duckdb.connect()
    connection.register_filesystem(files)
    with pytest.raises(StoreUnavailable, match=r"^no answer . \"really\"$") as raised, naming_unreadable(["a.parquet"]):
        connection.sql(f"select * from read_parquet('silent://{HOST}/a.parquet')").fetchall()
    assert raised.value.path == "a.parquet"


def _fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    raise Corrupt(str(ERROR), **ERROR.data())  # type: ignore[arg-type]
    yield


def test_an_error_of_a_task_passes_through_spark(spark: SparkSession) -> None:
    def collect(task: Any) -> None:
        spark.range(1).mapInArrow(task, "a int").collect()

    with pytest.raises(LakebedError) as raised, from_spark():
        collect(crosses_spark(_fails))
    assert same(raised.value)
    with pytest.raises(Exception, match="thrown from the Python worker") as foreign, from_spark():
        collect(_fails)
    assert not isinstance(foreign.value, LakebedError), "without the note nothing is recognised"
