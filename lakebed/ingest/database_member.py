r"""What the pipeline of a database knows of one topic: its table, if it is open, and what batches planned and it has not read.

The planner plans each record once in a run. What a table did not read then, because it failed, was slow or stopped at a cut, is
remembered here and read by a later batch. It need not be remembered longer: a new run plans from the positions in the logs.

**Standing.** Whether a table of a database is read, and what its failures mean: pure.

          work
       /--------\
       v        |   fails                        fails again, and the cause is the table's own
     live ------+--------> waiting ----------------------------------------------------> parked
       ^                    |   ^                                                          |
       |   work             |   |  fails                                                   |
       +--------------------/---/                                                          |
       \---------------------------- a user resumes it -----------------------------------/

A table that fails waits, longer each time. Others never wait for it. Whether a cause is a table's own, the other tables show:

1.  An error that names something of the table itself (``OWN``) parks it at once. But if all tables that read in the batch failed,
    and all with that kind of error, then something that they share may be the cause: see 2.
2.  After any other error a table is parked only if another table has worked since its first failure in the series. If the error
    may pass (``Retry``, ``Unexpected``), it must have failed ``FAILURES_MAX`` times as well.

3.  While something is known to be down that the pipeline needs, an error that may pass parks nobody, and so many more failures
    are needed then: one table alone may need a schema of the registry. A store that does not answer for one table, or a full
    disk, never parks it.

So while brokers, a registry or a store fail, who needs them waits, and nobody is parked. Some bad tables are no outage:
that is said only if nothing has worked since several tables fail for a cause that may pass, or since all fail (``outage``).

**Tables that are parked**: their logs say so, and a thread looks whether they were resumed.

1.  A table that is parked gets the entry ``lakebed.parked`` in its log (``coordination.failing``). A user who removes it, in any
    process, resumes the table: within ``LOOK_SECONDS`` it is read again, from where it stopped.
2.  While the log can't be written, the table is parked in this process alone. When it can be again, and the cause was one that
    passes, the table is read again. Any other cause stays in the log then. That the table is dropped passes when it comes back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from lakebed import errors
from lakebed.coordination.failing import Parked, park, parked_of, resume
from lakebed.errors import (
    Corrupt,
    DataLoss,
    InvalidChanges,
    InvalidSchema,
    LakebedError,
    QuarantineRefused,
    Retry,
    StoreUnavailable,
    TableDropped,
    TableNotFound,
    Unexpected,
)
from lakebed.failures import PAUSE_SECONDS_MAX
from lakebed.ingest.table_batch import BatchDone, TableIngest, is_another
from lakebed.log.table_log import TableLog
from lakebed.sources.source import Range

FAILURES_MAX = 15
"""With the pauses between them these are two minutes."""
DOWN_FAILURES_MAX = 7  # how many failures count while something is down; they bound the pauses
OWN = (DataLoss, InvalidSchema, InvalidChanges, QuarantineRefused, Corrupt, TableNotFound)


@dataclass(frozen=True, slots=True)
class Failing:
    """A table that fails."""

    error: LakebedError
    failures: int
    due: float  # when it is tried again (monotonic seconds)
    worked_before: int  # how many times the tables of the database had worked before its first failure


@dataclass(frozen=True, slots=True)
class Park:
    """The table is not read any more."""

    error: LakebedError
    failures: int

    def entry(self, now_ms: int) -> Parked:
        """What the table's log says of it."""
        return Parked(error=str(self.error), kind=type(self.error).__name__, since_ms=now_ms, failures=self.failures)


@dataclass(frozen=True, slots=True)
class Ruling:
    """What the outcomes of a batch mean."""

    worked: int  # how many times tables have worked by now
    failing: Mapping[str, Failing]
    """All tables that wait now, by topic."""
    park: Mapping[str, Park]


def ruling(
    before: Mapping[str, Failing],
    outcomes: Mapping[str, LakebedError | None],
    worked: int,
    now: float,
    *,
    is_down: bool = False,
) -> Ruling:
    """``outcomes``: of the tables that were read, by topic; None: it worked. ``before``: those that waited until now.
    ``is_down``: whether something that the pipeline needs does not answer.
    """
    failed = {topic: error for topic, error in outcomes.items() if error is not None}
    worked_before, worked = worked, worked + len(outcomes) - len(failed)
    failing = {topic: one for topic, one in before.items() if topic not in outcomes}
    if worked > worked_before:  # what all share works again: who waits since nothing worked is tried soon
        soon = now + _pause(1)
        failing = {
            topic: replace(one, due=min(one.due, soon)) if one.worked_before == worked_before else one
            for topic, one in failing.items()
        }
    alike = len(failed) > 1 and len(failed) == len(outcomes) and len({type(error) for error in failed.values()}) == 1
    park: dict[str, Park] = {}
    for topic, error in failed.items():
        earlier = before.get(topic)
        failures = earlier.failures + 1 if earlier else 1
        if isinstance(error, StoreUnavailable) or (is_down and isinstance(error, (Retry, Unexpected))):
            failures = min(failures, DOWN_FAILURES_MAX)
        since = earlier.worked_before if earlier else worked_before
        if _is_parked(error, failures, others_worked=worked > since, alike=alike):
            park[topic] = Park(error, failures)
        else:
            failing[topic] = Failing(error, failures, now + _pause(failures), since)
    return Ruling(worked, failing, park)


def outage(failing: Mapping[str, Failing], worked: int, tables: Collection[str]) -> LakebedError | None:
    """Why no table can be read now; None if any can, as far as is known.

    Args:
        failing: The tables that wait, by topic.
        worked: How many times tables have worked by now.
        tables: The topics that are read. Those that never became tables do not show whether others can be read.
    """
    since = {topic: one.error for topic, one in failing.items() if topic in tables and one.worked_before == worked}
    passing = [error for error in since.values() if isinstance(error, Retry)]
    if len(passing) > 1:
        return passing[-1]
    return next(iter(since.values()), None) if len(since) == len(tables) else None


def _is_parked(error: LakebedError, failures: int, *, others_worked: bool, alike: bool) -> bool:
    if isinstance(error, OWN) and not alike:
        return True
    may_pass = isinstance(error, (Retry, Unexpected))
    return others_worked and (failures >= FAILURES_MAX or not may_pass)


def _pause(failures: int) -> float:
    return float(min(PAUSE_SECONDS_MAX, 2 ** min(failures - 1, 10)))


@dataclass(frozen=True, slots=True)
class OpenTable:
    """A table of the database."""

    name: str  # as the source calls it
    root: str  # its path
    log: TableLog
    ingest: TableIngest


@dataclass(frozen=True, slots=True)
class Ignored:
    """A topic that is no table, and why."""

    reason: str


Open: TypeAlias = Callable[[str, Sequence[Range]], OpenTable | Ignored]
"""Opens the table of a topic, or makes it from the first records that there are. Raises LakebedError if it can't now."""


@dataclass(slots=True)
class Member:
    """One topic."""

    topic: str
    table: OpenTable | None = None
    wanted: dict[int, Range] = field(default_factory=dict)  # what was planned and not read, by partition
    parked: Parked | None = None  # why it is not read
    is_ignored: bool = False
    is_busy: bool = False
    """Whether a thread reads it now."""
    due: float = 0.0
    """When it may be read again, in monotonic seconds."""
    is_kept: bool = False
    """Whether the points of the database know its table as it is."""
    is_stopped: bool = False
    """Whether it has read up to where the last batch was cut: what is left needs no batch of its own."""
    is_apart: bool = False
    """Whether a thread reads it apart from all others, because it failed or was slow."""

    @property
    def unread(self) -> int:
        """The records, at most, that were planned and not read."""
        return sum(one.size for one in self.wanted.values())

    def is_due(self, now: float) -> bool:
        """Whether a batch reads it now."""
        return bool(self.wanted) and self.parked is None and not self.is_busy and now >= self.due

    def want(self, chosen: Range) -> None:
        """A batch was planned that reads this range."""
        if self.is_ignored or not chosen.size:
            return
        before = self.wanted.get(chosen.partition)
        # Where the source begins again, or with another topic of that name, offsets mean other records.
        if before is not None and not chosen.is_first and not is_another(before.topic_id, chosen.topic_id):
            topic_id = chosen.topic_id or before.topic_id
            chosen = replace(before, start=min(before.start, chosen.start), end=chosen.end, topic_id=topic_id)
        self.wanted[chosen.partition] = chosen

    def has_read(self, done: BatchDone) -> int:
        """The table ended a batch; returns how many of the records that were wanted are not any more."""
        unread = self.unread
        for topic, partition in done.gone:
            if topic == self.topic:
                self.wanted.pop(partition, None)
        for (topic, partition), offset in done.read_to.items():
            one = self.wanted.get(partition)
            if topic != self.topic or one is None or offset <= one.start:
                continue
            if offset >= one.end:
                del self.wanted[partition]
            else:
                self.wanted[partition] = replace(one, start=offset, is_first=False)
        return unread - self.unread

    def forget(self) -> None:
        """The topic is no table, or its planning starts again."""
        self.wanted.clear()


# -- Tables that are parked --------------------------------------------------------------------------------------------


LOOK_SECONDS = 3.0
_THREADS = 4
_logger = logging.getLogger("lakebed.ingest")


@dataclass(slots=True)
class _Watched:
    """A parked table. ``place``: whether its log says so; ``here``: the log could not be written."""

    member: Member
    place: Literal["new", "here", "log"]
    is_looked_at: bool = False


class ParkedTables:
    """Writes that tables are parked, and notices that they are resumed. Until ``close``."""

    def __init__(self, resumed: Callable[[Member], None], look_seconds: float = LOOK_SECONDS) -> None:
        """``resumed``: called, by another thread, with a table that is to be read again."""
        self._resumed = resumed
        self._look_seconds = look_seconds
        self._watched: dict[str, _Watched] = {}
        self._closing = threading.Event()
        self._came = threading.Event()
        self._pool = ThreadPoolExecutor(_THREADS, "lakebed-parked")
        self._thread: threading.Thread | None = None

    def watch(self, member: Member, *, in_log: bool) -> None:
        """A table is parked. ``in_log``: its log says so already."""
        self._watched[member.topic] = _Watched(member, "log" if in_log else "new")
        self._came.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="lakebed-parked-looks", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End. What is in the logs stays."""
        self._closing.set()
        self._came.set()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._closing.is_set():
            for one in list(self._watched.values()):
                if not one.is_looked_at:  # a log that hangs is asked once
                    one.is_looked_at = True
                    with suppress(RuntimeError):  # closed meanwhile
                        self._pool.submit(self._look, one)
            self._came.wait(self._look_seconds)
            self._came.clear()

    def _look(self, one: _Watched) -> None:
        table = one.member.table
        assert table is not None
        try:
            if self._is_over(one, table.log):
                del self._watched[one.member.topic]
                self._resumed(one.member)
        except LakebedError as error:
            one.place = "here" if one.place == "new" else one.place
            _logger.debug("%s is parked, and its log does not answer: %s", table.name, error)
        except Exception:
            _logger.exception("%s is parked, and its log can't be read", table.name)
        finally:
            one.is_looked_at = False

    def _is_over(self, one: _Watched, log: TableLog) -> bool:
        """Whether the table is to be read again. If not, its log says that it is parked."""
        parked = one.member.parked
        assert parked is not None
        if one.place == "log":
            return parked_of(log.refresh()) is None
        park(log, parked)
        was_in_the_way = one.place == "here" or parked.kind == TableDropped.__name__  # and is no more: it was written
        if was_in_the_way and _may_pass(parked.kind) and parked_of(log.refresh()) == parked:  # nobody else's
            resume(log)
            return True
        one.place = "log"
        return False


def _may_pass(kind: str) -> bool:
    """Whether an error of this class may pass by itself."""
    known = getattr(errors, kind, Unexpected)
    return isinstance(known, type) and issubclass(known, (Retry, Unexpected, TableDropped))
