"""Events of a real S3 server reach a worker through a webhook, Kafka or SQS. Lost, wrong and late ones do no harm."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

import lakebed
from lakebed import events
from lakebed.errors import InvalidInput
from lakebed.fleet import hint_reader, sqs_hints
from lakebed.fleet.hearing import Hearing
from lakebed.fleet.hint_reader import HintReader
from lakebed.fleet.hint_sources import hint_readers
from lakebed.fleet.worker import FleetWorker
from lakebed.http.server import Listening
from lakebed.service.poke import poke_server
from tests.fleet.test_pokes import rests, seldom  # noqa: F401  (a fixture that counts here too)
from tests.fleet.test_worker import LIMITS, SCHEMA, changes, is_settled
from tests.infra.kafka import KafkaServer
from tests.infra.s3 import S3Server, aws_environment
from tests.infra.sqs import SqsServer
from tests.infra.test_servers import produce
from tests.internals import log_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hint_reader, "PAUSE_SECONDS", (0.1, 0.5))
    monkeypatch.setattr(sqs_hints, "WAIT_SECONDS", 1)  # what a reader waits for when it is closed


@pytest.fixture(scope="module")
def sqs() -> Iterator[SqsServer]:
    """A server of SQS's API; give your queues names of your own."""
    with SqsServer() as server:
        yield server


@contextmanager
def resting() -> Iterator[FleetWorker]:
    """A worker without tables that was not started."""
    one = FleetWorker(["/nowhere"], LIMITS, "one")
    try:
        yield one
    finally:
        one.close()


@contextmanager
def heard(
    *urls: str, worker: FleetWorker | None = None
) -> Iterator[tuple[list[HintReader], list[events.HintsReceived]]]:
    """What is read from these until the block ends; by a worker without tables, if none is given."""
    received: list[events.HintsReceived] = []
    end = events.listen(lambda event: received.append(event) if isinstance(event, events.HintsReceived) else None)
    with nullcontext(worker) if worker else resting() as one:
        readers = hint_readers(urls, {}, Hearing(one))
        try:
            for reader in readers:
                reader.start()
            yield readers, received
        finally:
            for reader in readers:
                reader.close()
            end()


@contextmanager
def working(root: str) -> Iterator[FleetWorker]:
    one = FleetWorker([root], LIMITS, "one")
    one.start()
    try:
        yield one
    finally:
        one.close()


def event(bucket: str, key: str) -> dict[str, Any]:
    return {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"bucket": {"name": bucket}, "object": {"key": key}}}]}


def commits_are_noticed(root: str, one: FleetWorker, *names: str) -> None:
    """Each table is settled after its commit, with no look but those for hints, and so is a table that is new."""
    tables = [lakebed.open(f"{root}/{name}") for name in names]
    wait_until(lambda: rests(one, len(tables)))
    for table in tables:
        looks = one.state().looks
        table.apply(changes(1))
        wait_until(lambda table=table: is_settled(table) and rests(one, len(tables)))
        assert one.state().looks <= looks + 2, "one for the hint, and one as the table comes to rest"
    new = lakebed.create(f"{root}/public/new", SCHEMA, keys=["id"])
    new.apply(changes(1))
    wait_until(lambda: is_settled(new))


def made(root: str, *names: str) -> None:
    for name in names:
        lakebed.create(f"{root}/{name}", SCHEMA, keys=["id"])


def test_commits_to_s3_reach_a_worker_through_kafka(kafka: KafkaServer) -> None:
    topic, names = kafka.create_topic("hints-of-s3", partitions=3), ("public/orders", "public/a b+c%20é")
    with S3Server(events=("--event-kafka-url", kafka.bootstrap, "--event-kafka-topic", topic)) as server:
        bucket = server.create_bucket()
        root = f"s3://{bucket}/shop"
        with aws_environment(server.endpoint):
            made(root, *names)
            with working(root) as one, heard(f"kafka://{kafka.bootstrap}/{topic}", worker=one) as ([reader], received):
                wait_until(lambda: reader.is_connected)
                commits_are_noticed(root, one, *names)
                late = event(bucket, "shop/public/orders/_delta_log/00000000000000000000.json")
                produce(kafka, topic, [json.dumps(late).encode()])
                wait_until(lambda: any(each.known for each in received))
    assert not any(each.malformed for each in received)


def test_commits_to_s3_reach_a_worker_through_a_webhook() -> None:
    hearing: list[Hearing] = []

    def take(body: object) -> Mapping[str, object]:
        return hearing[0].poked(body) if hearing else {}  # the server tries the address when it starts

    port = poke_server(take, Listening(port=0), None)
    port.start()
    try:
        with S3Server(events=("--event-webhook-url", f"{port.url}/poke")) as server:
            root = f"s3://{server.create_bucket()}/shop"
            with aws_environment(server.endpoint):
                made(root, "public/orders")
                with working(root) as one:
                    hearing.append(Hearing(one))
                    commits_are_noticed(root, one, "public/orders")
    finally:
        port.close()


def test_a_topic_that_is_not_there_yet_is_read_when_it_is(kafka: KafkaServer, caplog: pytest.LogCaptureFixture) -> None:
    with heard(f"kafka://{kafka.bootstrap}/hints-later") as ([reader], received):
        wait_until(lambda: "no hints come from" in caplog.text)
        kafka.create_topic("hints-later")
        wait_until(lambda: reader.is_connected)
        for body in (b"\x00\xff", b"{}", b"", json.dumps({"Records": [7]}).encode(), b'["s3://lake/t"]'):
            produce(kafka, "hints-later", [body])
        wait_until(lambda: sum(each.unrelated for each in received) == 1)
        assert sum(each.malformed for each in received) == 4, "and the reader goes on"
    assert caplog.text.count("can't be read") == 1, "which is logged once in a while"


def test_a_broker_that_is_away_is_a_warning_and_is_read_again(caplog: pytest.LogCaptureFixture) -> None:
    with KafkaServer() as own:
        own.create_topic("hints")
        with heard(f"kafka://{own.bootstrap}/hints") as ([reader], received):
            wait_until(lambda: reader.is_connected)
            own.kill()
            wait_until(lambda: not reader.is_connected)
            own.start()
            wait_until(lambda: reader.is_connected)
            produce(own, "hints", [b'["s3://lake/t"]'])
            wait_until(lambda: received)
    assert "no hints come from" in caplog.text


def test_events_reach_a_worker_through_a_queue_of_sqs(
    sqs: SqsServer, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", sqs.endpoint)
    queue, client, bucket = sqs.create_queue("hints"), sqs.client(), s3.create_bucket()
    made(f"s3://{bucket}/shop", "public/orders")
    table = lakebed.open(f"s3://{bucket}/shop/public/orders")
    with working(f"s3://{bucket}/shop") as one, heard("sqs://hints", worker=one) as (_, received):
        wait_until(lambda: rests(one, 1))
        client.send_message(
            QueueUrl=queue, MessageBody='{"Service": "Amazon S3", "Event": "s3:TestEvent", "Bucket": "lake"}'
        )
        client.send_message(QueueUrl=queue, MessageBody="this is no event")
        for number in range(1, 3):
            table.apply(changes(number))
            text = json.dumps(
                event(bucket, f"shop/public/orders/_delta_log/{log_of(table).refresh().version:020d}.json")
            )
            if number == 2:
                text = json.dumps({"Type": "Notification", "TopicArn": "arn:aws:sns:eu:1:lake", "Message": text})
            client.send_message(QueueUrl=queue, MessageBody=text)
            wait_until(lambda: is_settled(table) and rests(one, 1))
        wait_until(lambda: not int(_waiting(sqs, queue)), "what was read is deleted")
    assert sum(each.malformed for each in received) == 1


def test_a_queue_that_is_away_is_a_warning_and_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with SqsServer() as own, aws_environment(own.endpoint), heard("sqs://own") as ([reader], received):
        wait_until(lambda: "no hints come from" in caplog.text, "there is no such queue")
        own.create_queue("own")
        wait_until(lambda: reader.is_connected)
        own.restart()
        queue = own.create_queue("own")
        own.client().send_message(QueueUrl=queue, MessageBody='["s3://lake/t"]')
        wait_until(lambda: received)


def _waiting(sqs: SqsServer, queue: str) -> str:
    names = ("ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible")
    answer = sqs.client().get_queue_attributes(QueueUrl=queue, AttributeNames=list(names))["Attributes"]
    return str(sum(int(answer[name]) for name in names))


@pytest.mark.parametrize(
    "url",
    ["", "kafka", "kafka://", "kafka://broker:9092", "kafka://broker:9092/", "kafka://broker:9092/a/b", "kafka://u:p@b:1/t",
     "kafka://b:1/t?x=y", "sqs://", "sqs://a b", "sqs://123/queue", "sqs://a/b/c", "http://x/y", "sqs:///queue"],
)  # fmt: skip
def test_a_source_of_another_form_is_refused(url: str) -> None:
    with resting() as one, pytest.raises(InvalidInput):
        hint_readers([url], {}, Hearing(one))


def test_settings_of_kafka_need_a_topic_and_may_hold_no_secret() -> None:
    with resting() as one:
        with pytest.raises(InvalidInput, match="--kafka-config is for"):
            hint_readers(["sqs://queue"], {"security.protocol": "SSL"}, Hearing(one))
        with pytest.raises(InvalidInput, match=r"sasl\.password is a secret"):
            hint_readers(["kafka://b:1/t"], {"sasl.password": "hunter2"}, Hearing(one))
