"""What a listener is (where events go, of which tables and kinds), and the log of a root that lists its listeners.

One of the kind ``catalog`` is sent no events: its entries of tables follow what events tell of (``listeners.catalogs``).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, assert_never

import orjson

from lakebed.errors import InvalidInput, TableNotFound
from lakebed.listeners.event_types import DEFINITION_KINDS, KINDS, TableEvent
from lakebed.listeners.feed import At, Cursor, Feed
from lakebed.listeners.targets import Catalog, KafkaTopic, Target, Webhook
from lakebed.log.actions import Action, Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import DELIVERING, LISTENER, LISTENER_CURSOR, Operation
from lakebed.log.entry_values import decoded, document_of, readable, reading
from lakebed.log.holds import trim_log
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog, create_log_without_rows
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.positions.point_log import FOLDER as DATABASE
from lakebed.settings import suggest

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events are wanted."""

    tables: tuple[str, ...] = ("*",)  # patterns of names, with ``*`` and ``?``
    kinds: tuple[str, ...] = ()  # of events; none means all

    def __post_init__(self) -> None:
        if not self.tables:
            raise InvalidInput("no table is named; '*' means all tables")
        for kind in self.kinds:
            if kind not in KINDS:
                raise InvalidInput(f"there are no events {kind!r}{suggest(kind, KINDS)}")

    def wants_table(self, name: str) -> bool:
        """Whether events of this table are wanted."""
        return any(fnmatchcase(name, pattern) for pattern in self.tables)

    def wants(self, event: TableEvent) -> bool:
        """Whether this event is wanted. ``resync`` and ``dropped`` always are: without them something is lost in silence."""
        return not self.kinds or event.kind in (*self.kinds, "resync", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener(Wanted):
    """Where events are sent, and which."""

    name: str
    target: Target

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(f"{self.name!r} can't be the name of a listener; use a-z, 0-9, - and _, 64 at most")
        Wanted.__post_init__(self)
        if isinstance(self.target, Catalog) and self.kinds:
            raise InvalidInput("a catalog follows all that changes its entries; leave the kinds of events out")

    def wants_table(self, name: str) -> bool:
        """Whether events of this table are wanted. A catalog has no quarantines, and no database's points."""
        if isinstance(self.target, Catalog) and (name == DATABASE or name.endswith(QUARANTINE_SUFFIX)):
            return False
        return Wanted.wants_table(self, name)

    def wants(self, event: TableEvent) -> bool:
        """Whether this event is wanted. Any commit may move the metadata of Iceberg that is the newest."""
        if isinstance(self.target, Catalog):
            return self.target.is_iceberg or event.kind in DEFINITION_KINDS
        return Wanted.wants(self, event)

    def beginning(self, feed: Feed, *, oldest: bool) -> Cursor:
        """Where a new listener begins: at the oldest event or after the newest; a catalog with all tables as they are.

        Raises StoreUnavailable, Corrupt, TableNotFound.
        """
        if isinstance(self.target, Catalog):
            return feed.newest(self.wants_table).of_lost_logs()
        return Cursor() if oldest else feed.newest(self.wants_table)

    def to_json(self) -> dict[str, Any]:
        """As the log has it; without the name."""
        match self.target:
            case Webhook(url=url, secret=secret):
                target: dict[str, Any] = {"kind": "webhook", "url": url, "secret": secret}
            case KafkaTopic(servers=servers, topic=topic, config=config):
                target = {"kind": "kafka", "servers": servers, "topic": topic, "config": dict(config)}
            case Catalog(url=url, format=form, database=database, config=config):
                target = {"kind": "catalog", "url": url, "format": form, "database": database, "config": dict(config)}
            case _:
                assert_never(self.target)
        return {**target, "tables": list(self.tables), "kinds": list(self.kinds)}

    @staticmethod
    def of_json(name: str, value: Mapping[str, Any]) -> Listener:
        """The inverse of ``to_json``. Raises InvalidInput."""
        try:
            kind = value["kind"]
            config = {_text(key): _text(each) for key, each in value.get("config", {}).items()}
            if kind == "webhook":
                target: Target = Webhook(url=_text(value["url"]), secret=_text(value.get("secret", "")))
            elif kind == "kafka":
                target = KafkaTopic(servers=_text(value["servers"]), topic=_text(value["topic"]), config=config)
            elif kind == "catalog":
                texts = {name: _text(value[name]) for name in ("format", "database") if name in value}
                target = Catalog(url=_text(value["url"]), config=config, **texts)
            else:
                raise InvalidInput(f"a listener is of the kind webhook, kafka or catalog, not {kind!r}")
            tables, kinds = value.get("tables", ["*"]), value.get("kinds", [])
            return Listener(name=name, target=target, tables=tuple(map(_text, tables)), kinds=tuple(map(_text, kinds)))
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInput(
                f"the listener {name} can't be read: {error!r} is missing or of the wrong type"
            ) from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


# -- The listeners of a root, how far each has got, and who delivers to it: a Delta log without rows -----------------------
#
#     lakebed.listener.<name>          {"kind": "webhook", "url": …, "tables": ["*"], "kinds": []}
#     lakebed.cursor.<name>.<table>    {"version": 57, "table_id": …, "digest": …}
#     lakebed.delivering.<name>        {"process": …, "beat": 12, "error": …, …}
#
# 1. A cursor moves after the events up to it were acknowledged. So every event is delivered at least once, whoever is
#    killed when.
# 2. One process delivers to a listener. It says so again every ``BEAT_SECONDS``. Others take over when its entry stayed as it is
#    for ``DEAD_SECONDS`` of their own time, so no two clocks are compared.
# 3. A process that lost a listener without noticing may send some events again, but it moves no cursor: its commit finds that
#    another process delivers. Each of the two sends in order, from a cursor that was acknowledged. So the first delivery of an
#    event never comes before that of an earlier one of its table.


FOLDER = "_lakebed/listeners"
BEAT_SECONDS = 20.0
DEAD_SECONDS = 60.0
_LOG_RETENTION = "interval 3600 seconds"
_CLEAN_SECONDS = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivering:
    """Who delivers to a listener."""

    process: str
    beat: int = 0
    error: str = ""  # why the newest attempt failed; empty if it did not
    since_ms: int = 0  # since when attempts fail
    behind_seconds: float = 0.0  # the age of the oldest event that is known to wait, as of the last beat


class ListenerLog:
    """The listeners of one root. Safe to use from several threads; ``beat`` is for one."""

    def __init__(self, root: str, clock: Callable[[], float] = time.monotonic, log: TableLog | None = None) -> None:
        """``clock``: seconds, for how long others said nothing. The log need not exist."""
        self.root = root.rstrip("/")
        self.log = log or TableLog(open_store(f"{self.root}/{FOLDER}"))
        self._clock = clock
        self._seen: dict[str, tuple[str, float]] = {}  # what was said of who delivers, and since when it is so
        self._cleaned_at = clock()

    # -- listeners -----------------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Listener], dict[str, Delivering]]:
        """All listeners by name, and who delivers to which. Raises StoreUnavailable."""
        snapshot = self._newest()
        return ({}, {}) if snapshot is None else (_listeners_of(snapshot), _delivering_of(snapshot))

    def put(self, listener: Listener, cursor: Cursor) -> bool:
        """Add a listener that begins at a cursor, or change it: then it goes on where it is. Returns whether it is new.

        Raises StoreUnavailable, Contention.
        """
        create_log_without_rows(self.log, "listener", {"lakebed.log_retention": _LOG_RETENTION})
        name = LISTENER + listener.name

        def build(snapshot: Snapshot) -> Proposal[bool]:
            is_new = name not in snapshot.domains
            actions: list[Action] = [Domain(name, orjson.dumps(listener.to_json()).decode())]
            actions += _moves(listener.name, cursor.tables, snapshot) if is_new else []
            access = ReadWriteSet(domains=frozenset([name, DELIVERING + listener.name]))
            return Proposal(actions=actions, access=access, result=lambda _: is_new)

        return commit_loop(self.log, Operation.LISTENER, build)

    def remove(self, name: str) -> None:
        """Remove a listener, and how far it has got. Raises InvalidInput if there is none, StoreUnavailable, Contention."""

        def build(snapshot: Snapshot) -> Proposal[None]:
            if LISTENER + name not in snapshot.domains:
                there = ", ".join(sorted(_listeners_of(snapshot))) or "none"
                raise InvalidInput(f"there is no listener {name!r}; there are: {there}")
            own = (LISTENER + name, DELIVERING + name)
            gone = [each for each in snapshot.domains if each in own or each.startswith(_cursors(name))]
            actions = [Domain(each, "", removed=True) for each in gone]
            access = ReadWriteSet(domains=frozenset([LISTENER + name, DELIVERING + name]))
            return Proposal(actions=actions, access=access, result=lambda _: None)

        if self._newest() is None:
            raise InvalidInput(f"there is no listener {name!r}; there are: none")
        commit_loop(self.log, Operation.LISTENER, build)

    def cursor(self, name: str) -> Cursor:
        """Up to where events were acknowledged. Raises StoreUnavailable."""
        snapshot = self._newest()
        return Cursor() if snapshot is None else cursor_of(snapshot, name)

    # -- delivering ----------------------------------------------------------------------------------------------------

    def beat(self, process: str, own: Mapping[str, Delivering]) -> frozenset[str]:
        """Say that a process delivers to its ``own`` listeners, and take those that nobody delivers to; returns its listeners.

        Raises StoreUnavailable, Contention.
        """
        snapshot = self._newest()
        if snapshot is None:
            return frozenset()
        self._observe(snapshot)

        def build(snapshot: Snapshot) -> Proposal[frozenset[str]] | Finished[frozenset[str]]:
            there, now = _delivering_of(snapshot), self._clock()
            mine = []
            for name in _listeners_of(snapshot):
                text, since = self._seen.get(name, ("", now))
                is_dead = text == snapshot.domains.get(DELIVERING + name, "") and now - since >= DEAD_SECONDS
                if name not in there or there[name].process == process or is_dead:
                    mine.append(name)
            if not mine:
                return Finished(frozenset())
            said = {name: own.get(name) or Delivering(process=process) for name in mine}
            beats = {name: there[name].beat + 1 if name in there else 0 for name in mine}
            actions = [
                Domain(
                    DELIVERING + name,
                    orjson.dumps(
                        {
                            "process": process,
                            "beat": beats[name],
                            "error": one.error,
                            "since_ms": one.since_ms,
                            "behind_seconds": one.behind_seconds,
                        }
                    ).decode(),
                )
                for name, one in said.items()
            ]
            names = [prefix + name for name in mine for prefix in (LISTENER, DELIVERING)]
            access = ReadWriteSet(domains=frozenset(names))
            return Proposal(actions=actions, access=access, result=lambda _: frozenset(mine))

        return commit_loop(self.log, Operation.LISTENER, build)

    def leave(self, process: str) -> None:
        """Say that a process delivers to nobody any more. Raises StoreUnavailable, Contention: then others find out later."""

        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
            gone = [DELIVERING + name for name, one in _delivering_of(snapshot).items() if one.process == process]
            if not gone:
                return Finished(None)
            actions = [Domain(name, "", removed=True) for name in gone]
            return Proposal(actions=actions, result=lambda _: None)

        if self._newest() is not None:
            commit_loop(self.log, Operation.LISTENER, build)

    def move(self, name: str, process: str, moved: Mapping[str, At | None]) -> bool:
        """Move the cursor of a listener, if this process delivers to it; returns whether it does. None: the table is gone.

        Raises StoreUnavailable, Contention.
        """

        def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
            one = _delivering_of(snapshot).get(name)
            if LISTENER + name not in snapshot.domains or one is None or one.process != process:
                return Finished(False)
            actions = _moves(name, moved, snapshot)
            if not actions:
                return Finished(True)
            access = ReadWriteSet(domains=frozenset([DELIVERING + name]))
            return Proposal(actions=actions, access=access, result=lambda _: True)

        return commit_loop(self.log, Operation.LISTENER, build)

    def tidy(self) -> None:
        """Keep the log short, now and then. Raises StoreUnavailable."""
        newest = self.log.newest
        if newest is None:
            return
        self.log.checkpoint_if_due(newest)
        if self._clock() - self._cleaned_at >= _CLEAN_SECONDS:
            self._cleaned_at = self._clock()
            trim_log(self.log, newest.settings.log_retention_seconds)

    def _newest(self) -> Snapshot | None:
        try:
            return self.log.refresh()
        except TableNotFound:
            return None

    def _observe(self, snapshot: Snapshot) -> None:
        now, before = self._clock(), self._seen
        texts = {name: snapshot.domains.get(DELIVERING + name, "") for name in _listeners_of(snapshot)}
        self._seen = {
            name: before[name] if before.get(name, ("", 0.0))[0] == text and name in before else (text, now)
            for name, text in texts.items()
        }


def _listeners_of(snapshot: Snapshot) -> dict[str, Listener]:
    """The listeners in a version of the log, by name. One that a later version of lakebed wrote may be left out."""
    return {each.name: each for _, each in readable(dict(sorted(snapshot.domains.items())), LISTENER, listener_of)}


def listener_of(domain: str, text: str) -> Listener:
    """The listener in an entry of the log. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        try:
            return Listener.of_json(domain.removeprefix(LISTENER), document)
        except InvalidInput as error:
            raise ValueError(str(error)) from None


def cursor_of(snapshot: Snapshot, name: str) -> Cursor:
    """Up to where the events for a listener were acknowledged, in a version of the log. Raises Corrupt."""
    prefix = _cursors(name)
    return Cursor(
        {
            entry.removeprefix(prefix): decoded(At, entry, text)
            for entry, text in snapshot.domains.items()
            if entry.startswith(prefix)
        }
    )


def _delivering_of(snapshot: Snapshot) -> dict[str, Delivering]:
    """Who delivers to which listener, in a version of the log."""
    found = readable(snapshot.domains, DELIVERING, partial(decoded, Delivering))
    return {name.removeprefix(DELIVERING): one for name, one in found}


def _cursors(name: str) -> str:
    return f"{LISTENER_CURSOR}{name}."


def _moves(name: str, moved: Mapping[str, At | None], snapshot: Snapshot) -> list[Action]:
    """The actions that set these places of a cursor, as far as they are not so yet."""
    actions: list[Action] = []
    for table, at in sorted(moved.items()):
        entry = _cursors(name) + table
        if at is None:
            actions += [Domain(entry, "", removed=True)] if entry in snapshot.domains else []
            continue
        text = orjson.dumps({"version": at.version, "table_id": at.table_id, "digest": at.digest}).decode()
        actions += [Domain(entry, text)] if snapshot.domains.get(entry) != text else []
    return actions
