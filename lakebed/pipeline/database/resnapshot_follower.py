"""Follows the resnapshots of a database in a thread of its pipeline: the connector's notifications say how far they are.

1. All notifications are read from where the oldest resnapshot under way began, so a new process reads them again. What they say
   of a table goes into the entry of its log (``positions.resnapshots``).
2. A connector works off a queue. Only when the queue is empty is it certain that what was asked last has been read: a table may
   be in it twice. A moment later the ends of the table's topic are written down, for the last rows are on their way then.
3. When the table has read up to them, the resnapshot ends. With ``mirror`` the rows that did not come are removed with that
   (``operations.mirror``, which checks that all rows are in).

Any number of processes may do so at once: each step is a commit of the entry, which is made once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from lakebed.decode.debezium.snapshots import Notification, SnapshotProgress, read_notification
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.positions.resnapshots import Resnapshot, active, advance
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.table.internals import Internals

GRACE_SECONDS = 5.0
"""So long after the connector is done the ends of a topic are asked."""
CHECK_SECONDS = 15.0
WAIT_SECONDS = 600.0
"""So long rows may be missing that the connector has read."""
_SAY_SECONDS = 10.0
_PAUSE_SECONDS = 5.0
_KEY_SHOWN = 80
_logger = logging.getLogger("lakebed.run")
Typed = Callable[..., Mapping[str, Any]] | None
Ends = Callable[[str], Mapping[int, int]]
"""The next offset of each partition of a topic. Raises Retry, InvalidInput."""


@dataclass(slots=True)
class _Followed:
    """A resnapshot under way. Times are monotonic seconds."""

    id: str
    progress: SnapshotProgress
    said_at: float = float("-inf")
    over_at: float | None = None
    short_since: float | None = None
    checked_at: float = float("-inf")


@dataclass(slots=True, kw_only=True)
class Resnapshots:
    """``prefix``: of the connector; ``tables``: those that are open, by name; ``ends``: of a topic."""

    prefix: str
    tables: Callable[[], Mapping[str, Internals]]
    ends: Ends
    clock: Callable[[], float] = time.monotonic
    _followed: dict[str, _Followed] = field(default_factory=dict)
    _ids: set[str] = field(default_factory=set)

    def begin(self) -> dict[int, int]:
        """From where the notifications must be read, by partition; empty: from their end."""
        self._followed.clear()
        self._ids.clear()
        self._look()
        found: dict[int, int] = {}
        for internals in self.tables().values():
            asked = self._active(internals)
            for number, offset in (asked.notifications or {}).items() if asked else ():
                found[number] = min(found.get(number, offset), offset)
        return found

    def take(self, notification: Notification) -> None:
        """What the connector says. Raises Retry."""
        if notification.connector != self.prefix:
            return
        tables = self.tables()
        if notification.signal_id not in self._ids:
            self._ids.add(notification.signal_id)
            for name in tables.keys() & set(_named(notification)):
                tables[name].log.refresh()
            self._look()
        for name, one in list(self._followed.items()):
            before = one.progress.has_begun, one.progress.is_over
            said = one.progress.take(notification)
            if one.progress.is_over and not before[1]:
                self._over(tables[name], one, name)
            elif one.progress.has_begun and not before[0]:
                advance(tables[name].log, one.id, lambda asked: replace(asked, state="running"))
            elif said is not None and notification.data.get("current_collection_in_progress") == name:
                self._at(tables[name], one, notification.data)

    def step(self) -> None:
        """Bring further what waits. To be called now and then. Raises Retry."""
        self._look()
        tables = self.tables()
        for name, one in list(self._followed.items()):
            internals = tables[name]
            asked = self._active(internals)
            if asked is None or asked.id != one.id:
                del self._followed[name]
            elif one.over_at is not None and asked.state != "read" and self.clock() - one.over_at >= GRACE_SECONDS:
                rows, ends = one.progress.rows.get(name), dict(self.ends(asked.topic))
                self._read(internals, one, rows, ends)
            elif asked.state == "read" and asked.is_in(internals.log.refresh()):  # another process may ingest
                self._end(internals, one, asked, name)

    def _read(self, internals: Internals, one: _Followed, rows: int | None, ends: Mapping[int, int]) -> None:
        """The connector has read all, and what it sent is before these ends."""
        advance(internals.log, one.id, lambda asked: replace(asked, state="read", read=rows, ends=ends, at=""))

    def _look(self) -> None:
        """Follow what is under way in the tables' logs, as far as they were read."""
        for name, internals in self.tables().items():
            asked = self._active(internals)
            known = self._followed.get(name)
            if asked is not None and (known is None or known.id != asked.id):
                self._followed[name] = _Followed(asked.id, SnapshotProgress(asked.id, self.prefix, [name]))

    def _active(self, internals: Internals) -> Resnapshot | None:
        newest = internals.log.newest
        return None if newest is None else active(newest)

    def _at(self, internals: Internals, one: _Followed, data: Mapping[str, str]) -> None:
        now = self.clock()
        if now - one.said_at >= _SAY_SECONDS:
            one.said_at = now
            most = data.get("maximum_key")
            at = f"{data.get('last_processed_key')}"[:_KEY_SHOWN] + (f" of {most}"[:_KEY_SHOWN] if most else "")
            advance(internals.log, one.id, lambda asked: replace(asked, at=at))

    def _over(self, internals: Internals, one: _Followed, name: str) -> None:
        """The connector has nothing more to read."""
        progress = one.progress
        if progress.was_aborted:
            internals.mirror().fail(one.id, "the snapshot was stopped before its end")
        elif name in progress.failed:
            internals.mirror().fail(one.id, f"the connector sends no rows: {progress.failed[name]}")
        elif name not in progress.rows:
            internals.mirror().fail(
                one.id, "the connector ended the snapshot and did not say that it has read the table"
            )
        else:
            one.over_at = self.clock()

    def _end(self, internals: Internals, one: _Followed, asked: Resnapshot, name: str) -> None:
        now, mirror = self.clock(), internals.mirror()
        if asked.mirror_from is None:
            ended_ms = internals.log.now_ms()
            advance(internals.log, one.id, lambda asked: replace(asked, state="ended", ended_ms=ended_ms))
            return
        if now - one.checked_at < CHECK_SECONDS:
            return
        one.checked_at = now
        why = mirror.end(one.id)
        if why is None:
            return
        one.short_since = one.short_since if one.short_since is not None else now
        _logger.info("%s: rows that the source no longer has are not removed yet: %s", name, why)
        if now - one.short_since >= WAIT_SECONDS:
            mirror.fail(one.id, why)


def _named(notification: Notification) -> Sequence[str]:
    data = notification.data
    several = data.get("data_collections", "").split(",")
    return [*several, data.get("scanned_collection", ""), data.get("current_collection_in_progress", "")]


def follow(
    resnapshots: Resnapshots, settings: KafkaSettings, topic: str, stop: threading.Event, typed: Typed = None
) -> None:
    """Follow the notifications of a topic until ``stop`` is set. Errors are logged, and it goes on.

    ``typed``: reads those that have a schema.
    """
    logged: tuple[object, ...] = ()
    while not stop.is_set():
        try:
            _follow(resnapshots, settings, topic, stop, typed)
        except LakebedError as error:
            level = logging.INFO if isinstance(error, Retry) or error.args == logged else logging.WARNING
            logged = error.args
            _logger.log(level, "how far resnapshots are is not known now: %s", error)
            stop.wait(_PAUSE_SECONDS if isinstance(error, Retry) else 12 * _PAUSE_SECONDS)
        except Exception:
            _logger.exception("how far resnapshots are is not known now")
            stop.wait(12 * _PAUSE_SECONDS)


def _follow(resnapshots: Resnapshots, settings: KafkaSettings, topic: str, stop: threading.Event, typed: Typed) -> None:
    from lakebed.sources.kafka.signal_topic import ends_of, messages_from, reading

    begin = ends_of(settings, topic)  # before the logs are looked at: what is asked later is notified later
    begin |= {(topic, number): offset for number, offset in resnapshots.begin().items()}
    stepped = float("-inf")
    with closing(messages_from(settings, begin, float("inf"))) as messages:
        for message in messages:
            if stop.is_set():
                return
            if message is not None:
                try:
                    notification = read_notification(message.value(), reading(typed, message))
                except InvalidInput as error:
                    _logger.warning("%s", error)
                    continue
                if notification is not None:
                    resnapshots.take(notification)
            if message is None or resnapshots.clock() - stepped >= 1.0:
                stepped = resnapshots.clock()
                resnapshots.step()
