"""Cleanup: delete files that no version within retention needs, and nothing else.

Invariant G1: a file is deleted only if no version within retention and no version that a reader holds refers to it. The tail,
the claims and the detached parts of such a version count too. If no file at all is referred to, nothing is deleted, unless the
log shows how the table became empty: the last of its commits that removed something had a version with rows before it, and none
after. The log of a purged table begins later. There the commit of the purge shows it: it recorded that no part was left.

1. *Within retention* are the version that was current at the horizon, all versions after it, and the newest N; and all versions
   from the oldest one on that a reader of changes has not read yet (``holds``), or that the kept points of the table's database
   need (``positions.point_log``).
2. Collect the files that these versions, and those that readers hold, refer to: parts, deletion vectors, and every file that
   an entry of lakebed's in the log mentions. A snapshot gives them for the oldest version, the commits after it give the rest.
3. List the table's files, and compare each with that set; only candidates for deletion are kept in memory. A file is
   *expired* if the oldest kept version remembers its removal. Any other file that nothing refers to may belong to a writer
   that has not committed yet. So it is deleted (*orphan*, *temporary*) only when it is older than writing takes, and older
   than the oldest claim under way, by the clock of the store, which stamped it. How long writing may take is a constant,
   whatever the table's properties say. Counts of reads (``coordination.read_counts``) are of use for an hour; after that they are
   deleted as *temporary*.
4. Read first, commit, then act: commit the first unexpired version (``log.holds``), so that readers refuse older
   ones. Files that commits up to that one refer to, and files of the versions that readers hold, stay.
5. Delete expired log files first, oldest first (a checkpoint was written before), then the others. After a crash in between,
   the next cleanup finds the files that are left; a reader of an old version gets an error that it has expired.

Iceberg's metadata is published again between 4 and 5, if a snapshot of it has expired; files that none needs are *metadata*.
A running maintenance does this in small steps (``BackgroundCleanup``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa

from lakebed.coordination.read_counts import READS_FOLDER, WINDOW_SECONDS
from lakebed.errors import Corrupt, InvalidInput, VersionNotFound
from lakebed.iceberg import publisher
from lakebed.log.actions import AddChangePart, AddPart, RemoveChangePart, RemovePart
from lakebed.log.claims import LEASE_MS_MAX, claims_of
from lakebed.log.holds import expire_before, first_unexpired, held_onward, held_versions, holds_of, trim_log_before
from lakebed.log.removals import purged_empty
from lakebed.log.snapshot import Snapshot, parts_to_resort
from lakebed.log.table_log import LOG_FOLDER, TableLog
from lakebed.operations import job_arguments
from lakebed.operations.references import (
    LAKEBED_FOLDER,
    Spelling,
    folders_above,
    is_adopted,
    is_data_file,
    kept_version,
    listed_for_quarantine,
    other_table,
    referenced_by,
    referenced_by_held,
    referenced_since,
    vector_file,
)
from lakebed.positions.point_log import oldest_for_points
from lakebed.settings import retention_seconds
from lakebed.storage.local_folders import TEMPORARY_PREFIX
from lakebed.storage.part_storage import PartStorage

_WRITE_SECONDS_MAX = 3 * 86_400  # no writer takes longer from writing a file to committing it
_RETENTION_SECONDS_MIN = 3600
DELETIONS_MAX = 1000
CLEANED_SCHEMA = pa.schema(
    [("path", pa.string()), ("bytes", pa.int64()), ("reason", pa.string()), ("modified", pa.timestamp("ms", "UTC"))]
)
_LIST_SECONDS = 86_400.0
_OVERDUE_SECONDS = _LIST_SECONDS + 4 * 3600  # after this long without it, a listing of maintenance is missing
_STREAMS = f"{LAKEBED_FOLDER}/streams/"
_LOG_TEMPORARIES = f"{LOG_FOLDER}/{TEMPORARY_PREFIX}"
_logger = logging.getLogger("lakebed.cleanup")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSet:
    """What a cleanup must leave alone. Paths are relative to the table's root, and times are epoch milliseconds."""

    first: int  # the oldest version within retention
    newest: Snapshot  # the snapshot that was read
    referenced: AbstractSet[str]  # files that kept versions refer to
    removed: AbstractSet[str]  # files whose removal ``first`` remembers
    unreferenced_before_ms: int  # other files that are younger than this stay
    everywhere: bool  # the table has files of other writers, anywhere below its root
    now_ms: int = 0  # the time that ages are judged by
    reads_before_ms: int = 0  # counts of reads younger than this stay


@dataclass(frozen=True, slots=True)
class _DeletionCandidate:
    """A file that may be deleted, and why: expired, orphan, temporary, log or metadata."""

    path: str
    bytes: int
    reason: str
    modified_ms: int | None


# -- what users call -------------------------------------------------------------------------------------------------


def expire_snapshots(
    log: TableLog,
    storage: PartStorage,
    older_than_seconds: int | None = None,
    retain_last: int = 1,
    dry_run: bool = True,
    allow_short_retention: bool = False,
) -> pa.Table:
    """See ``Table.expire_snapshots``. A row a file that was deleted, or would be (CLEANED_SCHEMA)."""
    if retain_last < 1:
        raise InvalidInput(f"retain_last is {retain_last}; it must be at least 1: the newest version always stays")
    seconds = _retention(log, older_than_seconds, allow_short_retention)
    live = _live_set(
        log,
        storage,
        time_of_cleaning(log, storage),
        retention_seconds=seconds,
        write_seconds=_write_seconds(older_than_seconds),
        retain_last=retain_last,
    )
    candidates = _look(log, storage, live)
    if dry_run:
        return _table([*_log_files(log, storage, _log_floor(live, live.newest)), *candidates])
    now, candidates = _expire(log, storage, live, candidates, always=True)
    floor = _log_floor(live, now)
    log_files = _log_files(log, storage, floor)
    if log_files:
        log.write_checkpoint(log.at_version(floor))
        trim_log_before(log, floor, live.now_ms)
    return _table([*log_files, *_delete(storage, candidates)])


def vacuum(
    log: TableLog,
    storage: PartStorage,
    retention_seconds: int | None = None,
    dry_run: bool = True,
    allow_short_retention: bool = False,
) -> pa.Table:
    """See ``Table.vacuum``. A row a file that was deleted, or would be (CLEANED_SCHEMA)."""
    seconds = _retention(log, retention_seconds, allow_short_retention)
    live = _live_set(
        log,
        storage,
        time_of_cleaning(log, storage),
        retention_seconds=seconds,
        write_seconds=_write_seconds(retention_seconds),
    )
    candidates = _look(log, storage, live)
    return _table(candidates if dry_run else _delete(storage, _expire(log, storage, live, candidates)[1]))


def remove_orphan_files(
    log: TableLog,
    storage: PartStorage,
    older_than_seconds: int | None = None,
    dry_run: bool = True,
    allow_short_retention: bool = False,
) -> pa.Table:
    """See ``Table.remove_orphan_files``. A row a file that was deleted, or would be (CLEANED_SCHEMA)."""
    if older_than_seconds is not None:
        _require_long(older_than_seconds, allow_short_retention)
    older_than = _WRITE_SECONDS_MAX if older_than_seconds is None else older_than_seconds
    live = _live_set(
        log,
        storage,
        time_of_cleaning(log, storage),
        retention_seconds=_retention(log, None, True),
        write_seconds=older_than,
    )
    candidates = [file for file in _look(log, storage, live) if file.reason != "expired"]
    if not dry_run:
        job_arguments.sweep(log, storage)
    return _table(candidates if dry_run else _delete(storage, _expire(log, storage, live, candidates)[1]))


def overdue(log: TableLog, storage: PartStorage) -> list[_DeletionCandidate]:
    """Unreferenced files that a running maintenance (``BackgroundCleanup``) would have deleted by now, oldest first.

    Lists the table. Raises Corrupt as a cleanup does, Contention, StoreUnavailable.
    """
    seconds = _retention(log, None, True)
    live = _live_set(
        log, storage, log.now_ms(), retention_seconds=seconds, write_seconds=_WRITE_SECONDS_MAX, every_commit=False
    )
    then_ms = log.now_ms() - int(_OVERDUE_SECONDS * 1000)
    first = _current_at(log, then_ms - seconds * 1000)  # versions may have expired since, without a listing after that
    if first < live.newest.version:
        oldest = log.read_commit(first)
        then_ms = min(then_ms, oldest.timestamp_ms if oldest else 0)
    before_ms = min(live.unreferenced_before_ms, then_ms - _WRITE_SECONDS_MAX * 1000)
    live = replace(live, unreferenced_before_ms=before_ms, reads_before_ms=before_ms)
    return [file for file in _look(log, storage, live) if file.reason != "expired"]


class BackgroundCleanup:
    """What a running maintenance deletes of its table, at most ``DELETIONS_MAX`` files at a time. Call ``run_once`` hourly.

    A call deletes files of parts whose removal has expired. It lists nothing, or only counts of reads while there may be new
    ones. Once a day a call also lists the table, and deletes unreferenced files. No call reads the commits of the whole
    retention. Instead, an unreferenced file must be older than the oldest kept version by as long as writing may take.
    """

    def __init__(self, log: TableLog, storage: PartStorage, clock: Callable[[], float] = time.monotonic) -> None:
        self.log = log
        self._storage = storage
        self._clock = clock
        self._listed_at: float | None = None
        self._gone: frozenset[str] = frozenset()

    def list_next(self) -> None:
        """Let the next call of ``run_once`` list the table, as the first one of a process does."""
        self._listed_at = None

    def run_once(self) -> int:
        """Returns how many files were deleted. If there were ``DELETIONS_MAX`` of them, there may be more."""
        seconds = _retention(self.log, None, True)
        now_ms = time_of_cleaning(self.log, self._storage)
        live = _live_set(
            self.log,
            self._storage,
            now_ms,
            retention_seconds=seconds,
            write_seconds=_WRITE_SECONDS_MAX,
            every_commit=False,
        )
        started = self._clock()
        lists = self._listed_at is None or started - self._listed_at >= _LIST_SECONDS
        try:
            found = _look(self.log, self._storage, live) if lists else _known(self.log, live, self._gone)
            if not lists and parts_to_resort(live.newest):
                found = [*_old_reads(self._storage, live), *found]
        except Corrupt as error:
            _logger.warning("nothing is tidied up: %s", error)
            return 0
        candidates = _expire(self.log, self._storage, live, found[:DELETIONS_MAX])[1]
        deleted = {file.path for file in _delete(self._storage, candidates)}
        left = {file.path for file in found} - deleted
        self._gone = frozenset(live.removed - left if lists else live.removed & (self._gone | deleted))
        if lists:
            job_arguments.sweep(self.log, self._storage)
        if lists and len(found) <= DELETIONS_MAX:
            self._listed_at = started
        return len(deleted)


# -- 1, 2. what stays ------------------------------------------------------------------------------------------------


def _retention(log: TableLog, seconds: int | None, allow_short: bool) -> int:
    """The retention asked for, else the table's."""
    if seconds is None:
        return retention_seconds(log.refresh().metadata.configuration)
    _require_long(seconds, allow_short)
    return seconds


def _write_seconds(asked: int | None) -> int:
    """How old an unreferenced file must be. The table's property is about versions: only the caller may ask for less."""
    return _WRITE_SECONDS_MAX if asked is None else min(asked, _WRITE_SECONDS_MAX)


def _require_long(seconds: int, allow_short: bool) -> None:
    if seconds < 0 or (seconds < _RETENTION_SECONDS_MIN and not allow_short):
        raise InvalidInput(
            f"{seconds} seconds is a short retention: files of writers that have not committed yet, and of readers at work, "
            f"would be lost; keep {_RETENTION_SECONDS_MIN} seconds or more, or set allow_short_retention if nobody "
            "else is at work"
        )


def clean_log(log: TableLog, storage: PartStorage) -> int:
    """Write a checkpoint, and delete log files that nothing within ``lakebed.log_retention`` needs; returns how many."""
    snapshot = log.refresh()
    log.write_checkpoint(snapshot)
    now_ms = time_of_cleaning(log, storage)
    return trim_log_before(log, _first_kept(log, snapshot, now_ms, snapshot.settings.log_retention_seconds, 1), now_ms)


def time_of_cleaning(log: TableLog, storage: PartStorage) -> int:
    """The time that a cleanup judges ages by, in epoch milliseconds: its own, or the store's if that is earlier.

    So what stamps files also says when they are old, and a clock that is wrong can only keep things longer.
    """
    return min(log.now_ms(), int(storage.now() * 1000))


def _live_set(
    log: TableLog,
    storage: PartStorage,
    now_ms: int,
    *,
    retention_seconds: int,
    write_seconds: int,
    retain_last: int = 1,
    every_commit: bool = True,
) -> LiveSet:
    newest = log.refresh()
    first = _first_kept(log, newest, now_ms, retention_seconds, retain_last)
    oldest = kept_version(log, first)
    unreferenced_before_ms = now_ms - write_seconds * 1000
    referenced = set(referenced_by(oldest)) | set(referenced_by(newest))
    if every_commit or first == newest.version:
        referenced.update(referenced_since(log, first, newest.version))
    else:
        unreferenced_before_ms = min(unreferenced_before_ms, oldest.timestamp_ms - write_seconds * 1000)
    referenced.update(referenced_by_held(log, held_versions(newest.domains, now_ms), first))
    referenced.update(listed_for_quarantine(log.root))
    under_way = [  # by the clock of who claimed, which may be a day off
        claim.since_ms - LEASE_MS_MAX
        for claim in claims_of(newest.domains).values()
        if claim.lease_ms >= unreferenced_before_ms - LEASE_MS_MAX
    ]
    spell = Spelling(storage)
    removed = {
        path for action in oldest.removed.values() for path in (action.path, vector_file(action.deletion_vector))
    }
    return LiveSet(
        first=first,
        newest=newest,
        referenced=frozenset(map(spell, referenced)),
        removed=frozenset(map(spell, filter(None, removed))),
        unreferenced_before_ms=min([unreferenced_before_ms, *under_way]),
        everywhere=is_adopted(newest),
        now_ms=now_ms,
        reads_before_ms=now_ms - WINDOW_SECONDS * 1000,
    )


def _first_kept(log: TableLog, newest: Snapshot, now_ms: int, retention_seconds: int, retain_last: int) -> int:
    """The oldest version within retention: the one that was current at the horizon, or the first of the newest N, or the
    first that a reader of changes holds, or that the points of its database need.
    """
    within = min(_current_at(log, now_ms - retention_seconds * 1000), newest.version - retain_last + 1)
    onward = held_onward(newest.domains, now_ms)
    within = oldest_for_points(log, newest, within if onward is None else min(within, onward))
    return max(log.oldest_version(), first_unexpired(newest.domains), within)


def _current_at(log: TableLog, horizon_ms: int) -> int:
    """The version that was current at a time, the oldest one if the log begins later."""
    try:
        return log.version_at(horizon_ms)
    except VersionNotFound:
        return log.oldest_version()


# -- 3. what may go --------------------------------------------------------------------------------------------------


def _look(log: TableLog, storage: PartStorage, live: LiveSet) -> list[_DeletionCandidate]:
    """The table's files that may be deleted, oldest first."""
    found: list[_DeletionCandidate] = []
    tables: set[str] = set()
    prefixes = [""] if live.everywhere else [f"{LAKEBED_FOLDER}/", _LOG_TEMPORARIES]
    for path, size, modified in chain.from_iterable(map(storage.list, prefixes)):
        modified_ms = int(modified * 1000)
        if live.everywhere:
            tables.update(other_table(path))
        reason = reason_to_go(path, modified_ms, live)
        if reason:
            found.append(_DeletionCandidate(path, size, reason, modified_ms))
    own = [file for file in found if tables.isdisjoint(folders_above(file.path))]
    _require_references(log, live, own)
    unneeded = publisher.old_files(log, storage, live.newest, live.unreferenced_before_ms, live.now_ms)
    own += [_DeletionCandidate(path, size, "metadata", modified_ms) for path, size, modified_ms in unneeded]
    return sorted(own, key=lambda file: (file.modified_ms or 0, file.path))


def _require_references(log: TableLog, live: LiveSet, candidates: Sequence[_DeletionCandidate]) -> None:
    """G1: an empty live set means stop, not "delete all", unless the log shows how it became empty."""
    once = [file for file in candidates if file.reason != "temporary"]  # those that a version may have referred to
    if once and not live.referenced and not _was_emptied(log, live.newest):
        raise Corrupt(
            f"no version that is kept refers to a file, but {len(once)} files lie in the table, such as {once[0].path}, and "
            "the log does not show how the table became empty; nothing was deleted. If these files are not needed, put a "
            "row into the table, or delete them by hand",
            table=log.root,
            version=live.newest.version,
        )


def _was_emptied(log: TableLog, newest: Snapshot) -> bool:
    """Whether the newest commit that removed something removed all there was, or a purge after it recorded that nothing was left.

    What it removed must still be readable. If a part came later, it was lost: the table is not rightly empty.
    """
    for version in range(newest.version, 0, -1):
        commit = log.read_commit(version)
        if commit is None:
            return False
        if any(isinstance(action, RemovePart | RemoveChangePart) for action in commit.actions):
            try:
                before, after = log.at_version(version - 1), log.at_version(version)
            except VersionNotFound:
                return False
            return bool(before.parts or before.tail) and not (after.parts or after.tail)
        if any(isinstance(action, AddPart | AddChangePart) for action in commit.actions):
            return False
        if purged_empty(commit):
            return True
    return False


def reason_to_go(path: str, modified_ms: int, live: LiveSet) -> str | None:
    """Why a file may be deleted, None if it stays. Pure."""
    folders = path.split("/")[:-1]
    name = path.rsplit("/", 1)[-1]
    in_log = LOG_FOLDER in folders and not path.startswith(_LOG_TEMPORARIES)
    if path in live.referenced or in_log or path.startswith(_STREAMS):
        return None
    if folders == READS_FOLDER.split("/") and not name.startswith(TEMPORARY_PREFIX):
        return "temporary" if modified_ms < live.reads_before_ms else None
    if name.startswith(TEMPORARY_PREFIX):
        return "temporary" if modified_ms < live.unreferenced_before_ms else None
    if not is_data_file(path):
        return None
    if path in live.removed:
        return "expired"
    is_hidden = folders != [LAKEBED_FOLDER] and any(each.startswith((".", "_")) for each in (*folders, name))
    if is_hidden or modified_ms >= live.unreferenced_before_ms:
        return None
    return "orphan"


def _known(log: TableLog, live: LiveSet, gone: Collection[str]) -> list[_DeletionCandidate]:
    """Expired files, found without listing anything."""
    sizes = {action.path: action.bytes or 0 for action in live.newest.removed.values()}
    paths = sorted(path for path in live.removed - set(gone) if not path.startswith("/") and "://" not in path)
    found = [(path, reason_to_go(path, live.unreferenced_before_ms, live)) for path in paths]
    candidates = [_DeletionCandidate(path, sizes.get(path, 0), reason, None) for path, reason in found if reason]
    _require_references(log, live, candidates)
    return candidates


def _old_reads(storage: PartStorage, live: LiveSet) -> list[_DeletionCandidate]:
    """Counts of reads that are too old to be of use."""
    found = ((path, size, int(modified * 1000)) for path, size, modified in storage.list(f"{READS_FOLDER}/"))
    return [
        _DeletionCandidate(path, size, reason, modified_ms)
        for path, size, modified_ms in found
        if (reason := reason_to_go(path, modified_ms, live))
    ]


# -- 4. commit -------------------------------------------------------------------------------------------------------


def _expire(
    log: TableLog, storage: PartStorage, live: LiveSet, candidates: Sequence[_DeletionCandidate], always: bool = False
) -> tuple[Snapshot, list[_DeletionCandidate]]:
    """Expire versions if a file may be deleted (or ``always``); returns the snapshot after that, and the files to delete."""
    now = expire_before(log, live.first if candidates or always else 0, live.now_ms)
    publisher.republish(log, storage, now)
    onward = held_onward(now.domains, live.now_ms)
    if onward is not None and onward < live.first:  # a reader of changes came meanwhile: it needs what was to go
        return now, []
    referenced = set(referenced_since(log, live.newest.version, now.version))
    held_before = {hold.version for hold in holds_of(live.newest.domains)}
    referenced.update(referenced_by_held(log, held_versions(now.domains, live.now_ms) - held_before, live.first))
    spelled = set(map(Spelling(storage), referenced))
    return now, [file for file in candidates if file.path not in spelled]


# -- 5. act ----------------------------------------------------------------------------------------------------------


def _log_floor(live: LiveSet, now: Snapshot) -> int:
    """The oldest version whose log files stay."""
    return min([live.first, *held_versions(now.domains, live.now_ms)])


def _log_files(log: TableLog, storage: PartStorage, floor: int) -> list[_DeletionCandidate]:
    """The log files of versions before one, oldest first."""
    names = log.files_before(floor)
    if not names:
        return []
    found = {path: (size, int(modified * 1000)) for path, size, modified in storage.list(f"{LOG_FOLDER}/")}
    return [_DeletionCandidate(name, *found[name][:1], "log", found[name][1]) for name in names if name in found]


def _delete(storage: PartStorage, candidates: Iterable[_DeletionCandidate]) -> list[_DeletionCandidate]:
    """Delete files; returns those that are gone. One that can't be deleted is logged, and found again the next time."""
    files = list(candidates)
    failed = storage.delete_many([file.path for file in files])
    for path, error in failed.items():
        _logger.warning("%s will be deleted the next time: %s", path, error)
    return [file for file in files if file.path not in failed]


def _table(candidates: Sequence[_DeletionCandidate]) -> pa.Table:
    rows = [{"path": f.path, "bytes": f.bytes, "reason": f.reason, "modified": f.modified_ms} for f in candidates]
    return pa.Table.from_pylist(rows, CLEANED_SCHEMA)
