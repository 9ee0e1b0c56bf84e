"""The log of one table: reading versions, committing, checkpoints, cleanup.

Commit, in steps:
1. The caller gives the snapshot that it read, its actions, and what it touched (see ``conflicts``).
2. The actions become the next version's file, checked against the invariants, put under that version's name if absent.
3. The put landed: Committed. The name is taken: read what took it. Ours (a lost answer): Committed. Another's: if it
   conflicts, Conflicted; else go on with the next version.
4. The put's outcome is unknown: read the name back; while nothing is there, put the same bytes again. Only if the store
   stays silent is the outcome Unknown, and it stays safe to replay the batch: its id is in the commit.

A log is written by two classes of operation. *Act first, then commit* (apply, settle): files carry uuid names, so they
are right whatever happens; a conflict means refresh, rebase, retry. *Read first, commit, then act* (truncate, cleanup):
the newest snapshot decides, and files are touched only after the commit stands. Nothing here waits for a lock.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import orjson

from lakebed import events
from lakebed.errors import (
    Contention,
    Corrupt,
    LakebedError,
    StoreUnavailable,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)
from lakebed.manifest.actions import (
    Action,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    Transaction,
    at_version,
    decode_commit,
    encode_commit,
)
from lakebed.manifest.checkpoint import decode_checkpoint, encode_checkpoint
from lakebed.manifest.conflicts import Conflict, ConflictKind, Touch, find_conflict
from lakebed.manifest.invariants import require_sound
from lakebed.manifest.leases import EXPIRED_DOMAIN, first_unexpired, leased_versions, mark
from lakebed.manifest.log_store import LogStore
from lakebed.manifest.snapshot import Snapshot, apply, statistics_of, without_expired
from lakebed.sortkey.known import KnownStatistics
from lakebed.version import ENGINE

_logger = logging.getLogger("lakebed.log")
LOG_FOLDER = "_delta_log"
_LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"
_ATTEMPTS_MAX = 10_000  # versions that others may take before ours; each one is progress of the table
_UNKNOWN_ATTEMPTS_MAX = 8
_MARK_ATTEMPTS_MAX = 50
_RELIST_SECONDS = 60.0
LOG_SECONDS_MIN = 3600  # the log's youngest files stay: a writer that read a version may be about to commit on it

GATE_FEATURE = "lakebed"
READER_FEATURES = frozenset({"deletionVectors", "timestampNtz"})
WRITER_FEATURES = frozenset(
    {"deletionVectors", "timestampNtz", "domainMetadata", "appendOnly", "invariants", "inCommitTimestamp", GATE_FEATURE}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit stands as this version; ``snapshot`` is the table at it."""

    version: int
    snapshot: Snapshot
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another commit came first and stands in the way; nothing of ours was committed. ``snapshot`` is at that commit."""

    conflict: Conflict
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store stayed silent: the commit may or may not stand as this version."""

    version: int
    commit_id: str
    cause: str


Outcome: TypeAlias = Committed | Conflicted | Unknown
_RESULTS: dict[type[Outcome], str] = {Committed: "committed", Conflicted: "conflicted", Unknown: "unknown"}


class TableLog:
    """The log of the table at a store's root. Safe to use from several threads."""

    def __init__(
        self, store: LogStore, clock: Callable[[], float] = time.time, sleep: Callable[[float], None] = time.sleep
    ):
        self.store = store
        self._clock = clock
        self._sleep = sleep
        self._newest: Snapshot | None = None
        self._known = KnownStatistics()  # of all versions
        self._checkpointed = -1
        self._listed_at = 0.0
        self._lock = threading.Lock()
        self._root = str(getattr(store, "root", ""))  # what events call the table

    # -- reading ---------------------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether the store holds a log."""
        return self._newest is not None or bool(self._listing(0))

    def refresh(self) -> Snapshot:
        """The newest snapshot. Costs one read of a missing name when nothing is new. Raises TableNotFound, Corrupt.

        That another table was made in this one's place is noticed when the log is listed, once a minute.
        """
        with self._lock:
            known = self._newest
            if known is None or self._clock() - self._listed_at > _RELIST_SECONDS:
                if known is not None and self._is_of_another_table(known):
                    known, self._checkpointed = None, -1
                known = without_expired(self._load(None, known), self.now_ms())
            while (commit := self.read_commit(known.version + 1)) is not None:
                known = apply(known, commit)
            self._newest = known
            return known

    def _is_of_another_table(self, known: Snapshot) -> bool:
        """Whether the log is no longer the one that the snapshot was read from."""
        commit, first = self.read_commit(known.version), self.read_commit(0)
        if commit is not None and commit.timestamp_ms > known.timestamp_ms:
            return True
        ids = {action.id for action in first.actions if isinstance(action, Metadata)} if first else set()
        return known.metadata.id not in ids if ids else commit is None

    def at_version(self, version: int) -> Snapshot:
        """The snapshot at a version. Raises VersionNotFound if it is not kept, or not there yet."""
        newest = self._newest or self.refresh()
        if version == newest.version:
            return newest
        if version > newest.version:
            newest = self.refresh()
        if not 0 <= version <= newest.version:
            raise VersionNotFound(f"there is no version {version}: the newest is {newest.version}")
        if version == newest.version:
            return newest
        found = self._load(version, None)
        self._known.keep(statistics_of(newest) + statistics_of(found))
        return found

    def version_at(self, timestamp_ms: int) -> int:
        """The newest version committed at or before a time (epoch milliseconds). Raises VersionNotFound."""
        newest = self.refresh().version
        low = self.oldest_version()
        first = self._timestamp(low)
        if timestamp_ms < first:
            raise VersionNotFound(
                f"the oldest version that is kept, {low}, was committed at {_iso(first)}; asked for {_iso(timestamp_ms)}"
            )
        high = newest
        while low < high:  # timestamps of commits never decrease
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._timestamp(middle) <= timestamp_ms else (low, middle - 1)
        return low

    def oldest_version(self) -> int:
        """The oldest version whose commit file is kept."""
        commits, _ = self._files(0)
        if not commits:
            raise TableNotFound("there is no log")
        return commits[0]

    def read_commit(self, version: int) -> Commit | None:
        """The commit of a version, None if there is none (yet, or any more)."""
        try:
            data = self.store.read(commit_name(version))
        except FileNotFoundError:
            return None
        try:
            return decode_commit(version, data)
        except (ValueError, KeyError, TypeError, AttributeError, StopIteration) as error:
            raise Corrupt(f"{commit_name(version)} can't be read: {error}") from error

    def versions(self) -> tuple[list[int], list[int]]:
        """Versions with a commit file, and those with a whole checkpoint, ascending, as the store lists them now."""
        commits, checkpoints = self._files(0)
        return commits, sorted(checkpoints)

    def read_checkpoint(self, version: int) -> Snapshot:
        """What the checkpoint of a version holds. Raises FileNotFoundError, Corrupt."""
        names = self._files(version)[1].get(version)
        if names is None:
            raise FileNotFoundError(checkpoint_name(version))
        return self._read_checkpoint(version, names)

    def commits(self, first: int, last: int) -> Iterator[Commit]:
        """The commits of a range of versions, both ends included. Raises VersionNotFound for one that is not kept."""
        for version in range(first, last + 1):
            commit = self.read_commit(version)
            if commit is None:
                raise VersionNotFound(
                    f"version {version} is not in the log any more; raise lakebed.log_retention to keep more"
                )
            yield commit

    # -- committing ------------------------------------------------------------------------------------------------

    def create(self, actions: Sequence[Action], info: CommitInfo) -> Outcome:
        """Write version 0. Conflicted if the table exists."""
        commit_id = str(uuid.uuid4())
        stamped = replace(info, commit_id=commit_id, timestamp_ms=self.now_ms())
        commit = Commit(0, (stamped, *actions))
        landed = self._put(commit)
        if isinstance(landed, Unknown):
            return landed
        snapshot = self.refresh()
        if landed:
            return Committed(0, snapshot)
        return Conflicted(Conflict(0, ConflictKind.TABLE, "the table exists"), snapshot)

    def commit(
        self,
        read: Snapshot,
        actions: Sequence[Action],
        info: CommitInfo,
        touch: Touch,
        batch: Transaction | None = None,
    ) -> Outcome:
        """Commit actions that were worked out on the snapshot ``read``. ``batch`` is checked and recorded (M3).

        Raises Corrupt if the commit would break an invariant, Unsupported if the table's protocol is beyond us.
        """
        started = time.perf_counter()
        outcome, attempts = self._commit(read, actions, info, touch, batch)
        events.emit(
            events.CommitEnded(
                self._root, info.operation, _RESULTS[type(outcome)],
                outcome.conflict.version if isinstance(outcome, Conflicted) else outcome.version, attempts,
                time.perf_counter() - started, outcome.conflict.kind.value if isinstance(outcome, Conflicted) else "",
            )
        )  # fmt: skip
        return outcome

    def _commit(
        self, read: Snapshot, actions: Sequence[Action], info: CommitInfo, touch: Touch, batch: Transaction | None
    ) -> tuple[Outcome, int]:
        """The outcome, and how many versions were tried."""
        require_writable(read.protocol)
        commit_id = str(uuid.uuid4())
        if batch and read.transaction_version(batch.app_id) >= batch.version:
            return Conflicted(
                Conflict(read.version, ConflictKind.BATCH, f"batch {batch.version} of {batch.app_id}"), read
            ), 0
        scope = read.settings.conflict_scope
        known = read
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            version = known.version + 1
            winner = None
            if self._is_old(known):
                # A cleanup may be freeing names, oldest first: while the commit of `known` is there, those after it are too.
                winner = self.read_commit(version)
                if winner is None and self.read_commit(known.version) is None:
                    left, known = known.version, self._load(None, None)
                    self._learn(known)
                    expired = Conflict(
                        known.version, ConflictKind.METADATA, f"version {left} has left the log meanwhile"
                    )
                    return Conflicted(expired, known), attempt
            if winner is None:
                now = max(self.now_ms(), known.timestamp_ms + 1)
                stamped = replace(info, commit_id=commit_id, timestamp_ms=now)
                ours = tuple(at_version(action, version) for action in actions)
                recorded = (replace(batch, updated_ms=now),) if batch else ()
                commit = Commit(version, (stamped, *ours, *recorded))
                require_sound(known, commit)
                landed = self._put(commit)
                if isinstance(landed, Unknown):
                    return landed, attempt
                if landed:
                    snapshot = apply(known, commit)
                    self._learn(snapshot)
                    return Committed(version, snapshot, attempt), attempt
                winner = self.read_commit(version)
            if winner is None:
                raise Corrupt(f"version {version} of the log was taken but can't be read")
            conflict = find_conflict(touch, batch, scope, winner)
            known = apply(known, winner)
            self._learn(known)
            if conflict:
                return Conflicted(conflict, known), attempt
        raise Contention(f"{_ATTEMPTS_MAX} versions were taken by others, one after the other")

    def _is_old(self, read: Snapshot) -> bool:
        """Whether a cleanup may free names of versions that follow ``read``: then a put alone would prove nothing (M1)."""
        age_seconds = self._clock() - read.timestamp_ms / 1000
        return age_seconds > min(read.settings.log_retention_seconds, LOG_SECONDS_MIN) / 2

    def _put(self, commit: Commit) -> bool | Unknown:
        """Whether the commit stands under its version's name."""
        name, data = commit_name(commit.version), encode_commit(commit.actions)
        info = commit.info
        assert info is not None
        uncertain, cause = False, ""
        for attempt in range(_UNKNOWN_ATTEMPTS_MAX):
            try:
                if self.store.put_if_absent(name, data):
                    return True
                # After an uncertain attempt the name may be taken by ourselves.
                return uncertain and bool(self._reads_as(commit.version, info.commit_id))
            except StoreUnavailable as error:
                uncertain, cause = True, str(error)
            try:
                found = self._reads_as(commit.version, info.commit_id)
                if found is not None:
                    return found
            except StoreUnavailable as error:
                cause = str(error)
            self._sleep(min(2.0, 0.05 * 2**attempt))
        return Unknown(commit.version, info.commit_id, cause)

    def _reads_as(self, version: int, commit_id: str) -> bool | None:
        """Whether the version is our commit; None if there is none. Raises Corrupt."""
        commit = self.read_commit(version)
        return None if commit is None else commit.info is not None and commit.info.commit_id == commit_id

    def _learn(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._newest is None or snapshot.version > self._newest.version:
                self._newest = snapshot

    # -- checkpoints and cleanup -----------------------------------------------------------------------------------

    def checkpoint_is_due(self, snapshot: Snapshot, slack: int = 1) -> bool:
        """Whether ``slack`` times the table's checkpoint interval has passed since the newest checkpoint."""
        return snapshot.version - max(0, self._checkpointed) >= slack * snapshot.settings.checkpoint_interval

    def checkpoint_if_due(self, snapshot: Snapshot, slack: int = 1) -> None:
        """Write the checkpoint of a snapshot that was just committed, if one is due.

        What was committed stands, so a failure is no error of whoever committed: a later commit tries again.
        """
        if not self.checkpoint_is_due(snapshot, slack):
            return
        try:
            self.write_checkpoint(snapshot)
        except LakebedError as error:
            _logger.warning("version %d of %s stands, its checkpoint failed: %s", snapshot.version, self._root, error)

    def write_checkpoint(self, snapshot: Snapshot) -> None:
        """Write the snapshot's checkpoint and the hint that names it. Two writers write the same state: no harm."""
        snapshot = without_expired(snapshot, self.now_ms())
        data, actions = encode_checkpoint(snapshot)
        self.store.put(checkpoint_name(snapshot.version), data)
        hint = {
            "version": snapshot.version,
            "size": actions,
            "sizeInBytes": len(data),
            "numOfAddFiles": len(snapshot.parts),
        }
        if snapshot.version >= self._checkpointed:
            self.store.put(_LAST_CHECKPOINT, orjson.dumps(hint))
        self._checkpointed = max(self._checkpointed, snapshot.version)

    def clean(self, retention_seconds: int) -> int:
        """Delete commits and checkpoints that no version within retention needs; returns how many files went.

        The newest commit before the horizon is found by bisection: timestamps of commits never decrease.
        """
        horizon_ms = self.now_ms() - retention_seconds * 1000
        commits, _ = self._files(0)
        older = commits[:-1]
        low, high = 0, len(older)
        while low < high:
            middle = (low + high) // 2
            commit = self.read_commit(older[middle])  # None: another cleanup was faster
            is_older = commit is None or commit.timestamp_ms < horizon_ms
            low, high = (middle + 1, high) if is_older else (low, middle)
        return self.clean_before(older[low - 1]) if low else 0

    def clean_before(self, version: int) -> int:
        """Delete commits and checkpoints that neither a version from this one on nor a leased one needs; returns how many.

        The newest checkpoint at or before these versions stays, and everything after it; what is older goes, oldest first,
        so that a crash in between leaves a log without gaps. The mark moves first (``leases``), so that no reader begins to
        hold what is about to go.
        """
        kept = self._checkpoint_before(version, self.refresh())
        if not self.files_before(kept):
            return 0
        names = self.files_before(self._checkpoint_before(kept, self._mark_at(kept)))
        for name in names:
            self.store.delete(name)
        return len(names)

    def _checkpoint_before(self, version: int, now: Snapshot) -> int:
        """The newest checkpoint at or before a version and all that are leased, 0 for none."""
        first = min([version, *leased_versions(now.domains, self.now_ms())])
        return max((each for each in self._files(0)[1] if each <= first), default=0)

    def _mark_at(self, version: int) -> Snapshot:
        """A snapshot with the mark at or after a version: whoever comes later can't hold an older one."""
        for _ in range(_MARK_ATTEMPTS_MAX):
            snapshot = self.refresh()
            if first_unexpired(snapshot.domains) >= version:
                return snapshot
            info = CommitInfo("EXPIRE VERSIONS", "", parameters={"before": version}, engine=ENGINE)
            outcome = self.commit(snapshot, [mark(version)], info, Touch(domains=frozenset([EXPIRED_DOMAIN])))
            if isinstance(outcome, Committed):
                return outcome.snapshot
            if isinstance(outcome, Unknown):
                raise StoreUnavailable(f"whether versions expired is unknown: {outcome.cause}; clean the log again")
        raise Contention(f"a cleanup of the log gave way {_MARK_ATTEMPTS_MAX} times to other commits")

    def files_before(self, version: int) -> list[str]:
        """Names of the commits and checkpoints of all versions before this one, oldest first."""
        commits, checkpoints = self._files(0)
        present = set(commits)
        names = []
        for each in sorted({v for v in [*commits, *checkpoints] if v < version}):
            names += [f"{LOG_FOLDER}/{name}" for name in checkpoints.get(each, ())]
            names += [commit_name(each)] if each in present else []
        return names

    def oldest_readable(self) -> int:
        """The oldest version of which a snapshot can be loaded."""
        commits, checkpoints = self._files(0)
        if not commits:
            raise TableNotFound("there is no log")
        return 0 if commits[0] == 0 else min(checkpoints, default=commits[-1])

    # -- loading ---------------------------------------------------------------------------------------------------

    def _load(self, version: int | None, known: Snapshot | None) -> Snapshot:
        """The snapshot at a version, None for the newest, from the nearest checkpoint. ``known`` may serve as start."""
        for _ in range(5):
            start = 0 if version is not None else max(self._hint(), 0)
            commits, checkpoints = self._files(start)
            if start and start not in checkpoints:
                commits, checkpoints = self._files(0)
            if not commits and not checkpoints:
                raise TableNotFound("there is no log")
            usable = [v for v in checkpoints if version is None or v <= version]
            base = max(usable, default=None)
            if version is None:
                self._listed_at = self._clock()
                self._checkpointed = max(self._checkpointed, base if base is not None else -1)
            if known is not None and (base is None or known.version >= base):
                snapshot: Snapshot | None = known
            elif base is not None:
                try:
                    snapshot = self._read_checkpoint(base, checkpoints[base])
                except FileNotFoundError:  # a cleanup went by: list again
                    continue
            else:
                snapshot = None
            first = snapshot.version + 1 if snapshot else 0
            last = version if version is not None else max(commits, default=first - 1)
            try:
                for number in range(first, last + 1):
                    commit = self.read_commit(number)
                    if commit is None:
                        raise FileNotFoundError(commit_name(number))
                    snapshot = apply(snapshot, commit)
            except FileNotFoundError as missing:
                now_commits, now_checkpoints = self._files(0)
                if now_commits and now_commits[0] > 0 and not now_checkpoints:
                    raise Corrupt(
                        f"the log begins with version {now_commits[0]}, and there is no checkpoint that holds what came before"
                    ) from None
                if now_commits and now_commits[0] <= first and str(missing) not in map(commit_name, now_commits):
                    raise Corrupt(
                        f"the log has a gap: {missing} is missing, but older and newer versions are there"
                    ) from None
                if version is not None:
                    raise VersionNotFound(
                        f"version {version} is not kept any more; the oldest that can be read is the first checkpoint's"
                    ) from None
                continue
            assert snapshot is not None
            require_readable(snapshot.protocol)
            return snapshot if snapshot.known is self._known else replace(snapshot, known=self._known)
        raise StoreUnavailable("the log changed faster than it could be read")

    def _read_checkpoint(self, version: int, names: Sequence[str]) -> Snapshot:
        snapshot = decode_checkpoint(version, [self.store.read(f"{LOG_FOLDER}/{name}") for name in names])
        try:
            return replace(snapshot, timestamp_ms=self._timestamp(version))
        except VersionNotFound:
            return snapshot

    def _hint(self) -> int:
        try:
            return int(orjson.loads(self.store.read(_LAST_CHECKPOINT))["version"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return -1

    def _files(self, start: int) -> tuple[list[int], dict[int, list[str]]]:
        """Versions with a commit file, and names of whole checkpoints by version, from a version on."""
        commits: list[int] = []
        found: dict[int, list[str]] = {}
        for name in self._listing(start):
            head, _, rest = name.partition(".")
            if not head.isdigit():
                continue
            if rest == "json":
                commits.append(int(head))
            elif rest == "checkpoint.parquet":
                found[int(head)] = [name]
            elif rest.startswith("checkpoint.") and rest.endswith(".parquet"):
                pieces = rest.split(".")
                if len(pieces) == 4 and pieces[2].isdigit():  # checkpoint.<i>.<n>.parquet
                    found.setdefault(int(head), []).append(name)
                else:
                    raise Unsupported(f"{name} is a v2 checkpoint; drop the feature v2Checkpoint first")
        whole = {v: names for v, names in found.items() if len(names) == _pieces(names[0])}
        return sorted(commits), whole

    def _listing(self, start: int) -> list[str]:
        return self.store.list_from(LOG_FOLDER, f"{start:020d}")

    def _timestamp(self, version: int) -> int:
        commit = self.read_commit(version)
        if commit is None:
            raise VersionNotFound(f"version {version} is not in the log any more")
        return commit.timestamp_ms

    def now_ms(self) -> int:
        """What the log's clock says, in epoch milliseconds."""
        return int(self._clock() * 1000)


def commit_name(version: int) -> str:
    """Name of a version's commit file."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Name of a version's checkpoint file."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"


def require_readable(protocol: Protocol) -> None:
    """Raises Unsupported naming the reader features that lakebed lacks."""
    beyond = protocol.reader_features - READER_FEATURES
    if beyond or protocol.min_reader_version == 2 or protocol.min_reader_version > 3:
        named = ", ".join(sorted(beyond)) or f"reader version {protocol.min_reader_version}"
        raise Unsupported(f"the table needs a reader that knows: {named}; lakebed does not")


def require_writable(protocol: Protocol) -> None:
    """Raises Unsupported unless the table is lakebed's and needs nothing that lakebed lacks."""
    beyond = protocol.writer_features - WRITER_FEATURES
    if beyond:
        raise Unsupported(f"the table needs a writer that knows: {', '.join(sorted(beyond))}; lakebed does not")
    if GATE_FEATURE not in protocol.writer_features:
        raise Unsupported(
            "the table is a plain Delta table; adopt it with lakebed.convert(path, keys=…) before writing to it"
        )


def _pieces(name: str) -> int:
    pieces = name.split(".")
    return int(pieces[3]) if len(pieces) == 5 else 1


def _iso(timestamp_ms: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(timestamp_ms / 1000))
