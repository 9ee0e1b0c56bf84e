"""The ids of topics, which only the admin client knows: a broker that does not answer costs them, and nothing else."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from lakebed.errors import Retry
from lakebed.sources.kafka import cluster as kafka_cluster
from lakebed.sources.kafka.cluster import KafkaCluster
from lakebed.sources.kafka.settings import KafkaSettings
from tests.infra.kafka import KafkaServer


def cluster_of(bootstrap: str, timeout_seconds: float) -> KafkaCluster:
    config = {"bootstrap.servers": bootstrap}
    return KafkaCluster(KafkaSettings(config=config, topics=("t",), timeout_seconds=timeout_seconds))


class Admin:
    """An admin client whose answers a test gives."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Future[Any]]] = []
        self.give_up_seconds: set[float] = set()

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Any]]:
        self.asked.append({name: Future() for name in ("t", "u")})
        self.give_up_seconds.add(request_timeout)
        return self.asked[-1]


def test_one_question_waits_for_brokers_that_do_not_answer_and_librdkafka_does_not_give_it_up() -> None:
    admin, cluster = Admin(), cluster_of("nowhere:1", 0.0)
    vars(cluster)["_admin"] = admin
    assert [cluster.ids(["t", "u"]) for _ in range(3)] == [{}, {}, {}]
    assert len(admin.asked) == 1, "questions do not pile up"
    for answer in admin.asked[0].values():
        answer.set_result(SimpleNamespace(topic_id="1"))
    assert cluster.ids(["t", "u"]) == {} and len(admin.asked) == 2, "a late answer is none to another question"
    admin.asked[1]["t"].set_result(SimpleNamespace(topic_id="1"))
    admin.asked[1]["u"].set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
    answered = dict(admin.asked[1])
    admin.describe_topics = lambda topics, request_timeout: answered  # type: ignore[method-assign]
    assert cluster.ids(["t", "u"]) == {"t": "1"}
    assert admin.give_up_seconds == {kafka_cluster.GIVE_UP_SECONDS}


def test_if_brokers_answer_and_a_question_has_no_answer_another_client_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    now, brokers_answer = [100.0], [False]
    cluster = cluster_of("nowhere:1", 0.0)
    monkeypatch.setattr(cluster, "_clock", lambda: now[0])
    made: list[Admin] = []

    def client(kind: object, config: object) -> Admin:
        made.append(Admin())
        return made[-1]

    def metadata() -> None:
        if not brokers_answer[0]:
            raise Retry("no answer")

    monkeypatch.setattr(cluster, "_client", client)
    monkeypatch.setattr(cluster, "_metadata", metadata)
    assert cluster.ids(["t"]) == {}
    now[0] += kafka_cluster.LOST_SECONDS
    assert cluster.ids(["t"]) == {} and len(made) == 1, "no broker answers: another client would fare the same"
    brokers_answer[0] = True
    for number in range(20):
        assert cluster.ids(["t"]) == {}
        assert [len(one.asked) for one in made] == [1] * min(number + 2, kafka_cluster.REPLACED_MAX + 1)
        now[0] += kafka_cluster.LOST_SECONDS
    for one in made:
        one.asked[0]["t"].set_result(SimpleNamespace(topic_id="1"))
        one.asked[0]["u"].set_result(SimpleNamespace(topic_id="1"))
    assert cluster.ids(["t"]) == {} and len(made[-1].asked) == 2


@pytest.fixture
def broker() -> Iterator[KafkaServer]:
    """One of its own, which a test may stop."""
    with KafkaServer() as server:
        server.create_topic("t")
        yield server


@pytest.mark.long
@pytest.mark.slow
def test_a_broker_that_stands_still_and_goes_on_costs_no_more_than_ids(broker: KafkaServer) -> None:
    patient, hasty = cluster_of(broker.bootstrap, 30.0), cluster_of(broker.bootstrap, 30.0)
    known = patient.ids(["t"])
    assert known == hasty.ids(["t"]) and known["t"]
    vars(hasty)["_settings"] = vars(cluster_of(broker.bootstrap, 0.2))["_settings"]
    assert broker.pid is not None
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        assert [hasty.ids(["t"]) for _ in range(3)] == [{}, {}, {}]
    finally:
        os.kill(broker.pid, signal.SIGCONT)
    assert patient.ids(["t"]) == known
    vars(hasty)["_settings"] = vars(patient)["_settings"]
    assert hasty.ids(["t"]) == known
