"""Kafka clients that a process keeps between ranges: connecting and authenticating costs more than a small range.

As many are kept as ranges were read at once, up to ``KEPT_MAX``; each has a connection and a few threads. Only those of the
settings that were used last are kept. A process that was forked has none: the clients of its parent are not its own.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

KEPT_MAX = 8
C = TypeVar("C")


class KeptClients(Generic[C]):
    """Safe to use from several threads. A client belongs to the thread that took it, until it gives it back."""

    def __init__(self, close: Callable[[C], object]) -> None:
        self._close = close
        self._clients: list[C] = []
        self._key = (0, "")
        self._lock = threading.Lock()
        _all.add(self)

    def take(self, settings: str) -> C | None:
        """A client with these settings; None if none is kept."""
        with self._lock:
            return self._clients.pop() if self._key == (os.getpid(), settings) and self._clients else None

    def give_back(self, settings: str, client: C) -> None:
        """Keep a client that works, or close it if there are enough."""
        key, superfluous = (os.getpid(), settings), []
        with self._lock:
            if key != self._key:
                superfluous = self._clients if self._key[0] == os.getpid() else []
                self._clients, self._key = [], key
            kept = self._clients if len(self._clients) < KEPT_MAX else superfluous
            kept.append(client)
        for each in superfluous:
            self._close(each)

    def close_kept(self) -> None:
        """Close the clients that nobody uses now."""
        with self._lock:
            kept, self._clients = (self._clients if self._key[0] == os.getpid() else []), []
        for each in kept:
            self._close(each)

    def renew_lock(self) -> None:
        """In a forked process: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


_all: weakref.WeakSet[KeptClients[Any]] = weakref.WeakSet()


def close_kept_clients() -> None:
    """Close all clients that nobody uses now: after an outage the network may have lost their connections."""
    for each in list(_all):
        each.close_kept()


def _renew_locks() -> None:
    for each in _all:
        each.renew_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_locks)
