"""Which files of a table its versions refer to, and how their paths are spelled. Cleanups and purges leave these files alone."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import unquote

import orjson

from lakebed.errors import Contention, Corrupt, TableNotFound, VersionNotFound
from lakebed.log.actions import AddChangePart, AddPart, Commit, Domain
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.entries import CLAIM, COORDINATION, FAILING, LOST, QUARANTINED
from lakebed.log.entry_values import reading
from lakebed.log.read_commits import commits_since
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import LOG_FOLDER, TableLog
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.settings import PREFIX
from lakebed.storage.part_storage import PartStorage

LAKEBED_FOLDER = "_lakebed"
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
    for commit in commits_since(log, after, last):
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
    return ("/".join(folders[:at]) for at, folder in enumerate(folders) if at and folder in _MARKS_OF_TABLES)
