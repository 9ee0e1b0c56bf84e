"""Delivers to the listeners of a root, in this process. Any number of processes may: the log says who delivers to which.

A thread looks for listeners and says that this process lives; each listener that is this process's has a thread of its own. So
one that is slow, or fails, holds up no other. They share a feed: a table is looked at once for all.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import assert_never

from lakebed import events
from lakebed.errors import Corrupt, LakebedError
from lakebed.listeners.cursor import At
from lakebed.listeners.delivery import Delivery
from lakebed.listeners.destination import Destination, KafkaDestination
from lakebed.listeners.feed import Feed
from lakebed.listeners.listener import (
    BEAT_SECONDS,
    DEAD_SECONDS,
    Delivering,
    KafkaTopic,
    Listener,
    ListenerLog,
    Target,
    Webhook,
)
from lakebed.listeners.webhook import WebhookDestination

LOOK_SECONDS = 2.0  # until it is noticed that a listener was added, changed or removed
_CLOSE_SECONDS = 15.0
_logger = logging.getLogger("lakebed.listeners")


@dataclass(frozen=True, slots=True)
class _Running:
    listener: Listener
    delivery: Delivery
    thread: threading.Thread
    stop: threading.Event
    wake: threading.Event

    def end(self) -> None:
        self.stop.set()
        self.wake.set()


class Deliverer:
    """Delivers until it is closed. ``feed``: one that others of this process use too."""

    def __init__(
        self,
        root: str,
        *,
        feed: Feed | None = None,
        look_seconds: float = LOOK_SECONDS,
        beat_seconds: float = BEAT_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raises InvalidInput for a root that can't be one. Nothing begins before ``start``."""
        self.feed = feed or Feed(root)
        self.log = ListenerLog(self.feed.root, clock)
        self.process = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self._look_seconds = look_seconds
        self._beat_seconds = beat_seconds
        self._clock = clock
        self._running: dict[str, _Running] = {}
        self._stuck: set[str] = set()  # listeners whose cursor can't be read
        self._stop = threading.Event()
        self._beat_at = -DEAD_SECONDS
        self._thread = threading.Thread(target=self._run, name="lakebed-listeners", daemon=True)
        self._unlisten: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin to deliver."""
        self._unlisten = events.listen(self._heard)
        self._thread.start()

    def close(self) -> None:
        """Stop: what was acknowledged is kept, and others may deliver at once."""
        self._stop.set()
        self._unlisten()
        if self._thread.is_alive():
            self._thread.join()

    def running(self) -> tuple[str, ...]:
        """The listeners that this process delivers to."""
        return tuple(sorted(self._running))

    # -- inside --------------------------------------------------------------------------------------------------------

    def _heard(self, event: events.Event) -> None:
        """A commit of this process is looked at at once."""
        if self.feed.heard(event):
            for one in list(self._running.values()):
                one.wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
            except LakebedError as error:
                _logger.warning("the listeners of %s: %s", self.feed.root, error)
            self._stop.wait(self._look_seconds)
        self._end(list(self._running))
        try:
            self.log.leave(self.process)
        except LakebedError as error:
            _logger.warning("the listeners of %s are not released: %s", self.feed.root, error)

    def _look(self) -> None:
        wanted, delivering = self.log.state()
        for name, one in list(self._running.items()):
            if wanted.get(name) != one.listener or not one.thread.is_alive():
                self._end([name])
        is_free = any(name not in delivering for name in wanted)
        if not wanted or not (is_free or self._clock() - self._beat_at >= self._beat_seconds):
            self._begin(wanted, {name for name, one in delivering.items() if one.process == self.process})
            return
        mine = self.log.beat(self.process, {name: self._said(one.delivery) for name, one in self._running.items()})
        self._beat_at = self._clock()
        self.log.tidy()
        self._end([name for name in self._running if name not in mine])
        self._begin(wanted, mine)

    def _said(self, delivery: Delivery) -> Delivering:
        behind = delivery.behind_seconds(int(time.time() * 1000))
        events.emit(
            events.ListenerSeen(
                table=self.feed.root, listener=delivery.name, behind_seconds=behind, is_failing=bool(delivery.error)
            )
        )
        return Delivering(
            process=self.process,
            error=delivery.error,
            since_ms=delivery.failing_since_ms if delivery.error else 0,
            behind_seconds=behind,
        )

    def _begin(self, wanted: Mapping[str, Listener], mine: frozenset[str] | set[str]) -> None:
        for name in sorted(mine & wanted.keys() - self._running.keys()):
            listener = wanted[name]
            try:
                cursor = self.log.cursor(name)
            except Corrupt as error:  # the others go on
                if name not in self._stuck:
                    _logger.warning("nothing is sent to the listener %s: %s", name, error)
                self._stuck.add(name)
                continue
            self._stuck.discard(name)
            delivery = Delivery(
                name,
                self.feed,
                _destination_of(listener.target, self.feed.root),
                cursor,
                wants_table=listener.wants_table,
                wants=listener.wants,
                keep=self._keeper(name),
                clock=self._clock,
            )
            stop, wake = threading.Event(), threading.Event()
            thread = threading.Thread(
                target=delivery.run, args=(stop, wake), name=f"lakebed-listener-{name}", daemon=True
            )
            self._running[name] = _Running(listener, delivery, thread, stop, wake)
            thread.start()

    def _keeper(self, name: str) -> Callable[[Mapping[str, At | None]], bool]:
        return lambda moved: self.log.move(name, self.process, moved)

    def _end(self, names: list[str]) -> None:
        """Stop to deliver to some listeners, and wait for what is under way."""
        ending = [self._running.pop(name) for name in names if name in self._running]
        for one in ending:
            one.end()
        until = time.monotonic() + _CLOSE_SECONDS
        for one in ending:
            one.thread.join(max(0.0, until - time.monotonic()))
            events.emit(events.ListenerLeft(table=self.feed.root, listener=one.listener.name))


def _destination_of(target: Target, source: str) -> Destination:
    """Where events for a listener go. No request is made yet."""
    match target:
        case Webhook():
            return WebhookDestination(target, source)
        case KafkaTopic():
            return KafkaDestination(target, source)
        case _:
            assert_never(target)
