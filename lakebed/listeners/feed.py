"""Reads the events of one table, or of all tables below a root, from a cursor on. Nothing is written.

1. A *look* asks for the commit after the newest one that is known of a table. If there is none, that was one request. The pause
   until the next look is a tenth of the time since the table changed (``discovery``), 60 s at most; ``poke`` ends it.
2. Commits are read one after the other, as long as each was made on the one before. Then the commit of the cursor must still be
   in the log: else a cleanup ran meanwhile, and what was read may be no version (``log.log_reader``).
3. If the log no longer has the commit of the cursor, the answer is ``Resync``: the table as it is now. If another table is in its
   place, the answer is ``Dropped``, and the events of the new table from its first version on (``Resync`` if that is gone).
4. The newest commits of each table are kept as events, so readers at the same place share one look, and an idle table is a few
   numbers in memory.

What a table's events are depends on its log alone. So any number of feeds, in any processes, read the same.

**A cursor** says how far a reader has read the events of tables. It is a value; whoever has it goes on from any process.
"""

from __future__ import annotations

import base64
import binascii
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import orjson

from lakebed import events
from lakebed.discovery import SECONDS_MIN, TableName, pause_seconds, tables_in
from lakebed.errors import InvalidInput, LakebedError, TableNotFound, VersionNotFound
from lakebed.listeners.event_types import Dropped, TableEvent
from lakebed.listeners.table_events import database_events_of, events_of, resync_of
from lakebed.log.actions import Commit
from lakebed.log.log_reader import LogReader
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LOG_FOLDER, open_store
from lakebed.positions.point_log import FOLDER as DATABASE
from lakebed.schema.metadata import Metadata
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.object_store import Folders

_TEXT_BYTES_MAX = 4 << 20


@dataclass(frozen=True, slots=True)
class At:
    """A version of a table. ``version``: -1 before the first one; ``table_id``: Delta's, "" for whichever table is there;
    ``digest``: of the version's commit, "" if it is not known. The two show that another table was made in its place."""

    version: int
    table_id: str = ""
    digest: str = ""

    def is_of(self, other: At) -> bool:
        """Whether both may be of one history: nothing that both know differs."""
        return (not self.table_id or not other.table_id or self.table_id == other.table_id) and (
            self.version != other.version or not self.digest or not other.digest or self.digest == other.digest
        )


@dataclass(frozen=True, slots=True)
class Cursor:
    """Up to which versions the events of tables were read, by the tables' names. A table that is not in it is read from its first
    event on."""

    tables: Mapping[str, At] = field(default_factory=dict)

    def moved(self, moved: Mapping[str, At | None]) -> Cursor:
        """The cursor with these tables moved; those with None leave it."""
        tables = {**self.tables, **moved}
        return Cursor({name: at for name, at in tables.items() if at is not None})

    def of_lost_logs(self) -> Cursor:
        """The same places, as if the logs had been lost since: a reader gets ``Resync`` for each table, with its state."""
        return Cursor({name: replace(at, digest="lost") for name, at in self.tables.items()})

    def to_text(self) -> str:
        """The cursor as a text that may stand in a URL: some 60 bytes a table."""
        value = {name: [at.version, at.table_id, at.digest] for name, at in sorted(self.tables.items())}
        return base64.urlsafe_b64encode(zlib.compress(orjson.dumps(value), 9)).decode().rstrip("=")

    @staticmethod
    def of_text(text: str) -> Cursor:
        """The inverse of ``to_text``. Raises InvalidInput."""
        try:
            packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            unpacker = zlib.decompressobj()
            data = unpacker.decompress(packed, _TEXT_BYTES_MAX)
            if not unpacker.eof:
                raise ValueError("it is cut off, or too large")
            value = orjson.loads(data)
            return Cursor({str(name): _at_in(one) for name, one in value.items()})
        except (ValueError, TypeError, AttributeError, binascii.Error, zlib.error) as error:
            raise InvalidInput(
                f"{text[:40]!r} is no cursor of a feed ({error}); begin without one, or with one that a feed gave"
            ) from None


def _at_in(value: object) -> At:
    if isinstance(value, list) and len(value) == 3:
        version, table_id, digest = value
        if isinstance(version, int) and version >= -1 and isinstance(table_id, str) and isinstance(digest, str):
            return At(version, table_id, digest)
    raise ValueError("a table has no version")


LOOK_SECONDS_MAX = 60.0
CHECK_SECONDS = 600.0  # how often an idle table is checked for whether its newest commit is still in its log
DISCOVERY_SECONDS = 60.0
_FAILED_SECONDS_MAX = 60.0
_KEPT_MAX = 64  # commits of a table that are kept
_AT_ONCE = 100  # commits of a table in one read
_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Events of several tables, and where to go on."""

    events: tuple[TableEvent, ...]  # in order for each table, all of a commit or none
    cursor: Cursor  # the place after them
    # of tables that could not be read, by name; their place in the cursor is as it was
    errors: Mapping[str, LakebedError] = field(default_factory=dict)
    more: bool = False  # there are events to read at once


@dataclass(frozen=True, slots=True)
class _Read:
    """The events of a commit, and the place after it; None if the table is gone."""

    at: At | None
    events: tuple[TableEvent, ...]


_Reads: TypeAlias = Sequence[_Read]


@dataclass(slots=True)
class _Table:
    """What a feed knows of a table. Threads replace values whole; two that look at once ask twice, and find the same."""

    root: str
    kept: tuple[_Read, ...] = ()  # without gaps, the newest last
    due_at: float = -math.inf
    changed_at: float | None = None
    checked_at: float = -math.inf
    failures: int = 0
    error: LakebedError | None = None

    def after(self, at: At) -> _Reads | None:
        """What is kept of the versions after a place; None if that is not known here."""
        first = self.kept[0].at if self.kept else None
        place = at.version - first.version if first is not None else -1
        here = self.kept[place].at if 0 <= place < len(self.kept) else None
        return self.kept[place + 1 :] if here is not None and here.is_of(at) else None

    def keep(self, start: At, reads: _Reads) -> None:
        """Keep what was read after a place, unless newer versions are kept already."""
        newest = self.kept[-1].at if self.kept else None
        last = reads[-1].at if reads else None
        known = self.after(start)
        if known is not None and all(one.at == other.at for one, other in zip(known, reads, strict=False)):
            self.kept = (*self.kept, *reads[len(known) :])[-_KEPT_MAX:]
        elif known is not None or newest is None or last is None or last.version >= newest.version:
            self.kept = (_Read(start, ()), *reads)[-_KEPT_MAX:]


def name_below(place: str, root: str) -> str:
    """The path of a table below a place, with dots; as the source calls it where a pipeline made the folder."""
    if root == place:
        return root.rstrip("/").rpartition("/")[2]
    folder = root.removeprefix(place).strip("/")
    if folder == DATABASE or "/" not in folder:
        return folder
    return str(TableName.of_folder(folder) or folder.replace("/", "."))


class Feed:
    """The events of the table at a root, or of all tables below it. Safe to use from several threads."""

    def __init__(
        self,
        root: str,
        *,
        open_log: Callable[[str], LogReader] = lambda root: LogReader(open_store(root)),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``clock``: seconds, for the pauses between looks alone. Raises InvalidInput for a root that can't be one."""
        self.root = open_part_storage(root).root
        self._open_log = open_log
        self._clock = clock
        self._tables: dict[str, _Table] = {}
        self._is_table = False
        self._discovered_at = -math.inf
        self._turn = 0

    # -- reading -------------------------------------------------------------------------------------------------------

    def tables(self) -> tuple[str, ...]:
        """The names of the tables that were there at the last discovery. Raises StoreUnavailable, TableNotFound."""
        self._discover_if_due()
        return tuple(sorted(self._tables))

    def is_table(self) -> bool:
        """Whether the root is a table itself. Raises StoreUnavailable, TableNotFound."""
        self._discover_if_due()
        return self._is_table

    def root_of(self, name: str) -> str | None:
        """The root of a table; None if it was not there at the last discovery."""
        table = self._tables.get(name)
        return table.root if table else None

    def newest(self, wanted: Callable[[str], bool] = lambda name: True) -> Cursor:
        """A cursor after all events that there are now. Raises StoreUnavailable, Corrupt, TableNotFound."""
        self._discover_if_due(0.0)
        names = [name for name in sorted(self._tables) if wanted(name)]
        with ThreadPoolExecutor(_THREADS) as pool:
            found = dict(zip(names, pool.map(self._newest_of, names), strict=True))
        return Cursor({name: at for name, at in found.items() if at is not None})

    def read(self, after: Cursor, limit: int = 1000, wanted: Callable[[str], bool] = lambda name: True) -> Batch:
        """Events after a cursor: at least one commit's if there are any, and not many more than ``limit``. Does not wait.

        ``wanted``: of which tables, by name. Raises StoreUnavailable if the root can't be listed, TableNotFound if it is neither
        a table nor a folder with tables; what concerns one table is in ``Batch.errors``.
        """
        self._discover_if_due()
        if any(name not in self._tables and wanted(name) for name in after.tables):
            self._discover_if_due(0.0)
        known = self._tables
        names = [name for name in (*known, *(after.tables.keys() - known.keys())) if wanted(name)]
        self._turn += 1
        start = self._turn % len(names) if names else 0  # so that no table waits for the ones before it for ever
        found: list[TableEvent] = []
        moved: dict[str, At | None] = {}
        errors: dict[str, LakebedError] = {}
        more = False
        for chunk in _chunks(names[start:] + names[:start], _THREADS * 4):
            if more and len(found) >= limit:
                break
            for name, reads in self._read_all(chunk, after, errors):
                taken = 0
                for read in reads:
                    if len(found) >= limit:
                        break
                    found += read.events
                    moved[name] = read.at
                    taken += 1
                more = more or taken < len(reads) or taken >= _AT_ONCE
            more = more or len(found) >= limit
        return Batch(events=tuple(found), cursor=after.moved(moved) if moved else after, errors=errors, more=more)

    def poke(self, place: str) -> None:
        """Look at a table at the next read: it may have changed. ``place``: its name, or its root. One that is not known yet is
        looked for."""
        table = self._tables.get(place) or self._tables.get(name_below(self.root, place))
        if table is not None:
            table.due_at = -math.inf
        elif not self._is_table:
            self._discovered_at = -math.inf

    def heard(self, event: events.Event) -> bool:
        """Whether an event of this process is a commit to one of these tables; then it is looked at with the next read."""
        if not isinstance(event, events.CommitEnded) or event.result != "committed":
            return False
        below = event.table.removeprefix(self.root)
        if below == event.table or ("/_lakebed/" in below and below.strip("/") != DATABASE):
            return False
        self.poke(event.table)
        return True

    def pause_seconds(self) -> float:
        """The time until a read may find something new of itself, 0 if it may now."""
        now = self._clock()
        due_at = min((table.due_at for table in self._tables.values()), default=now + DISCOVERY_SECONDS)
        return max(0.0, min(due_at, self._discovered_at + DISCOVERY_SECONDS) - now)

    # -- tables --------------------------------------------------------------------------------------------------------

    def _discover_if_due(self, seconds: float = DISCOVERY_SECONDS) -> None:
        """Look for tables that came or went, unless that was done in the last ``seconds``."""
        if (self._is_table and self._tables) or self._clock() - self._discovered_at < seconds:
            return
        known = {table.root: name for name, table in self._tables.items()}
        roots = tables_in(self.root, known)
        folders = Folders(self.root)
        self._is_table = roots == [self.root]
        if not roots and not folders.below():
            raise TableNotFound(f"there is no table at {self.root} and no folder with tables", table=self.root)
        points = f"{self.root}/{DATABASE}"
        if not self._is_table and (points in known or LOG_FOLDER in folders.below(DATABASE)):
            roots.append(points)
        self._tables = {
            name: self._tables.get(name) or _Table(root)
            for name, root in ((name_below(self.root, r), r) for r in roots)
        }
        self._discovered_at = self._clock()

    def _newest_of(self, name: str) -> At | None:
        log = self._open_log(self._tables[name].root)
        try:
            commit = log.read_commit(log.newest_version())
            if commit is not None and commit.info is not None and commit.info.table:
                return At(commit.version, commit.info.table, commit.digest)
            return _at(log.refresh())
        except TableNotFound:
            return None

    # -- one table -----------------------------------------------------------------------------------------------------

    def _read_all(
        self, names: Sequence[str], after: Cursor, errors: dict[str, LakebedError]
    ) -> list[tuple[str, _Reads]]:
        """What there is to read of some tables, at once where the store is asked."""
        found: dict[str, _Reads] = {}
        asked = []
        for name in names:
            table, at = self._tables.get(name), after.tables.get(name)
            if table is None:
                found[name] = [_dropped(name, at)] if at is not None else []
                continue
            kept = table.after(at) if at is not None else None
            if kept:
                found[name] = kept
            elif (kept is not None or table.error is not None) and self._clock() < table.due_at:
                if table.error is not None:
                    errors[name] = table.error
            else:
                asked.append((name, table, at))
        if len(asked) > 1:
            with ThreadPoolExecutor(min(_THREADS, len(asked))) as pool:
                answers = list(pool.map(lambda each: self._asked(*each), asked))
        else:
            answers = [self._asked(*each) for each in asked]
        for (name, _, _), answer in zip(asked, answers, strict=True):
            if isinstance(answer, LakebedError):
                errors[name] = answer
            else:
                found[name] = answer
        return [(name, found[name]) for name in names if name in found]

    def _asked(self, name: str, table: _Table, at: At | None) -> _Reads | LakebedError:
        """What the log says after a place; and when to look again."""
        now = self._clock()
        try:
            reads = self._look(name, table, at)
        except LakebedError as error:
            table.error, table.failures = error, table.failures + 1
            table.due_at = now + min(_FAILED_SECONDS_MAX, 2.0 ** min(table.failures, 10))
            return error
        table.error, table.failures = None, 0
        if reads:
            table.changed_at, table.due_at = now, now + (SECONDS_MIN if len(reads) < _AT_ONCE else 0.0)
        else:
            table.changed_at = now if table.changed_at is None else table.changed_at
            pause = pause_seconds(now - table.changed_at)
            table.due_at = now + min(LOOK_SECONDS_MAX, pause)
        return reads

    def _look(self, name: str, table: _Table, at: At | None) -> _Reads:
        """What the log has after a place, up to ``_AT_ONCE`` commits; it is kept for others too."""
        log = self._open_log(table.root)
        start = At(-1) if at is None else at
        if start.version >= 0 and not (start.table_id and start.digest):
            known = self._completed(log, start)
            if known is None:
                return self._begun_anew(name, table, log, start)
            start = known
        reads, is_strange = self._walk(name, log, start)
        base = reads[0].at if start.version < 0 and reads else start
        is_due = is_strange or table.after(start) is None or self._clock() - table.checked_at >= CHECK_SECONDS
        if base is None or base.version < 0 or ((reads or is_due) and not _is_in_log(log, base, bool(reads))):
            return self._begun_anew(name, table, log, start)
        if reads or is_due:
            table.checked_at = self._clock()
        table.keep(start, reads)
        return reads

    def _walk(self, name: str, log: LogReader, start: At) -> tuple[list[_Read], bool]:
        """The commits after a place, as far as each follows the one before; whether one is there that does not."""
        last, reads = start, list[_Read]()
        while len(reads) < _AT_ONCE:
            commit = log.read_commit(last.version + 1)
            if commit is None:
                return reads, False
            if commit.version == 0:
                table_id = next((each.id for each in commit.actions if isinstance(each, Metadata)), "")
                last = At(-1, table_id)
            if not _follows(last, commit):
                return reads, True
            last = At(commit.version, last.table_id, commit.digest)
            reads.append(_Read(last, _events(commit, name, last.table_id)))
        return reads, False

    def _completed(self, log: LogReader, at: At) -> At | None:
        """A place of which only the version is known, with the rest; None if the log does not keep it. Raises VersionNotFound."""
        commit = log.read_commit(at.version)
        if commit is None:
            newest = log.newest_version() if not at.table_id else at.version
            if at.version > newest:
                raise VersionNotFound(
                    f"there is no version {at.version}: the newest is {newest}", table=log.root, version=at.version
                )
            return None
        table_id = (commit.info.table if commit.info else "") or log.refresh().metadata.id
        found = At(at.version, table_id, commit.digest)
        return found if found.is_of(at) else None

    def _begun_anew(self, name: str, table: _Table, log: LogReader, at: At) -> _Reads:
        """What is there now, in place of what comes after a version that the log does not have."""
        table.kept = ()
        try:
            snapshot = log.refresh()
        except TableNotFound:
            self._tables = {other: one for other, one in self._tables.items() if other != name}
            return [_dropped(name, at)] if at.version >= 0 else []
        if at.version < 0 or not at.table_id or at.table_id == snapshot.metadata.id:
            return [_resync(snapshot, name, at.version if at.version >= 0 else None)]
        reads, _ = self._walk(name, log, At(-1))
        is_new = bool(reads) and reads[0].at is not None and reads[0].at.table_id == snapshot.metadata.id
        return [_dropped(name, at), *(reads if is_new else [_resync(snapshot, name, None)])]


def _follows(last: At, commit: Commit) -> bool:
    """Whether a commit was made on a place; also True if its writer does not record that."""
    info = commit.info
    if info is None:
        return True
    return (not info.table or info.table == last.table_id) and (not info.parent or info.parent == last.digest)


def _is_in_log(log: LogReader, at: At, has_next: bool) -> bool:
    """Whether the commit of a place is in the log, and the log leads on from it."""
    commit = log.read_commit(at.version)
    if commit is None or commit.digest != at.digest:
        return False
    if has_next:
        return True
    later = log.store.list_from(LOG_FOLDER, f"{at.version + 1:020d}")
    numbers = [
        int(head)
        for head, _, rest in (name.partition(".") for name in later)
        if head.isascii() and head.isdigit() and rest == "json"
    ]
    return not numbers or min(numbers) == at.version + 1


def _events(commit: Commit, name: str, table_id: str) -> tuple[TableEvent, ...]:
    """What can't be read of the commit has no event."""
    read = database_events_of if name == DATABASE else events_of
    return read(commit, table=name, table_id=table_id)


def _at(snapshot: Snapshot) -> At:
    return At(snapshot.version, snapshot.metadata.id, snapshot.digest)


def _resync(snapshot: Snapshot, name: str, lost_after: int | None) -> _Read:
    return _Read(_at(snapshot), (resync_of(snapshot, table=name, lost_after=lost_after),))


def _dropped(name: str, at: At | None) -> _Read:
    place = at or At(-1)
    return _Read(None, (Dropped(table=name, table_id=place.table_id, version=place.version, index=-1, time_ms=None),))


def _chunks(names: Sequence[str], size: int) -> list[Sequence[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]
