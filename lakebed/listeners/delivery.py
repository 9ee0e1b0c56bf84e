"""The loop that delivers to one listener: read from its cursor, send, move the cursor; also to a function of this process.

1. ``step`` reads events after the cursor, sends those that the listener wants, and moves the cursor past what was acknowledged.
   Where it moved to is kept (``keep``) once a second while more comes, and at once when nothing more does.
2. A table whose event was not acknowledged waits, longer each time; the others go on. If the failure concerns all, all wait.
3. Nothing is given up: what fails is sent again for ever, or until the log no longer keeps it. Then the listener gets ``Resync``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from lakebed import events
from lakebed import events as process_events
from lakebed.errors import InvalidInput, LakebedError
from lakebed.listeners.cursor import At, Cursor
from lakebed.listeners.destination import Callback, CallbackDestination, Destination, Failure, Sent
from lakebed.listeners.event_types import Dropped, TableEvent
from lakebed.listeners.feed import Batch, Feed
from lakebed.listeners.listener import Wanted

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
