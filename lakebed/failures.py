"""Why a streaming query or a job of Spark failed, whether a query starts again, and how that is reported.

1. lakebed's own error is read back from Spark's (below). Else Spark itself failed: where its text is one of
   ``_SPARK_CAUSES``, or says that the system refused a file, the cause is known; any other is Unexpected. Whoever runs a job
   gets what may pass as an error of lakebed, and else the error of Spark, which may be that of a user's code (``spark_job``).
2. Whether the query starts again depends on the error's class (``Restarts``). After a Retry it does, without end, each time
   later. After an Unexpected it does too if it had ever started, but a bounded number of times in a row. Any other error (bad
   settings, a corrupt table, lost records) never passes: the query has ended.
3. Every change is in the log, an event (so in the metrics), and in ``lakebed.status`` of this process (``Health``).
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from lakebed import errors, events
from lakebed.errors import InvalidInput, LakebedError, Retry, StoreUnavailable, Unexpected

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


# -- How an error of lakebed passes through Spark and through DuckDB, which pass on nothing but its text -------------------
#
#     lakebed-error: {"class": "Corrupt", "text": "the file a is missing", "data": {"path": "a"}}
#
# 1. Where Spark or DuckDB call lakebed's code, an error gets this line. Spark passes on a Python trace, which ends with the
#    notes of the error: there the line is a note (``noted``, ``crosses_spark``). DuckDB passes on the text alone: there the
#    line is the text of a ``Transported`` that is raised in the error's place (``as_text``).
# 2. Where lakebed calls Spark or DuckDB, the line is read back (``decode``), and the same error is raised again
#    (``from_spark``).
#
# So nothing recognises an error of lakebed by the words of its message.


MARKER = "lakebed-error: "
_CALLED = re.compile(r"An error occurred while calling \S+\Z")  # Py4J's first line
C = TypeVar("C", bound=type)
P = ParamSpec("P")
R = TypeVar("R")


class Transported(Exception):
    """Carries an error through DuckDB; its text is the line."""


def encode(error: LakebedError) -> str:
    """The line, in ASCII and without a line break."""
    document = {"class": type(error).__name__, "text": str(error), "data": error.data()}
    return MARKER + json.dumps(document, default=str)


def decode(text: str) -> LakebedError | None:
    """The error of the last line in a text, as ``encode`` wrote it; None if none. An unknown class becomes Unexpected."""
    decoder = json.JSONDecoder()
    for piece in reversed(text.split(MARKER)[1:]):
        try:
            document, _ = decoder.raw_decode(piece)
            kind, message, data = document["class"], str(document["text"]), dict(document["data"])
        except (ValueError, KeyError, TypeError):
            continue
        known = getattr(errors, kind, None)
        if not (isinstance(known, type) and issubclass(known, LakebedError)):
            return Unexpected(f"{kind}: {message}")
        error = known(message)
        for name in vars(error).keys() & data.keys():
            setattr(error, name, tuple(data[name]) if isinstance(data[name], list) else data[name])
        return error
    return None


@contextmanager
def noted() -> Iterator[None]:
    """Add the line, as a note, to an error of lakebed that leaves the block."""
    try:
        yield
    except LakebedError as error:
        line = encode(error)
        if line not in getattr(error, "__notes__", ()):
            error.add_note(line)
        raise


@contextmanager
def as_text() -> Iterator[None]:
    """Raise ``Transported`` with the line as its text in place of an error of lakebed."""
    try:
        yield
    except LakebedError as error:
        raise Transported(encode(error)) from error


@contextmanager
def from_spark() -> Iterator[None]:
    """Raise the error of lakebed that made Spark fail, in place of Spark's."""
    try:
        yield
    except LakebedError:
        raise
    except Exception as error:
        found = decode(str(error))
        if found is None:
            raise
        # Spark adds pages of text, which do not help to fix wrong input.
        raise found from (None if isinstance(found, InvalidInput) else error)


def first_line(error: BaseException) -> str:
    """What an error says in one line. Of an error of the JVM that is not how it was called, but what it is."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and _CALLED.match(lines[0]):
        return lines[1].removeprefix(": ")
    return lines[0] if lines else "no reason given"


def crosses_spark(called: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function, or a generator function, that Spark calls: see ``noted``."""

    @functools.wraps(called)
    def iterate(*args: P.args, **named: P.kwargs) -> Iterator[Any]:
        with noted():
            yield from cast("Iterator[Any]", called(*args, **named))

    @functools.wraps(called)
    def call(*args: P.args, **named: P.kwargs) -> R:
        with noted():
            return called(*args, **named)

    return cast("Callable[P, R]", iterate) if inspect.isgeneratorfunction(called) else call


def methods_cross_spark(kind: C) -> C:
    """Decorate a class whose public methods Spark calls: a data source, and its readers."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, crosses_spark(method))
    return kind


UNKNOWN_FAILURES_MAX = 5
AGAIN_SECONDS = 60.0
PAUSE_SECONDS_MAX = 10.0
"""After an outage nobody waits longer than that, however long it was."""
_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*(Error|Exception): ")
_NUMBERS = re.compile(r"[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+")
"""And names that are new at each try: what differs in these alone is the same cause."""
_logger = logging.getLogger("lakebed.query")


def _slow(why: str) -> Callable[[str], LakebedError]:
    return lambda what: Retry(f"{what} failed: {why}")


def _two_writers(what: str) -> LakebedError:
    """Started again, the query would only end the other one."""
    return InvalidInput(
        f"another process runs or ran this pipeline: while {what} ran, it wrote the next batch into the same "
        "checkpoint, so this one ends. Run one process for each pipeline; give two pipelines of one table the setting "
        "'checkpoint', with a folder for each"
    )


_SPARK_CAUSES: dict[str, Callable[[str], LakebedError]] = {
    # The query finds the batch that it wants to write already in its checkpoint: an error condition of Spark's.
    "CONCURRENT_STREAM_LOG_UPDATE": _two_writers,
    # Spark waits ten seconds for the Python process of a source, and no setting changes that: too short on a busy machine.
    "Python worker failed to connect back": _slow(
        "a Python worker of Spark did not start in time; is the machine busy?"
    ),
    "Timed out while waiting for the Python worker": _slow(
        "a Python worker of Spark did not start in time; is the machine busy?"
    ),
    # PySpark can't reach the JVM (an error condition), or the JVM waits for PySpark (java.net).
    "CANNOT_OPEN_SOCKET": _slow("Spark did not answer its Python half in time; is the machine busy?"),
    "Accept timed out": _slow("Spark's Python half did not answer in time; is the machine busy?"),
    # A call between driver and executors (scala.concurrent), and an executor that died (Spark's scheduler).
    "Futures timed out": _slow("a part of Spark did not answer another in time; is the machine or the network busy?"),
    "ExecutorLostFailure": _slow("Spark lost an executor"),
}
"""Failures that Spark reports as text alone: a part of the text, and the error for what failed, such as "the ingest query"."""
_PERMISSION = "check the permissions of the checkpoint, the source and Spark's local folders"
_ROOM = "free space for Spark's local folders, and for the checkpoint of a query"
_FILE_TROUBLES: dict[str, tuple[type[LakebedError], str]] = {
    "Permission denied": (InvalidInput, _PERMISSION),
    "Read-only file system": (InvalidInput, _PERMISSION),
    "No space left on device": (StoreUnavailable, _ROOM),
    "Disk quota exceeded": (StoreUnavailable, _ROOM),
    "Too many open files": (StoreUnavailable, "allow more open files (ulimit -n)"),
    "FAILED_READ_FILE": (
        Unexpected,
        "is it whole, and do its columns have the names and types that the stream asks for?",
    ),
}
"""What the system, or Spark, says of a file that it can't use; the error, and what to do."""
_OBJECT_STORE = re.compile(r"awssdk|s3a://|\bS3A|Service: S3")
_NO_ANSWER = re.compile(
    r"Status Code: (429|50[0234]|507|509|52\d)|Unable to execute HTTP request|UnknownHostException"
    r"|(ApiCallTimeout|ApiCallAttemptTimeout|SocketTimeout|ConnectTimeout|NoHttpResponse|AWSServiceIO|AWSNoResponse"
    r"|AWSStatus500|AWSServiceThrottled|AWSApiCallTimeout|ConnectionPoolTimeout)Exception"
)
"""What Spark's client of S3 says of a store that does not answer, is busy, or is full. It writes checkpoints and reads parts."""


def failure_of(query: StreamingQuery, name: str) -> LakebedError | None:
    """The error of a query that failed; None if it runs or was stopped."""
    error = query.exception()
    return None if error is None else failure_in(str(error), name)


def failure_in(text: str, name: str) -> LakebedError:
    """The error in the text of a failed query."""
    if (own := decode(text)) is not None:
        return own
    what = f"the {name} query"
    if (known := _of_spark(text, what)) is not None:
        return known
    lines = _lines(text)
    python = [line for line in lines if _PYTHON_ERROR.match(line)]  # of a user's own function: the line that helps
    return Unexpected(f"{what} failed: {(python[-1:] or lines[:1] or ['no reason given'])[0]}")


@contextmanager
def spark_job() -> Iterator[None]:
    """Run jobs of Spark in the block. Raises the error of lakebed that made one fail; Retry, or StoreUnavailable, if Spark says
    that something was slow, lost, full or did not answer; else what Spark raised.
    """
    try:
        with from_spark():
            yield
    except LakebedError:
        raise
    except Exception as error:
        known = _of_spark(str(error), "a job of Spark")
        if isinstance(known, Retry):
            raise known from error
        raise


def _of_spark(text: str, what: str) -> LakebedError | None:
    """The error if Spark's text says what the cause was."""
    for part, error_of in _SPARK_CAUSES.items():
        if part in text:
            return error_of(what)
    lines = [line.removeprefix("Caused by: ") for line in _lines(text)]
    if _OBJECT_STORE.search(text) and (line := next(filter(_NO_ANSWER.search, lines), None)) is not None:
        return StoreUnavailable(f"{what} failed: the object store did not answer: {line}")
    for part, (kind, remedy) in _FILE_TROUBLES.items():
        if (line := next((line for line in lines if part in line), None)) is not None:
            return kind(f"{what} failed: {line}; {remedy}")
    return None


def _lines(text: str) -> list[str]:
    return [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]


class Restarts:
    """Decides when something that failed starts again."""

    def __init__(self) -> None:
        self._failures = 0
        self.has_started = False
        """Whether it ever started. An Unexpected error before that comes from how it was called."""

    def pause_seconds(self, error: LakebedError, made_progress: bool) -> float | None:
        """How long to wait before the next start; None for no start. ``made_progress``: some work was done since the failure."""
        self._failures = 1 if made_progress else self._failures + 1
        may_pass = isinstance(error, Unexpected) and self.has_started and self._failures <= UNKNOWN_FAILURES_MAX
        if not isinstance(error, Retry) and not may_pass:
            return None
        return float(min(PAUSE_SECONDS_MAX, 2 ** min(self._failures - 1, 10)))


class Outage:
    """Warns of something that fails again and again: once of each cause, and once when it works again.

    Several threads at once may warn twice.
    """

    def __init__(self, what: str, logger: logging.Logger) -> None:
        """``what``: what fails, for people."""
        self._what = what
        self._logger = logger
        self._cause: tuple[str, str] | None = None

    def failed(self, error: Exception) -> None:
        """It failed, and will be tried again."""
        cause = _cause_of(error)
        level = logging.DEBUG if cause == self._cause else logging.WARNING
        self._cause = cause
        self._logger.log(level, "%s fails, and is tried again: %s", self._what, error)

    def works(self) -> None:
        """It did not fail."""
        if self._cause is not None:
            self._cause = None
            self._logger.info("%s works again", self._what)


def _cause_of(error: Exception) -> tuple[str, str]:
    """What is the same each time that something fails for the same cause."""
    return type(error).__name__, _NUMBERS.sub("", str(error))


class Health:
    """Whether a table's ingest or maintenance runs in this process (``role``: ingest, maintain). Safe for several threads."""

    def __init__(
        self, table: str, role: str, one_of_many: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """``one_of_many``: many tables begin and stop together, so an event of that is ``routine``."""
        self._clock = clock
        self.table = table
        self.role = role
        self._one_of_many = one_of_many
        self.error: LakebedError | None = None
        self.pause_seconds: float | None = None
        self._state = ""
        self._cause: tuple[str, str] | None = None
        self._warned_at = float("-inf")
        self._is_quiet = False
        self._lock = threading.Lock()
        with _here_lock:
            _here[table, role] = self

    def runs(self) -> None:
        """It runs, for the first time or again."""
        routine = self._is_quiet or (self._one_of_many and not self._state)
        self._is_quiet = False
        if self._becomes("running", None, None):
            events.emit(events.QueryChanged(table=self.table, role=self.role, state="running", routine=routine))

    def waits(self, error: LakebedError, pause_seconds: float) -> None:
        """It failed, and will be tried again.

        A cause is warned of once, not at each try; nor each time that it works in between, but once in ``AGAIN_SECONDS``.
        """
        kind = type(error).__name__
        cause, now = _cause_of(error), self._clock()
        begins = self._becomes("waiting", error, pause_seconds)
        is_news = cause != self._cause or (begins and now - self._warned_at >= AGAIN_SECONDS)
        if is_news:
            self._cause, self._warned_at = cause, now
        self._is_quiet = not is_news if begins else self._is_quiet and not is_news
        _logger.log(
            logging.WARNING if is_news else logging.DEBUG,
            "%s of %s starts again in %.0f s: %s",
            self.role,
            self.table,
            pause_seconds,
            error,
            extra=events.ALSO_AN_EVENT,
        )
        events.emit(
            events.QueryChanged(
                table=self.table,
                role=self.role,
                state="waiting",
                error=kind,
                reason=str(error),
                pause_seconds=pause_seconds,
                routine=not is_news,
            )
        )

    def failed(self, error: LakebedError) -> None:
        """It failed, and is not tried again."""
        self._becomes("failed", error, None)
        kind = type(error).__name__
        _logger.error("%s of %s has ended: %s", self.role, self.table, error, extra=events.ALSO_AN_EVENT)
        events.emit(
            events.QueryChanged(table=self.table, role=self.role, state="failed", error=kind, reason=str(error))
        )

    def stopped(self) -> None:
        """It was stopped on purpose; it is not reported any more."""
        with _here_lock:
            if _here.get((self.table, self.role)) is self:
                del _here[self.table, self.role]
        if self._becomes("stopped", None, None):
            routine = self._one_of_many
            events.emit(events.QueryChanged(table=self.table, role=self.role, state="stopped", routine=routine))

    def _becomes(self, state: str, error: LakebedError | None, pause_seconds: float | None) -> bool:
        with self._lock:
            before, self._state = self._state, state
            self.error, self.pause_seconds = error, pause_seconds
        return before != state


_here: dict[tuple[str, str], Health] = {}
_here_lock = threading.Lock()


def unwell_here(table: str) -> list[Health]:
    """What this process has started on a table (by its root) and does not run now."""
    with _here_lock:
        return [health for (of, _), health in _here.items() if of == table and health.error is not None]
