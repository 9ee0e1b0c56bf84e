"""Clients are kept between ranges: none is lost, none is used by two threads, and there are never more than needed."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

import pytest

from lakebed.sources.kafka import clients
from lakebed.sources.kafka.clients import KEPT_MAX, KeptClients


@dataclass(eq=False)
class Client:
    """Knows whether it is in use, and whether it was closed."""

    is_closed: bool = False
    user: int | None = None


@dataclass
class Source:
    """Makes clients, and remembers them all."""

    made: list[Client] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kept: KeptClients[Client] = KeptClients(self.close)

    def close(self, client: Client) -> None:
        time.sleep(0.001)  # as closing does: other threads go on meanwhile
        if client.is_closed:
            self.wrong.append("closed twice")
        client.is_closed = True

    def taken(self, settings: str = "a") -> Client:
        client = self.kept.take(settings)
        if client is None:
            client = Client()
            self.made.append(client)
        if client.is_closed or client.user is not None:
            self.wrong.append("in use, or closed")
        client.user = threading.get_ident()
        return client

    def give_back(self, client: Client, settings: str = "a") -> None:
        client.user = None
        self.kept.give_back(settings, client)

    def open(self) -> int:
        return sum(not client.is_closed for client in self.made)


def test_a_client_serves_range_after_range() -> None:
    source = Source()
    for _ in range(10):
        source.give_back(source.taken())
    assert (len(source.made), source.open()) == (1, 1)


@pytest.mark.parametrize("threads", [2, KEPT_MAX, 3 * KEPT_MAX])
def test_threads_that_read_at_once_lose_no_client(threads: int) -> None:
    source, together = Source(), threading.Barrier(threads)

    def read() -> None:
        for _ in range(30):
            together.wait()
            client = source.taken()
            time.sleep(0.0001)
            source.give_back(client)

    readers = [threading.Thread(target=read) for _ in range(threads)]
    for each in readers:
        each.start()
    for each in readers:
        each.join()
    assert source.wrong == []
    assert source.open() <= min(threads, KEPT_MAX)
    if threads <= KEPT_MAX:
        assert len(source.made) <= threads


def test_clients_of_other_settings_are_closed() -> None:
    source = Source()
    clients = [source.taken() for _ in range(3)]
    for client in clients:
        source.give_back(client)
    other = source.taken("b")
    source.give_back(other, "b")
    assert [client.is_closed for client in clients] == [True] * 3
    assert source.taken("b") is other


def test_a_forked_process_uses_no_client_of_its_parent_and_closes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source()
    mine = source.taken()
    source.give_back(mine)
    parent = os.getpid()
    monkeypatch.setattr(clients.os, "getpid", lambda: parent + 1)
    own = source.taken()
    assert own is not mine
    source.give_back(own)
    assert not mine.is_closed and source.taken() is own
