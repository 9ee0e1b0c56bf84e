"""The second half of a purge: every file goes that no version from after it refers to, and a report says which they were.

The rows are out of the table by the version of ``lakebed.purged`` (``log.removals``), which nobody can read versions before.
Then:

1. Write the checkpoint of that version: the log can begin there.
2. List the table's files, then raise the fence. A file that was listed and that no version refers to then is never committed, by
   whoever wrote it. So it may go at once, however young it is (G1): what died with its writer goes too.
3. Wait a minute, so that whoever has the table open sees the new version, and until no reader holds a version from before the
   purge; with ``force`` their holds end.
4. Delete the files of the log before that version, oldest first (``trim_log_before``), with what other writers left
   beside them.
5. Publish the newest version as Iceberg's metadata, if the table has it, and delete all other metadata of Iceberg's: it names
   versions that have ended, and may have bounds of the rows.
6. Delete the listed files that no version from the purge on refers to. Of files that a writer has not finished, those go that
   nobody has written to for a minute.

Each step may be done again: after a crash it begins with step 1, with a new listing and a new fence.
"""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakebed.errors import Contention, VersionNotFound
from lakebed.iceberg.publisher import Publisher, unneeded_files
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import Operation
from lakebed.log.holds import Hold, expire_before, holds_of, trim_log_before
from lakebed.log.removals import LEASE_MS, PurgeState, next_fence, purged_before, purges_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LOG_FOLDER, open_store
from lakebed.log.table_log import TableLog
from lakebed.operations import job_arguments
from lakebed.operations.references import (
    LAKEBED_FOLDER,
    Spelling,
    is_data_file,
    kept_version,
    listed_for_quarantine,
    other_table,
    referenced_by,
    referenced_since,
)
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.storage.local_folders import TEMPORARY_PREFIX
from lakebed.storage.part_storage import PartStorage

# -- What a purge reports: a row a file that had rows it is about, or may have had -----------------------------------------


_PURGED_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("where", pa.string()),
        ("bytes", pa.int64()),
        ("rows", pa.int64()),
        ("gone_at", pa.timestamp("ms", "UTC")),
        ("note", pa.string()),
    ]
)
TABLE, VERSION, DETACHED, UNCOMMITTED = "table", "version", "detached", "uncommitted"
LOG, QUARANTINE, VOLATILE, KEY_INDEX, ELSEWHERE = "log", "quarantine", "volatile", "key index", "elsewhere"
ICEBERG = "iceberg"


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgedFile:
    """A file that has, or had, rows that a purge erases."""

    path: str
    where: str  # which kind of file
    bytes: int | None = None
    rows: int | None = None  # how many of its rows the purge is about; None if its rows were not looked at
    gone_ms: int | None = None  # when it went (epoch milliseconds); None if it has not
    note: str = ""  # why, or what is left to do


def report_table(files: Iterable[PurgedFile]) -> pa.Table:
    """The report (PURGED_SCHEMA), by kind and path."""
    rows = [
        {"path": f.path, "where": f.where, "bytes": f.bytes, "rows": f.rows, "gone_at": f.gone_ms, "note": f.note}
        for f in sorted(files, key=lambda file: (file.where, file.path))
    ]
    return pa.Table.from_pylist(rows, _PURGED_SCHEMA)


# -- The second half of a purge --------------------------------------------------------------------------------------------


FOLLOW_SECONDS = 60.0
"""How long the files stay after the versions have ended. Processes that have the table open trust a version in memory for this
long (``log_reader``), and notice meanwhile that it has ended."""
_HOLDS_SECONDS_MAX = 60  # how long a purge waits for readers; readers of changes move their holds on within seconds
_UNTOUCHED_SECONDS = 60
_STREAMS = f"{LAKEBED_FOLDER}/streams/"

Files = Mapping[str, tuple[int, float]]
"""By path: bytes, and when it was written (epoch seconds, by the store's clock)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clearing:
    """Deletes what a purge leaves behind in the folder of the table."""

    log: TableLog
    storage: PartStorage
    state: PurgeState
    rows: Mapping[str, int] = field(default_factory=dict)  # how many rows of each file the purge is about, by path
    # what files were before the purge; those that are not in it belong to no version
    kinds: Mapping[str, str] = field(default_factory=dict)
    # says how many rows of files that were not looked at yet; None for a file that it can't read
    look: Callable[[list[str]], Mapping[str, int | None]] | None = None

    def run(self) -> list[PurgedFile]:
        """Steps 1 to 6; returns the files. Raises Contention if readers hold older versions, StoreUnavailable."""
        first = purged_before(self.log.refresh().domains)
        with suppress(VersionNotFound):  # done before: the log begins later
            self.log.write_checkpoint(self.log.at_version(first))
        self._wait_for_followers(first)
        listed = files_of(self.storage)
        self._raise_fence(first)
        self._wait_for_readers(first)
        gone = self._clean_log(first, listed)
        job_arguments.sweep(self.log, self.storage)
        gone += self._clear_iceberg()
        return [*gone, *self._delete_files(max(first, self.log.oldest_version()), listed)]

    # -- 2. the fence ------------------------------------------------------------------------------------------------

    def _raise_fence(self, first: int) -> None:
        _raise_fence(self.log, self.state, first)
        if self.log.root.endswith(QUARANTINE_SUFFIX):  # its files are written by batches of the table beside it
            table = TableLog(open_store(self.log.root.removesuffix(QUARANTINE_SUFFIX)))
            if table.exists():
                _raise_fence(table)

    def _wait_for_followers(self, first: int) -> None:
        ended = self.log.read_commit(first)
        left = (
            FOLLOW_SECONDS if ended is None else ended.timestamp_ms / 1000 + FOLLOW_SECONDS - self.log.now_ms() / 1000
        )
        if left > 0:
            self.log.sleep(min(left, FOLLOW_SECONDS))

    # -- 3. readers --------------------------------------------------------------------------------------------------

    def _wait_for_readers(self, first: int) -> None:
        """Let all versions before ``first`` expire, when no reader holds one. Raises Contention."""
        held: list[Hold] = []
        for _ in range(_HOLDS_SECONDS_MAX + 1):
            now = expire_before(self.log, first, self.log.now_ms())
            held = older_holds(now, first, self.log.now_ms())
            if not held:
                return
            self.log.sleep(1.0)
        raise Contention(
            f"the rows are out of {self.log.root}, but files that have them stay while readers hold older versions: "
            f"{spelled(held)}; the maintenance of the table goes on when they have ended, or purge again with force",
            table=self.log.root,
            operation=Operation.PURGE.value,
        )

    # -- 4. the log --------------------------------------------------------------------------------------------------

    def _clean_log(self, first: int, listed: Files) -> list[PurgedFile]:
        older = {path for path in listed if _is_of_older_version(path, first)}
        older |= set(self.log.files_before(first))
        trim_log_before(self.log, first)
        if left := self.log.files_before(first):
            raise Contention(
                f"{left[0]} is still in the log after it was cleaned; purge again", table=self.log.root, path=left[0]
            )
        there = {path for path, _, _ in self.storage.list(f"{LOG_FOLDER}/")}
        for error in self.storage.delete_many(sorted(older & there)).values():
            raise error
        now_ms = self.log.now_ms()
        note = "it may have had bounds and keys of the rows"
        return [
            PurgedFile(
                path=path, where=LOG, bytes=listed[path][0] if path in listed else None, gone_ms=now_ms, note=note
            )
            for path in older
        ]

    # -- 5. Iceberg's metadata -----------------------------------------------------------------------------------------

    def _clear_iceberg(self) -> list[PurgedFile]:
        newest = self.log.refresh()
        if newest.settings.iceberg:
            Publisher(self.log, self.storage).publish(newest)
        going = {path: size for path, size, _ in unneeded_files(self.log, self.storage, newest, math.inf)}
        for error in self.storage.delete_many(sorted(going)).values():
            raise error
        now_ms, note = self.log.now_ms(), "it may have had bounds of the rows"
        return [
            PurgedFile(path=path, where=ICEBERG, bytes=size, gone_ms=now_ms, note=note) for path, size in going.items()
        ]

    # -- 6. data files -----------------------------------------------------------------------------------------------

    def _delete_files(self, first: int, listed: Files) -> list[PurgedFile]:
        newest = self.log.refresh()
        needed = {
            path for each in (kept_version(self.log, first), newest) for path in referenced_by(each, by_claims=False)
        }
        needed |= set(referenced_since(self.log, first, newest.version, by_claims=False))
        needed |= set(listed_for_quarantine(self.log.root))
        kept = set(map(Spelling(self.storage), needed))
        going = [path for path in listed if path not in kept and is_file_of_rows(path)]
        rows = dict(self.rows) | dict(self.look(going) if self.look else {})
        going += self._untouched([path for path in listed if _is_temporary(path)], listed)
        failed = self.storage.delete_many(going)
        now_ms = self.log.now_ms()
        out: list[PurgedFile] = []
        gone_ms: int | None
        for path in going:
            gone_ms, note = now_ms, "what a writer had not finished" if _is_temporary(path) else ""
            if path in rows and rows[path] is None:
                note = "its rows could not be looked at"
            if path in failed:
                gone_ms, note = None, str(failed[path])
            kind = self.kinds.get(path, UNCOMMITTED if self.kinds else VERSION)
            file = PurgedFile(
                path=path, where=kind, bytes=listed[path][0], rows=rows.get(path), gone_ms=gone_ms, note=note
            )
            out.append(file)
        return out

    def _untouched(self, paths: list[str], listed: Files) -> list[str]:
        """Those of a writer's unfinished files that nobody writes to any more. Waits for the others, a minute at most."""
        waiting, out = list(paths), []
        for _ in range(_UNTOUCHED_SECONDS + 1):
            now = self.storage.now() if waiting else 0.0
            still = (
                {path: found for path, found in files_of(self.storage).items() if path in waiting} if waiting else {}
            )
            out += [path for path, (_, at) in still.items() if now - at >= _UNTOUCHED_SECONDS]
            waiting = [path for path in still if path not in out and still[path][0] == listed[path][0]]
            if not waiting:
                break
            self.log.sleep(1.0)
        return out


def _raise_fence(log: TableLog, state: PurgeState | None = None, first: int = 0) -> None:
    """Raise the fence of a table. Of the purge ``state`` the lease is extended, and with ``force`` holds before ``first`` end.

    Raises Contention, StoreUnavailable (it may be repeated).
    """

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        actions = [next_fence(snapshot.domains)]
        if state is not None and state.id in purges_of(snapshot.domains):
            current = purges_of(snapshot.domains)[state.id]
            actions.append(replace(current, until_ms=log.now_ms() + LEASE_MS).to_action())
            if state.force:
                actions += [hold.ended() for hold in older_holds(snapshot, first, log.now_ms())]
        return Proposal(actions=actions, result=lambda committed: None)

    commit_loop(log, Operation.PURGE, build)


def older_holds(snapshot: Snapshot, first: int, now_ms: int) -> list[Hold]:
    """Live holds of versions before ``first``."""
    return [hold for hold in holds_of(snapshot.domains) if hold.is_live(now_ms) and hold.version < first]


def spelled(holds: list[Hold]) -> str:
    """Holds in a message."""
    return "; ".join(f"version {hold.version}" + (f" ({hold.reader})" if hold.reader else "") for hold in holds[:5])


def files_of(storage: PartStorage) -> dict[str, tuple[int, float]]:
    """All files of the table, without those of tables in folders below it."""
    found = {path: (size, modified) for path, size, modified in storage.list("")}
    tables = {folder for path in found if not path.startswith(LAKEBED_FOLDER) for folder in other_table(path)}
    return {path: each for path, each in found.items() if not any(path.startswith(f"{each}/") for each in tables)}


def is_file_of_rows(path: str) -> bool:
    """Whether it is a data file of the table: by lakebed or another writer, also change data and deletion vectors."""
    folders = path.split("/")[:-1]
    if LOG_FOLDER in folders or path.startswith(_STREAMS) or not is_data_file(path) or _is_temporary(path):
        return False
    return (
        folders[:1] == ["_change_data"]
        or folders == [LAKEBED_FOLDER]
        or not any(each.startswith((".", "_")) for each in path.split("/"))
    )


def _is_temporary(path: str) -> bool:
    """Whether it is what a writer has not finished, in the table's folder or its log."""
    return posixpath.basename(path).startswith(TEMPORARY_PREFIX)


def _is_of_older_version(path: str, first: int) -> bool:
    """Whether it is a file in the log's folder of a version before ``first``: a commit, a checkpoint, or what others add."""
    folder, _, name = path.rpartition("/")
    number = name.partition(".")[0]
    return folder == LOG_FOLDER and number.isascii() and number.isdigit() and int(number) < first
