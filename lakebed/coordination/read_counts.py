"""Counts how often parts are read while they wait for a new sort key, so that those that are read most are sorted first.

Invariants
- While no part waits (``log.snapshot``), nothing is counted, written or listed, and no thread is started.
- A reader writes nothing unless the table's property ``lakebed.count_reads`` is on. Without it, only a process that maintains
  the table counts its own reads, in memory.
- Counts are hints. A count that is lost, or counted twice, changes the order of sorting and nothing else. So no error here
  reaches a reader or a planner.

Readers and planners are seldom in one process, and a reader must not commit, because every other process would replay that.
With the property they exchange counts by small files beside the parts.

1. A read reports the parts that it took, after pruning (``count``). Spark's queries are planned in its JVM, which counts them;
   it is asked for the counts now and then (``follow``).
2. A thread writes the counts since the last file to ``_lakebed/reads/<epoch seconds>-<random>.json``: a second after the first
   read, then at most once a minute, and when the process ends. Without the property, or without write access, they stay in
   memory.
3. A planner (``of``) adds up the counts of the last hour. With the property it lists the folder for that, at most once a
   minute, from the name of an hour ago on. A file never changes, so each is read once. Of very many files it reads the newest.
4. Cleanup deletes files that are older than an hour (``operations.cleanup``).

Commits begin and end a reader's hold (see ``log.holds``).
"""

from __future__ import annotations

import atexit
import logging
import re
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import orjson

from lakebed.errors import InvalidInput, LakebedError, VersionNotFound
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import EXPIRED, Operation
from lakebed.log.holds import Hold, first_unexpired, require_unpurged
from lakebed.log.snapshot import Snapshot, parts_to_resort
from lakebed.log.table_log import TableLog

READS_FOLDER = "_lakebed/reads"
WINDOW_SECONDS = 3600
_PUBLISH_SECONDS = 60.0
_FIRST_SECONDS = 1.0
_EXIT_SECONDS_MAX = 2.0
_FILES_MAX = 1000
_PARTS_MAX = 5000  # of one file: some 300 KB
_NAME = re.compile(r"\d{10}-[0-9a-f]{32}\.json")
_logger = logging.getLogger("lakebed.reads")

_Take = Callable[[], Mapping[str, int]]
"""Reads by path since it was called last."""


class ReadCounts:
    """Reads of one table's stale parts in the last hour, of this process and of others. Safe to use from several threads."""

    def __init__(self, log: TableLog) -> None:
        self._log = log
        self._lock = threading.Lock()
        self._counted: Counter[str] = Counter()  # not published yet
        self._counted_at = 0.0
        self._published_at = 0.0
        self._may_write = True
        self._is_maintaining = False
        self._sources: set[_Take] = set()
        self._files: dict[str, Mapping[str, int]] = {}  # of the last hour, by name; this process's too
        self._total: Counter[str] = Counter()  # of these files
        self._looked_at = 0
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()

    # -- a reader ------------------------------------------------------------------------------------------------------

    def counted_parts(self, snapshot: Snapshot) -> frozenset[str]:
        """Paths of the parts whose reads are to be counted; none unless the counts will be used."""
        if not (self._is_maintaining or snapshot.settings.count_reads):
            return frozenset()
        return frozenset(part.path for part in parts_to_resort(snapshot))

    def count(self, stale: frozenset[str], paths: Iterable[str]) -> None:
        """Count a read of these files; only those that are ``stale`` count."""
        if stale and (read := stale.intersection(paths)):
            with self._lock:
                self._counted.update(read)
                self._publish_later()

    def follow(self, take: _Take) -> None:
        """Call ``take`` now and then, for an hour after it was last passed or returned any counts."""
        with self._lock:
            self._sources.add(take)
            self._publish_later()

    # -- a planner -----------------------------------------------------------------------------------------------------

    def begin_maintaining(self) -> None:
        """This process maintains the table: it counts its own reads, with or without the property."""
        self._is_maintaining = True

    def of(self, snapshot: Snapshot) -> dict[str, int]:
        """How often each stale part was read in the last hour, as far as is known; parts that were never read are left out."""
        stale = {part.path for part in parts_to_resort(snapshot)}
        if not stale:
            return {}
        self._ask_sources()
        self._look(snapshot.settings.count_reads)
        with self._lock:
            return {path: count for path in stale if (count := self._total[path] + self._counted[path])}

    def _look(self, is_published: bool) -> None:
        """Forget what is older than an hour, and take in what others have published since the last look."""
        now = self._log.now_ms() // 1000
        oldest, newest = _time(now - WINDOW_SECONDS), _time(now + WINDOW_SECONDS)
        with self._lock:
            if abs(now - self._looked_at) < _PUBLISH_SECONDS:
                return
            self._looked_at = now
            earlier = self._files
        try:
            listed = self._log.store.list_from(READS_FOLDER, oldest) if is_published else []
            names = [name for name in listed if name < newest]
            found = {name: self._read(name) for name in names[-_FILES_MAX:] if name not in earlier}
        except (LakebedError, OSError) as error:
            _logger.debug("reads of %r by others are not known: %s", self._log.store, error)
            return
        with self._lock:
            self._files = {name: reads for name, reads in (self._files | found).items() if name >= oldest}
            self._total = Counter()
            for reads in self._files.values():
                self._total.update(reads)

    def _read(self, name: str) -> Mapping[str, int]:
        try:
            if not _NAME.fullmatch(name):
                raise ValueError("it has another name than files of reads have")
            reads = orjson.loads(self._log.store.read(f"{READS_FOLDER}/{name}"))
            if not isinstance(reads, dict) or not all(type(count) is int and count > 0 for count in reads.values()):
                raise ValueError("it is no object of counts by path")
            return reads
        except FileNotFoundError:
            return {}
        except ValueError as error:
            _logger.warning("%s/%s in %r is ignored: %s", READS_FOLDER, name, self._log.store, error)
            return {}

    @property
    def is_idle(self) -> bool:
        """Whether nothing is counted that is not published, and no thread runs."""
        return self._thread is None and not self._counted

    # -- publishing ----------------------------------------------------------------------------------------------------

    def _publish_later(self) -> None:
        """Start the thread unless it runs. The caller holds the lock."""
        self._counted_at = time.monotonic()
        if self._thread is None or not self._thread.is_alive():  # a forked child has none
            self._ending.clear()
            self._thread = threading.Thread(target=self._publish_while_read, name="lakebed-reads", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def _publish_while_read(self) -> None:
        while True:
            due = max(_FIRST_SECONDS, self._published_at + _PUBLISH_SECONDS - time.monotonic())
            is_ending = self._ending.wait(due)
            self._ask_sources()
            self._publish()
            with self._lock:
                if time.monotonic() - self._counted_at >= WINDOW_SECONDS:
                    self._sources.clear()
                if is_ending or not (self._sources or self._counted):
                    self._thread = None
                    if not is_ending:
                        atexit.unregister(self.close)
                    return

    def close(self) -> None:
        """Publish what was counted, unless that takes long."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._ending.set()
            thread.join(_EXIT_SECONDS_MAX)

    def _ask_sources(self) -> None:
        with self._lock:
            sources = list(self._sources)
        for take in sources:
            try:
                reads = take()
            except Exception as error:  # Spark has stopped, in whatever way
                _logger.debug("reads are no longer reported: %s", error)
                with self._lock:
                    self._sources.discard(take)
                continue
            with self._lock:
                self._counted.update(reads)
                if reads:
                    self._counted_at = time.monotonic()

    def _publish(self) -> None:
        with self._lock:
            counted, self._counted = self._counted, Counter()
        if not counted:
            return
        self._published_at = time.monotonic()
        name = f"{_time(self._log.now_ms() // 1000)}-{uuid.uuid4().hex}.json"
        try:
            snapshot = self._log.refresh()
            stale = {part.path for part in parts_to_resort(snapshot)}
            reads = {path: count for path, count in counted.most_common() if path in stale}
            if not reads:
                return
            with self._lock:
                self._files[name] = reads
                self._total.update(reads)
            # A folder that is gone with its table must not come back.
            if (
                snapshot.settings.count_reads
                and self._may_write
                and self._log.read_commit(snapshot.version) is not None
            ):
                most = dict(list(reads.items())[:_PARTS_MAX])
                self._log.store.put(f"{READS_FOLDER}/{name}", orjson.dumps(most))
        except InvalidInput as error:
            self._may_write = False
            _logger.debug("reads of %r stay in this process: %s", self._log.store, error)
        except Exception as error:
            _logger.debug("reads of %r were not published: %s", self._log.store, error)


def _time(seconds: int) -> str:
    """The prefix of the names of files of that time."""
    return f"{max(0, seconds):010d}"


def begin_hold(log: TableLog, held: Hold) -> None:
    """Commit a hold, also in place of an earlier one of the same id.

    Raises VersionNotFound for a version that has expired; Contention, StoreUnavailable (it may be repeated).
    """

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        require_unpurged(snapshot.domains, held.version, is_held=held.domain in snapshot.domains)
        log.at_version(held.version)
        if held.version < (first := first_unexpired(snapshot.domains)):
            raise VersionNotFound(
                f"version {held.version} has expired and can't be held; the oldest version that is kept is {first}",
                version=held.version,
                oldest=first,
            )
        return _proposal(held, ended=False)

    commit_loop(log, Operation.HOLD_VERSION, build)


def end_hold(log: TableLog, held: Hold) -> None:
    """Take a hold out of the log. Raises Contention, StoreUnavailable (it may be repeated)."""

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        return _proposal(held, ended=True) if held.domain in snapshot.domains else Finished(None)

    commit_loop(log, Operation.RELEASE_VERSION, build)


def _proposal(held: Hold, *, ended: bool) -> Proposal[None]:
    return Proposal(
        actions=[held.ended() if ended else held.to_action()],
        access=ReadWriteSet(domains=frozenset([EXPIRED, held.domain])),
        result=lambda committed: None,
        parameters={"version": held.version},
    )
