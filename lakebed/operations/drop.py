"""Drop: a table counts as not there, and its files go later, or at once.

1. The entry ``lakebed.dropped`` is committed (``log.removals``). From that version on lakebed neither reads nor writes the table.
   A commit that others make meanwhile comes before the entry, or is not written.
2. A mark in its folder hides it from listings (``discovery``). The entry decides; so a mark that is missing does no harm.
3. Its files stay as long as those of an old version would: until then the entry can be removed, and the table is what it was.
   The mark goes first.
4. Then the entry becomes final, which conflicts with its removal, and the files are deleted, those of the log last
   (``references.drop``). If the process is killed, whoever comes next goes on, as the entry says so to the end.

A mark whose table is not dropped, or gone, is of a process that was killed, or paused between 1 and 2. ``remove_dropped`` removes
it, and so does who makes a table in its place.
"""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lakebed.discovery import TableName, tables_in
from lakebed.errors import InvalidInput, TableDropped, TableNotFound
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import Operation
from lakebed.log.removals import Dropped, dropped_of, require_there, undropped
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LOG_FOLDER, commit_name, open_store
from lakebed.log.table_log import TableLog
from lakebed.operations.cleanup import time_of_cleaning
from lakebed.operations.references import clear, drop, mark, unmark
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import parse_root

REMOVED_SCHEMA = pa.schema(
    [
        ("table", pa.string()),
        ("path", pa.string()),
        ("dropped", pa.timestamp("ms", "UTC")),
        ("due", pa.timestamp("ms", "UTC")),
        ("removed", pa.bool_()),
        ("files", pa.int64()),
    ]
)


def drop_table(log: TableLog, storage: PartStorage, *, purge: bool = False) -> int:
    """Drop a table; with ``purge`` its files too, for which it may be dropped already. Returns how many files were deleted.

    Raises TableNotFound, TableDropped, Contention, StoreUnavailable (dropping again is safe).
    """

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        before = dropped_of(snapshot.domains)
        if not purge:
            require_there(snapshot, log.root)
        if before is not None and before.is_final:
            return Finished(None)
        since = log.now_ms() if before is None else before.at_ms
        return Proposal(actions=[Dropped(since, purge).to_action()], result=lambda _: None, parameters={"purge": purge})

    commit_loop(log, Operation.DROP, build, newest=lambda: log.refresh(dropped=True))
    _mark(log, storage)
    return drop(log, storage) if purge else 0


def undrop(log: TableLog, storage: PartStorage) -> None:
    """Bring a dropped table back. One that is there stays. Raises TableNotFound, TableDropped (its files are being deleted)."""
    unmark(storage)

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        before = dropped_of(snapshot.domains)
        if before is None:
            return Finished(None)
        if before.is_final:
            require_there(snapshot, log.root)
        return Proposal(actions=[undropped()], result=lambda _: None)

    try:
        commit_loop(log, Operation.UNDROP, build, newest=lambda: log.refresh(dropped=True))
    except TableDropped:
        _mark(log, storage)
        raise


def remove_dropped(folder: str, only: str | None = None, *, dry_run: bool = False) -> pa.Table:
    """Delete the files of the tables below a folder that were dropped long enough ago, and go on where others did not end.

    ``only``: the root of the one whose files are deleted, at once. Returns a row for each dropped table: from when on its files
    may be deleted, whether they were now, and how many that were. Raises InvalidInput, StoreUnavailable.
    """
    place, rows = f"{parse_root(folder)}/", list[dict[str, object]]()
    for root in tables_in(folder, dropped=True) if only is None else [only]:
        below = root.removeprefix(place)
        log, storage = TableLog(open_store(root)), open_part_storage(root)
        found = _found(log, storage)
        if found is None:
            if only is not None:
                raise InvalidInput(f"{root} is not dropped: its files stay", table=root)
            continue
        dropped, due_ms = found
        is_due = only is not None or dropped.is_final or _has_waited(log, storage, dropped, due_ms)
        removes = is_due and not dry_run and _ends(log, dropped)
        rows.append(
            {
                "table": str(TableName.of_folder(below) or below.replace("/", ".")),
                "path": root,
                "dropped": dropped.at_ms,
                "due": dropped.at_ms if dropped.is_final else due_ms,
                "removed": removes,
                "files": drop(log, storage) if removes else None,
            }
        )
    return pa.Table.from_pylist(rows, REMOVED_SCHEMA)


def _ends(log: TableLog, seen: Dropped) -> bool:
    """Make a drop final; False if it is not the one that was seen any more: the table came back meanwhile."""

    def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
        now = dropped_of(snapshot.domains)
        if now != seen or seen.is_final:
            return Finished(now == seen)
        return Proposal(actions=[replace(seen, is_final=True).to_action()], result=lambda _: True)

    return commit_loop(log, Operation.DROP, build, newest=lambda: log.refresh(dropped=True))


def _found(log: TableLog, storage: PartStorage) -> tuple[Dropped, int | None] | None:
    """What a log says of its table, and until when the files stay; None if it is not dropped, or gone: then it has no mark."""
    try:
        snapshot = log.refresh(dropped=True)
    except TableNotFound:
        clear(storage)
        return None
    dropped = dropped_of(snapshot.domains)
    if dropped is None:
        unmark(storage)
        return None
    return dropped, dropped.until_ms(snapshot.metadata.configuration)


def _has_waited(log: TableLog, storage: PartStorage, dropped: Dropped, due_ms: int | None) -> bool:
    """Whether files are due, by the clock of who dropped the table, and by that of the store."""
    if due_ms is None or dropped.at_ms is None or log.newest is None:
        return False
    name = commit_name(log.newest.version)
    written = next((modified for path, _, modified in storage.list(f"{LOG_FOLDER}/") if path == name), 0.0)
    return time_of_cleaning(log, storage) >= max(due_ms, int(written * 1000) + due_ms - dropped.at_ms)


def _mark(log: TableLog, storage: PartStorage) -> None:
    """Step 2."""
    mark(storage)
    try:
        is_dropped = dropped_of(log.refresh(dropped=True).domains) is not None
    except TableNotFound:  # it went meanwhile
        is_dropped = False
    if not is_dropped:
        unmark(storage)
