"""Which files of folders a table has read. They are in its log, in the commits that bring them.

A file has no offset, so the log keeps a digest of 8 bytes of each path, in entries ``lakebed.files.<number>``. A commit adds its
files to the newest entry, or begins the next one when that is full. Two commits that were planned on the same entries set the
same one, so they conflict. The newest ``FILES_MAX`` files are kept; files before them are forgotten, entry by entry.

Which files a batch reads, Spark has written into the checkpoint of the query (``sources/0``) before the batch runs.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from lakebed.errors import Unexpected
from lakebed.ingest.offset_documents import Document
from lakebed.manifest.actions import Action, Domain
from lakebed.manifest.entries import FILES
from lakebed.manifest.entry_values import checked, document_of, reading
from lakebed.manifest.snapshot import Snapshot

FILES_MAX = 500_000
_ENTRY_FILES = 256
_DIGEST_BYTES = 8
_VERSION = "v1"


def same_path(path: str) -> str:
    """A path in the one spelling of the several that Spark has for a local file."""
    return "file:/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


def files_of_batch(start: Document, end: Document, read: Callable[[str], str]) -> list[str]:
    """The files that a batch reads between two offset documents of Spark's file source.

    ``read`` returns the text of a file of the checkpoint. Raises Unexpected if it has not what Spark writes.
    """
    found: dict[str, None] = {}
    for number in range(int(start.get("logOffset", -1)) + 1, int(end["logOffset"]) + 1):
        for entry in _log_of(number, read):
            if entry.get("batchId") == number:
                found[same_path(entry["path"])] = None
    return list(found)


def _log_of(number: int, read: Callable[[str], str]) -> list[dict[str, Any]]:
    why = ""
    for name in (f"sources/0/{number}", f"sources/0/{number}.compact"):
        try:
            version, *lines = read(name).splitlines()
            if version == _VERSION:
                return [json.loads(line) for line in lines]
            why = f"{name} is of version {version}"
        except Exception as error:  # Hadoop's, for a file that is not there
            why = why or f"{name}: {error}"
    raise Unexpected(f"the checkpoint does not say which files a batch reads: {why}")


def of_files(paths: pa.ChunkedArray | pa.Array, chosen: Collection[str]) -> pa.Array:
    """For each row whether it is of one of these files; ``paths``: the path of its file as Spark spells it."""
    spelled = [path for path in paths.unique().to_pylist() if path is not None and same_path(path) in chosen]
    return pc.is_in(paths, value_set=pa.array(spelled, pa.string()))


def files_in(domain: str, text: str) -> tuple[int, bytes]:
    """The number of an entry of the log, and the digests that it has. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        digests = base64.b64decode(checked(str, document["digests"], "digests"), validate=True)
        return int(domain.removeprefix(FILES)), digests


@dataclass(frozen=True, slots=True)
class FilesRead:
    """The digests of the files that a table has read, by the number of their entry."""

    entries: dict[int, bytes]

    @staticmethod
    def of(snapshot: Snapshot) -> FilesRead:
        """Those of a version of the table. Raises Corrupt."""
        found = [files_in(domain, text) for domain, text in snapshot.domains.items() if domain.startswith(FILES)]
        return FilesRead(dict(sorted(found)))

    def without(self, paths: Iterable[str]) -> list[str]:
        """The paths that the table has not read."""
        known = {
            digests[at : at + _DIGEST_BYTES]
            for digests in self.entries.values()
            for at in range(0, len(digests), _DIGEST_BYTES)
        }
        return [path for path in paths if _digest(path) not in known]

    def plus(self, paths: Sequence[str]) -> ReadFiles:
        """What a commit does that brings these files."""
        number = max(self.entries, default=1)
        kept = self.entries.get(number, b"")
        if len(kept) >= _ENTRY_FILES * _DIGEST_BYTES:
            number, kept = number + 1, b""
        digests = kept + b"".join(map(_digest, paths))
        total, forgotten = len(digests), list[int]()
        for older in sorted(self.entries, reverse=True):
            if older != number:
                total += len(self.entries[older])
                if total > FILES_MAX * _DIGEST_BYTES:
                    forgotten.append(older)
        return ReadFiles(self, len(paths), number, digests, tuple(forgotten))


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """The entries of a commit that ``brings`` so many files. ``before``: what the table had read when it was planned."""

    before: FilesRead
    brings: int
    number: int
    digests: bytes
    forgotten: tuple[int, ...]

    @property
    def domains(self) -> frozenset[str]:
        """The entries that the commit sets."""
        return frozenset([f"{FILES}{self.number}"])

    def is_current(self, snapshot: Snapshot) -> bool:
        """Whether nobody has read files since."""
        return FilesRead.of(snapshot) == self.before

    def actions(self) -> list[Action]:
        """The actions that set the entries."""
        text = orjson.dumps({"digests": base64.b64encode(self.digests).decode()}).decode()
        gone = [Domain(f"{FILES}{number}", "", removed=True) for number in self.forgotten]
        return [Domain(f"{FILES}{self.number}", text), *gone]


def _digest(path: str) -> bytes:
    return hashlib.blake2b(same_path(path).encode(), digest_size=_DIGEST_BYTES).digest()
