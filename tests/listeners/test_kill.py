"""Whoever delivers is killed with kill -9: every version comes at least once and in order, over HTTP and in a Kafka topic."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lakebed.listeners.feed import Cursor, Feed
from lakebed.listeners.listener import Listener, ListenerLog
from lakebed.listeners.targets import KafkaTopic, Target, Webhook
from tests.clock import Clock
from tests.infra.kafka import KafkaServer, end_offsets, messages_before
from tests.listeners.receiver import receiver
from tests.listeners.worlds import TABLES, World
from tests.waiting import wait_until

KILLS = 3
pytestmark = pytest.mark.slow


class Killed:
    """One process after the other delivers; each is killed without warning."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.listeners.deliver_until_killed", str(self._root)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ})
        assert self._process.stdout is not None and self._process.stdout.readline() == "delivering\n"

    def kill(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()


def wanted(world: World) -> dict[str, list[str]]:
    """The ids of all events, by table."""
    found: dict[str, list[str]] = {name: [] for name in TABLES}
    for event in Feed(str(world.root), clock=Clock(0.0)).read(Cursor(), 10_000).events:
        found[event.table].append(event.id)
    return found


def first_of(events: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The ids that came, each when it came first, by table."""
    found: dict[str, list[str]] = {name: [] for name in TABLES}
    for event in events:
        if event["id"] not in found[event["subject"]]:
            found[event["subject"]].append(event["id"])
    return found


def deliver_with_kills(world: World, target: Target, came: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Commits while processes deliver and are killed; what came."""
    rng = random.Random(7)
    ListenerLog(str(world.root)).put(Listener(name="here", target=target), Cursor())
    killed = Killed(world.root)
    try:
        for number in range(KILLS + 1):
            killed.start()
            before = len(came())
            for _ in range(20):
                world.commit(rng.choice(list(TABLES)))
            if number < KILLS:
                wait_until(lambda before=before: len(came()) > before + rng.randrange(1, 8), moving=lambda: len(came()))
                killed.kill()
        everything = wanted(world)
        wait_until(lambda: first_of(came()) == everything, lambda: str(first_of(came())), moving=lambda: len(came()))
    finally:
        killed.kill()
    return came()


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "lake", random.Random(3))
    for name in TABLES:
        world.create(name)
    return world


def test_a_webhook_gets_every_version_in_order_whoever_is_killed(world: World) -> None:
    with receiver() as received:
        events = deliver_with_kills(world, Webhook(url=received.url), lambda: list(received.acknowledged))
    assert first_of(events) == wanted(world)


@pytest.mark.long
def test_a_kafka_topic_gets_every_version_in_order_whoever_is_killed(world: World, kafka: KafkaServer) -> None:
    topic = kafka.create_topic(f"events-{os.getpid()}", partitions=3)

    def came() -> list[dict[str, Any]]:
        ends = end_offsets(kafka.bootstrap, topic, 3)
        messages = list(messages_before(kafka.bootstrap, topic, ends)) if any(ends.values()) else []
        events = [json.loads(message.value() or b"") for message in messages]
        assert [event["subject"].encode() for event in events] == [message.key() for message in messages]
        return events

    events = deliver_with_kills(world, KafkaTopic(servers=kafka.bootstrap, topic=topic), came)
    assert first_of(events) == wanted(world)
