"""Looks at tables and keeps the answers ready: a request never touches a table.

1. Each table has a thread (``Looking``). While requests come, it asks the log for a newer version every ``interval_seconds``.
2. When there is a new version, and every ``RELOOK_SECONDS`` because claims and tails age, it takes the figures, asks the planner,
   lays out the levels, reads the commits and counts the quarantine. That takes at most a fifth of the time.
3. Each answer is JSON with a tag computed from its bytes, so an answer that did not change keeps its tag.
4. All answers of a look are about one version.
5. If a look fails, the answers of this table contain the error; other tables are not affected. The next look opens the table
   again. If only the store did not answer, it does not, and the last figures are shown beside the error.

**Looking** again and again goes on as long as requests come. A request never waits for more than the look under way.

1. While requests come (the last one within ``IDLE_SECONDS``), a thread looks every ``interval_seconds``; otherwise it sleeps. A
   request that comes while it sleeps wakes it and waits for the next look.
2. Every ``RELOOK_SECONDS`` a look is due in full, because some things change without a new version. All of it takes at most a
   fifth of the time.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Generic, TypeVar

import orjson

from lakebed.coordination.failing import taken_paths
from lakebed.coordination.read_counts import ReadCounts
from lakebed.errors import LakebedError, Retry, TableDropped, TableNotFound
from lakebed.health.sampler import with_reference
from lakebed.health.status import Observer
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.monitoring.table_state import RecentCommits
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.planning.planner import plan
from lakebed.table import Table
from lakebed.table import open as open_table
from lakebed.ui import documents
from lakebed.ui.documents import Live, blotted, cut
from lakebed.ui.history import History
from lakebed.ui.levels import Levels, levels

# -- Looking again and again -------------------------------------------------------------------------------------------


IDLE_SECONDS = 60.0
RELOOK_SECONDS = 30.0
LATE_SECONDS = 15.0
WAIT_SECONDS = 5.0
_CLOSE_SECONDS = 0.5
_SHARE = 0.2
T = TypeVar("T")


class Looking(Generic[T]):
    """A thread that looks, from ``start`` until ``close``."""

    def __init__(self, name: str, interval_seconds: float, look: Callable[[bool], T]) -> None:
        """``look``: takes whether a look is due in full, and never raises."""
        self._look = look
        self._interval_seconds = interval_seconds
        self._seen: T | None = None
        self._asked = 0.0
        self._began: float | None = None
        self._is_asleep = True
        self._is_closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._follow, name=f"lakebed-ui-{name}", daemon=True)

    @property
    def is_asleep(self) -> bool:
        """Whether nothing is read, because nobody has asked for a while."""
        return self._is_asleep

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop looking; waits at most ``_CLOSE_SECONDS`` for a look under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_SECONDS)

    def ask(self) -> None:
        """Look, and keep looking for ``IDLE_SECONDS``."""
        with self._changed:
            self._asked = time.monotonic()
            self._changed.notify_all()

    def seen(self, deadline: float | None = None) -> tuple[T | None, bool]:
        """The result of the newest look, and whether the look under way is late.

        Without a result, or after a sleep, it waits for a look until ``deadline``; but not for one that has already taken
        ``WAIT_SECONDS``.
        """
        deadline = time.monotonic() + WAIT_SECONDS if deadline is None else deadline
        self.ask()
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    (self._seen is not None and not self._is_asleep) or self._is_closed or self._takes(WAIT_SECONDS)
                ),
                max(0.0, deadline - time.monotonic()),
            )
            return self._seen, self._takes(LATE_SECONDS)

    def _takes(self, seconds: float) -> bool:
        """Whether the look under way has taken longer than that."""
        return self._began is not None and time.monotonic() - self._began > seconds

    def _follow(self) -> None:
        full_at, pause = 0.0, 0.0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, pause)
                if not self._is_wanted():
                    self._is_asleep = True
                    self._changed.wait_for(self._is_wanted)
                if self._is_closed:
                    return
                self._began = time.monotonic()
            began = time.monotonic()
            is_due = began - full_at >= RELOOK_SECONDS
            seen = self._look(is_due)
            ended = time.monotonic()
            full_at = ended if is_due else full_at
            with self._changed:
                self._seen, self._began, self._is_asleep = seen, None, False
                self._changed.notify_all()
            pause = max(self._interval_seconds, (ended - began) * (1 / _SHARE - 1))

    def _is_wanted(self) -> bool:
        return self._is_closed or (self._asked > 0 and time.monotonic() - self._asked < IDLE_SECONDS)


# -- Tables and their answers ------------------------------------------------------------------------------------------


# -- The records of a table's quarantine -----------------------------------------------------------------------------------


_REASONS_MAX = 20
_SECONDS_MIN = 60.0
ROWS_MAX = 1_000_000
_QUERY = f"""
    select reason, count(*) as records, epoch_ms(max(time)) as newest_ms, count(*) over () as reasons
    from quarantined group by reason order by records desc, reason limit {_REASONS_MAX}
"""


class _QuarantineReasons:
    """Follows the quarantine of one table. Not thread-safe."""

    def __init__(self, root: str) -> None:
        self._path = root + QUARANTINE_SUFFIX
        self._table: Table | None = None
        self._version = -1
        self._read_at = 0.0
        self._document: dict[str, Any] | None = None

    def document(self, records: int) -> dict[str, Any] | None:
        """The reasons that most records have; None without records. ``records``: how many there are."""
        if not records:
            self._version, self._document = -1, None
        elif self._version < 0 or time.monotonic() - self._read_at >= _SECONDS_MIN:
            try:
                self._read(records)
            except LakebedError as error:  # the table itself is well; ``status`` has a finding for this
                self._table, self._version = None, -1
                self._document = {"reasons": [], "more": 0, "error": cut(blotted(str(error)))}
            self._read_at = time.monotonic()
        return self._document

    def _read(self, records: int) -> None:
        if records > ROWS_MAX:
            text = f"it has more than {ROWS_MAX:,} records; count them with lakebed query {self._path}"
            self._document = {"reasons": [], "more": 0, "error": cut(blotted(text))}
            return
        self._table = self._table or open_table(self._path)
        version = self._table.version
        if version == self._version:
            return
        found = self._table.query(_QUERY, "quarantined").to_pylist()
        reasons = [
            {"reason": cut(blotted(row["reason"] or "")), "records": row["records"], "newest_ms": row["newest_ms"]}
            for row in found
        ]
        more = found[0]["reasons"] - len(found) if found else 0
        self._document = {"reasons": reasons, "more": more, "error": None}
        self._version = version


# -- Looks at tables and keeps the answers ready ---------------------------------------------------------------------------


_PICTURES = 3
_LOG_SECONDS = 0.5
_ERROR_MAX = 1_000
_logger = logging.getLogger("lakebed.ui")


class Answer:
    """Bytes, ready to be sent."""

    def __init__(self, value: Any) -> None:
        """Bytes, or a value that becomes JSON."""
        self.body = value if isinstance(value, bytes) else orjson.dumps(value)

    @cached_property
    def tag(self) -> str:
        """A hash of the bytes."""
        return hashlib.blake2b(self.body, digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The result of a look. ``levels`` and ``timeline`` are None if the table can't be read."""

    summary: dict[str, Any]
    table: Answer
    levels: Answer | None = None
    timeline: Answer | None = None
    version: int = -1
    part: Callable[[int], dict[str, Any] | None] | None = None


@dataclass(slots=True, kw_only=True)
class _Open:
    """What the looks at one table share."""

    observer: Observer
    log: TableLog
    recent: RecentCommits
    history: History
    reads: ReadCounts
    quarantine: _QuarantineReasons
    pictures: deque[Levels] = field(default_factory=lambda: deque(maxlen=_PICTURES))
    table_id: str = ""


class Watched:
    """One table, from ``start`` until ``close``."""

    def __init__(self, root: str, name: str, interval_seconds: float, live: Live | None = None) -> None:
        """``name``: the name of the table on the page, without credentials. ``live``: what this process knows of tables."""
        self.name = name
        self._live = live
        self._root = root
        self._last: _Seen | None = None
        self._open: _Open | None = None
        self._looking = Looking(name, interval_seconds, self._look)

    @property
    def is_asleep(self) -> bool:
        """Whether the table is not read, because nobody has asked for a while."""
        return self._looking.is_asleep

    def start(self) -> None:
        self._looking.start()

    def close(self) -> None:
        """Stop looking; waits a moment for a look under way."""
        self._looking.close()

    def ask(self) -> None:
        """Look, and keep looking for a while."""
        self._looking.ask()

    def seen(self, deadline: float | None = None) -> tuple[_Seen | None, bool]:
        """The result of the newest look, and whether the look under way is late (``Looking.seen``)."""
        return self._looking.seen(deadline)

    def _look(self, is_due: bool) -> _Seen:
        self._last = self._look_now(is_due)
        return self._last

    def _look_now(self, is_due: bool) -> _Seen:
        try:
            self._open = self._open or self._opened()
            return self._seen_now(self._open, is_due)
        except Exception as error:  # an error of one table must not stop the page
            if not isinstance(error, LakebedError):
                _logger.warning("%s: %s", self.name, error, exc_info=True)
            if not isinstance(error, Retry):
                self._open = None
            return self._failed(error)

    def _opened(self) -> _Open:
        log = TableLog(open_store(self._root))
        return _Open(
            observer=Observer(self._root, log=log),
            log=log,
            recent=RecentCommits(log),
            history=History(log),
            reads=ReadCounts(log),
            quarantine=_QuarantineReasons(self._root),
        )

    def _failed(self, error: Exception) -> _Seen:
        if isinstance(error, TableNotFound) and not isinstance(error, TableDropped):
            text = f"there is no table at {self.name}"
        else:
            text = str(error) if isinstance(error, LakebedError) else f"unexpected {type(error).__name__}: {error}"
        text = cut(blotted(text), _ERROR_MAX)
        last = self._last
        if isinstance(error, Retry) and last is not None and last.levels is not None:
            kept = orjson.loads(last.table.body) | {"error": text}
            return replace(last, summary=last.summary | {"error": text}, table=Answer(kept))
        summary = self._named() | documents.broken(text, f"lakebed verify {self.name} --self") | {"error": text}
        return _Seen(summary=summary, table=Answer(summary))

    def unseen(self) -> dict[str, Any]:
        """The answer before the table has been read for the first time."""
        return self._named() | {"severity": None, "findings": [], "findings_more": 0, "figures": None}

    def _named(self) -> dict[str, Any]:
        return {"path": self.name, "name": self.name.rstrip("/").rsplit("/", 1)[-1] or self.name, "error": None}

    def _seen_now(self, table: _Open, is_due: bool) -> _Seen:
        last = self._last
        if last is not None and last.levels is not None and last.summary["error"] is None and not is_due:
            newest = table.log.refresh()
            if newest.version == last.version:
                last = self._with_live(last)
                if table.history.is_whole or not table.history.look(newest, _LOG_SECONDS):
                    return last
                return replace(last, timeline=Answer(table.history.document(newest)))
        status = table.observer.look()
        summary = self._named() | documents.findings(status.findings)
        snapshot = table.observer.snapshot  # a newer one would not be that of the status
        if snapshot is None:  # the findings contain the reason
            summary["figures"] = None
            return _Seen(summary=summary, table=Answer(summary))
        if table.table_id not in ("", snapshot.metadata.id):  # another table was made in its place
            table.recent, table.history = RecentCommits(table.log), History(table.log)
        table.table_id = snapshot.metadata.id
        now_ms = table.log.now_ms()
        claimed = taken_paths(snapshot, now_ms)
        recent = with_reference(table.recent.read(snapshot.version, _LOG_SECONDS), status)
        table.history.look(snapshot, _LOG_SECONDS)
        summary["figures"] = documents.figures(status, recent, snapshot)
        statistics = table.log.statistics
        planning = plan(snapshot, claimed, now_ms, reads=table.reads.of(snapshot), statistics=statistics)
        whole = summary | {
            "shape": documents.shape(snapshot),
            "plan": documents.plan_document(planning, snapshot.columns),
        }
        whole |= documents.claims_document(snapshot, now_ms, table.history.merge_rate())
        whole["quarantine"] = table.quarantine.document(status.quarantined)
        whole["live"] = self._live.of(self._root) if self._live else None
        picture = levels(snapshot, claimed, statistics)
        table.pictures.append(picture)
        timeline = Answer(table.history.document(snapshot))
        return _Seen(
            summary=summary,
            table=Answer(whole),
            levels=Answer(picture.document),
            timeline=timeline,
            version=snapshot.version,
            part=partial(_part, tuple(table.pictures)),
        )

    def _with_live(self, last: _Seen) -> _Seen:
        """The last look, with what this process knows now: a lag grows without a new version."""
        if self._live is None:
            return last
        whole, live = orjson.loads(last.table.body), self._live.of(self._root)
        return last if whole.get("live") == live else replace(last, table=Answer(whole | {"live": live}))


def _part(pictures: Sequence[Levels], number: int) -> dict[str, Any] | None:
    """A part of the newest picture that has it: a browser may still show an earlier one."""
    return next((found for picture in reversed(pictures) if (found := picture.part(number)) is not None), None)


# -- The tables whose own pages were asked for last: ``WATCHED_MAX`` of them at most are watched ---------------------------


WATCHED_MAX = 8


class LastWatched:
    """Some tables, until ``close``. Safe to use from several threads."""

    def __init__(self, interval_seconds: float, live: Live | None = None) -> None:
        """``live``: what this process knows of the tables."""
        self._interval_seconds = interval_seconds
        self._live = live
        self._watched: OrderedDict[str, Watched] = OrderedDict()
        self._lock = threading.Lock()  # of what is watched

    def find(self, root: str, name: str) -> Watched:
        """The table at a root, watched from now on. ``name``: its root without credentials."""
        with self._lock:
            watched = self._watched.get(root)
            if watched is None:
                watched = self._watched[root] = Watched(root, name, self._interval_seconds, self._live)
                watched.start()
            self._watched.move_to_end(root)
            left = self._watched.popitem(last=False)[1] if len(self._watched) > WATCHED_MAX else None
        if left is not None:
            left.close()
        return watched

    def close(self) -> None:
        with self._lock:
            watched = list(self._watched.values())
        for each in watched:
            each.close()
