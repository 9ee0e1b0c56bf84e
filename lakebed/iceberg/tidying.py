"""Which files of Iceberg's metadata are needed, and the deletion of all others.

*Needed* is the head, and what its snapshots name: lists, manifests, twins of deletion vectors. Readers that have read an older
head still look at what that one names, and a publication may not have ended, so other files stay for ``KEPT_SECONDS``, by the
clock that stamps them. A purge waits for neither: what it deletes may have bounds of its rows.

Where ``lakebed.iceberg`` is off, no file is needed. The hint goes at once, without which nobody finds the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from lakebed.iceberg.heads import FOLDER, HINT, METADATA_FOLDER, metadata_name
from lakebed.iceberg.manifests import DELETES
from lakebed.iceberg.publisher import Publisher
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.storage.local_folders import TEMPORARY_PREFIX
from lakebed.storage.part_storage import PartStorage

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
