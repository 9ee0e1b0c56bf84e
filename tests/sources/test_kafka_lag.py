"""How far behind a query is, from what Spark reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from lakebed.sources.kafka.lag import lag_by_topic, lag_of_tables
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaSource
from tests.infra.kafka import KafkaServer
from tests.sources.test_kafka_source import produce
from tests.waiting import started, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def progress(latest: object, end: object) -> dict[str, object]:
    return {"sources": [{"latestOffset": latest, "endOffset": end}]}


def test_records_left_are_added_up_by_topic() -> None:
    end = {"topics": {"a": {"0": 5, "1": 7}, "b": {"0": 1}}, "ids": {}}
    latest = {"topics": {"a": {"0": 15, "1": 7}, "b": {"0": 1}}}
    assert lag_by_topic(progress(latest, end)) == {"a": 10, "b": 0}
    assert lag_by_topic(progress(json.dumps(latest), json.dumps(end))) == {"a": 10, "b": 0}


def test_a_topic_of_a_database_that_has_caught_up_is_said_to_have_no_lag() -> None:
    all_named, some_named = {"left_in_all": 7, "left": {"a": 7}}, {"left_in_all": 9, "left": {"a": 7}}
    assert lag_of_tables(progress(all_named, {}), {}, ["b"]) == ({"a": 7, "b": 0}, 7)
    assert lag_of_tables(progress(some_named, {}), {}, ["b"]) == ({"a": 7}, 9)  # of b nothing is known
    assert lag_of_tables({}, {}, ["b"]) == ({}, 0)


def test_records_that_wait_for_a_table_in_trouble_are_lag_though_they_were_planned() -> None:
    assert lag_of_tables(progress({"left_in_all": 7, "left": {"a": 7}}, {}), {"a": 3, "b": 5}) == (
        {"a": 10, "b": 5},
        15,
    )


def test_a_source_that_does_not_tell_has_no_lag() -> None:
    assert lag_by_topic({}) == lag_by_topic(progress(None, None)) == lag_by_topic(progress("7", "null")) == {}
    assert lag_by_topic(progress(None, {"topics": {"a": {"0": 5}}})) == {}


def test_spark_reports_what_a_real_query_left_behind(kafka: KafkaServer, spark: SparkSession, tmp_path: Path) -> None:
    topic = kafka.create_topic(f"lag-{uuid4().hex[:8]}")
    produce(kafka, topic, 20)
    settings = KafkaSettings(config={"bootstrap.servers": kafka.bootstrap}, topics=(topic,), max_records_per_batch=5)
    writer = KafkaSource(settings).stream(spark).writeStream.option("checkpointLocation", str(tmp_path))
    query = started(writer.foreachBatch(lambda frame, number: None).trigger(processingTime="1 hour").start)
    seen = wait_until(lambda: query.lastProgress or not query.isActive)
    query.stop()
    assert lag_by_topic(dict(seen)) == {topic: 15}
