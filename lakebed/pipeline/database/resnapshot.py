"""Asks the connector of a database to send rows of tables again, by a signal over Kafka, and follows how far it is.

The rows come through the tables' topics, beside all other changes: the pipeline need not know of them, nor run.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from lakebed.decode.debezium.snapshots import Notification, SnapshotProgress, read_notification, snapshot_signal
from lakebed.decode.formats import TYPED_FORMATS, schemas_of
from lakebed.decode.typed.schemas import read_one
from lakebed.discovery import NoTable, tables_below
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.far_times import python_rows
from lakebed.operations.mutate import why_not
from lakebed.operations.restore import needs_restart, restarting
from lakebed.pipeline.settings import DatabasePipeline, decoder_options
from lakebed.pipeline.sources import kafka_settings
from lakebed.positions.resnapshots import Resnapshot, active, advance, ask
from lakebed.settings import suggest
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.table import internals_of
from lakebed.table import open as open_table
from lakebed.table.internals import Internals

if TYPE_CHECKING:
    from lakebed.sources.kafka.cluster import Partitions


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A signal that was sent. ``begin``: from where the notifications of it are. ``restarted``: the tables whose order of changes
    was restarted, so that what comes counts as newer than all that they have."""

    signal_id: str
    tables: tuple[str, ...]
    begin: Partitions
    restarted: tuple[str, ...] = ()


def typed_notifications(pipeline: DatabasePipeline) -> Callable[..., dict[str, Any]] | None:
    """What reads a notification that has a schema, as the connector's converter writes all its records; None for JSON.

    Besides the value it takes what a header of the record says of the schema (``sources.kafka.cluster.reading``).
    """
    if pipeline.format_kind not in TYPED_FORMATS:
        return None
    schemas = schemas_of(pipeline.format_kind, decoder_options(pipeline))[0]
    return lambda value, header=None: python_rows(read_one(schemas, value, header)[1])[0]


class Asking:
    """Sends signals to the connector of a database."""

    def __init__(self, pipeline: DatabasePipeline) -> None:
        """Raises InvalidInput if the file does not say what is needed, MissingPrerequisite."""
        self._pipeline = pipeline
        self._naming = pipeline.naming
        self._settings: KafkaSettings = kafka_settings(pipeline.source)
        section = pipeline.database
        if not self._naming.events:
            raise self._wrong("format", "its records are not Debezium's events, so there is no Debezium to ask")
        if not self._naming.prefix:
            raise self._wrong(
                "database",
                "topic_prefix must be the connector's topic.prefix, by which the connector recognises its signals",
            )
        if section.signal_topic is None:
            raise self._wrong("database", "signal_topic is missing; set it to the connector's signal.kafka.topic")
        self._topic = section.signal_topic
        self._typed = typed_notifications(pipeline)

    def send(self, tables: Sequence[str], where: str | None = None, mirror: bool | None = None) -> Sent:
        """Ask for all rows of tables, or for those for which the source's SQL is true. What is asked is written into the tables'
        logs first. ``mirror``: whether the rows that the source no longer has are removed at the end; None: as the file says,
        and not for some of the rows.

        Raises InvalidInput for a table that is none of the database's or that can't be mirrored, and for a signal topic that is
        not there or has more than one partition; Retry if brokers or the store do not answer.
        """
        from lakebed.sources.kafka.cluster import ends_of, partitions_of, send

        if mirror and where is not None:
            raise InvalidInput("with --where only some of the rows come, so --mirror can't know which the source lacks")
        mirrors = (self._pipeline.database.mirror and where is None) if mirror is None else mirror
        if mirrors and self._pipeline.database.notification_topic is None:
            raise self._wrong(
                "database", "mirror needs notification_topic, where the connector says when all rows have come"
            )
        names = tuple(dict.fromkeys(tables))
        roots = self._check_tables(names)
        if len(partitions := partitions_of(self._settings, self._topic)) != 1:
            raise self._wrong(
                "database",
                f"signal_topic: {self._topic} has {len(partitions)} partitions, of which the connector reads only the first; "
                "create it again with one",
            )
        notifications = self._pipeline.database.notification_topic
        begin = ends_of(self._settings, notifications) if notifications is not None else {}
        signal_id = str(uuid.uuid4())
        opened = {name: internals_of(open_table(root)) for name, root in roots.items()}
        asked = Resnapshot(
            id=signal_id,
            topic="",
            asked_ms=0,
            begin={},
            notifications=_numbered(begin) if notifications is not None else None,
            is_partial=where is not None,
        )
        entries = {name: self._entry(asked, name, internals, mirrors) for name, internals in opened.items()}
        restarts = tuple(name for name, internals in opened.items() if needs_restart(internals.log.refresh()))
        try:
            for name, entry in entries.items():
                storage = opened[name].storage
                ask(
                    opened[name].log, entry, restarting(storage, entry.topic, entry.begin) if name in restarts else None
                )
            send(self._settings, self._topic, self._naming.prefix, snapshot_signal(signal_id, names, where))
        except BaseException:  # also one that ends the process, or the tables would wait for what nobody was asked for
            for internals in opened.values():
                internals.mirror().fail(signal_id, "the connector could not be asked")
            raise
        return Sent(signal_id=signal_id, tables=names, begin=begin, restarted=restarts)

    def _entry(self, asked: Resnapshot, name: str, internals: Internals, mirrors: bool) -> Resnapshot:
        """What is written into the log of a table. Raises InvalidInput if it can't be mirrored."""
        from lakebed.sources.kafka.cluster import ends_of

        snapshot, topic = internals.log.refresh(), f"{self._naming.prefix}.{name}"
        if mirrors and (why := why_not(snapshot)):
            raise InvalidInput(
                f"the rows of {name} that the source no longer has can't be found: {why}; ask with --no-mirror"
            )
        return replace(
            asked,
            topic=topic,
            asked_ms=internals.log.now_ms(),
            begin=_numbered(ends_of(self._settings, topic)),
            mirror_from=internals.mirror().begin(snapshot) if mirrors else None,
        )

    def check_waits(self) -> None:
        """Raises InvalidInput if nobody tells how far a snapshot is."""
        if self._pipeline.database.notification_topic is None:
            raise self._wrong(
                "database",
                "--wait needs notification_topic, where the connector says how far it is; leave --wait out, or set it to the "
                "connector's notification.sink.topic.name",
            )

    def follow(
        self, sent: Sent, tell: Callable[[str], None], waiting: Callable[[], None] = lambda: None
    ) -> SnapshotProgress:
        """Wait until the connector has read all that the signal asked for; ``tell`` is given each step in words, and ``waiting``
        is called about twice a second while the connector says nothing: what it raises ends this.

        The last rows may still be on their way into Kafka then.

        Raises Retry if the connector does not begin within ``timeout_seconds``; InvalidInput for records that are no
        notifications, and if the brokers refuse access.
        """
        from lakebed.sources.kafka.cluster import messages_from, reading

        progress = SnapshotProgress(sent.signal_id, self._naming.prefix, sent.tables)
        until = time.monotonic() + self._settings.timeout_seconds
        with closing(messages_from(self._settings, sent.begin, until)) as messages:
            for message in messages:
                if message is None:
                    waiting()
                    if not progress.has_begun and time.monotonic() >= until:
                        raise Retry(
                            f"the connector {self._naming.prefix} has not begun; the signal stays in {self._topic}. Does it "
                            "run, with kafka in signal.enabled.channels, and sink in notification.enabled.channels?"
                        )
                    continue
                notification = read_notification(message.value(), reading(self._typed, message))
                if notification is not None and (text := progress.take(notification)) is not None:
                    tell(text)
                if progress.is_over:
                    return progress
        raise AssertionError("the topic of notifications has an end")

    def _check_tables(self, names: Sequence[str]) -> dict[str, str]:
        """Each has a table, or a topic that will be one; returns the roots of those that have a table, by name."""
        from lakebed.sources.kafka.cluster import DatabaseCluster

        start = f"{self._naming.prefix}."
        for name in names:
            if isinstance(found := self._naming.table_of(start + name), NoTable):
                raise InvalidInput(f"{name} is no table of the database: {found.reason}")
        tables = tables_below(self._pipeline.path)
        roots, known = {name: tables[name] for name in names if name in tables}, set(tables)
        if known.issuperset(names):
            return roots
        topics = {topic for topic, _ in DatabaseCluster(self._settings).partitions() if topic.startswith(start)}
        known |= {
            topic.removeprefix(start) for topic in topics if not isinstance(self._naming.table_of(topic), NoTable)
        }
        for name in names:
            if name not in known:
                raise InvalidInput(
                    f"there is no table {name} below {self._pipeline.path}, nor a topic {start}{name} that the source selects"
                    f"{suggest(name, sorted(known))}"
                )
        return roots

    def _wrong(self, key: str, text: str) -> InvalidInput:
        document = self._pipeline.document
        return document.error(document.at(key), text)


def _numbered(offsets: Partitions) -> dict[int, int]:
    """The offsets of one topic, by partition."""
    return {number: offset for (_, number), offset in offsets.items()}


# -- Follows the resnapshots of a database in a thread of its pipeline -----------------------------------------------------
#
# 1. All notifications are read from where the oldest resnapshot under way began, so a new process reads them again. What they say
#    of a table goes into the entry of its log (``positions.resnapshots``).
# 2. A connector works off a queue. Only when the queue is empty is it certain that what was asked last has been read: a table may
#    be in it twice. A moment later the ends of the table's topic are written down, for the last rows are on their way then.
# 3. When the table has read up to them, the resnapshot ends. With ``mirror`` the rows that did not come are removed with that
#    (``operations.mutate``, which checks that all rows are in).
#
# Any number of processes may do so at once: each step is a commit of the entry, which is made once.


GRACE_SECONDS = 5.0  # after the connector is done, until the ends of a topic are asked
CHECK_SECONDS = 15.0
WAIT_SECONDS = 600.0  # how long rows may be missing that the connector has read
_SAY_SECONDS = 10.0
_PAUSE_SECONDS = 5.0
_KEY_SHOWN = 80
_logger = logging.getLogger("lakebed.run")
_Typed = Callable[..., Mapping[str, Any]] | None
_Ends = Callable[[str], Mapping[int, int]]
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
    ends: _Ends
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
    resnapshots: Resnapshots, settings: KafkaSettings, topic: str, stop: threading.Event, typed: _Typed = None
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


def _follow(
    resnapshots: Resnapshots, settings: KafkaSettings, topic: str, stop: threading.Event, typed: _Typed
) -> None:
    from lakebed.sources.kafka.cluster import ends_of, messages_from, reading

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
