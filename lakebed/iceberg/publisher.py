"""Writes a version of a table as Iceberg's metadata, beside its log.

    _lakebed/iceberg/metadata/
      version-hint.text                     the number of the newest metadata, a hint
      v<number>.metadata.json               written if absent: who comes second reads it, and goes on from there
      snap-<version + 1>-<digest>.avro      the list of manifests of a version
      manifest-<digest>-<digest>.avro       see ``manifests``
      dv-<digest>.puffin                    the twin of a deletion vector

1. The newest metadata is the *head*. Nothing is written if it is of this base, or of a later version.
2. Manifests of the head that are made from the same are used again. Others are written, after the twins that they name.
3. The list, then the next metadata: with it all of it counts. At the end the hint.

All names but that of the metadata are digests, and all bytes follow from the log and the head. So two processes at once, or one
that takes over from one that was killed, write the same bytes under the same names, and the first metadata counts.

A file that the head does not need may be about to be deleted (below), which goes by its age. So one that is there
already is written again, and what takes longer than a cleanup waits begins again.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import is_not
from typing import Any

import orjson

from lakebed import events
from lakebed.errors import Contention, Corrupt, InvalidInput, MissingPrerequisite, StoreUnavailable
from lakebed.iceberg.avro import avro_bytes, avro_records, list_schema, require_avro
from lakebed.iceberg.columns import IcebergColumns, iceberg_columns, require_known_columns
from lakebed.iceberg.manifests import (
    DELETES,
    Manifest,
    PartEntry,
    Twin,
    manifest_bytes,
    manifest_name,
    manifest_row,
    manifests_of,
    part_entry,
)
from lakebed.iceberg.metadata import FOLDER, HINT, METADATA_FOLDER, Head, Heads, Newest, metadata_name, next_metadata
from lakebed.log.deletion_vector import inline_data
from lakebed.log.holds import first_unexpired
from lakebed.log.removals import purged_before
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import has_object
from lakebed.log.table_log import TableLog
from lakebed.notebook import HtmlResult
from lakebed.schema.metadata import Metadata
from lakebed.storage.local_folders import TEMPORARY_PREFIX
from lakebed.storage.part_storage import PartStorage

_WRITE_SECONDS_MAX = 600.0
"""Longer than that no publication takes: it begins again."""
_ATTEMPTS = 20
_logger = logging.getLogger("lakebed.iceberg")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published(HtmlResult):
    """What a publication did."""

    version: int  # that Iceberg's readers see now
    metadata: str  # the path or url of its metadata
    files: int = 0  # that were written; 0 if there was nothing to do
    bytes: int = 0  # of these files


class Publisher:
    """Publishes the versions of one table. One thread at a time uses it."""

    def __init__(self, log: TableLog, storage: PartStorage, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._storage = storage
        self._clock = clock
        self._root = storage.root.rstrip("/")
        self._heads = Heads(log.store)
        self._newest = Newest()
        self._rows: dict[str, Json] = {}  # what lists say of the head's manifests, by the key of the manifest
        self._twins: set[str] = set()  # names of the twins that the head needs
        self._entries: dict[str, PartEntry] = {}
        self._columns: tuple[Metadata, IcebergColumns] | None = None
        self._written = self._bytes = 0

    @property
    def location(self) -> str:
        """Where Iceberg finds the table."""
        return f"{self._root}/{FOLDER}"

    def head(self) -> Head | None:
        """The newest metadata that can be read, None if there is none. Raises StoreUnavailable."""
        return self.newest().head

    def newest(self) -> Newest:
        """What there is of metadata. Raises StoreUnavailable."""
        before, self._newest = self._newest, self._heads.newest()
        if self._newest.head is not before.head:
            self._forget()
        return self._newest

    def publish(self, snapshot: Snapshot, *, first_kept: int = 0) -> Published:
        """Make Iceberg's readers see this version, unless they see its base or a later version already.

        ``first_kept``: versions before it are no snapshots any more, besides those that the log says are gone.

        Raises InvalidSchema, MissingPrerequisite, Contention, StoreUnavailable.
        """
        require_avro()
        self._written = self._bytes = 0
        first_kept = max(first_kept, first_unexpired(snapshot.domains), purged_before(snapshot.domains))
        for _ in range(_ATTEMPTS):
            newest = self.newest()
            head = newest.head
            if head is not None and head.document["location"] != self.location:
                head, self._rows, self._twins = replace(head, document=head.document | {"snapshots": []}), {}, set()
            columns = self._columns_of(snapshot)
            require_known_columns(snapshot)
            manifests = manifests_of(self._entries_of(snapshot), columns)
            base = _base_of(manifests, columns)
            if head is not None and not _is_needed(head, snapshot, base, first_kept, bool(newest.damaged)):
                if self._heads.hinted() != newest.last:  # who wrote the head was killed, or is about to write the hint
                    self._write_hint(newest.last)
                return Published(version=head.version, metadata=f"{self._root}/{metadata_name(head.number)}")
            started = self._clock()
            rows = self._write_manifests(manifests, columns)
            manifest_list = self._write_list(snapshot, rows, list_schema(partitioned=bool(columns.partitions)))
            document = next_metadata(
                snapshot,
                columns,
                location=self.location,
                manifest_list=manifest_list,
                base=base,
                before=head,
                first_kept=first_kept,
            )
            number = newest.last + 1
            if self._clock() - started < _WRITE_SECONDS_MAX and self._put_metadata(number, document):
                self._newest = self._heads.know(Head(number=number, document=document))
                self._rows = {manifest.key: row for manifest, row in zip(manifests, rows, strict=True)}
                self._twins = {entry.twin.name for entry in self._entries.values() if entry.twin}
                self._write_hint(number)
                for name in newest.damaged:
                    events.emit(events.IcebergMetadataDamaged(table=self._log.root, file=name, number=number))
                return Published(
                    version=snapshot.version,
                    metadata=f"{self._root}/{metadata_name(number)}",
                    files=self._written,
                    bytes=self._bytes,
                )
        raise Contention(f"others kept writing the Iceberg metadata of {self._root}; try it again", table=self._root)

    # -- what the head has ------------------------------------------------------------------------------------------------

    def rows_of(self, manifest_list: str) -> list[Json]:
        """What a list of manifests says, by its location. Raises Corrupt, FileNotFoundError, StoreUnavailable."""
        return self._records(self.name_of(manifest_list))

    def twins_of(self, row: Json) -> dict[str, int]:
        """The names of the twins that a manifest of deletion vectors names, with their bytes."""
        files = [each["data_file"] for each in self._records(self.name_of(row["manifest_path"]))]
        return {str(each["file_path"]).rsplit("/", 1)[-1]: each["file_size_in_bytes"] for each in files}

    def name_of(self, location: str) -> str:
        """The name of a file, relative to the table's root."""
        return location.removeprefix(f"{self._root}/")

    def manifests(self, snapshot: Snapshot) -> list[Manifest]:
        """The manifests of a version. Raises InvalidSchema."""
        require_known_columns(snapshot)
        return manifests_of(self._entries_of(snapshot), self._columns_of(snapshot))

    def _forget(self) -> None:
        """Read anew what the head has: another process wrote it."""
        self._rows, self._twins = {}, set()
        head = self._newest.head
        if head is None or not head.snapshots or head.document["location"] != self.location:
            return
        with suppress(FileNotFoundError, Corrupt):
            rows = self.rows_of(head.snapshots[-1]["manifest-list"])
            twins = {name for row in rows if row["content"] == DELETES for name in self.twins_of(row)}
            self._rows = {str(row["manifest_path"]).rsplit("/manifest-", 1)[-1].partition("-")[0]: row for row in rows}
            self._twins = twins

    def _records(self, name: str) -> list[Json]:
        data = self._log.store.read(name)
        try:
            return avro_records(data)
        except Exception as error:  # of the library, of any kind
            raise Corrupt(
                f"{self._root}/{name} can't be read as Avro: {error}; delete {self._root}/{FOLDER}, and it is written again",
                path=name,
            ) from error

    # -- what a version has ------------------------------------------------------------------------------------------------

    def _columns_of(self, snapshot: Snapshot) -> IcebergColumns:
        if self._columns is None or self._columns[0] is not snapshot.metadata:
            self._columns = snapshot.metadata, iceberg_columns(snapshot)
        return self._columns[1]

    def _entries_of(self, snapshot: Snapshot) -> Sequence[PartEntry]:
        known = self._entries
        entries = {
            path: found
            if (found := known.get(path)) is not None and found.part is part
            else part_entry(part, self._location_of(path))
            for path, part in snapshot.parts.items()
        }
        self._entries = entries
        return list(entries.values())

    def _location_of(self, path: str) -> str:
        if path.startswith("/") or "://" in path:
            return path.removeprefix("file://")
        return f"{self._root}/{path}"

    # -- writing -----------------------------------------------------------------------------------------------------------

    def _write_manifests(self, manifests: Sequence[Manifest], columns: IcebergColumns) -> list[Json]:
        new = [manifest for manifest in manifests if manifest.key not in self._rows]
        twins = [entry.twin for manifest in new if manifest.content == DELETES for entry in manifest.entries]
        self._write_twins([twin for twin in twins if twin is not None and twin.name not in self._twins])
        rows = dict(self._rows)
        for manifest in new:
            data = manifest_bytes(manifest, columns, f"{self._root}/{METADATA_FOLDER}")
            name = f"{METADATA_FOLDER}/{manifest_name(manifest, data)}"
            self._put(name, data)
            rows[manifest.key] = manifest_row(manifest, columns, f"{self._root}/{name}", len(data))
        return [rows[manifest.key] for manifest in manifests]

    def _write_twins(self, twins: Sequence[Twin]) -> None:
        for twin in twins:
            self._put(f"{METADATA_FOLDER}/{twin.name}", twin.content(self._vector_data(twin)))

    def _vector_data(self, twin: Twin) -> bytes:
        vector = twin.vector
        path = vector.file_path()
        if path is None:
            return inline_data(vector)
        at = (vector.offset or 1) + 4
        data = self._storage.read_range(path, at, vector.bytes)
        if len(data) != vector.bytes:
            raise Corrupt(f"{path} has no deletion vector of {vector.bytes} bytes at {at}", path=path)
        return data

    def _write_list(self, snapshot: Snapshot, rows: Sequence[Json], schema: Json) -> str:
        number = str(snapshot.version + 1)
        about = {"snapshot-id": number, "sequence-number": number, "format-version": "3"}
        key = hashlib.blake2b(repr([number, *(row["manifest_path"] for row in rows)]).encode()).digest()
        data = avro_bytes(schema, rows, about, key)
        name = f"snap-{number}-{hashlib.blake2b(data, digest_size=8).hexdigest()}.avro"
        self._put(f"{METADATA_FOLDER}/{name}", data)
        return f"{self._root}/{METADATA_FOLDER}/{name}"

    def _put_metadata(self, number: int, document: Json) -> bool:
        """Write metadata unless its number is taken; returns whether it has what is to be written. Raises StoreUnavailable."""
        data, name = orjson.dumps(document), metadata_name(number)
        try:
            if not self._log.store.put_if_absent(name, data):
                return False
        except StoreUnavailable:  # whether it was written is not known: the same bytes are as good, whoever wrote them
            if not has_object(self._log.store, name) or self._log.store.read(name) != data:
                raise
        self._count(data)
        return True

    def _write_hint(self, number: int) -> None:
        """Name the newest metadata: who writes the hint looks afterwards whether there is newer metadata by now."""
        hint = 0
        while hint != number:
            data = str(number).encode()
            self._log.store.put(HINT, data)
            hint = number
            self._count(data)
            while has_object(self._log.store, metadata_name(number + 1)):
                number += 1

    def _put(self, name: str, data: bytes) -> None:
        """Write a file whose name says its bytes: who wrote it before, wrote the same."""
        self._log.store.put(name, data)
        self._count(data)

    def _count(self, data: bytes) -> None:
        self._written += 1
        self._bytes += len(data)


def publish(log: TableLog, storage: PartStorage) -> Published:
    """Publish the newest version. Raises InvalidInput where ``lakebed.iceberg`` is off, and as ``Publisher.publish``."""
    newest = log.refresh()
    if not newest.settings.iceberg:
        raise InvalidInput(f"lakebed.iceberg is off for {log.root}: set it to 'on' first", table=log.root)
    return Publisher(log, storage).publish(newest)


class BackgroundPublisher:
    """Publishes the newest version of a table that is maintained."""

    def __init__(self, log: TableLog, storage: PartStorage) -> None:
        self._log = log
        self._publisher = Publisher(log, storage)
        self._seen: tuple[object, ...] = (None, None)
        self._is_told = False

    def is_behind(self) -> bool:
        """Whether there is another base than at the last publication. Reads nothing."""
        newest = self._log.newest
        return newest is not None and newest.settings.iceberg and any(map(is_not, _seen_of(newest), self._seen))

    def publish_newest(self) -> None:
        """Publish the newest version in memory. What only a person can change is logged, once."""
        newest = self._log.newest or self._log.refresh()
        try:
            if newest.settings.iceberg:
                self._publisher.publish(newest)
            self._is_told = False
        except (InvalidInput, MissingPrerequisite) as error:
            if not self._is_told:
                _logger.warning("readers of Iceberg see no newer version of %s: %s", self._log.root, error)
            self._is_told = True
        self._seen = _seen_of(newest)


def _seen_of(snapshot: Snapshot) -> tuple[object, ...]:
    return snapshot.parts, snapshot.metadata


def _is_needed(head: Head, snapshot: Snapshot, base: str, first_kept: int, is_damaged: bool) -> bool:
    """Whether a version is to be published after the head. ``is_damaged``: readers may find metadata that they can't read."""
    if not head.snapshots or (is_damaged and head.version <= snapshot.version):
        return True
    if head.version >= snapshot.version:
        return False
    return head.base != base or min(head.versions()) < first_kept


def _base_of(manifests: Sequence[Manifest], columns: IcebergColumns) -> str:
    said = [[manifest.key for manifest in manifests], columns.schema, columns.sort_order, list(columns.name_mapping)]
    return hashlib.blake2b(orjson.dumps(said), digest_size=10).hexdigest()


# -- Which files of this metadata are needed, and the deletion of all others -----------------------------------------------
#
# *Needed* is the head, and what its snapshots name: lists, manifests, twins of deletion vectors. Readers that have read an
# older head still look at what that one names, and a publication may not have ended, so other files stay for ``KEPT_SECONDS``,
# by the clock that stamps them. A purge waits for neither: what it deletes may have bounds of its rows.
#
# Where ``lakebed.iceberg`` is off, no file is needed. The hint goes at once, without which nobody finds the others.


PREFIX = f"{FOLDER}/"
KEPT_SECONDS = 6 * 3600
"""Much longer than a publication takes (``publisher.WRITE_SECONDS_MAX``)."""


def needed_files(publisher: Publisher) -> Mapping[str, int | None]:
    """The files that the head needs, relative to the table's root, with their bytes where metadata says how many.

    Raises Corrupt, StoreUnavailable.
    """
    head = publisher.head()
    if head is None:
        return {}
    needed: dict[str, int | None] = {HINT: None, metadata_name(head.number): None}
    for manifest_list in head.versions().values():
        needed[publisher.name_of(manifest_list)] = None
        with suppress(FileNotFoundError):  # the doctor reports it
            for row in publisher.rows_of(manifest_list):
                name = publisher.name_of(row["manifest_path"])
                if name in needed:
                    continue
                needed[name] = row["manifest_length"]
                if row["content"] == DELETES:
                    twins = publisher.twins_of(row).items()
                    needed |= {f"{METADATA_FOLDER}/{twin}": size for twin, size in twins}
    return needed


def unneeded_files(
    log: TableLog, storage: PartStorage, snapshot: Snapshot, before_ms: float
) -> list[tuple[str, int, int]]:
    """Files that are not needed and were written before a time, or are found by readers: (path, bytes, modified in epoch ms).

    Those that a writer has not finished are left to the cleanup.
    """
    listed = [(path, size, int(modified * 1000)) for path, size, modified in storage.list(PREFIX)]
    listed = [each for each in listed if not each[0].rsplit("/", 1)[-1].startswith(TEMPORARY_PREFIX)]
    if not listed:
        return []
    if not snapshot.settings.iceberg:
        return [each for each in listed if each[0] == HINT or each[2] < before_ms]
    needed = needed_files(Publisher(log, storage))
    return [each for each in listed if each[0] not in needed and each[2] < before_ms]


def old_files(
    log: TableLog, storage: PartStorage, snapshot: Snapshot, before_ms: int, now_ms: int
) -> list[tuple[str, int, int]]:
    """Of the files that are not needed those from before a time that were not needed for a while."""
    return unneeded_files(log, storage, snapshot, min(before_ms, now_ms - KEPT_SECONDS * 1000))


def republish(log: TableLog, storage: PartStorage, snapshot: Snapshot) -> None:
    """Before files of expired versions are deleted: no snapshot may name them. Raises what ``Publisher.publish`` raises."""
    if snapshot.settings.iceberg:
        Publisher(log, storage).publish(snapshot)


def tidy(log: TableLog, storage: PartStorage, snapshot: Snapshot) -> int:
    """Delete what was not needed for a while; returns how many files. Raises Corrupt, StoreUnavailable."""
    before_ms = (storage.now() - KEPT_SECONDS) * 1000
    going = [path for path, _, _ in unneeded_files(log, storage, snapshot, before_ms)]
    return len(going) - len(storage.delete_many(going)) if going else 0
