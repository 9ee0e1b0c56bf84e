"""Materialized parts: outputs of merges that are on a replica's local disk and not in the object store yet.

A folder holds the data files of each claim. It also holds a description, which is written last and in one step: the claim, its
sources as they were read, and the row provenance and checksum of each file. The table does not depend on the folder, because the
normal parts all still exist. So whatever can't be trusted is deleted.

``overlay`` puts materialized parts in place of the normal parts that they were made from. That is right at any version from the
one on that the merge read, as long as it has all these parts, with at least the dead rows that the merge left out; rows that died
since are mapped by provenance. Earlier versions may have columns that were dropped since, which the merge leaves out too. So the
planner can merge them further, and readers on the same host read few parts in place of many. The rows are the same.
"""

from __future__ import annotations

import base64
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
from pyroaring import BitMap64

from lakebed.errors import Corrupt, LakebedError
from lakebed.log.actions import Part
from lakebed.log.claims import Claim
from lakebed.log.commit_codec import add_from_json, add_to_json
from lakebed.log.deletion_vector import inline
from lakebed.log.snapshot import Snapshot
from lakebed.merge.kernel import MergedPart
from lakebed.merge.provenance import Provenance
from lakebed.parts.intact import checksum_of
from lakebed.storage.data_files import LocalPartStorage
from lakebed.storage.local_folders import entries_of, files_below, lock_folder, remove_unused, trouble

GRACE_SECONDS = 3600.0
REPLICATED = "replicated"
"""The folder of the parts that this host built from claims of others (``compaction.replicate``), beside those of replicas."""
_DESCRIPTION = "claim.json"
_logger = logging.getLogger("lakebed.volatile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Materialized:
    """What one claim was merged into. ``dead`` are the dead rows of each source when it was read, at ``version``.

    ``oldest_ms`` is when the first of the merges behind it was made: other readers have waited since then.
    """

    claim: Claim
    sources: tuple[Part, ...]
    dead: Mapping[str, BitMap64]
    parts: tuple[MergedPart, ...]
    folder: str
    made_ms: int
    oldest_ms: int
    version: int = 0

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    def local_path(self, part: MergedPart) -> str:
        """Where the part's file is."""
        return os.path.join(self.folder, part.path)

    def url(self, part: MergedPart) -> str:
        """The path of the part in an ``overlay``: no part of the log has it, and every storage can read it."""
        return "file://" + self.local_path(part)


class MaterializedFolder:
    """The materialized parts of one table on this host, in one folder a replica. Not safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        """``folder`` belongs to the replica that holds its lock (see ``replica_folder``); readers only load."""
        self.folder = folder

    def load(self) -> dict[str, Materialized]:
        """All whole descriptions, by claim. What can't be read is left out, with a warning."""
        found: dict[str, Materialized] = {}
        if not self.folder.is_dir():
            return found
        for entry in sorted(self.folder.iterdir()):
            try:
                description = (entry / _DESCRIPTION).read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                continue  # not finished, or no claim's folder
            try:
                one = _from_json(orjson.loads(description), str(entry))
            except (OSError, KeyError, ValueError, LakebedError) as error:
                _logger.warning("the materialized part in %s can't be used: %s", entry, error)
                continue
            found[one.claim.id] = one
        return found

    def storage_of(self, claim: Claim) -> LocalPartStorage:
        """Where the kernel writes the claim's files."""
        return LocalPartStorage(str(self.folder / claim.id))

    def keep(self, one: Materialized) -> None:
        """Write the description: from now on the part is materialized. Raises StoreUnavailable for a full disk."""
        try:
            for part in one.parts:
                Path(one.local_path(part) + ".rows").write_bytes(part.provenance.to_bytes())
            place = Path(one.folder) / _DESCRIPTION
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary = place.with_suffix(".tmp")
            temporary.write_bytes(orjson.dumps(_to_json(one)))
            os.replace(temporary, place)
        except OSError as error:
            raise trouble(error.errno, f"{one.folder} can't be written ({error})", one.folder) from error

    def drop(self, claim_id: str, grace_seconds: float = GRACE_SECONDS) -> None:
        """The part is no longer used: gone from ``load`` at once, its files after a while, for readers that have begun."""
        place = self.folder / claim_id
        (place / _DESCRIPTION).unlink(missing_ok=True)
        if grace_seconds <= 0:
            shutil.rmtree(place, ignore_errors=True)

    def sweep(self, in_use: Callable[[str], bool], grace_seconds: float = GRACE_SECONDS) -> None:
        """Delete folders without a description that are not in use, after ``grace_seconds``."""
        if not self.folder.is_dir():
            return
        for entry in self.folder.iterdir():
            if not entry.is_dir() or in_use(entry.name) or (entry / _DESCRIPTION).exists():
                continue
            try:
                if time.time() - entry.stat().st_mtime >= grace_seconds:
                    shutil.rmtree(entry, ignore_errors=True)
            except FileNotFoundError:
                continue

    def has_room(self, bytes_max: int, free_bytes_min: int) -> bool:
        """Whether all files here, used or not, are fewer bytes, and the disk has so many left. Raises StoreUnavailable."""
        try:
            return bytes_below(self.folder) < bytes_max and shutil.disk_usage(self.folder).free >= free_bytes_min
        except FileNotFoundError:
            return True  # the folder was removed meanwhile; the next look counts again
        except OSError as error:
            raise trouble(error.errno, f"{self.folder} can't be read ({error})", str(self.folder)) from error

    def verify(self, one: Materialized) -> None:
        """Raises Corrupt, naming the file, if a file of the part is not what was written."""
        for part in one.parts:
            path = one.local_path(part)
            try:
                whole = os.path.getsize(path) == part.bytes and checksum_of(path) == part.checksum
            except OSError as error:
                raise Corrupt(f"the materialized part {path} can't be read: {error}", path=str(path)) from error
            if not whole:
                raise Corrupt(
                    f"the materialized part {path} is not what was written; it is dropped, nothing is lost",
                    path=str(path),
                )


def replica_folder(base: Path) -> tuple[Path, str, int]:
    """A replica's folder below ``base``, its lasting name, and the open lock (keep it open while the replica lives)."""
    number = 0
    while True:
        folder = base / f"replica-{number}"
        lock = lock_folder(folder)
        if lock is None:
            number += 1
            continue
        remove_unused(base.parent)
        name = folder / "name"
        if not name.exists():
            name.write_text(str(uuid.uuid4()))
        return folder, name.read_text(), lock


def bytes_below(folder: Path) -> int:
    """The bytes of all files in a folder and in those below it. Raises OSError."""
    return sum(size for _, size in files_below(folder))


def replicas_on_this_host(base: Path) -> frozenset[str]:
    """The names of all replicas that have a folder below ``base``, whether they run or not."""
    names = set()
    for place in base.glob("replica-*/name"):
        with suppress(OSError):
            names.add(place.read_text())
    return frozenset(names)


def clear_ended(base: Path, claims: Collection[str]) -> dict[str, int]:
    """Delete what replicas on this host have of claims other than these, finished or not; returns the files, with their bytes.

    No reader begins with such a part any more, and the merge of such a claim can't be committed.
    """
    gone: dict[str, int] = {}
    for folder in _folders_of_claims(base):
        if folder.is_dir() and folder.name not in claims:
            (folder / _DESCRIPTION).unlink(missing_ok=True)
            gone |= files_below(folder)
            shutil.rmtree(folder, ignore_errors=True)
    return {path: size for path, size in gone.items() if not os.path.exists(path)}


def _folders_of_claims(base: Path) -> Iterator[Path]:
    """Folders of claims of all replicas, and what else is beside them; replicas make and remove some meanwhile."""
    for replica in entries_of(base):
        yield from entries_of(replica)


class LocalParts:
    """All materialized parts on this host: what a reader here may use. Safe to use from several threads."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self._known: dict[Path, tuple[int, Materialized]] = {}

    def load(self) -> list[Materialized]:
        """What is there now; descriptions that were read before are not read again."""
        found: dict[Path, tuple[int, Materialized]] = {}
        for folder in _folders_of_claims(self.base):
            description = folder / _DESCRIPTION
            try:
                changed = description.stat().st_mtime_ns
                earlier = self._known.get(description)
                if earlier is None or earlier[0] != changed:
                    earlier = changed, _from_json(orjson.loads(description.read_bytes()), str(description.parent))
                found[description] = earlier
            except (OSError, KeyError, ValueError, LakebedError):
                continue  # it left meanwhile, or its replica will drop it
        self._known = found
        return [one for _, one in found.values()]

    def give_up_damaged(self, files: Collection[str] | None = None) -> None:
        """Take those replicated parts from readers whose files are not what was written; they will be built again.

        ``files``: those to look at, by default all.
        Parts of replicas stay: a replica finds the damage itself, and has a claim to give back.
        """
        replicated = MaterializedFolder(self.base / REPLICATED)
        for one in replicated.load().values():
            try:
                if files is None or any(one.local_path(part) in files for part in one.parts):
                    replicated.verify(one)
            except Corrupt as error:
                _logger.warning("%s", error)
                replicated.drop(one.claim.id)


@dataclass(frozen=True, slots=True)
class Substitute:
    """A materialized part in place of its sources, and which of its rows are dead."""

    of: Materialized
    dead: BitMap64


def overlay(
    snapshot: Snapshot, materialized: Sequence[Materialized], dead_of: Callable[[Part], BitMap64]
) -> tuple[Snapshot, dict[str, Substitute]]:
    """The snapshot with materialized parts in place of their sources, and these by path.

    ``dead_of`` gives the dead rows of a part of the snapshot. A part of the result that is materialized has a ``file://``
    path. Those that don't fit the snapshot are left out.
    """
    parts = dict(snapshot.parts)
    substitutes: dict[str, Substitute] = {}
    for one in sorted(materialized, key=lambda one: -len(one.sources)):
        found = _dead_at(one, snapshot.version, parts, dead_of)
        if found is None:
            continue
        for source in one.sources:
            del parts[source.path]
        for part, dead in zip(one.parts, found, strict=True):
            substitutes[one.url(part)] = Substitute(one, dead)
            parts[one.url(part)] = _part(one, part, dead)
    return (replace(snapshot, parts=parts), substitutes) if substitutes else (snapshot, substitutes)


def _dead_at(
    one: Materialized, version: int, parts: Mapping[str, Part], dead_of: Callable[[Part], BitMap64]
) -> list[BitMap64] | None:
    """The dead rows of each materialized part; None if they can't replace parts of this version."""
    if version < one.version:
        return None  # it may have columns that were dropped before the merge
    out = [BitMap64(part.dead) for part in one.parts]
    for ordinal, source in enumerate(one.sources):
        now = parts.get(source.path)
        if now is None:
            return None
        dead_now = dead_of(now)
        if not one.dead[source.path].issubset(dead_now):
            return None  # it is restored: rows live again that the merge left out
        died = dead_now - one.dead[source.path]
        for part, dead in zip(one.parts, out, strict=True) if died else ():
            dead |= part.provenance.map_rows(ordinal, died)
    return out


def _part(one: Materialized, part: MergedPart, dead: BitMap64) -> Part:
    return Part(
        path=one.url(part),
        rows=part.rows,
        bytes=part.bytes,
        level=one.claim.level,
        min_block=min(source.min_block for source in one.sources),
        max_block=max(source.max_block for source in one.sources),
        sort_key_version=part.sort_key_version,
        deletes=part.deletes,
        has_op_column=part.has_op_column,
        partition_values=one.sources[0].partition_values,
        stats=part.stats,
        modified_ms=one.made_ms,
        deletes_ms=max((source.newest_delete_ms for source in one.sources if source.deletes), default=None),
        checksum=part.checksum,
        passes=part.passes,
    ).marked(inline(dead) if dead else None)


def _to_json(one: Materialized) -> dict[str, Any]:
    claim = one.claim
    return {
        "claim": {
            "id": claim.id,
            "replica": claim.replica,
            "sources": list(claim.sources),
            "level": claim.level,
            "lease_ms": claim.lease_ms,
            "since_ms": claim.since_ms,
            "volatile": claim.volatile,
        },
        "sources": [{"part": add_to_json(part), "dead": _text(one.dead[part.path])} for part in one.sources],
        "parts": [
            {
                "path": part.path,
                "rows": part.rows,
                "bytes": part.bytes,
                "stats": part.stats,
                "deletes": part.deletes,
                "has_op_column": part.has_op_column,
                "dead": _text(part.dead),
                "checksum": part.checksum,
                "sort_key_version": part.sort_key_version,
                "passes": part.passes,
            }
            for part in one.parts
        ],
        "made_ms": one.made_ms,
        "oldest_ms": one.oldest_ms,
        "version": one.version,
    }


def _from_json(value: Mapping[str, Any], folder: str) -> Materialized:
    claim = Claim(**{**value["claim"], "sources": tuple(value["claim"]["sources"])})
    sources = tuple(add_from_json(entry["part"]) for entry in value["sources"])
    dead = {part.path: _bitmap(entry["dead"]) for part, entry in zip(sources, value["sources"], strict=True)}
    parts = tuple(
        MergedPart(
            path=entry["path"],
            rows=entry["rows"],
            bytes=entry["bytes"],
            stats=entry["stats"],
            deletes=entry["deletes"],
            has_op_column=entry["has_op_column"],
            dead=_bitmap(entry["dead"]),
            provenance=Provenance.from_bytes(Path(folder, entry["path"] + ".rows").read_bytes()),
            sort_key_version=entry["sort_key_version"],
            checksum=entry["checksum"],
            passes=entry.get("passes", 0),
        )
        for entry in value["parts"]
    )
    return Materialized(
        claim=claim,
        sources=sources,
        dead=dead,
        parts=parts,
        folder=folder,
        made_ms=value["made_ms"],
        oldest_ms=value["oldest_ms"],
        version=value.get("version", 0),
    )


def _text(rows: BitMap64) -> str:
    return base64.b64encode(rows.serialize()).decode()


def _bitmap(text: str) -> BitMap64:
    return BitMap64.deserialize(base64.b64decode(text))
