"""What lakebed does with Spark, on the Spark that these tests run with. ``make test-sparks`` runs them with each."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka import Producer

import lakebed
from lakebed.pipeline import sources
from lakebed.pipeline.settings import parse_pipeline
from lakebed.pipeline.target import open_or_create
from lakebed.sparks.versions import delta_package, spark_version, why_no_delta
from tests.infra.kafka import KafkaServer
from tests.waiting import ended, ran, started, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long  # `make test-sparks` and tests/sparks/test_other_sparks.py run them with other versions
SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("day", pa.string())])


@pytest.fixture(autouse=True, scope="module")
def expected() -> None:
    assert spark_version() == os.environ.get("EXPECTED_SPARK", spark_version()), "another Spark than was asked for"


def read_all(text: str, spark: SparkSession) -> None:
    """Runs a pipeline file in the session until everything that its source has is in the table."""
    pipeline = parse_pipeline(text, "p.yml", {})
    query = started(partial(sources.start_ingest, pipeline, open_or_create(pipeline), spark))
    query.processAllAvailable()
    query.stop()


def rows(*numbers: int, v: str = "a", day: str = "x") -> pa.Table:
    return pa.table({"id": numbers, "v": [v] * len(numbers), "day": [day] * len(numbers)}, SCHEMA)


def values(spark_rows: list[Any]) -> dict[int, str]:
    return {row.id: row.v for row in spark_rows}


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    """Two versions of rows, of which the newer one is not settled."""
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id", "day"], partition_by=["day"])
    table.apply(rows(1, 2, 3))
    table.apply(rows(7, 8, day="y"))
    table.settle()
    table.apply(rows(2, 4, v="b"))
    return table


@pytest.mark.parametrize("sql", ["", "transform: {sql: \"select id, concat(v, '!') as v from changes\"}\n"])
def test_files_are_read_once_over_a_restart(spark: SparkSession, tmp_path: Path, sql: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    text = (
        f"table: {{path: {tmp_path / 't'}, schema: {{id: long, v: string}}}}\nformat: csv\n{sql}"
        f"source: {{kind: files, folder: {folder}, files_per_batch_max: 2}}\n"
    )
    read = []
    for turn in range(2):
        for number in range(3):
            (folder / f"{turn}-{number}.csv").write_text(f"id,v\n{turn * 3 + number},a\n")
        read_all(text, spark)
        read.append(lakebed.open(tmp_path / "t").to_arrow().sort_by("id").to_pydict())
    assert [list(each["id"]) for each in read] == [[0, 1, 2], [0, 1, 2, 3, 4, 5]]
    assert set(read[1]["v"]) == {"a!" if sql else "a"}


def test_records_of_kafka_are_read_once_over_a_restart(kafka: KafkaServer, spark: SparkSession, tmp_path: Path) -> None:
    topic = kafka.create_topic(f"any-spark-{uuid4().hex[:8]}", partitions=2)
    text = (
        f"table: {{path: {tmp_path / 't'}, schema: {{id: long}}}}\nformat: json\n"
        f"source: {{kind: kafka, config: {{bootstrap.servers: {kafka.bootstrap}}}, topics: [{topic}], "
        "max_records_per_batch: 30}\n"
    )
    for turn in range(2):
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(100):
            producer.produce(topic, json.dumps({"id": turn * 100 + number}), partition=number % 2)
        producer.flush()
        read_all(text, spark)
        found = lakebed.open(tmp_path / "t").to_arrow()["id"].to_pylist()
        assert sorted(found) == list(range(turn * 100 + 100))
    assert lakebed.open(tmp_path / "t").version >= 2 * 4, "in batches of at most thirty"


def test_a_user_s_stream_is_applied_once_over_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    arriving = str(tmp_path / "arriving")
    table = lakebed.create(tmp_path / "t", pa.schema([pa.field("id", pa.int64(), nullable=False)]), keys=["id"])
    for low in (0, 50):
        spark.range(low, low + 100).selectExpr("id", "if(id = 3, 'd', 'u') as op").write.mode("append").parquet(
            arriving
        )
        frame = spark.readStream.schema("id long, op string").parquet(arriving)
        ended(started(partial(table.ingest, frame, apply_as_deletes="op = 'd'", trigger={"availableNow": True})))
    assert sorted(row.id for row in table.read(spark).collect()) == [number for number in range(150) if number != 3]


def test_versions_and_views_give_the_rows_of_then_and_of_now(spark: SparkSession, table: lakebed.Table) -> None:
    now = {1: "a", 2: "b", 3: "a", 4: "b", 7: "a", 8: "a"}
    table.create_view(spark, "orders")
    assert values(spark.sql("select * from orders").collect()) == values(table.read(spark).collect()) == now
    assert values(table.read(spark, version=1).collect()) == dict.fromkeys([1, 2, 3], "a")
    assert spark.sql("select count(*) as n from orders where v = 'b' and id < 4").first()["n"] == 1  # type: ignore[index]
    table.apply(rows(9))
    table.create_view(spark, "orders")
    assert spark.table("orders").where("id = 9").count() == 1


def test_parts_that_can_t_match_are_not_opened(spark: SparkSession, table: lakebed.Table) -> None:
    table.settle()
    frame = table.read(spark)
    for part in table.inspect.parts().to_pylist():
        if part["partition"] != [("day", "y")]:
            Path(table.path, part["path"]).unlink()
    assert sorted(row.id for row in frame.where("day = 'y'").collect()) == [7, 8]
    with pytest.raises(Exception, match=r"FAILED_READ_FILE|does not exist"):
        frame.collect()


def test_the_stream_of_changes_gives_each_commit_once_over_a_restart(
    spark: SparkSession, table: lakebed.Table, tmp_path: Path
) -> None:
    seen: list[tuple[int, str, str]] = []
    for number in (5, 6):
        table.apply(rows(number))
        frame = spark.readStream.format("lakebed_changes").option("path", table.path).load()
        writer = frame.writeStream.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True)
        query = writer.foreachBatch(
            lambda batch, _: seen.extend((row.id, row.v, row["_change_type"]) for row in batch.collect())
        )
        ended(started(query.start))
    assert sorted(seen) == sorted(
        [(number, "a", "upsert") for number in (1, 2, 3, 5, 6, 7, 8)] + [(2, "b", "upsert"), (4, "b", "upsert")]
    )
    assert values(table.changes(table.version, spark=spark).collect()) == {6: "a"}


def test_the_log_is_a_stream_of_commits(spark: SparkSession, table: lakebed.Table) -> None:
    log = spark.readStream.format("lakebed_log").option("path", table.path).option("startingVersion", "0")
    query = started(log.load().writeStream.format("memory").queryName("commits").start)
    query.processAllAvailable()
    table.apply(rows(5))
    query.processAllAvailable()
    query.stop()
    versions = [row.version for row in spark.sql("select version from commits order by version").collect()]
    assert versions == list(range(table.version + 1))


def test_maintenance_settles_and_merges(spark: SparkSession, table: lakebed.Table) -> None:
    table.set_properties({"lakebed.read_budget": "1"})
    for number in range(4):
        table.apply(rows(1, 10 + number, v=str(number)))
    maintenance = table.maintain(spark)
    wait_until(lambda: len(table.inspect.parts()) == 2, lambda: str(table.inspect.parts().to_pylist()))
    maintenance.stop()
    assert values(table.read(spark).collect())[1] == "3"


def test_delta_s_own_reader_reads_it_or_it_is_said_why_not(
    spark: SparkSession, table: lakebed.Table, caplog: pytest.LogCaptureFixture
) -> None:
    table.settle()
    if delta_package(spark_version()):
        assert values(spark.read.format("delta").load(table.path).collect()) == values(table.read(spark).collect())
    else:
        assert 'format("delta") does not work' in why_no_delta(spark_version())
        with pytest.raises(Exception, match="delta"):
            spark.read.format("delta").load(table.path)


def test_a_pipeline_starts_spark_by_itself(tmp_path: Path) -> None:
    file = tmp_path / "p.yml"
    file.write_text(
        f"table: {{path: {tmp_path / 't'}, keys: [order_id], sequence_by: source.lsn, schema: {{order_id: long not null}}}}\n"
        "source: {kind: generator, events_per_second: 200}\nformat: {kind: debezium-json}\nmetrics: {port: null}\n"
    )
    main = "import sys; from lakebed.cli import main; sys.exit(main())"
    done = ran([sys.executable, "-c", main, "run", str(file), "--duration", "4"])
    assert done.returncode == 0, done.stderr
    assert len(lakebed.open(tmp_path / "t").to_arrow()) > 0
