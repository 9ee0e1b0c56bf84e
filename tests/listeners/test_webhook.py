"""Webhooks as a real receiver gets them: signed, in order, and patient with a receiver that fails."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lakebed.errors import InvalidInput, MissingPrerequisite
from lakebed.listeners import destination as destinations
from lakebed.listeners.destination import KafkaDestination, Sent, WebhookDestination, keys_of, signature
from lakebed.listeners.event_types import TableEvent
from lakebed.listeners.feed import Cursor, Feed
from lakebed.listeners.listener import Listener
from lakebed.listeners.targets import KafkaTopic, Webhook, secret_of
from tests.listeners.receiver import Received, receiver
from tests.listeners.test_feed import by_table
from tests.listeners.worlds import World

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
def events(tmp_path: Path) -> dict[str, list[TableEvent]]:
    world = World(tmp_path / "lake", random.Random(1))
    for name in ("orders", "plain"):
        world.create(name)
        for _ in range(12):
            world.commit(name)
    return by_table(Feed(str(world.root)).read(Cursor()).events)


@pytest.fixture
def received() -> Iterator[Received]:
    with receiver() as one:
        yield one


def destination(received: Received, secret: str = "LAKEBED_SECRET_SHOP") -> WebhookDestination:
    return WebhookDestination(Webhook(url=received.url, secret=secret), "s3://lake/shop", clock=lambda: 1_700_000_000.9)


def test_the_signature_is_the_one_of_the_standards_example() -> None:
    [key] = keys_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert (
        signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", b'{"test": 2432232314}')
        == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_each_event_is_a_signed_request_in_order(
    received: Received, events: dict[str, list[TableEvent]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEBED_SECRET_SHOP", f"{SECRET} {'an older secret of 24 chars'.replace(' ', '-')}")
    sent = destination(received).send(events)
    assert sent == {table: Sent(len(of_table)) for table, of_table in events.items()}
    for table, of_table in events.items():
        came = [one["id"] for one in received.acknowledged if one["subject"] == table]
        assert came == [event.id for event in of_table]
    for headers, body in received.requests:
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        made = base64.b64encode(hmac.new(bytes(range(32)), signed, hashlib.sha256).digest()).decode()
        first, second = headers["webhook-signature"].split(" ")
        assert first == f"v1,{made}" and second.startswith("v1,") and second != first
        assert headers["webhook-timestamp"] == "1700000000"
        assert headers["content-type"] == "application/cloudevents+json"


def test_one_that_is_refused_ends_its_table_alone(received: Received, events: dict[str, list[TableEvent]]) -> None:
    bad = events["orders"][3].id
    received.answer = lambda event: 400 if event["id"] == bad else 200
    sent = destination(received, secret="").send(events)
    assert sent["plain"] == Sent(len(events["plain"]))
    failure = sent["orders"].failure
    assert sent["orders"].acknowledged == 3 and failure is not None and not failure.is_of_all
    assert failure.reason == f"{received.url} answers 400"
    assert all("webhook-signature" not in headers for headers, _ in received.requests)


@pytest.mark.parametrize(
    ("answer", "reason", "pause"),
    [
        (500, "answers 500", 0.0),
        ((503, {"Retry-After": "120"}), "answers 503", 120.0),
        ((429, {"Retry-After": "1e9"}), "answers 429", 3600.0),
        ((302, {"Location": "http://127.0.0.1:1/"}), "redirects are not followed", 0.0),
    ],
)
def test_a_receiver_that_fails_is_left_alone(
    received: Received, events: dict[str, list[TableEvent]], answer: Any, reason: str, pause: float
) -> None:
    received.answer = lambda event: answer
    sent = destination(received, secret="").send(events)
    failures = [one.failure for one in sent.values() if one.failure is not None]
    assert all(one.acknowledged == 0 for one in sent.values()) and failures
    assert all(reason in one.reason and one.is_of_all and one.pause_seconds == pause for one in failures)
    assert len(received.requests) <= len(events)  # a table each at most, and nothing after the first answer


def test_a_receiver_that_is_not_there_is_said_to_be_so(events: dict[str, list[TableEvent]]) -> None:
    with receiver() as gone:
        pass
    [sent, *_] = destination(gone, secret="").send(events).values()
    assert sent.acknowledged == 0 and sent.failure is not None and sent.failure.is_of_all
    assert "does not answer: " in sent.failure.reason


def test_a_connection_that_the_receiver_closed_meanwhile_is_no_failure(
    received: Received, events: dict[str, list[TableEvent]]
) -> None:
    hook = destination(received, secret="")
    received.answer = lambda event: (200, {"Connection": "close"})
    for _ in range(3):
        assert hook.send(events) == {table: Sent(len(of_table)) for table, of_table in events.items()}


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        ("https://user:secret@host/x", "must not have a user or a password"),
        ("https:///x", "and a host"),
        ("https://host/a b", "characters that no url has"),
        ("https://host/\r\nX: y", "characters that no url has"),
        ("https://host:99999/", "can't be read"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Webhook(url=url)


def test_a_secret_is_never_in_the_log_and_only_secrets_can_be_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for wrong in ("hunter2hunter2", "AWS_SECRET_ACCESS_KEY"):
        with pytest.raises(InvalidInput, match="LAKEBED_SECRET_"):
            Webhook(url="https://host/", secret=wrong)
        with pytest.raises(InvalidInput, match=r"LAKEBED_SECRET_|must not have it"):
            KafkaTopic(servers="b:9092", topic="t", config={"sasl.password": "${" + wrong + "}"})
    with pytest.raises(InvalidInput, match="the log must not have it"):
        KafkaTopic(servers="b:9092", topic="t", config={"sasl.password": "plain"})
    with pytest.raises(InvalidInput, match=r"'plugin.library.paths' can't be set"):
        KafkaTopic(servers="b:9092", topic="t", config={"plugin.library.paths": "/tmp/x.so"})
    topic = KafkaTopic(servers="b:9092", topic="t", config={"sasl.password": "${LAKEBED_SECRET_KAFKA}"})
    with pytest.raises(MissingPrerequisite, match="set LAKEBED_SECRET_KAFKA or LAKEBED_SECRET_KAFKA_FILE"):
        topic.resolved()
    (tmp_path / "secret").write_text("from a file\n")
    monkeypatch.setenv("LAKEBED_SECRET_KAFKA_FILE", str(tmp_path / "secret"))
    assert topic.resolved() == {"sasl.password": "from a file"} and secret_of("LAKEBED_SECRET_KAFKA") == "from a file"
    with pytest.raises(MissingPrerequisite, match="less than 16 bytes"):
        keys_of("short")


@pytest.mark.parametrize(
    "listener",
    [
        Listener(name="shop", target=Webhook(url="https://host/x", secret="LAKEBED_SECRET_SHOP"), tables=("public.*",)),
        Listener(
            name="k", target=KafkaTopic(servers="b:9092", topic="t", config={"client.id": "x"}), kinds=("merged",)
        ),
    ],
)
def test_a_listener_reads_back_as_it_was_written(listener: Listener) -> None:
    assert Listener.of_json(listener.name, listener.to_json()) == listener


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"kind": "mail"}, "of the kind webhook, kafka or catalog, not 'mail'"),
        ({"kind": "webhook"}, "KeyError"),
        ({"kind": "webhook", "url": 7}, "is no text"),
        ({"kind": "webhook", "url": "https://host/", "kinds": ["merge"]}, "there are no events 'merge'; .*merged"),
        ({"kind": "webhook", "url": "https://host/", "tables": []}, "no table"),
    ],
)
def test_a_listener_that_is_none_is_refused(value: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Listener.of_json("shop", value)
    with pytest.raises(InvalidInput, match="can't be the name of a listener"):
        Listener.of_json("a.b", {"kind": "webhook", "url": "https://host/"})


def test_settings_that_kafka_refuses_are_named_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_SECRET_KAFKA", "hunter2hunter2")
    topic = KafkaTopic(
        servers="localhost:1",
        topic="t",
        config={"security.protocol": "odd", "sasl.password": "${LAKEBED_SECRET_KAFKA}"},
    )
    with pytest.raises(InvalidInput, match="refuses the settings of the listener") as refused:
        KafkaDestination(topic, "lake").send({})
    assert "hunter2" not in str(refused.value)


@contextmanager
def hostile_receiver(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """The port of a receiver that does ``answer`` with each connection again and again, until it is closed."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def forever(connection: socket.socket) -> None:
            with connection, suppress(OSError):
                while True:
                    answer(connection)
                    connection.settimeout(0.01)
                    with suppress(TimeoutError):
                        if not connection.recv(65536):
                            return

        def accept() -> None:
            with suppress(OSError):
                while True:
                    threading.Thread(target=forever, args=(listening.accept()[0],), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def no_answer(connection: socket.socket) -> None:
    """Nothing comes."""


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize(
    "answer",
    [lambda one: one.sendall(b"x"), lambda one: one.sendall(b"HTTP/1.1 100 Continue\r\n\r\n"), no_answer],
    ids=["byte by byte", "100 Continue", "nothing"],
)
def test_a_receiver_that_answers_without_end_is_cut_off(
    answer: Callable[[socket.socket], object],
    scheme: str,
    events: dict[str, list[TableEvent]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(destinations, "EXCHANGE_SECONDS", 0.3)
    monkeypatch.setattr(destinations, "_LOOK_SECONDS", 0.02)
    with hostile_receiver(answer) as port:
        one = WebhookDestination(Webhook(url=f"{scheme}://127.0.0.1:{port}/"), "s3://lake/shop")
        sent = one.send(events)
        one.close()
    assert all(each.acknowledged == 0 for each in sent.values())
    failures = [each.failure for each in sent.values() if each.failure is not None]
    assert failures and all(failure.is_of_all and "does not answer" in failure.reason for failure in failures)


def test_a_host_that_no_look_up_takes_is_a_failure(events: dict[str, list[TableEvent]]) -> None:
    one = WebhookDestination(Webhook(url="http://a..b/"), "s3://lake/shop")
    failure = one.send(events)["orders"].failure
    assert failure is not None and "http://a..b/ does not answer" in failure.reason
