"""Reads the log of one table: the newest version, old ones, and which commits are versions of the table at all.

A cleanup deletes commit files one after the other, oldest first. So while the commit of a version is in the log, no later
name ever became free again, and the files with these names are what was committed there. Hence the steps:

1. Start from the newer of two states: the newest checkpoint (it records which commit it is of) and the snapshot that this
   reader has. If there is neither, start from version 0.
2. Read the commits after it one by one. Each must have been made on the one before (``follows``).
3. If there were any, check that the commit of the state in step 1 is still in the log. If it is not, start again.

So no clock decides what is read. Even a reader that paused for a year reads only versions of the table: a writer that paused
as long may have put its commit under a name that a cleanup had freed, and not have noticed yet (``table_log``). A commit
also records for which table it was made. Commits and checkpoints that an earlier table left in the same place are ignored.

The newest snapshot is published by one reference, which threads read without a lock. Threads that ask for it at the same time
share a read (``waits``), and no lock is held while the store is read.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import orjson

from lakebed.errors import Contention, Corrupt, StoreUnavailable, TableNotFound, Unsupported, VersionNotFound
from lakebed.log.actions import Commit
from lakebed.log.checkpoint import decode_checkpoint
from lakebed.log.commit_codec import decode_commit, digest_of
from lakebed.log.invariants import report_violations
from lakebed.log.removals import require_there
from lakebed.log.snapshot import Snapshot, apply, follows, statistics_of, without_expired
from lakebed.log.stores import LOG_FOLDER, LogFiles, LogStore, checkpoint_name, commit_name, log_files
from lakebed.schema.column_mapping import COLUMN_MAPPING, is_mapped
from lakebed.schema.metadata import GATE_FEATURE, Protocol, require_format
from lakebed.schema.widening import TYPE_WIDENING
from lakebed.sortkey.statistics_cache import StatisticsCache
from lakebed.waits import SingleFlight

LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"
_READER_FEATURES = frozenset({"deletionVectors", "timestampNtz", "vacuumProtocolCheck", COLUMN_MAPPING, TYPE_WIDENING})
_RELIST_SECONDS = 60.0
_IDLE_RELIST_SECONDS = 600.0
_LOAD_ATTEMPTS_MAX = 5
_AT_ONCE, _READERS = 1000, 8  # commits of a long range that are asked for at once, and threads that read them
_logger = logging.getLogger("lakebed.log")
_ENABLED = "delta.inCommitTimestampEnablementVersion"  # from this version on the times of commits grow


class LogReader:
    """The log of the table at a store's root, for reading. Safe to use from several threads."""

    def __init__(
        self, store: LogStore, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ):
        self.store = store
        self.statistics = StatisticsCache()
        """Parsed statistics of parts, of all versions; those of removed parts are dropped now and then."""
        self.clock = clock
        self.sleep = sleep
        self.is_idle = False
        """Set by who follows the log, while nothing comes: it is listed every ten minutes then, not every minute."""
        self._newest: Snapshot | None = None
        self._times: dict[int, int] = {}  # of commits that were made before times were kept in order
        self._checkpointed = -1
        self._listed_at = 0.0
        self._lock = threading.Lock()  # of _newest while it is replaced; nothing is read under it
        self._refreshing = SingleFlight[Snapshot]()
        self.root = str(getattr(store, "root", ""))  # how events and errors refer to the table

    # -- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the store holds a log."""
        return self._newest is not None or bool(self._listing(0))

    @property
    def newest(self) -> Snapshot | None:
        """The newest snapshot that was read or committed here; reads nothing and waits for nothing. None before the first one."""
        return self._newest

    def refresh(self, *, dropped: bool = False) -> Snapshot:
        """The newest snapshot. It costs one read of a missing name if nothing is new; else also one of an existing name.

        Two changes are noticed only at the next commit, or when the log is listed, once a minute: another table was made in
        this one's place, or all versions after the one in memory were cleaned up already.

        Raises TableNotFound, Corrupt; TableDropped unless ``dropped`` asks for such a table too.

        One thread reads at a time; those that ask meanwhile share the next read. Commits do not wait for it.
        """
        with self._naming_the_table():
            found = self._refreshing(self._read_newest)
        return found if dropped else require_there(found, self.root)

    @contextmanager
    def _naming_the_table(self) -> Iterator[None]:
        """Where the log is damaged, an error says of which table, and what to do."""
        try:
            yield
        except Corrupt as error:
            if not self.root or isinstance(error.__cause__, Corrupt):  # it says so already
                raise
            named = error.with_text(
                f"the log of {self.root} is damaged: {error}; lakebed verify {self.root} --self says what can be read, and what "
                "to do"
            )
            named.table = self.root
            raise named from error

    def _read_newest(self) -> Snapshot:
        before = known = self._newest
        relist_seconds = _IDLE_RELIST_SECONDS if self.is_idle else _RELIST_SECONDS
        if known is None or not 0 <= self.clock() - self._listed_at <= relist_seconds:
            if known is not None and not self._is_in_log(known):
                known, self._checkpointed = None, -1
            known = self._without_expired(self._load(None, known))
        for _ in range(_LOAD_ATTEMPTS_MAX):
            newest = self._forward(known)
            if newest is not None:
                with self._lock:
                    if self._newest is before:  # else a commit was faster: its snapshot is in the log
                        self._newest = newest
                return newest
            self._checkpointed = -1
            known = self._without_expired(self._load(None, None))
        raise StoreUnavailable("the log changed faster than it could be read", table=self.root)

    def _refresh_from_store(self) -> Snapshot:
        """The newest snapshot, read again from the store: the one in memory is no longer in the log."""
        with self._lock:
            self._newest, self._checkpointed = None, -1
        return self.refresh()

    def _forward(self, known: Snapshot) -> Snapshot | None:
        """The newest snapshot, read from a known one on; None if that is no longer in the log."""
        newest = known
        while (commit := self.read_commit(newest.version + 1)) is not None and follows(newest, commit):
            newest = self._applied(newest, commit)
        return newest if (newest is known and commit is None) or self._is_in_log(known) else None

    def _applied(self, snapshot: Snapshot, commit: Commit) -> Snapshot:
        """The snapshot after a commit of others. An invariant that the commit breaks is reported; reading goes on."""
        if GATE_FEATURE in snapshot.protocol.writer_features:
            report_violations(snapshot, commit, self.root)
        return apply(snapshot, commit)

    def _is_in_log(self, snapshot: Snapshot) -> bool:
        """Whether the snapshot's commit is in the log: then no later name ever became free again. True if it has no digest."""
        try:
            return not snapshot.digest or digest_of(self.store.read(commit_name(snapshot.version))) == snapshot.digest
        except FileNotFoundError:
            return False

    def at_version(self, version: int) -> Snapshot:
        """The snapshot at a version. Raises VersionNotFound if it is not kept, or not there yet; TableDropped."""
        newest = require_there(self._newest, self.root) if self._newest else self.refresh()
        if version == newest.version:
            return newest
        if version > newest.version:
            newest = self.refresh()
        if version > newest.version and not self._is_in_log(newest):
            newest = self._refresh_from_store()
        if not 0 <= version <= newest.version:
            raise VersionNotFound(
                f"there is no version {version}: the newest is {newest.version}",
                table=self.root,
                version=version,
                newest=newest.version,
            )
        if version == newest.version:
            return newest
        with self._naming_the_table():
            found = self._load(version, None)
        self.statistics.keep(statistics_of(newest) + statistics_of(found))
        return found

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version committed at or before a time (epoch milliseconds). Raises VersionNotFound.

        Times of lakebed's commits grow. Those of another writer may go back, or be missing: such a version counts from the
        latest time before it.
        """
        newest, oldest = self.refresh(), self.oldest_version()
        if oldest > newest.version:
            newest, oldest = self._refresh_from_store(), self.oldest_version()
        if oldest > newest.version:
            raise VersionNotFound("the log was cleaned while it was read; ask again", table=self.root)
        ordered = min(newest.version, max(oldest, _number(newest.metadata.configuration.get(_ENABLED))))
        times: list[int] = []
        for version in range(oldest, ordered + 1):
            if version not in self._times or version == ordered:
                self._times[version] = self._timestamp(version)
            times.append(max(self._times[version], times[-1] if times else 0))
        if timestamp_ms < times[0]:
            raise VersionNotFound(
                f"the oldest version that is kept, {oldest}, was committed at {_iso(times[0])}; asked for {_iso(timestamp_ms)}",
                table=self.root,
                oldest=oldest,
            )
        if timestamp_ms < times[-1]:
            return oldest + bisect_right(times, timestamp_ms) - 1
        low, high = ordered, newest.version
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._timestamp(middle) <= timestamp_ms else (low, middle - 1)
        return low

    def oldest_version(self) -> int:
        """The oldest version that can be read."""
        files = self._files(0)
        if not files.commits:
            raise TableNotFound("there is no log", table=self.root)
        return files.oldest()

    def read_commit(self, version: int) -> Commit | None:
        """The commit of a version, None if there is none (yet, or any more)."""
        try:
            data = self.store.read(commit_name(version))
        except FileNotFoundError:
            return None
        try:
            return decode_commit(version, data)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise Corrupt(
                f"{commit_name(version)} can't be read: {error}",
                table=self.root,
                version=version,
                path=commit_name(version),
            ) from error

    def versions(self) -> tuple[list[int], list[int]]:
        """Versions with a commit file, and those with a whole checkpoint, ascending, as the store lists them now."""
        files = self._files(0)
        return list(files.commits), sorted(files.checkpoints)

    def newest_version(self) -> int:
        """The newest version, by the names in the log from the newest checkpoint on: no state is read. Raises TableNotFound."""
        return max(self._files_of(None).commits, default=-1)

    def read_checkpoint(self, version: int) -> Snapshot:
        """The snapshot in the checkpoint of a version. Raises FileNotFoundError, Corrupt."""
        names = self._files(version).checkpoints.get(version)
        if names is None:
            raise FileNotFoundError(checkpoint_name(version))
        return self._read_checkpoint(version, names)

    def commits(self, first: int, last: int) -> Iterator[Commit]:
        """The commits of a range of versions, both ends included. Raises VersionNotFound for one that is not kept."""
        for version in range(first, last + 1):
            commit = self.read_commit(version)
            if commit is None:
                raise VersionNotFound(
                    f"version {version} is not in the log any more; raise lakebed.log_retention to keep more",
                    table=self.root,
                    version=version,
                )
            yield commit

    def commits_since(self, after: int, last: int) -> Iterator[Commit]:
        """The commits after a version, up to ``last``, in order, for a long range: several are read at once.

        Raises Contention if one is gone.
        """
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(after + 1, last + 1, _AT_ONCE):
                versions = range(start, min(last + 1, start + _AT_ONCE))
                for version, commit in zip(versions, pool.map(self.read_commit, versions), strict=True):
                    if commit is None:
                        text = f"version {version} left the log while it was read; try it again"
                        raise Contention(text, version=version)
                    yield commit

    def snapshots(self) -> Iterator[Snapshot]:
        """The snapshots of all versions that are kept, newest first. Raises TableNotFound, Corrupt.

        They are read from one checkpoint to the next, and only as far as the caller goes: each commit once, and the snapshots
        between two checkpoints are in memory. Versions that a cleanup deletes meanwhile may be missing.
        """
        last, files = self.refresh().version, self._files(0)
        starts = {version for version in files.checkpoints if version > files.oldest()} | {files.oldest()}
        for start in sorted(starts, reverse=True):
            if start > last:
                continue
            try:
                yield from self._between(start, last) or map(self.at_version, range(last, start - 1, -1))
            except VersionNotFound:
                return  # a cleanup runs meanwhile
            last = start - 1

    def _between(self, start: int, last: int) -> list[Snapshot]:
        """The snapshots of a range of versions, newest first; none if commits are missing or the log changed meanwhile."""
        found = [self.at_version(start)]
        for version in range(start + 1, last + 1):
            commit = self.read_commit(version)
            if commit is None or not follows(found[-1], commit):
                return []
            found.append(apply(found[-1], commit))
        return found[::-1] if self._is_in_log(found[0]) else []

    def _without_expired(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot without what nobody needs any more. Statistics of removed parts are dropped too."""
        self.statistics.keep(statistics_of(snapshot))
        return without_expired(snapshot, self.now_ms())

    # -- loading ---------------------------------------------------------------------------------------------------

    def _load(self, version: int | None, known: Snapshot | None) -> Snapshot:
        """The snapshot at a version, None for the newest, from the nearest checkpoint. ``known`` may serve as start.

        The commits after the start count only if the start is still in the log once they were read. In place of a checkpoint that
        is damaged, an earlier one is read, or version 0, if all commits after it are there.
        """
        others: set[int] = set()  # checkpoints of an earlier table in this place
        damaged: dict[int, Corrupt] = {}  # checkpoints that can't be read
        attempts = 0
        while attempts < _LOAD_ATTEMPTS_MAX + len(damaged):
            attempts += 1
            files = self._files(0) if damaged else self._files_of(version)
            usable = files.checkpoints.keys() - others - damaged.keys()
            base = max((v for v in usable if version is None or v <= version), default=None)
            if damaged and not files.has_commits_after(-1 if base is None else base, version):
                raise damaged[max(damaged)]
            if version is not None and base is None and files.oldest() > version:
                raise VersionNotFound(
                    f"version {version} is not kept any more; the oldest that can be read is {files.oldest()}",
                    table=self.root,
                    version=version,
                    oldest=files.oldest(),
                )
            if version is None:
                self._listed_at = self.clock()
                self._checkpointed = max(self._checkpointed, base if base is not None else -1)
            first: Snapshot | None = None
            try:
                first = self._start(files, base, known)
                found = self._walk(first, files, version)
            except FileNotFoundError as missing:
                self._require_no_gap(str(missing), version)
                continue
            except Corrupt as error:
                if first is None and base is not None:
                    _logger.warning("%s: %s; the commits before it are read in its place", self.root, error)
                    damaged[base], self._checkpointed = error, -1
                    continue
                if first is not None and first.version in files.commits and not self._is_in_log(first):
                    continue  # a cleanup ran meanwhile, and a commit that counts for nobody has a name that it freed
                raise
            if (found is not first or first is not known) and not self._is_in_log(first):
                if base is not None and self._is_of_another(base, first):
                    others.add(base)
                    self._checkpointed = -1
                    continue
                if first.version in files.commits:
                    continue  # a cleanup ran meanwhile
            require_readable(found.protocol)
            require_format(found.protocol, found.metadata, self.root)
            is_mapped(found.metadata, found.protocol)  # refuses a mode that is not read
            return found
        raise StoreUnavailable("the log changed faster than it could be read", table=self.root)

    def _files_of(self, version: int | None) -> LogFiles:
        """The files from the checkpoint on that the hint refers to; all files if the hint is of no use."""
        start = 0 if version is not None else max(self._hint(), 0)
        files = self._files(start)
        if start and start not in files.checkpoints:
            files = self._files(0)
        if not files.commits and not files.checkpoints:
            raise TableNotFound("there is no log", table=self.root)
        return files

    def _start(self, files: LogFiles, base: int | None, known: Snapshot | None) -> Snapshot:
        """The newer of the known snapshot and the checkpoint; version 0 if there is neither. Raises FileNotFoundError."""
        if known is not None and (base is None or known.version >= base):
            return known
        if base is not None:
            return self._read_checkpoint(base, files.checkpoints[base])
        commit = self.read_commit(0)
        if commit is None:
            raise FileNotFoundError(commit_name(0))
        return apply(None, commit)

    def _walk(self, snapshot: Snapshot, files: LogFiles, version: int | None) -> Snapshot:
        """The snapshot at a version (None: the newest listed), from an earlier one. Raises FileNotFoundError, VersionNotFound."""
        last = version if version is not None else max(files.commits, default=-1)
        for number in range(snapshot.version + 1, last + 1):
            commit = self.read_commit(number)
            if commit is None or not follows(snapshot, commit):
                later = commit or next(
                    filter(None, map(self.read_commit, (v for v in files.commits if v > number))), None
                )
                if later is None or not _is_of_another_table(snapshot, later):
                    if commit is None:
                        raise FileNotFoundError(commit_name(number))
                elif version is None:
                    return snapshot
                else:
                    raise VersionNotFound(
                        f"there is no version {version}: the newest is {snapshot.version}",
                        table=self.root,
                        version=version,
                        newest=snapshot.version,
                    )
            snapshot = self._applied(snapshot, commit) if version is None else apply(snapshot, commit)
        return snapshot

    def _require_no_gap(self, missing: str, version: int | None) -> None:
        """A commit is missing: a cleanup ran meanwhile (list again), or the log is damaged, or the version is too old."""
        files = self._files(0)
        names = list(map(commit_name, files.commits))
        if names and files.commits[0] > 0 and not files.checkpoints:
            raise Corrupt(
                f"the log begins with version {files.commits[0]}, and there is no checkpoint that holds what came before",
                table=self.root,
                version=files.commits[0],
            )
        if names and missing not in names and commit_name(files.oldest()) < missing < names[-1]:
            raise Corrupt(
                f"the log has a gap: {missing} is missing, but older and newer versions are there",
                table=self.root,
                path=missing,
            )
        if version is not None and (not names or files.oldest() > version):  # else a later checkpoint has it
            raise VersionNotFound(
                f"version {version} is not kept any more; the oldest that can be read is the first checkpoint's",
                table=self.root,
                version=version,
            )

    def _read_checkpoint(self, version: int, names: Sequence[str]) -> Snapshot:
        snapshot = decode_checkpoint(version, [self.store.read(f"{LOG_FOLDER}/{name}") for name in names])
        if snapshot.digest:
            return snapshot
        commit = self.read_commit(version)  # another writer's checkpoint does not say which commit it is of
        return replace(snapshot, timestamp_ms=commit.timestamp_ms, digest=commit.digest) if commit else snapshot

    def _is_of_another(self, base: int, checkpoint: Snapshot) -> bool:
        """Whether a checkpoint is of an earlier table in this place."""
        if base != checkpoint.version:
            return False
        commit = self.read_commit(base)
        if commit is None:
            newest = max(self._files(0).commits, default=base)
            commit = self.read_commit(newest) if newest < base else None
            return commit is not None and _is_of_another_table(checkpoint, commit)
        return commit.digest != checkpoint.digest

    def _hint(self) -> int:
        try:
            return int(orjson.loads(self.store.read(LAST_CHECKPOINT))["version"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return -1

    def _files(self, start: int) -> LogFiles:
        return log_files(self._listing(start))

    def _listing(self, start: int) -> list[str]:
        return self.store.list_from(LOG_FOLDER, f"{start:020d}")

    def _timestamp(self, version: int) -> int:
        commit = self.read_commit(version)
        if commit is None:
            raise VersionNotFound(f"version {version} is not in the log any more", table=self.root, version=version)
        return commit.timestamp_ms

    def now_ms(self) -> int:
        """The time of the log's clock, in epoch milliseconds."""
        return int(self.clock() * 1000)


def _is_of_another_table(snapshot: Snapshot, commit: Commit) -> bool:
    """Whether a commit says that it was made for another table."""
    table = commit.info.table if commit.info else ""
    return bool(table) and table != snapshot.metadata.id


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def require_readable(protocol: Protocol) -> None:
    """Raises Unsupported naming the reader features that lakebed lacks."""
    missing = protocol.reader_features - _READER_FEATURES
    if missing or protocol.min_reader_version > 3:  # version 2 is column mapping without a list of features
        named = ", ".join(sorted(missing)) or f"reader version {protocol.min_reader_version}"
        raise Unsupported(f"the table needs a reader that supports: {named}; lakebed does not")


def _iso(timestamp_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timestamp_ms / 1000))
