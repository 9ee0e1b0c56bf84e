"""The Spark cluster where a process has large merges run: one session, begun for the first of them, and again after it ended.

1. *Which merges* (``takes``): those that read ``bytes_min`` or more, unless the cluster is away. All others stay in the process.
2. *How many* (``slot``): as many at a time as the cluster has cores, and ``merges_max`` at most. What a merge returns to this
   process takes six bytes a row.
3. *Watching.* While jobs run, a thread asks a few times a second whether one of them shall stop, and cancels it by its tag. It
   also ends them when the cluster has had no executor for long, since Spark itself would wait without end.
4. *Failures.* What goes wrong with the cluster, and not with a merge, is a ``ClusterUnavailable``: the session did not start or
   has ended, or there is no executor. Then the cluster is *away*: merges stay in the process, and the cluster is tried again
   later each time. A task whose executor was lost is run again by Spark.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakebed.errors import ClusterUnavailable, LakebedError
from lakebed.failures import first_line, from_spark
from lakebed.sparks.jvm import forget_session, has_ended, has_executors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BYTES_MIN = 64 << 20
"""The least that a merge reads for which a job pays (ADR 40)."""
MERGES_MAX = 16
MERGE_BYTES = 64 << 20
"""What a merge on the cluster takes of this process at most: its rows' provenance, twice, for ten million rows."""
AWAY_SECONDS = (10.0, 300.0)
"""The first and the longest time after which a cluster that was away is tried again."""
NO_EXECUTOR_SECONDS = 120.0
_LOOK_SECONDS = 0.5
_CONNECT_SECONDS = 5.0
_logger = logging.getLogger("lakebed.compact")

_Task = Callable[[Iterable[bytes]], Iterator[bytes]]


@dataclass(slots=True, eq=False)
class _Running:
    """A job. ``progress`` raises an error if the job shall stop, which is then its ``end``."""

    session: SparkSession
    tag: str
    progress: Callable[[int], object]
    end: BaseException | None = None


class Cluster:
    """Runs tasks on a cluster. Safe to use from several threads."""

    def __init__(
        self,
        begin: Callable[[], SparkSession],
        *,
        name: str = "Spark",
        bytes_min: int = _BYTES_MIN,
        merges_max: int = MERGES_MAX,
        is_ours: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``begin`` starts a session; ``name``: of the cluster in messages; ``is_ours``: sessions that have ended are stopped;
        ``clock``: seconds that never go back.
        """
        self._begin = begin
        self.name = name
        self._bytes_min = bytes_min
        self._merges_max = merges_max
        self._is_ours = is_ours
        self._clock = clock
        self._session: SparkSession | None = None
        self._beginning = threading.Lock()  # of _session
        self._free = threading.Condition()  # of the fields below
        self._busy = 0
        self._jobs: set[_Running] = set()
        self._watcher: threading.Thread | None = None
        self._failures, self._away_until, self._executors_at = 0, 0.0, 0.0
        self._is_closed = False

    @classmethod
    def of(cls, session: SparkSession) -> Cluster:
        """The cluster of a user's session, which takes every merge. The session is the user's: it is never begun again."""
        return cls(lambda: session, name=str(session.sparkContext.master), bytes_min=0, is_ours=False)

    # -- for those who plan --------------------------------------------------------------------------------------------

    @property
    def room(self) -> int:
        """How many merges it may have at a time, as far as is known before it is asked."""
        return self._merges_max

    def takes(self, bytes_in: int) -> bool:
        """Whether a merge that reads so many bytes goes to the cluster now."""
        return bytes_in >= self._bytes_min and self._clock() >= self._away_until and not self._is_closed

    # -- for those who merge -------------------------------------------------------------------------------------------

    @contextmanager
    def slot(self, progress: Callable[[int], object]) -> Iterator[None]:
        """Wait until fewer merges are there than it has cores. Raises what ``progress`` raises, and ClusterUnavailable."""
        session = self.session()
        while True:
            progress(0)
            most = min(self._merges_max, self._cores(session))
            with self._free:
                if self._busy < most:
                    self._busy += 1
                    break
                self._free.wait(_LOOK_SECONDS)
        try:
            yield
        finally:
            with self._free:
                self._busy -= 1
                self._free.notify()

    def run(self, work: bytes, task: _Task, progress: Callable[[int], object]) -> bytes:
        """Run a task on one piece of work, and return the one that it yields.

        It is cancelled when ``progress`` raises an error, which is asked a few times a second. Raises that error, an error of
        lakebed that the task raised, ClusterUnavailable, and Spark's errors of the task.
        """
        progress(0)
        session = self.session()
        context, running = session.sparkContext, _Running(session, f"lakebed-merge-{uuid.uuid4().hex}", progress)
        with self._watched(running):
            try:
                context.addJobTag(running.tag)
                context.setInterruptOnCancel(True)
                with from_spark():
                    [result] = context.parallelize([work], 1).mapPartitions(task).collect()
            except Exception as error:
                if running.end is not None:
                    raise running.end from None
                if not isinstance(error, LakebedError) and has_ended(session):
                    raise self._away(f"its session has ended ({first_line(error)})", session) from error
                raise
            finally:
                with suppress(Exception):  # the session may have ended
                    context.removeJobTag(running.tag)
        self._failures = 0
        returned: bytes = result
        return returned

    def session(self) -> SparkSession:
        """The session, begun if there is none. Raises ClusterUnavailable, also while the cluster is away."""
        with self._beginning:
            if self._session is not None and not has_ended(self._session):
                return self._session
            if self._is_closed:
                raise ClusterUnavailable(f"{self.name} is not used any more")
            if self._clock() < self._away_until:
                raise ClusterUnavailable(f"{self.name} is away, and tried again later")
            if self._session is not None:
                self._discard()
            try:
                self._session = self._begin()
            except Exception as error:
                self._session = None
                if self._is_ours:
                    forget_session()
                raise self._away(str(error) if isinstance(error, LakebedError) else first_line(error)) from error
            if has_ended(self._session):
                raise self._away("its session has ended", self._session)
            return self._session

    def close(self) -> None:
        """Begin no session any more, and stop the one that runs."""
        self._is_closed = True
        if self._beginning.acquire(timeout=_CONNECT_SECONDS):  # else it is just beginning, and ends with the process
            try:
                self._discard()
            finally:
                self._beginning.release()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _discard(self) -> None:
        if self._session is not None and self._is_ours:
            with suppress(Exception):
                self._session.stop()
            forget_session()
        self._session = None

    def _away(self, why: str, session: SparkSession | None = None) -> ClusterUnavailable:
        """The cluster is away for now: the error that says so. Jobs of one session count once."""
        with self._free:
            if self._clock() >= self._away_until:
                pause = min(AWAY_SECONDS[1], AWAY_SECONDS[0] * 2.0 ** min(self._failures, 10))
                self._failures += 1
                self._away_until = self._clock() + pause
                _logger.warning(
                    "the cluster %s is tried again in %.0f seconds, until then merges stay in this process: %s",
                    self.name,
                    pause,
                    why,
                )
        return ClusterUnavailable(f"the cluster {self.name} can't be used: {why}")

    @staticmethod
    def _cores(session: SparkSession) -> int:
        try:
            return max(1, int(session.sparkContext.defaultParallelism))
        except Exception:  # it has ended, which the job will find out
            return 1

    @contextmanager
    def _watched(self, running: _Running) -> Iterator[None]:
        with self._free:
            if not self._jobs:
                self._executors_at = self._clock()
            self._jobs.add(running)
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch, name="lakebed-cluster", daemon=True)
                self._watcher.start()
        try:
            yield
        finally:
            with self._free:
                self._jobs.discard(running)

    def _watch(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            with self._free:
                jobs = list(self._jobs)
                if not jobs:
                    self._watcher = None
                    return
            if self._lacks_executors(jobs[0].session):
                seconds = self._clock() - self._executors_at
                error = self._away(f"it has had no executor for {seconds:.0f} seconds")
                for job in jobs:
                    job.end = job.end or error
            for job in jobs:
                try:
                    job.progress(0)
                except BaseException as error:
                    job.end = job.end or error
                if job.end is not None:
                    with suppress(Exception):  # again at the next look
                        job.session.sparkContext.cancelJobsWithTag(job.tag)

    def _lacks_executors(self, session: SparkSession) -> bool:
        """Whether there has been none for long."""
        try:
            if has_executors(session):
                self._executors_at = self._clock()
        except Exception:  # it has ended, which the jobs find out
            return False
        return self._clock() - self._executors_at >= NO_EXECUTOR_SECONDS


def require_master(master: str) -> None:
    """Raises ClusterUnavailable if no master of a standalone cluster (``spark://host:port,…``) answers.

    Spark would try for a minute, and then say something else.
    """
    if not master.startswith("spark://"):
        return
    why = ""
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
                return
        except (OSError, ValueError, OverflowError) as error:
            why = str(error)
    raise ClusterUnavailable(f"no Spark master answers at {master}: {why}")
