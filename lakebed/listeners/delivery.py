"""The loop that delivers to one listener: read from its cursor, send, move the cursor; also to a function of this process.

1. ``step`` reads events after the cursor, sends those that the listener wants, and moves the cursor past what was acknowledged.
   Where it moved to is kept (``keep``) once a second while more comes, and at once when nothing more does.
2. A table whose event was not acknowledged waits, longer each time; the others go on. If the failure concerns all, all wait.
3. Nothing is given up: what fails is sent again for ever, or until the log no longer keeps it. Then the listener gets ``Resync``.

**The listeners of a root.** Any number of processes may deliver to them: the log says who delivers to which. A thread looks for
listeners and says that this process lives; each listener that is this process's has a thread of its own. So one that is slow, or
fails, holds up no other. They share a feed: a table is looked at once for all.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import assert_never

from lakebed import events
from lakebed import events as process_events
from lakebed.errors import Corrupt, InvalidInput, LakebedError
from lakebed.listeners.catalogs.following import CatalogDestination
from lakebed.listeners.destination import (
    Callback,
    CallbackDestination,
    Destination,
    Failure,
    KafkaDestination,
    Sent,
    WebhookDestination,
)
from lakebed.listeners.event_types import Dropped, TableEvent
from lakebed.listeners.feed import At, Batch, Cursor, Feed
from lakebed.listeners.listener import BEAT_SECONDS, DEAD_SECONDS, Delivering, Listener, ListenerLog, Wanted
from lakebed.listeners.targets import Catalog, KafkaTopic, Target, Webhook

_ROUND_EVENTS = 500
_KEEP_SECONDS = 1.0
_logger = logging.getLogger("lakebed.listeners")
_KEEP_SILENT_SECONDS = 60.0  # a cursor that moved past commits without events
_PAUSE_SECONDS_MAX = 300.0
_IDLE_SECONDS = (0.25, 5.0)


class Delivery:
    """One listener. ``step`` is for one thread; the properties may be read by any."""

    def __init__(
        self,
        name: str,
        feed: Feed,
        destination: Destination,
        cursor: Cursor,
        *,
        wants_table: Callable[[str], bool],
        wants: Callable[[TableEvent], bool],
        keep: Callable[[Mapping[str, At | None]], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``keep``: keeps where the cursor moved to, None for a table that is gone; False: another process delivers now."""
        self.name = name
        self.cursor = cursor
        self.is_lost = False
        self.error = ""
        self.failing_since_ms = 0
        self._feed = feed
        self._destination = destination
        self._wants_table = wants_table
        self._wants = wants
        self._keep = keep
        self._clock = clock
        self._moved: dict[str, At | None] = {}  # and not kept yet
        self._kept_at = clock()
        self._delivered = False  # since then
        self._paused_until = 0.0
        self._failures = 0
        self._table_pauses: dict[str, tuple[float, int]] = {}  # until when, after how many failures
        self._waiting: dict[str, int] = {}  # the time of a table's first event that waits, in epoch milliseconds

    def behind_seconds(self, now_ms: int) -> float:
        """The age of the oldest event that was read and is not acknowledged; 0 if there is none."""
        oldest = min(list(self._waiting.values()), default=now_ms)
        return max(0.0, (now_ms - oldest) / 1000)

    def run(self, stop: threading.Event, wake: threading.Event) -> None:
        """Deliver until it is stopped, or another process delivers. ``wake`` ends a pause."""
        try:
            while not stop.is_set() and not self.is_lost:
                pause = self.step()
                if pause > 0:
                    wake.wait(pause)
                    wake.clear()
            self._keep_moved()
        except LakebedError:
            pass  # what was not kept is sent again
        finally:
            self._destination.close()

    def step(self) -> float:
        """One round; returns the seconds until the next one. Raises nothing: what fails is tried again."""
        now = self._clock()
        if now < self._paused_until:
            return self._paused_until - now
        try:
            batch = self._feed.read(self.cursor, _ROUND_EVENTS, self._is_read)
            failures = self._deliver(batch)
            if self._is_time_to_keep(batch.more):
                self._keep_moved()
        except LakebedError as error:
            failures = [Failure(reason=str(error), is_of_all=True)]
        except Exception as error:  # whatever a destination raises: its listener must not end in silence
            _logger.exception("the listener %s failed", self.name)
            failures = [Failure(reason=f"{type(error).__name__}: {error}", is_of_all=True)]
        self._say(failures)
        for_all = next((one for one in failures if one.is_of_all), None)
        if for_all is not None:
            self._failures += 1
            self._paused_until = self._clock() + _pause(self._failures, for_all)
            return self._paused_until - now
        self._failures = 0
        if batch.more:
            return 0.0
        return min(_IDLE_SECONDS[1], max(_IDLE_SECONDS[0], self._feed.pause_seconds()))

    # -- one round -----------------------------------------------------------------------------------------------------

    def _is_read(self, table: str) -> bool:
        return self._wants_table(table) and self._table_pauses.get(table, (0.0, 0))[0] <= self._clock()

    def _deliver(self, batch: Batch) -> list[Failure]:
        """Send what was read, and move past what was acknowledged; returns what failed."""
        read: dict[str, list[TableEvent]] = {}
        for event in batch.events:
            read.setdefault(event.table, []).append(event)
        groups = {
            table: wanted for table, events in read.items() if (wanted := [one for one in events if self._wants(one)])
        }
        for table, wanted in groups.items():
            self._waiting[table] = wanted[0].time_ms or self._waiting.get(table) or int(time.time() * 1000)
        sent = self._destination.send(groups) if groups else {}
        failures = []
        for table in (
            (batch.cursor.tables.keys() | self.cursor.tables.keys()) if batch.cursor is not self.cursor else ()
        ):
            at = batch.cursor.tables.get(table)
            if at == self.cursor.tables.get(table) and table not in read:
                continue
            outcome, wanted = sent.get(table, Sent(0)), groups.get(table, [])
            if outcome.acknowledged == len(wanted):
                self._move(table, at)
                self._table_pauses.pop(table, None)
                self._waiting.pop(table, None)
                continue
            left = wanted[outcome.acknowledged]
            self._move_before(table, read[table], left)
            self._waiting[table] = left.time_ms or self._waiting.get(table) or int(time.time() * 1000)
            if outcome.failure is not None:
                failures.append(outcome.failure)
                self._pause_table(table, outcome.failure)
        for table in self._waiting.keys() - groups.keys() - self.cursor.tables.keys():
            if self._feed.root_of(table) is None:  # it went before its first event was acknowledged
                del self._waiting[table]
                self._table_pauses.pop(table, None)
        acknowledged = sum(one.acknowledged for one in sent.values())
        if acknowledged:
            self._delivered, self._failures = True, 0
        if acknowledged or failures:
            process_events.emit(
                process_events.EventsDelivered(
                    table=self._feed.root, listener=self.name, events=acknowledged, failures=len(failures)
                )
            )
        return failures + [Failure(reason=f"{table} can't be read: {error}") for table, error in batch.errors.items()]

    def _move(self, table: str, at: At | None) -> None:
        self._moved[table] = at
        self.cursor = self.cursor.moved({table: at})

    def _move_before(self, table: str, events: Sequence[TableEvent], left: TableEvent) -> None:
        """Move past the whole versions that come before an event."""
        before = events[: next(place for place, event in enumerate(events) if event is left)]
        if left.index > 0:
            before = [event for event in before if (event.table_id, event.version) != (left.table_id, left.version)]
        if before:
            last = before[-1]
            self._move(table, None if isinstance(last, Dropped) else At(last.version, last.table_id))

    def _pause_table(self, table: str, failure: Failure) -> None:
        _, failed = self._table_pauses.get(table, (0.0, 0))
        if not failure.is_of_all:
            self._table_pauses[table] = (self._clock() + _pause(failed + 1, failure), failed + 1)

    def _say(self, failures: Sequence[Failure]) -> None:
        """Why deliveries fail, until they do not any more."""
        if failures:
            if not self.error:
                self.failing_since_ms = int(time.time() * 1000)
                _logger.warning("the listener %s fails: %s", self.name, failures[0].reason[:500])
            self.error = failures[0].reason[:500]
        elif not self._table_pauses:
            self.error = ""

    # -- the cursor ----------------------------------------------------------------------------------------------------

    def _is_time_to_keep(self, more: bool) -> bool:
        waited = self._clock() - self._kept_at
        if self._delivered:
            return not more or waited >= _KEEP_SECONDS
        return bool(self._moved) and waited >= _KEEP_SILENT_SECONDS

    def _keep_moved(self) -> None:
        """Raises StoreUnavailable, Contention: then it is kept with the next round."""
        moved = dict(self._moved)
        if moved and not self._keep(moved):
            self.is_lost = True
        self._moved = {}
        self._delivered, self._kept_at = False, self._clock()


def _pause(failures: int, failure: Failure) -> float:
    return max(failure.pause_seconds, min(_PAUSE_SECONDS_MAX, 2.0 ** (min(failures, 12) - 1)))


# -- Listening within a process: a function is called with each event of the tables below a root ---------------------------


NEWEST, OLDEST = "newest", "oldest"


class Listening:
    """What ``Warehouse.listen`` returns. In a ``with`` block it stops at the end."""

    def __init__(
        self,
        root: str,
        callback: Callback,
        *,
        cursor: str = NEWEST,
        tables: tuple[str, ...],
        kinds: tuple[str, ...],
        feed: Feed | None = None,
    ) -> None:
        """Raises InvalidInput, StoreUnavailable, TableNotFound."""
        wanted = Wanted(tables=tables, kinds=kinds)
        self._feed = feed or Feed(root)
        self._stop, self._wake = threading.Event(), threading.Event()
        self._delivery = Delivery(
            "here",
            self._feed,
            CallbackDestination(callback, self._stop.is_set),
            _cursor_of_text(cursor, self._feed, wanted),
            wants_table=wanted.wants_table,
            wants=wanted.wants,
            keep=_kept,
        )
        self._thread = threading.Thread(
            target=self._delivery.run, args=(self._stop, self._wake), name="lakebed-listening", daemon=True
        )
        self._unlisten = events.listen(self._heard)
        self._thread.start()

    @property
    def cursor(self) -> str:
        """Up to where the function has returned, as ``listen`` takes it."""
        return self._delivery.cursor.to_text()

    @property
    def error(self) -> str:
        """Why the newest event could not be read, or what the function raised; "" if all is well."""
        return self._delivery.error

    def stop(self) -> str:
        """End it, once the function has returned; returns the cursor. The function itself may call this."""
        self._unlisten()
        self._stop.set()
        self._wake.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
        return self.cursor

    def __enter__(self) -> Listening:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _heard(self, event: events.Event) -> None:
        if self._feed.heard(event):
            self._wake.set()


def _cursor_of_text(text: str, feed: Feed, wanted: Wanted) -> Cursor:
    """``newest``, ``oldest`` or a cursor of a feed. Raises InvalidInput, StoreUnavailable, TableNotFound."""
    if not isinstance(text, str):
        raise InvalidInput(f"{text!r} is no cursor: give 'newest', 'oldest', or the text of an earlier one")
    if text == NEWEST:
        return feed.newest(wanted.wants_table)
    return Cursor() if text == OLDEST else Cursor.of_text(text)


def _kept(moved: Mapping[str, At | None]) -> bool:
    return True


LOOK_SECONDS = 2.0  # until it is noticed that a listener was added, changed or removed
_CLOSE_SECONDS = 15.0


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
                _destination_of(listener.target, self.feed),
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


def _destination_of(target: Target, feed: Feed) -> Destination:
    """Where events for a listener go. No request is made yet."""
    match target:
        case Webhook():
            return WebhookDestination(target, feed.root)
        case KafkaTopic():
            return KafkaDestination(target, feed.root)
        case Catalog():
            return CatalogDestination(target, feed.root, feed.root_of)
        case _:
            assert_never(target)
