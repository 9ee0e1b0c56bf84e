"""Each server starts, does one real thing, survives what it should, and leaves no process behind."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fastavro
import pytest
from botocore.exceptions import ClientError
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from tests.infra.connect import avro_converters
from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.downloads import REPOSITORY
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.postgres import PostgresServer
from tests.infra.processes import descendants, is_alive
from tests.infra.registry import RegistryServer
from tests.infra.s3 import S3Server
from tests.infra.server import Server, ServerFailed
from tests.waiting import Patience, wait_until

pytestmark = pytest.mark.slow


def produce(kafka: KafkaServer, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def consume(kafka: KafkaServer, topic: str, are_enough: Callable[[list[bytes]], bool]) -> list[bytes]:
    """The first values of a topic that are enough, without tombstones; fewer when no more come."""
    settings = {"bootstrap.servers": kafka.bootstrap, "group.id": os.urandom(8).hex(), "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "topic.metadata.refresh.interval.ms": 200})
    consumer.subscribe([topic])
    values: list[bytes] = []
    patience = Patience(lambda: len(values))
    while not are_enough(values) and not patience.is_over():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None and message.value() is not None:
            values.append(message.value())
    consumer.close()
    return values


def assert_leaves_nothing_behind(server: Server) -> None:
    assert server.pid is not None
    family = [server.pid, *descendants(server.pid)]
    server.close()
    assert [pid for pid in family if is_alive(pid)] == []
    assert not server.run_folder.exists()


@pytest.mark.long
def test_kafka_keeps_its_records_and_its_address_over_a_crash() -> None:
    kafka = KafkaServer().start()
    kafka.create_topic("orders", partitions=2)
    produce(kafka, "orders", [b"%d" % number for number in range(1000)])
    address = kafka.bootstrap

    kafka.kill()
    kafka.start()

    assert kafka.bootstrap == address
    kept = consume(kafka, "orders", lambda values: len(values) == 1000)
    assert sorted(int(value) for value in kept) == list(range(1000))
    assert_leaves_nothing_behind(kafka)


def test_postgres_keeps_its_rows_over_a_crash_and_a_restart() -> None:
    postgres = PostgresServer().start()
    postgres.create_database("shop")
    postgres.sql("create table orders(id int primary key, note text); insert into orders values (1, 'a,\"b\"')", "shop")
    postgres.kill()
    postgres.start()
    postgres.restart()
    assert postgres.sql("select * from orders", "shop") == [["1", 'a,"b"']]
    assert postgres.sql("show wal_level") == [["logical"]]
    assert_leaves_nothing_behind(postgres)


def test_a_wrong_statement_is_an_error_that_names_it(postgres: PostgresServer) -> None:
    with pytest.raises(ServerFailed, match="no_such_table"):
        postgres.sql("select * from no_such_table")


@pytest.mark.long
def test_changes_of_a_table_arrive_in_kafka_also_after_debezium_crashed(
    kafka: KafkaServer, postgres: PostgresServer
) -> None:
    postgres.create_database("captured")
    postgres.sql("create table orders(id int primary key, note text); insert into orders values (1, 'old')", "captured")
    kafka.create_topic("crash.public.orders")  # of one partition, so that it keeps the order of all keys
    debezium = DebeziumServer(kafka, postgres).start()
    name = debezium.capture("captured", ["public.orders"], "crash")
    postgres.sql("update orders set note = 'new'", "captured")
    before = consume(kafka, "crash.public.orders", lambda values: len(values) == 2)
    assert operations(before) == [("r", "old"), ("u", "new")]
    debezium.wait_until_sent(name)  # now its offset is stored; killed before that, it would take its snapshot again

    debezium.kill()
    postgres.sql("insert into orders values (2, 'while it was down'); delete from orders where id = 1", "captured")
    debezium.start()

    # Delivery is at least once over a crash: what was sent last may come again.
    seen = operations(consume(kafka, "crash.public.orders", lambda values: ("d", None) in operations(values)))
    assert list(dict.fromkeys(seen)) == [("r", "old"), ("u", "new"), ("c", "while it was down"), ("d", None)]
    debezium.release(name)
    assert postgres.sql("select count(*) from pg_replication_slots where slot_name = 'crash'") == [["0"]]
    assert_leaves_nothing_behind(debezium)


@pytest.mark.long
def test_a_registry_keeps_its_schemas_and_its_address_over_a_crash() -> None:
    registry = RegistryServer().start()
    text = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
    client = SchemaRegistryClient({"url": registry.url})
    number = client.register_schema("orders-value", Schema(text, "AVRO"))
    registry.kill()
    registry.start()
    again = SchemaRegistryClient({"url": registry.url})
    assert json.loads(again.get_schema(number).schema_str) == json.loads(text)
    assert again.get_latest_version("orders-value").schema_id == number
    assert_leaves_nothing_behind(registry)


@pytest.mark.long
def test_mariadb_keeps_its_rows_over_a_crash_and_its_changes_arrive_as_avro(
    kafka: KafkaServer, registry: RegistryServer
) -> None:
    mariadb = MariaDbServer().start()
    mariadb.sql(
        "create database shop; use shop; create table orders(id int primary key, note text); "
        "insert into orders values (1, 'old')"
    )
    mariadb.kill()
    mariadb.start()
    assert mariadb.sql("select * from orders", "shop") == [["1", "old"]]
    kafka.create_topic("arrive.shop.orders")  # of one partition, so that it keeps the order of all keys
    debezium = DebeziumMariaDb(kafka, mariadb).start()
    name = debezium.capture("shop", ["shop.orders"], "arrive", avro_converters(registry))
    mariadb.sql("update orders set note = 'new'", "shop")
    debezium.wait_until_sent(name)

    debezium.kill()
    mariadb.sql("alter table orders add count int default 7; insert into orders (id, note) values (2, 'ß')", "shop")
    debezium.start()
    debezium.wait_until_sent(name)

    events = avro_events(registry, consume(kafka, "arrive.shop.orders", lambda values: len(values) >= 3))
    rows = list(dict.fromkeys((event["op"], tuple(event["after"].items())) for event in events))
    assert rows == [
        ("r", (("id", 1), ("note", "old"))),
        ("u", (("id", 1), ("note", "new"))),
        ("c", (("id", 2), ("note", "ß"), ("count", 7))),
    ]
    assert events == sorted(events, key=lambda event: (event["source"]["file"], event["source"]["pos"]))
    debezium.release(name)
    assert_leaves_nothing_behind(debezium)
    assert_leaves_nothing_behind(mariadb)


def avro_events(registry: RegistryServer, values: list[bytes]) -> list[dict[str, Any]]:
    """Records in Confluent's wire format: a zero, four bytes of the schema's id, the record."""
    client = SchemaRegistryClient({"url": registry.url})
    read = []
    for value in values:
        assert value[0] == 0
        schema = client.get_schema(int.from_bytes(value[1:5], "big")).schema_str
        read.append(fastavro.schemaless_reader(io.BytesIO(value[5:]), json.loads(schema), None))
    return read


def operations(values: list[bytes]) -> list[tuple[str, str | None]]:
    events = [json.loads(value) for value in values]
    return [(event["op"], event["after"] and event["after"]["note"]) for event in events]


def test_only_one_of_many_racing_conditional_puts_wins(s3: S3Server) -> None:
    bucket = s3.create_bucket()
    client = s3.client(max_pool_connections=8)

    def put(racer: int) -> int | None:
        try:
            client.put_object(Bucket=bucket, Key="log/1.json", Body=b"%d" % racer, IfNoneMatch="*")
            return racer
        except ClientError as refused:
            assert refused.response["ResponseMetadata"]["HTTPStatusCode"] in (409, 412)
            return None

    with ThreadPoolExecutor(8) as pool:
        winners = [racer for racer in pool.map(put, range(40)) if racer is not None]
    assert len(winners) == 1
    assert client.get_object(Bucket=bucket, Key="log/1.json")["Body"].read() == b"%d" % winners[0]


def test_s3_keeps_its_objects_over_a_crash() -> None:
    s3 = S3Server().start()
    bucket = s3.create_bucket()
    s3.client().put_object(Bucket=bucket, Key="a/b", Body=b"kept")
    s3.kill()
    s3.start()
    assert s3.client().get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"kept"
    assert_leaves_nothing_behind(s3)


def test_a_server_that_does_not_come_up_tells_the_end_of_its_log() -> None:
    kafka = KafkaServer(settings={"num.network.threads": "many"})
    with pytest.raises(ServerFailed, match=r"num\.network\.threads"):
        kafka.start()
    kafka.close()


def test_servers_end_with_the_process_that_started_them() -> None:
    program = """
import time
from tests.infra.s3 import S3Server
server = S3Server().start()
print(server.pid, server.run_folder, flush=True)
time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, run_folder = owner.stdout.readline().split()
    server_pid = int(pid)
    assert is_alive(server_pid)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_until(lambda: not is_alive(server_pid) and not Path(run_folder).exists())
