"""Checks of a table's entries and files: which entries can't be read and how they are removed, and which files are missing.

**Entries.** What rests on an entry decides (``log.entry_values``). An entry that is only coordination counts as not there, and
``lakebed resume`` removes it. Any other stops what needs it, until a person who knows what it was has removed it on purpose.

**Files** that a version refers to are there and as large as the log says; others are orphans. The table is listed once; memory
holds the files that the version refers to. The cleanup itself decides which files are orphans.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from lakebed.coordination.failing import Failing, Lost, Parked, SettleAttempts
from lakebed.coordination.jobs import job_in
from lakebed.coordination.schema_history import past_change_of
from lakebed.errors import Corrupt, InvalidInput, Unsupported
from lakebed.health.finding import Finding, critical, warning
from lakebed.iceberg.columns import FormerColumns
from lakebed.ingest.replay import applied_in
from lakebed.log import entries
from lakebed.log.actions import Domain, Part
from lakebed.log.claims import claim_of
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import COORDINATION, Operation
from lakebed.log.entry_values import decoded, integer_of
from lakebed.log.holds import hold_of
from lakebed.log.removals import Dropped, purge_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations import cleanup
from lakebed.operations.region import detached_in, detached_of
from lakebed.operations.time_to_live import looked_ms_in
from lakebed.parts.quarantine import listed_in
from lakebed.positions.files_read import files_in
from lakebed.positions.positions import position_of
from lakebed.positions.resnapshots import Resnapshot, TopicGone
from lakebed.positions.source_columns import source_columns_in
from lakebed.positions.truncates import restarts_in, truncates_in
from lakebed.positions.verified import Verified, Verifying
from lakebed.resolve.counted_tail import CrowdedKeys
from lakebed.storage.part_storage import PartStorage
from lakebed.storage.roots import LocalRoot, parse_root

DECODERS: dict[str, Callable[[str, str], object]] = {
    entries.CLAIM: claim_of,
    entries.HOLD: hold_of,
    entries.EXPIRED: partial(integer_of, member="before"),
    entries.DETACHED: detached_in,
    entries.DROPPED: partial(decoded, Dropped),
    entries.PURGE: purge_of,
    entries.PURGED: partial(integer_of, member="version"),
    entries.FENCE: partial(integer_of, member="number"),
    entries.ROWS_EXPIRED: looked_ms_in,
    entries.SOURCE_TRUNCATES: truncates_in,
    entries.SCHEMA: past_change_of,
    entries.POSITION: position_of,
    entries.ORDER_RESTARTS: restarts_in,
    entries.FILES: files_in,
    entries.SOURCE_COLUMNS: source_columns_in,
    entries.QUARANTINED + ".": partial(integer_of, member="taken"),
    entries.QUARANTINED: listed_in,
    entries.CROWDED_KEYS: partial(decoded, CrowdedKeys),
    entries.FAILING: partial(decoded, Failing),
    entries.LOST: partial(decoded, Lost),
    entries.SETTLING: partial(decoded, SettleAttempts),
    entries.PARKED: partial(decoded, Parked),
    entries.TOPIC_GONE: partial(decoded, TopicGone),
    entries.FORMER_COLUMNS: partial(decoded, FormerColumns),
    entries.RESNAPSHOT: partial(decoded, Resnapshot),
    entries.VERIFIED: partial(decoded, Verified),
    entries.VERIFYING: partial(decoded, Verifying),
    entries.JOB: job_in,
    entries.REPLAY: applied_in,
}
"""By the beginning of their names, the first that fits. Entries of the tail are part of the commit that has them (M1)."""


def unreadable(snapshot: Snapshot) -> dict[str, Corrupt]:
    """The entries that can't be read, by name, and why."""
    found = {}
    for name, text in sorted(snapshot.domains.items()):
        decode = next((each for prefix, each in DECODERS.items() if name.startswith(prefix)), None)
        if decode is not None:
            try:
                decode(name, text)
            except Corrupt as error:
                found[name] = error
    return found


def entry_findings(snapshot: Snapshot, path: str) -> Iterator[Finding]:
    """What can't be read, and what to do about it."""
    for name, error in unreadable(snapshot).items():
        if name.startswith(COORDINATION):
            yield warning("entry", name, str(error), f"lakebed resume {path} removes it")
        else:
            yield critical(
                "entry", name, str(error), f"lakebed show commits {path} shows who wrote it; then the runbook"
            )


def remove_unreadable(log: TableLog, name: str | None = None) -> list[str]:
    """Remove the entries of coordination that can't be read, or the one of this name, whatever rests on it; returns their names.

    Raises InvalidInput if the one can be read or is not there, Contention, StoreUnavailable, TableNotFound.
    """

    def build(snapshot: Snapshot) -> Proposal[list[str]] | Finished[list[str]]:
        found = unreadable(snapshot)
        if name is not None and name not in found:
            there = ", ".join(found) or "none"
            raise InvalidInput(f"there is no entry {name!r} that can't be read; there are: {there}", table=log.root)
        gone = [each for each in found if each == name or (name is None and each.startswith(COORDINATION))]
        actions = [Domain(each, "", removed=True) for each in gone]
        return Proposal(actions=actions, result=lambda _: gone) if gone else Finished([])

    return commit_loop(log, Operation.REMOVE_ENTRY, build)


DISK_BYTES_MIN = 64 << 20
_FOLDER = "_lakebed/"


@dataclass(frozen=True, slots=True)
class _Referred:
    """What a version says about a file; ``bytes`` is None where it does not say the size."""

    what: str
    bytes: int | None = None


def look_at_files(snapshot: Snapshot, storage: PartStorage) -> list[Finding]:
    """G1: files of base, tail, deletion vectors and detached partitions that are missing, or of another size."""
    referred, unreadable = _referred_by(snapshot)
    sizes = dict.fromkeys(referred, -1)
    for path, size, _ in storage.list(_FOLDER if all(path.startswith(_FOLDER) for path in referred) else ""):
        if path in sizes:
            sizes[path] = size
    compared = [
        finding for path in referred for finding in _compared(path, referred[path], sizes[path], snapshot, storage)
    ]
    return [*unreadable, *compared]


def look_at_disk(root: str) -> Iterator[Finding]:
    """Whether the disk of a local table or database is full: then nothing can be committed."""
    place = parse_root(root)
    if not isinstance(place, LocalRoot):
        return
    with suppress(OSError):
        free = shutil.disk_usage(place.path).free
        if free < DISK_BYTES_MIN:
            what = f"the disk of {place} is full: {free / (1 << 20):,.0f} MB are free, so commits fail"
            yield critical("disk", "", what, "make room; what runs goes on by itself")


def _compared(path: str, expected: _Referred, size: int, snapshot: Snapshot, storage: PartStorage) -> Iterator[Finding]:
    if size < 0:  # the listing may spell its path in another way
        try:
            size = storage.size(path)
        except FileNotFoundError:
            yield critical(
                "G1",
                path,
                f"the file is missing; version {snapshot.version} needs it: it is {expected.what}",
                f"restore {path} from a copy of the store; versions before it can be read (table.to_arrow(version=…))",
            )
            return
    if expected.bytes is not None and size != expected.bytes:
        yield critical(
            "file",
            path,
            f"the file has {size:,} bytes and the log says {expected.bytes:,}: it was cut off or replaced",
            f"restore {path} from a copy of the store",
        )


def _referred_by(snapshot: Snapshot) -> tuple[dict[str, _Referred], list[Finding]]:
    """Files by their paths, and a finding for each part whose deletion vector has a path that can't be read."""
    referred: dict[str, _Referred] = {}
    for part in snapshot.tail_in_order():
        referred[part.path] = _Referred(f"a change part of version {part.version}", part.bytes)
    unreadable = [*_add(referred, snapshot.parts.values(), "a part of the base")]
    with suppress(Corrupt):  # ``state_findings`` reports such an entry
        for one in detached_of(snapshot).values():
            unreadable += _add(referred, one.parts, f"a part of the detached partition {one.name}")
    return referred, unreadable


def _add(referred: dict[str, _Referred], parts: Iterable[Part], what: str) -> Iterator[Finding]:
    for part in parts:
        if "://" in part.path:  # another table's file, where this storage can't look
            continue
        referred[part.path] = _Referred(what, part.bytes)
        try:
            vector = part.deletion_vector.file_path() if part.deletion_vector else None
        except Corrupt as error:
            yield critical(
                "vector",
                part.path,
                f"which of its rows are dead is not known: the log's reference to the deletion vector can't be read: {error}",
                "read an older version, and write a new table from it",
            )
            continue
        if vector is not None:
            referred[vector] = _Referred(f"the deletion vector of {part.path}")


def look_for_orphans(log: TableLog, storage: PartStorage, path: str) -> Iterator[Finding]:
    """Files that no version refers to and that running maintenance would have deleted by now.

    Raises Contention, StoreUnavailable.
    """
    try:
        found = cleanup.overdue(log, storage)
    except (Corrupt, Unsupported) as error:
        yield warning("orphan", "", str(error), f"lakebed show commits {path}")
        return
    for file in found:
        what = f"no version within retention needs the file, and maintenance would have deleted it by now: {file.bytes:,} bytes"
        yield warning(
            "orphan",
            file.path,
            what,
            f"lakebed maintain {path}, or lakebed clean --only remove-orphan-files --no-dry-run {path}",
        )
