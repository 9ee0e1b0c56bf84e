"""The log of one table: committing, and checkpoints. ``log_reader`` reads it, ``holds`` cleans it up.

Commit, in steps:
1. The caller gives the snapshot that it read, its actions, and its read-write set (see ``conflicts``).
2. The actions become the next version's file. It is checked against the invariants, and put under that version's name if absent.
3. The put succeeded: go to step 5. The name is taken: read the commit there. If it is ours (the answer was lost), go to step 5.
   If it is another's and conflicts, the outcome is Conflicted; else go on with the next version.
4. The put's outcome is unknown: read the name back; while nothing is there, put the commit again. Only if the store does
   not answer is the outcome Unknown. Replaying the batch is still safe: its id is in the commit.
5. Our commit is written. Before the caller gets an answer, read the commit of the version that it gave: it must be the one that
   it read. If so, the outcome is Committed: files of the log are deleted one after the other, oldest first, so no later name
   ever became free again, and our commit follows the one it was made on. If that is gone, the writer paused for long, or another
   table is here now: check whether the log leads on from our commit. If it doesn't, ours is no version of the table, and we
   delete it; no reader took it for one.

Step 5 needs no clock: a cleanup that comes too early makes others repeat their work, and nothing is lost.

A log is written by two classes of operation. *Act first, then commit* (apply, settle): files have uuid names, so they
are valid whatever happens; a conflict means refresh, rebase, retry. *Read first, commit, then act* (truncate, cleanup):
the newest snapshot decides, and files are touched only after the commit succeeded. Nothing here waits for a lock.

**Logs that no table has** (``create_log_without_rows``): what spans tables is a small Delta log of its own, with entries and
without rows. Such are the points of a database and the workers of a fleet. Each lives below ``_lakebed/`` of the folder that it
is about.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa

from lakebed import events
from lakebed.errors import (
    Contention,
    Corrupt,
    LakebedError,
    StoreUnavailable,
    TableNotFound,
    TableReplaced,
    Unsupported,
)
from lakebed.log.actions import Action, Commit, CommitInfo, Domain, Transaction, at_version
from lakebed.log.checkpoint import encode_checkpoint
from lakebed.log.commit_codec import digest_of, encode_commit
from lakebed.log.conflicts import (
    Committed,
    Conflict,
    Conflicted,
    ConflictKind,
    Outcome,
    ReadWriteSet,
    Unknown,
    find_conflict,
)
from lakebed.log.entries import DROPPED, Operation
from lakebed.log.invariants import require_sound
from lakebed.log.log_reader import LAST_CHECKPOINT, LogReader, require_readable
from lakebed.log.removals import require_there
from lakebed.log.snapshot import Snapshot, apply, follows
from lakebed.log.stores import LOG_FOLDER, checkpoint_name, commit_name
from lakebed.schema.column_mapping import COLUMN_MAPPING
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import FORMAT, GATE_FEATURE, Metadata, Protocol
from lakebed.schema.widening import TYPE_WIDENING
from lakebed.settings import FORMAT_PROPERTY
from lakebed.version import ENGINE

_FEATURES = frozenset(
    {"deletionVectors", "domainMetadata", "appendOnly", "invariants", "inCommitTimestamp", GATE_FEATURE}
)

__all__ = [
    "GATE_FEATURE", "LOG_FOLDER", "Committed", "Conflicted", "Outcome", "TableLog", "Unknown", "checkpoint_name",
    "commit_name", "require_readable", "require_writable",
]  # fmt: skip
_logger = logging.getLogger("lakebed.log")
_ATTEMPTS_MAX = 10_000  # versions that others may take before ours; each one is progress of the table
_UNKNOWN_ATTEMPTS_MAX = 8
_STRANGE_ATTEMPTS_MAX = 8

_WRITER_FEATURES = frozenset({
    "deletionVectors", "timestampNtz", "domainMetadata", "appendOnly", "invariants", "inCommitTimestamp", COLUMN_MAPPING,
    TYPE_WIDENING, GATE_FEATURE,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Taken:
    """Another commit has the name. ``certain``: no attempt of ours can have had it before."""

    certain: bool


_RESULTS: dict[type[Outcome], str] = {Committed: "committed", Conflicted: "conflicted", Unknown: "unknown"}


class TableLog(LogReader):
    """The log of the table at a store's root. Safe to use from several threads."""

    # -- committing ------------------------------------------------------------------------------------------------

    def create(self, actions: Sequence[Action], info: CommitInfo) -> Outcome:
        """Write version 0. Conflicted if the table exists."""
        commit_id = str(uuid.uuid4())
        table = next(action.id for action in actions if isinstance(action, Metadata))
        landed: Commit | _Taken | Unknown = _Taken(True)
        if not self.exists():  # its version 0 may have left the log long ago
            stamped = replace(info, commit_id=commit_id, timestamp_ms=self.now_ms(), table=table)
            landed = self._put(Commit(0, (stamped, *actions)))
        if isinstance(landed, Unknown):
            return landed
        snapshot = self.refresh()
        if isinstance(landed, Commit):
            if snapshot.metadata.id == table:
                return Committed(0, snapshot)
            self._take_back(landed)
        return Conflicted(Conflict(0, ConflictKind.TABLE, "the table exists"), snapshot)

    def commit(
        self,
        read: Snapshot,
        actions: Sequence[Action],
        info: CommitInfo,
        access: ReadWriteSet,
        batch: Transaction | None = None,
    ) -> Outcome:
        """Commit actions that were worked out on the snapshot ``read``. ``batch`` is checked and recorded (M3).

        Raises Corrupt if the commit would break an invariant, Unsupported if lakebed lacks a feature that the table
        needs, TableReplaced if another table is here now, TableDropped if it is dropped and the commit does not change that.
        """
        started = time.perf_counter()
        outcome, attempts = self._commit(read, actions, info, access, batch)
        events.emit(
            events.CommitEnded(
                table=self.root,
                operation=info.operation,
                result=_RESULTS[type(outcome)],
                version=outcome.conflict.version if isinstance(outcome, Conflicted) else outcome.version,
                attempts=attempts,
                seconds=time.perf_counter() - started,
                conflict=outcome.conflict.kind.value if isinstance(outcome, Conflicted) else "",
            )
        )
        return outcome

    def _commit(
        self,
        read: Snapshot,
        actions: Sequence[Action],
        info: CommitInfo,
        access: ReadWriteSet,
        batch: Transaction | None,
    ) -> tuple[Outcome, int]:
        """The outcome, and how many versions were tried."""
        require_writable(_protocol_of(actions) or read.protocol)
        drops = any(isinstance(action, Domain) and action.domain == DROPPED for action in actions)
        if not drops:
            require_there(read, self.root)
        commit_id = str(uuid.uuid4())
        if batch and read.transaction_version(batch.app_id) >= batch.version:
            return Conflicted(
                Conflict(read.version, ConflictKind.BATCH, f"batch {batch.version} of {batch.app_id}"), read
            ), 0
        scope = read.settings.conflict_scope
        changes_metadata = any(isinstance(action, (Metadata, Protocol)) for action in actions)
        known, strange = read, 0
        for attempt in range(1, _ATTEMPTS_MAX + 1):
            version = known.version + 1
            now = max(self.now_ms(), known.timestamp_ms + 1)
            stamped = replace(info, commit_id=commit_id, timestamp_ms=now, table=known.metadata.id, parent=known.digest)
            parts = len(known.parts) + len(known.tail)
            ours = tuple(at_version(action, version, parts) for action in actions)
            recorded = (replace(batch, updated_ms=now),) if batch else ()
            commit = Commit(version, (stamped, *ours, *recorded))
            require_sound(known, commit, self.root)
            landed = self._put(commit)
            if isinstance(landed, Unknown):
                return landed, attempt
            if isinstance(landed, Commit):
                outcome = self._verified(read, known, landed)
                return replace(outcome, attempts=attempt) if isinstance(outcome, Committed) else outcome, attempt
            winner = self.read_commit(version)
            if winner is None or not follows(known, winner):
                if not self._is_in_log(read):
                    return self._without_read_version(read, version, commit_id, landed), attempt
                strange += 1
                if strange > _STRANGE_ATTEMPTS_MAX:
                    raise Corrupt(
                        f"{commit_name(version)} does not follow version {known.version} of this table: a writer of an "
                        "earlier table in this place left it behind; if no such writer runs now, move the file out of the log",
                        table=self.root,
                        version=version,
                        path=commit_name(version),
                    )
                self.sleep(0.05 * 2**strange)
                continue
            conflict = find_conflict(access, batch, scope, winner, None if changes_metadata else known)
            known = self._applied(known, winner)
            if conflict:
                if not self._is_in_log(read):
                    return self._without_read_version(read, version, commit_id, landed), attempt
                self._publish(known)
                return Conflicted(conflict, known), attempt
            if not drops:
                require_there(known, self.root)
        raise Contention(f"{_ATTEMPTS_MAX} versions were taken by others, one after the other", table=self.root)

    def _put(self, commit: Commit) -> Commit | _Taken | Unknown:
        """Put the commit under its version's name; returns it as it is there.

        Each attempt has bytes of its own: one that arrives late, when its name is free again, differs from the stored one.
        """
        name, [info, *actions] = commit_name(commit.version), commit.actions
        assert isinstance(info, CommitInfo)
        cause = ""
        for attempt in range(_UNKNOWN_ATTEMPTS_MAX):
            sent = replace(commit, actions=(replace(info, attempt=attempt), *actions))
            data = encode_commit(sent.actions)
            try:
                if self.store.put_if_absent(name, data):
                    return replace(sent, digest=digest_of(data))
                if attempt == 0:
                    return _Taken(True)
                # After an uncertain attempt the name may be taken by a commit of ours.
                found = self.read_commit(commit.version)
                if found is None:
                    cause = "the name was taken, perhaps by this commit, and is gone from the log"
                    break
                return found if _is(found, info.commit_id) else _Taken(False)
            except StoreUnavailable as error:
                cause = str(error)
            try:
                found = self.read_commit(commit.version)
                if found is not None:
                    return found if _is(found, info.commit_id) else _Taken(False)
            except StoreUnavailable as error:
                cause = str(error)
            self.sleep(min(2.0, 0.05 * 2**attempt))
        return Unknown(commit.version, info.commit_id, cause)

    def _verified(self, read: Snapshot, known: Snapshot, ours: Commit) -> Outcome:
        """Step 5: whether our commit, which is under its name, is a version of the table."""
        assert ours.info is not None
        try:
            if read.digest and self._is_in_log(read):
                snapshot = apply(known, ours)
                self._publish(snapshot)
                return Committed(ours.version, snapshot)
            if self._is_alone(ours):
                self._take_back(ours)
                raise TableNotFound("the table was dropped while it was open; nothing was written", table=self.root)
            now = self._load(None, None)
            is_version = self._leads_to(now, ours)
            if is_version:
                self._replace_newest(now)
                return Committed(ours.version, apply(known, ours))
            if is_version is False:
                self._take_back(ours)
            return self._without_read_version(read, ours.version, ours.info.commit_id, _Taken(is_version is False))
        except StoreUnavailable as error:
            return Unknown(ours.version, ours.info.commit_id, str(error))

    def _leads_to(self, now: Snapshot, ours: Commit) -> bool | None:
        """Whether the log leads from our commit to its newest version. None if that can't be decided any more.

        If our commit is a version of the table, all later ones are there as long as it is.
        """
        digest, leads = ours.digest, True
        if ours.version > now.version:
            before = self.read_commit(ours.version - 1)
            if before is not None and ours.info is not None and before.digest == ours.info.parent:
                return None
            leads = False
        for version in range(ours.version + 1, now.version + 1):
            commit = self.read_commit(version)
            parent = commit.info.parent if commit and commit.info else ""
            if commit and not parent:
                return None  # its writer does not record it
            if commit is None or parent != digest:
                leads = False
                break
            digest = commit.digest
        if leads and digest == now.digest:
            return True
        found = self.read_commit(ours.version)
        return False if not leads and found is not None and found.digest == ours.digest else None

    def _without_read_version(self, read: Snapshot, version: int, commit_id: str, taken: _Taken) -> Outcome:
        """The outcome when the version that was read is no longer in the log. Raises TableReplaced."""
        now = self._load(None, None)
        self._replace_newest(now)
        if now.metadata.id != read.metadata.id:
            raise TableReplaced(
                "another table was made in this one's place while it was open; nothing was written to it: if it is the one you "
                "want, open it again",
                table=self.root,
            )
        if not taken.certain:
            return Unknown(version, commit_id, "it may have been committed, and cleaned up already")
        what = f"version {read.version} is no longer in the log"
        return Conflicted(Conflict(now.version, ConflictKind.METADATA, what), now)

    def _is_alone(self, ours: Commit) -> bool:
        """Whether our commit is the only one in the log, without a checkpoint."""
        files = self._files(0)
        return list(files.commits) == [ours.version] and not files.checkpoints

    def _take_back(self, ours: Commit) -> None:
        """Delete a commit of ours that is no version of the table. Nobody else deletes it above the log, so it is still ours."""
        if self._is_written(ours):
            self.store.delete(commit_name(ours.version))

    def _is_written(self, commit: Commit) -> bool:
        found = self.read_commit(commit.version)
        return found is not None and found.digest == commit.digest

    def _publish(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._newest is None or snapshot.version > self._newest.version:
                self._newest = snapshot

    def _replace_newest(self, snapshot: Snapshot) -> None:
        with self._lock:
            self._newest = snapshot
            self._times.clear()

    # -- checkpoints -----------------------------------------------------------------------------------

    def checkpoint_is_due(self, snapshot: Snapshot, slack: int = 1) -> bool:
        """Whether ``slack`` times the table's checkpoint interval has passed since the newest checkpoint."""
        return snapshot.version - max(0, self._checkpointed) >= slack * snapshot.settings.checkpoint_interval

    def checkpoint_if_due(self, snapshot: Snapshot, slack: int = 1) -> None:
        """Write the checkpoint of a snapshot that was just committed, if one is due.

        The commit has succeeded, so a failure here is no error of its writer: a later commit tries again.
        """
        if not self.checkpoint_is_due(snapshot, slack):
            return
        try:
            self.write_checkpoint(snapshot)
        except LakebedError as error:
            _logger.warning(
                "version %d of %s is committed, but its checkpoint failed: %s", snapshot.version, self.root, error
            )

    def write_checkpoint(self, snapshot: Snapshot) -> None:
        """Write the snapshot's checkpoint and the hint that refers to it. Two writers do no harm: they write the same state.

        If the version is no longer in the log, no checkpoint is written; if it is deleted meanwhile, so is the checkpoint:
        another table may be here now.
        """
        if not self._is_in_log(snapshot):
            return
        snapshot = self._without_expired(snapshot)
        data, actions = encode_checkpoint(snapshot)
        is_new = self.store.put_if_absent(checkpoint_name(snapshot.version), data)
        if not self._is_in_log(snapshot):
            if is_new:
                self.store.delete(checkpoint_name(snapshot.version))
            return
        hint = {
            "version": snapshot.version,
            "size": actions,
            "sizeInBytes": len(data),
            "numOfAddFiles": len(snapshot.parts),
        }
        if snapshot.version >= self._checkpointed:
            self.store.put(LAST_CHECKPOINT, orjson.dumps(hint))
        self._checkpointed = max(self._checkpointed, snapshot.version)

    def checkpoint_before(self, version: int) -> int:
        """The newest checkpoint at or before a version, 0 for none. It is read first: it holds a state of this table."""
        checkpoints = self._files(0).checkpoints
        for each in sorted((each for each in checkpoints if each <= version), reverse=True):
            if self._is_in_log(self._read_checkpoint(each, checkpoints[each])):
                return each
        return 0

    def files_before(self, version: int) -> list[str]:
        """Names of the commits and checkpoints of all versions before this one, oldest first."""
        return self._files(0).before(version)


def _is(commit: Commit, commit_id: str) -> bool:
    return commit.info is not None and commit.info.commit_id == commit_id


def _protocol_of(actions: Sequence[Action]) -> Protocol | None:
    """The protocol that a commit sets: the commit is checked against the table as it makes it."""
    return next((action for action in actions if isinstance(action, Protocol)), None)


def require_writable(protocol: Protocol) -> None:
    """Raises Unsupported unless the table is lakebed's and needs nothing that lakebed lacks."""
    missing = protocol.writer_features - _WRITER_FEATURES
    if missing:
        raise Unsupported(f"the table needs a writer that supports: {', '.join(sorted(missing))}; lakebed does not")
    if GATE_FEATURE not in protocol.writer_features:
        raise Unsupported(
            "the table is a plain Delta table; adopt it with lakebed.convert(path, keys=…) before writing to it"
        )


def create_log_without_rows(log: TableLog, column: str, properties: Mapping[str, str] | None = None) -> None:
    """Create the log, unless it is there. ``column``: a name for its one column; ``properties``: the ``lakebed.*`` ones.

    Raises StoreUnavailable.
    """
    if log.exists():
        return
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=schema_to_json(pa.schema([pa.field(column, pa.int64())])),
        partition_columns=(),
        configuration={
            "delta.enableDeletionVectors": "true",
            "delta.enableInCommitTimestamps": "true",
            FORMAT_PROPERTY: str(FORMAT),
            **(properties or {}),
        },
        created_ms=int(time.time() * 1000),
    )
    protocol = Protocol(3, 7, frozenset({"deletionVectors"}), _FEATURES)
    outcome = log.create([protocol, metadata], CommitInfo(operation=Operation.CREATE, commit_id="", engine=ENGINE))
    if isinstance(outcome, Unknown):
        raise StoreUnavailable(f"whether {log.root} was created is unknown: {outcome.cause}", table=log.root)
