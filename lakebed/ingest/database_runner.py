"""Reads many tables at once: small ones by threads of this process, large ones in one Spark job.

1.  The smallest tables are read here as long as they have few records together. The others share a Spark job, whose tasks
    hold work of several tables. Without Spark on this machine all but the slow ones are read by the job.
2.  A table that does not answer in time (its store hangs, its log is contended) is left to its thread: the batch ends without it,
    and what it did counts when it ends. Meanwhile no batch reads it. So nobody waits for it longer than ``_PATIENCE_SECONDS``.
3.  If the next batch follows at once, it is planned while the last tables of this one are read: they count when they end.
4.  Threads that are left behind are replaced, as long as they are ``_LEFT_MAX`` at most.

**A task** has work of several tables, and writes the parts of one after the other.

1. The work of a table is cut into pieces, one a partition: what is in a partition is read in its order, by one task.
2. The pieces are spread over the tasks so that all have about as many records: the largest piece first, into the task with the
   fewest. Each task gets its own pieces and no others.
3. A piece that fails is a row of its table with the error. The task goes on with the next piece, and never fails.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from heapq import heapify, heapreplace
from itertools import groupby
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeAlias

from lakebed.errors import LakebedError, Unexpected
from lakebed.failures import crosses_spark, decode, encode, failure_in, spark_job
from lakebed.ingest.batch_writer import Written, in_this_process
from lakebed.ingest.database_member import Ignored, Member, Open
from lakebed.ingest.table_batch import Batch, BatchDone, WriteWork, run_alone, run_here
from lakebed.sources.cut import Cut
from lakebed.sources.source import Range
from lakebed.sparks.jvm import is_on_one_machine
from lakebed.telemetry import counted, report_requests
from lakebed.waits import waiting_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RECORDS_TASK_MIN = 5_000
"""A task with fewer records costs more than it saves."""
_Answer: TypeAlias = "tuple[str, int, Written | str, str]"
"""The topic, the number of the piece, what was written or the error, and the requests to the object store."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Work of one table. ``number``: its place among the table's pieces."""

    topic: str
    number: int
    work: WriteWork

    @property
    def records(self) -> int:
        """At most so many."""
        return self.work.records


def pieces_of(works: Mapping[str, WriteWork]) -> list[Piece]:
    """The work of tables, by topic, in pieces."""
    return [
        Piece(topic, number, WriteWork(work.task, tuple(ranges)))
        for topic, work in works.items()
        for number, (_, ranges) in enumerate(groupby(work.ranges, key=lambda one: one.place))
    ]


def spread(pieces: Iterable[Piece], tasks: int) -> list[list[Piece]]:
    """The pieces of each of so many tasks, or of fewer if there is little to do; no task is empty."""
    ordered = sorted(pieces, key=lambda piece: (-piece.records, piece.topic, piece.number))
    total = sum(piece.records for piece in ordered)
    count = max(1, min(tasks, len(ordered), -(-total // _RECORDS_TASK_MIN)))
    chosen: list[list[Piece]] = [[] for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]
    heapify(loads)
    for piece in ordered:
        records, held, number = loads[0]
        chosen[number].append(piece)
        heapreplace(loads, (records + piece.records, held + 1, number))
    return [each for each in chosen if each]


def run_piece(piece: Piece) -> Written | LakebedError:
    """Write the parts of a piece, in this process. Never raises."""
    try:
        return in_this_process(piece.work.task, piece.work.ranges)
    except LakebedError as error:
        return error
    except Exception as error:
        return Unexpected(f"unexpected {type(error).__name__} while {piece.topic} was read: {error}")


@crosses_spark
def run_task(payloads: Iterable[bytes]) -> Iterator[_Answer]:
    """What a Spark task does: ``payloads`` are its pieces, pickled."""
    for payload in payloads:
        for piece in pickle.loads(payload):
            with counted() as requests:
                written = run_piece(piece)
            answer = encode(written) if isinstance(written, LakebedError) else written
            yield piece.topic, piece.number, answer, requests.to_json()


def run_in_tasks(spark: SparkSession, works: Mapping[str, WriteWork]) -> dict[str, Written | LakebedError]:
    """Run the work of tables, by topic, as one Spark job. Raises the error of a job that failed as a whole."""
    context = spark.sparkContext
    payloads = [pickle.dumps(each) for each in spread(pieces_of(works), 2 * context.defaultParallelism)]
    with spark_job():
        answers = context.parallelize(payloads, len(payloads)).mapPartitions(run_task).collect()
    return answered(works, answers)


def answered(topics: Iterable[str], answers: Sequence[_Answer]) -> dict[str, Written | LakebedError]:
    """What the pieces of each table wrote, in their order, or the first error."""
    written: dict[str, list[Written]] = {topic: [] for topic in topics}
    errors: dict[str, LakebedError] = {}
    for topic, _, answer, requests in sorted(answers, key=lambda row: row[1]):
        report_requests(requests)
        if isinstance(answer, Written):
            written[topic].append(answer)
        else:
            errors.setdefault(topic, decode(answer) or Unexpected(answer))
    return {topic: errors.get(topic) or Written.of(some) for topic, some in written.items()}


@dataclass(frozen=True, slots=True)
class Skipped:
    """The table is open, and nothing was read of what it wants: a later batch reads it."""


Outcome: TypeAlias = BatchDone | Ignored | Skipped | LakebedError
Together: TypeAlias = Callable[[Sequence[Range]], AbstractContextManager[object]]
RECORDS_HERE_MAX = 20_000
"""Of all tables together: they take some 0.2 s in the driver, and so does a Spark job without records."""
_RECORDS_TASKS_MAX = 200_000
"""Of all tables that share a job, times its tasks that run at once: some seconds."""
THREADS = 8
_LEFT_MAX = 64
_CARRIED_MAX = THREADS // 2  # how many tables are read on while the next batch is planned, which takes about as long
_PATIENCE_SECONDS = 5.0
_logger = logging.getLogger("lakebed.ingest")


class Runner:
    """Reads tables, batch by batch. One batch at a time; ``ended`` may be called by any thread."""

    def __init__(
        self, open_table: Open, *, patience_seconds: float = _PATIENCE_SECONDS, together: Together = nullcontext
    ) -> None:
        """``together``: while it lasts, the source fetches these ranges at once."""
        self._open = open_table
        self._together = together
        self._patience_seconds = patience_seconds
        self._pool = ThreadPoolExecutor(THREADS, "lakebed-table")
        self._behind: set[Future[Any]] = set()
        self._carried: dict[Future[Any], tuple[Member, float]] = {}
        """Tables of the last batch that are still read, and until when nobody minds."""
        self._replaced = 0
        self._late: SimpleQueue[tuple[Member, Outcome]] = SimpleQueue()

    def open(self, members: Sequence[Member]) -> list[tuple[Member, Outcome]]:
        """Open the tables of topics, or make them, and return how it went for those that have none now."""
        for member in members:
            member.is_busy = True
        opening = {self._pool.submit(self._opened, member): member for member in members}
        wait(opening, self._patience_seconds)
        ended: list[tuple[Member, Outcome]] = []
        for future, member in opening.items():
            ended += [one for one in self._taken(member, future) if not isinstance(one[1], Skipped)]
        self._replace_threads()
        return ended

    def run(
        self, members: Sequence[Member], cut: Cut | None, spark: SparkSession | None, *, more: bool = False
    ) -> list[tuple[Member, Outcome]]:
        """Read what the tables want, all of which are open, and return how it went for those that ended.

        ``more``: another batch follows at once, and hears of the last ones (``late``).
        """
        deadline = time.monotonic() + self._patience_seconds
        here, together = split(members, spark)
        for member in members:
            member.is_busy = True
        with self._together([one for member in here if not member.is_apart for one in member.wanted.values()]):
            alone = {self._pool.submit(self._read, member, cut): member for member in here}
            ended = self._read_together(together, cut, spark) if together and spark is not None else []
            left = {*alone, *(() if more else self._carried)}
            while len(left) > (_CARRIED_MAX if more else 0) and (seconds := deadline - time.monotonic()) > 0:
                left = wait(left, seconds, return_when=FIRST_COMPLETED).not_done
            may_go_on = more and time.monotonic() < deadline
            for future, member in alone.items():
                if may_go_on and not future.done():
                    self._carried[future] = member, deadline
                else:
                    ended += self._taken(member, future)
        if not more:  # nobody would hear of them, if no other batch comes
            ended += self._carried_until(deadline)
        self._replace_threads()
        return ended

    def _carried_until(self, now: float) -> list[tuple[Member, Outcome]]:
        """How it went for tables of an earlier batch that have ended, or that nobody waits for any longer."""
        ended: list[tuple[Member, Outcome]] = []
        for future, (member, deadline) in list(self._carried.items()):
            if future.done() or now >= deadline:
                del self._carried[future]
                ended += self._taken(member, future)
        return ended

    def late(self) -> list[tuple[Member, Outcome]]:
        """The tables that have ended since after a batch had ended without them."""
        found = self._carried_until(time.monotonic())
        while not self._late.empty():
            member, outcome = self._late.get()
            member.is_busy = False
            found.append((member, outcome))
        return found

    def close(self, seconds: float) -> None:
        """End; tables that are being read get so long to end."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        wait([*self._behind, *self._carried], seconds)

    # -- one table by a thread of its own ------------------------------------------------------------------------------

    def _read(self, member: Member, cut: Cut | None) -> BatchDone:
        return _reported(member, run_alone(_begun(member, cut, RECORDS_HERE_MAX), run_here))

    def _opened(self, member: Member) -> Skipped | Ignored:
        ranges = sorted(member.wanted.values(), key=lambda one: one.partition)
        found = self._open(member.topic, ranges)
        if isinstance(found, Ignored):
            return found
        member.table = found
        return Skipped()

    def _taken(self, member: Member, future: Future[Any]) -> list[tuple[Member, Outcome]]:
        """How it went for a table, if its thread has ended; else it is left to its thread, or to the next batch."""
        if future.done():
            member.is_busy = False
            return [(member, _outcome_of(member, future))]
        if future.cancel():  # no thread was free
            member.is_busy = False
            return []
        _logger.warning("%s takes longer than %.0f s; the other tables go on", member.topic, self._patience_seconds)
        member.is_apart = True
        self._behind.add(future)

        def ends(ended: Future[Any]) -> None:
            self._behind.discard(ended)
            self._late.put((member, _outcome_of(member, ended)))

        future.add_done_callback(ends)
        return []

    def _replace_threads(self) -> None:
        """Threads that are left behind are missing to the next batch: others take their place."""
        stuck = len(self._behind)
        if stuck > self._replaced and stuck <= _LEFT_MAX:
            self._pool.shutdown(wait=False)
            self._pool = ThreadPoolExecutor(THREADS, "lakebed-table")
        self._replaced = stuck

    # -- several tables in one Spark job -------------------------------------------------------------------------------

    def _read_together(
        self, members: Sequence[Member], cut: Cut | None, spark: SparkSession
    ) -> list[tuple[Member, Outcome]]:
        records = _RECORDS_TASKS_MAX * spark.sparkContext.defaultParallelism
        shares = shares_of({member.topic: member.unread for member in members}, records)
        by_topic = {member.topic: member for member in members}
        batches = {member.topic: _begun(member, cut, shares[member.topic]) for member in members}
        answers: Mapping[str, Written | LakebedError | None] = dict.fromkeys(batches)
        ended: list[tuple[Member, Outcome]] = []
        while answers:
            works: dict[str, WriteWork] = {}
            futures = {
                topic: self._pool.submit(self._advanced, by_topic[topic], batches[topic], answer)
                for topic, answer in answers.items()
            }
            wait(futures.values(), self._patience_seconds)
            for topic, future in futures.items():
                if future.done() and future.exception() is None and isinstance(work := future.result(), WriteWork):
                    works[topic] = work
                else:
                    ended += self._taken(by_topic[topic], future)
            answers = self._answers(works, spark)
        return ended

    def _advanced(self, member: Member, batch: Batch, answer: Written | LakebedError | None) -> WriteWork | BatchDone:
        """The next work of a table, or its end. ``answer``: what became of its last work; None to begin. Raises its error."""
        try:
            if answer is None:
                return next(batch)
            return batch.throw(answer) if isinstance(answer, LakebedError) else batch.send(answer)
        except StopIteration as stop:
            return _reported(member, stop.value)

    def _answers(self, works: Mapping[str, WriteWork], spark: SparkSession) -> Mapping[str, Written | LakebedError]:
        if not works:
            return {}
        try:
            with waiting_for(f"a Spark job that reads {', '.join(sorted(works)[:5])}", is_work=True):
                return run_in_tasks(spark, works)
        except LakebedError as error:
            failed: LakebedError = error
        except Exception as error:
            failed = failure_in(str(error), "ingest")
        return dict.fromkeys(works, failed)


def _outcome_of(member: Member, future: Future[Any]) -> Outcome:
    """How it went for a table whose thread has ended."""
    error = future.exception()
    if error is None:
        found: BatchDone | Ignored | Skipped | WriteWork = future.result()
        # Work of a thread that was left behind is not done any more: a later batch plans it again.
        return Skipped() if isinstance(found, WriteWork) else found
    if isinstance(error, LakebedError):
        return error
    _logger.warning("%s could not be read", member.topic, exc_info=error)
    return Unexpected(f"unexpected {type(error).__name__}: {error}")


def split(members: Sequence[Member], spark: SparkSession | None) -> tuple[list[Member], list[Member]]:
    """The tables that are read by threads here, the quick ones first, and those that share a Spark job."""
    ordered = sorted(members, key=lambda member: (member.is_apart, member.unread, member.topic))
    if spark is None:
        return ordered, []
    is_local = is_on_one_machine(spark)
    here: list[Member] = []
    together: list[Member] = []
    records = 0
    for member in ordered:
        records += member.unread
        is_small = is_local and records <= RECORDS_HERE_MAX
        alone = is_small or member.is_apart
        (here if alone else together).append(member)
    return here, together


def shares_of(unread: Mapping[str, int], records: int) -> dict[str, int]:
    """How many records each table reads, of so many for all: all that it has, or its share; never nothing."""
    shares: dict[str, int] = {}
    left = records
    ordered = sorted(unread.items(), key=lambda item: item[1])
    for number, (topic, wanted) in enumerate(ordered):
        shares[topic] = max(1, min(wanted, left // (len(ordered) - number)))
        left -= shares[topic]
    return shares


def _begun(member: Member, cut: Cut | None, records_max: int) -> Batch:
    """The batch of a table, which has not begun to plan yet."""
    assert member.table is not None
    ranges = sorted(member.wanted.values(), key=lambda one: one.partition)
    return member.table.ingest.batch(ranges, records_max=records_max, cut=cut)


def _reported(member: Member, done: BatchDone) -> BatchDone:
    assert member.table is not None
    done.report(member.table.root, member.table.name)
    return done
