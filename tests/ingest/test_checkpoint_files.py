"""Spark's checkpoints on a local disk are written by a class of ours: whole or not at all, once, and without other processes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError

from lakebed.ingest.stream import start_query
from lakebed.sources.generator import GeneratorSource, OrderStream
from lakebed.sparks.compiled import CLASS, SETTING, quick_checkpoint
from lakebed.sparks.versions import release_of
from tests.waiting import ended, started

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def jvm(spark: SparkSession) -> Any:
    return spark._jvm


@pytest.fixture
def manager(spark: SparkSession, jvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The class as Spark makes it, for a folder that is there."""
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "offsets").mkdir()
    with quick_checkpoint(spark, f"file://{tmp_path}"):
        conf = jvm.org.apache.hadoop.conf.Configuration()
        conf.set(SETTING, spark.conf.get(SETTING, None))
        checkpointing = reduce(getattr, release_of(spark.version).checkpoints.split("."), jvm)
        made = checkpointing.CheckpointFileManager.create(jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}"), conf)
    assert made.getClass().getName() == CLASS
    assert spark.conf.get(SETTING, None) is None, "other queries of the session are as before"
    return made


@pytest.fixture
def path(jvm: Any, tmp_path: Path) -> Callable[[str], Any]:
    return lambda name: jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}/offsets/{name}")


def test_a_file_has_its_name_only_when_it_is_whole(manager: Any, path: Callable[[str], Any], tmp_path: Path) -> None:
    target = tmp_path / "offsets" / "7"
    output = manager.createAtomic(path("7"), False)
    output.write(bytearray(b"half"))
    output.flush()
    assert not target.exists() and not manager.exists(path("7")), "a crash here leaves no file of this name"
    output.write(bytearray(b" and half"))
    output.close()
    output.close()
    assert target.read_bytes() == b"half and half" and manager.exists(path("7"))
    assert os.listdir(target.parent) == ["7"]


def test_a_write_that_is_cancelled_leaves_nothing(manager: Any, path: Callable[[str], Any], tmp_path: Path) -> None:
    output = manager.createAtomic(path("7"), False)
    output.write(bytearray(b"half"))
    output.cancel()
    output.close()
    assert os.listdir(tmp_path / "offsets") == []


def test_a_name_is_given_once_unless_overwriting_is_asked_for(
    manager: Any, path: Callable[[str], Any], tmp_path: Path
) -> None:
    target = tmp_path / "offsets" / "7"
    for text, overwrite in ((b"first", False), (b"second", False), (b"third", True)):
        output = manager.createAtomic(path("7"), overwrite)
        output.write(bytearray(text))
        if text == b"second":
            with pytest.raises(Py4JJavaError) as refused:
                output.close()
            assert (
                refused.value.java_exception.getClass().getName() == "org.apache.hadoop.fs.FileAlreadyExistsException"
            )
            assert target.read_bytes() == b"first"
            output.cancel()
        else:
            output.close()
    assert target.read_bytes() == b"third" and os.listdir(target.parent) == ["7"]


def test_a_checksum_that_hadoop_kept_for_another_file_of_the_name_does_no_harm(
    jvm: Any, manager: Any, path: Callable[[str], Any], tmp_path: Path
) -> None:
    hadoop = path("").getFileSystem(jvm.org.apache.hadoop.conf.Configuration())
    for name in ("7", "8"):
        output = hadoop.create(path(name))
        output.write(bytearray(b"hadoop's"))
        output.close()
        assert (tmp_path / "offsets" / f".{name}.crc").exists()
        assert manager.open(path(name)).read() == ord("h"), "what Hadoop wrote is read"
    (tmp_path / "offsets" / "8").unlink()
    for name in ("7", "8"):
        output = manager.createAtomic(path(name), name == "7")
        output.write(bytearray(b"ours"))
        output.close()
        for reader in (manager, hadoop):
            assert reader.open(path(name)).read() == ord("o")


def test_of_several_writers_of_a_name_one_succeeds(manager: Any, path: Callable[[str], Any], tmp_path: Path) -> None:
    for name in map(str, range(20)):
        outputs = [manager.createAtomic(path(name), False) for _ in range(4)]
        written: list[int] = []
        gate = threading.Barrier(len(outputs))

        def write(number: int) -> None:
            outputs[number].write(number)  # noqa: B023 the threads end within the loop
            gate.wait()  # noqa: B023
            try:
                outputs[number].close()  # noqa: B023
                written.append(number)  # noqa: B023
            except Py4JJavaError:
                pass

        threads = [threading.Thread(target=write, args=(number,)) for number in range(len(outputs))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(written) == 1 and (tmp_path / "offsets" / name).read_bytes() == bytes(written)


def test_a_file_and_what_hadoop_kept_beside_it_are_deleted(
    manager: Any, path: Callable[[str], Any], tmp_path: Path
) -> None:
    for name in ("7", ".7.crc", "8"):
        (tmp_path / "offsets" / name).write_bytes(b"x")
    for _ in range(2):
        manager.delete(path("7"))
    assert os.listdir(tmp_path / "offsets") == ["8"]
    manager.delete(path(""))
    assert not (tmp_path / "offsets").exists()


@pytest.mark.long
def test_a_checkpoint_of_hadoop_goes_on_and_a_setting_of_the_user_stays(spark: SparkSession, tmp_path: Path) -> None:
    ends: list[int] = []

    def read(frame: Any, batch_id: int) -> None:
        assert batch_id == len(ends)
        ends.append(max(row["end"] for row in frame.collect()))

    def run(events: int) -> None:
        stream = GeneratorSource(OrderStream(events_max=events), max_records_per_batch=100).stream(spark)
        trigger = {"availableNow": True}
        ended(started(partial(start_query, read, stream, f"file://{tmp_path}/checkpoint", "q", trigger)))

    checkpointing = release_of(spark.version).checkpoints
    spark.conf.set(SETTING, f"{checkpointing}.FileContextBasedCheckpointFileManager")
    try:
        run(200)
        assert str(spark.conf.get(SETTING)).startswith(checkpointing)
    finally:
        spark.conf.unset(SETTING)
    run(300)
    assert ends == [100, 200, 300]
    names = set(os.listdir(tmp_path / "checkpoint" / "commits"))
    assert {"0", ".0.crc", "1", ".1.crc", "2"} <= names and ".2.crc" not in names


@pytest.mark.long
def test_a_query_starts_no_process_for_its_checkpoint(
    spark: SparkSession, jvm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    pid = int(jvm.java.lang.ProcessHandle.current().pid())
    faults: list[int] = []

    def ended_children(frame: Any, batch_id: int) -> None:
        # Pages that ended children of the JVM touched: the number grows with each of them.
        faults.append(int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[8]))

    stream, checkpoint = GeneratorSource().stream(spark), f"file://{tmp_path}/checkpoint"
    query = started(lambda: start_query(ended_children, stream, checkpoint, "q"))  # type: ignore[arg-type]
    while query.isActive and len(faults) < 6:
        query.awaitTermination(0.2)
    query.stop()
    assert query.exception() is None and (tmp_path / "checkpoint" / "commits" / "4").exists()
    assert len(set(faults[2:6])) == 1
