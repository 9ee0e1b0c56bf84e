"""Checks of a table's Iceberg metadata: it is of a version of the log, names that version's parts, and its files are there."""

from __future__ import annotations

from collections.abc import Iterator

from lakebed.errors import Corrupt, InvalidSchema, VersionNotFound
from lakebed.health.finding import Finding, critical, warning
from lakebed.iceberg.heads import FOLDER, HINT
from lakebed.iceberg.publisher import Publisher
from lakebed.iceberg.tidying import PREFIX, needed_files
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.storage.part_storage import PartStorage

_CHECK = "iceberg"


def look_at_iceberg(log: TableLog, storage: PartStorage, snapshot: Snapshot, path: str) -> Iterator[Finding]:
    """What is wrong with the metadata of a table that has it. Raises StoreUnavailable."""
    if not snapshot.settings.iceberg:
        return
    again = f"lakebed compact --only publish {path}"
    anew = f"delete the folder {FOLDER} of the table, then {again}: it is written anew from the log"
    publisher = Publisher(log, storage)
    try:
        newest = publisher.newest()
        head = newest.head
        for name in newest.damaged:
            what = "it is no metadata of lakebed's, and readers of Iceberg that find it fail; the next publication passes it over"
            yield critical(_CHECK, name, what, again)
        if newest.damaged:
            return
        if head is None:
            yield warning(
                _CHECK, "", "the table has no metadata of Iceberg's yet", f"lakebed maintain {path}, or {again}"
            )
            return
        if head.document["location"] != publisher.location:
            where = head.document["location"]
            yield warning(_CHECK, "", f"Iceberg's metadata is for the table at {where}: it was moved or copied", again)
            return
        there = {name: size for name, size, _ in storage.list(PREFIX)}
        for name, size in sorted(needed_files(publisher).items()):
            if name not in there and name == HINT:
                yield warning(_CHECK, name, "the hint is missing by which readers find Iceberg's metadata", again)
            elif name not in there:
                yield critical(_CHECK, name, "the file is missing, and Iceberg's metadata names it", anew)
            elif size not in (None, there[name]):
                what = f"the file has {there[name]:,} bytes, and Iceberg's metadata says {size:,}"
                yield critical(_CHECK, name, what, anew)
        try:
            of_head = log.at_version(head.version)
        except VersionNotFound:
            what = f"Iceberg's readers see version {head.version}, which the log does not have"
            yield warning(_CHECK, "", what, anew if head.version > snapshot.version else again)
            return
        named = {publisher.name_of(row["manifest_path"]) for row in publisher.rows_of(head.versions()[head.version])}
        expected = [manifest.prefix for manifest in publisher.manifests(of_head)]
        is_same = len(named) == len(expected) and all(
            any(name.rsplit("/", 1)[-1].startswith(prefix) for name in named) for prefix in expected
        )
        if not is_same:
            what = f"Iceberg's metadata of version {head.version} does not say what the log says of its parts"
            yield critical(_CHECK, "", what, anew)
    except FileNotFoundError:
        return  # reported above
    except Corrupt as error:
        yield critical(_CHECK, str(error.path or ""), str(error), anew)
    except InvalidSchema as error:
        yield warning(_CHECK, "", str(error), "do what it says")
