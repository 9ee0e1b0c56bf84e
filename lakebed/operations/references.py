"""Which files of a table its versions refer to, and how their paths are spelled. Cleanups and purges leave these files alone.

**A table is dropped** with its data files first, then its log. What is not the table's stays, such as other tables below its
folder.

A table of lakebed's own has its files below ``_lakebed``; one that was adopted has files anywhere in its folder, but for those of
other tables.

1. A checkpoint of the newest version is written, so that the log can do without older files.
2. Files of data are deleted, then the older files of the log, oldest first.
3. The newest commit and its checkpoint go last, in this order. Until then the log can be read, and says whatever it said, such as
   that the table is dropped, or which job drops it: if the process is killed, another process goes on.
4. What hid the table from listings goes (``mark``), and on a local disk so do empty folders.

Readers and writers of the table get an error from step 2 on. A table that is made at the same place afterwards is another one.

**A reader's hold** on an old version: no cleanup deletes its files while the hold lasts (see ``log.holds``).

1. Read the newest snapshot: the version must be there and unexpired.
2. Commit a hold. If a cleanup commits first, start again with step 1.
3. At the end remove it. If that fails, it ends by itself, and the next cleanup removes it.
"""

from __future__ import annotations

import logging
import os
import posixpath
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, islice
from typing import Any
from urllib.parse import unquote

import orjson

from lakebed.coordination.read_counts import begin_hold, end_hold
from lakebed.errors import Contention, Corrupt, InvalidInput, LakebedError, TableNotFound, VersionNotFound
from lakebed.log.actions import AddChangePart, AddPart, Commit, Domain
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.entries import CLAIM, COORDINATION, FAILING, LOST, QUARANTINED
from lakebed.log.entry_values import MS_MAX, reading
from lakebed.log.holds import Hold
from lakebed.log.log_reader import LAST_CHECKPOINT
from lakebed.log.removals import DROPPED_FOLDER
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LOG_FOLDER, checkpoint_name, commit_name, open_store
from lakebed.log.table_log import TableLog
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.schema.metadata import Metadata
from lakebed.settings import PREFIX
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import LocalRoot, parse_root

LAKEBED_FOLDER = "_lakebed"
_DROPPED_MARK = f"{DROPPED_FOLDER}/mark"
_CONVERTED = "delta.inCommitTimestampEnablementVersion"
_MARKS_OF_TABLES = frozenset({LOG_FOLDER, LAKEBED_FOLDER, ".hoodie", "metadata"})


def referenced_by_held(log: TableLog, versions: Iterable[int], before: int) -> Iterator[str]:
    """Files that held versions before ``before`` refer to."""
    for version in versions:
        if version < before:
            with suppress(VersionNotFound):  # it has left the log: nobody can read it any more
                yield from referenced_by(log.at_version(version))


def kept_version(log: TableLog, version: int) -> Snapshot:
    """A version that was in the log a moment ago. Raises Contention if its log was cleaned since."""
    try:
        return log.at_version(version)
    except VersionNotFound:
        raise Contention(
            f"version {version} left the log while it was read; try it again", table=log.root, version=version
        ) from None


def listed_for_quarantine(root: str) -> Iterator[str]:
    """Files of a quarantine that the log of its table lists, and that are to be committed yet (``lakebed.quarantined``)."""
    if not root.endswith(QUARANTINE_SUFFIX):
        return
    with suppress(TableNotFound):
        table = TableLog(open_store(root.removesuffix(QUARANTINE_SUFFIX))).refresh()
        if text := table.domains.get(QUARANTINED):
            yield from _referenced_by_entry(QUARANTINED, text)


def referenced_since(log: TableLog, after: int, last: int, *, by_claims: bool = True) -> Iterator[str]:
    """Files that the commits after a version refer to, as ``referenced_by``. Raises Contention if one is gone."""
    for commit in log.commits_since(after, last):
        yield from _referenced_by_commit(commit, by_claims)


def referenced_by(snapshot: Snapshot, *, by_claims: bool = True) -> Iterator[str]:
    """All files that a version refers to; ``by_claims``: also those that only claims do, so they are being merged."""
    for part in snapshot.parts.values():
        yield part.path
        yield from filter(None, [vector_file(part.deletion_vector)])
    for change_part in snapshot.tail.values():
        yield change_part.path
    for domain, text in snapshot.domains.items():
        if by_claims or not domain.startswith(CLAIM):
            yield from _referenced_by_entry(domain, text)


def _referenced_by_commit(commit: Commit, by_claims: bool) -> Iterator[str]:
    """Files that a commit refers to for the first time."""
    for action in commit.actions:
        match action:
            case AddPart(part, _):
                yield part.path
                yield from filter(None, [vector_file(part.deletion_vector)])
            case AddChangePart(part):
                yield part.path
            case Domain(domain, text, False) if by_claims or not domain.startswith(CLAIM):
                yield from _referenced_by_entry(domain, text)
            case _:
                pass


def _referenced_by_entry(domain: str, text: str) -> Iterator[str]:
    """Files that an entry of lakebed's mentions, under whatever key: claims, detached parts, kinds of entries yet to come."""
    if not domain.startswith(PREFIX) or domain.startswith((FAILING, LOST)):  # merges that fail need no file to be kept
        return
    try:
        with reading(domain):
            found = list(_mentioned(orjson.loads(text)))
    except Corrupt:
        if not domain.startswith(COORDINATION):
            raise  # what it needs is unknown
        return
    yield from found


def _mentioned(value: Any) -> Iterator[str]:
    match value:
        case str() if is_data_file(value):
            yield from (value, unquote(value))
        case {"storageType": _, "pathOrInlineDv": _}:
            yield from filter(None, [vector_file(DeletionVector.from_json(value))])
        case dict():
            for inner in value.values():
                yield from _mentioned(inner)
        case list():
            for inner in value:
                yield from _mentioned(inner)
        case _:
            pass


def vector_file(vector: DeletionVector | None) -> str | None:
    return vector.file_path() if vector else None


class Spelling:
    """Paths as the listing spells them: relative to the root, also where the log has absolute ones."""

    def __init__(self, storage: PartStorage) -> None:
        root = storage.root.rstrip("/")
        self._prefixes = [f"{each}/" for each in (f"file://{root}", f"file:{root}", storage.spark_root, root)]

    def __call__(self, path: str) -> str:
        if ":" in path or path.startswith("/"):
            for prefix in self._prefixes:
                if path.startswith(prefix) or unquote(path).startswith(prefix):
                    return unquote(path).removeprefix(prefix)
            return path
        return posixpath.normpath(path)


def is_data_file(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.endswith(".parquet") or (name.startswith("deletion_vector_") and name.endswith(".bin"))


def is_adopted(snapshot: Snapshot) -> bool:
    """Whether the table was a Delta table of other writers: then it has files anywhere in its folder."""
    return _CONVERTED in snapshot.metadata.configuration


def folders_above(path: str) -> set[str]:
    """All folders that a file is in, relative to the root."""
    folders = path.split("/")[:-1]
    return {"/".join(folders[: at + 1]) for at in range(len(folders))}


def other_table(path: str) -> Iterable[str]:
    """The folder of another table that lies below this one's root, if the file shows that there is one."""
    folders = path.split("/")[:-1]
    if folders[:1] == [LAKEBED_FOLDER]:  # it has a folder of Iceberg's metadata
        return ()
    return ("/".join(folders[:at]) for at, folder in enumerate(folders) if at and folder in _MARKS_OF_TABLES)


_BATCH = 1_000


def drop(log: TableLog, storage: PartStorage) -> int:
    """Delete everything that the table has below its root; returns how many files that were. Raises StoreUnavailable."""
    newest = log.refresh(dropped=True)
    if newest.version not in log.versions()[1]:
        log.write_checkpoint(newest)
    last = [LAST_CHECKPOINT, commit_name(newest.version), checkpoint_name(newest.version)]
    data = _data_files(storage, is_adopted(newest))
    files = 0
    while batch := list(islice(data, _BATCH)):
        files += len(batch)
        for error in storage.delete_many(batch).values():
            raise error
    for name in _of_log(log):
        if name < last[1] and name not in last:
            files += 1
            log.store.delete(name)
    while (names := _of_log(log)) and not _is_of_another(log, newest):  # also of commits that came meanwhile
        for name in sorted(names, key=lambda each: (last.index(each) if each in last else -1, each)):
            files += 1
            log.store.delete(name)
    clear(storage)
    return files


def clear(storage: PartStorage) -> None:
    """Step 4."""
    unmark(storage)
    _remove_folders(storage.root)


def mark(storage: PartStorage) -> None:
    """Hide the table from listings."""
    storage.write_bytes(_DROPPED_MARK, b"this table is dropped, as its log says\n")


def unmark(storage: PartStorage) -> None:
    """Let listings find the table."""
    storage.delete(_DROPPED_MARK)
    if isinstance(parse_root(storage.root), LocalRoot):
        with suppress(OSError):  # it is not there, or another process has just marked the table
            os.rmdir(os.path.join(storage.root, DROPPED_FOLDER))


def _data_files(storage: PartStorage, everywhere: bool) -> Iterator[str]:
    if not everywhere:
        yield from (path for path, _, _ in storage.list(f"{LAKEBED_FOLDER}/"))
        return
    others = set(chain.from_iterable(other_table(path) for path, _, _ in storage.list()))
    for path, _, _ in storage.list():
        if not path.startswith((f"{LOG_FOLDER}/", f"{DROPPED_FOLDER}/")) and others.isdisjoint(folders_above(path)):
            yield path


def _is_of_another(log: TableLog, newest: Snapshot) -> bool:
    """Whether another table has begun in the place of this one."""
    first = log.read_commit(0)
    ids = [action.id for action in first.actions if isinstance(action, Metadata)] if first is not None else []
    return bool(ids) and ids[0] != newest.metadata.id


def _of_log(log: TableLog) -> list[str]:
    return [f"{LOG_FOLDER}/{name}" for name in log.store.list_from(LOG_FOLDER, "")]


def _remove_folders(root: str) -> None:
    """On a local disk folders stay behind their files."""
    if isinstance(parse_root(root), LocalRoot):
        for folder, _, _ in os.walk(root, topdown=False):
            with suppress(OSError):  # a process has written to it meanwhile
                os.rmdir(folder)


_logger = logging.getLogger("lakebed.cleanup")


@contextmanager
def hold(log: TableLog, version: int, seconds: float) -> Iterator[int]:
    """Keep a version readable for so many seconds, or until the block ends. Raises VersionNotFound, InvalidInput."""
    if seconds <= 0:
        raise InvalidInput(f"a version can't be held for {seconds} seconds; give more than 0", version=version)
    held = Hold(str(uuid.uuid4()), version, min(MS_MAX, log.now_ms() + int(seconds * 1000)))
    begin_hold(log, held)
    try:
        log.at_version(version)  # a cleanup of the log alone may have been faster
        yield version
    finally:
        try:
            end_hold(log, held)
        except LakebedError as error:
            _logger.warning("the hold on version %d ends by itself: %s", version, error)
