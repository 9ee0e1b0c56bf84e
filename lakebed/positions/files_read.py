"""Which files of folders a table has read. They are in its log, in the commits that bring them.

    lakebed.files.<number>   {"digests": …, "states": …, "newest_ns": …, "arrived_ns": …, "forgotten_ns": …}

1. A file has no offset, so the log keeps a digest of 8 bytes of each path, and 4 bytes of its state: its time and size. A commit
   adds its files to the newest entry, or begins the next one when that is full.
2. Two commits that were planned on the same entries set the same one, so they conflict. So a file is in the table once, whoever
   reads it.
3. The newest ``FILES_MAX`` files are kept; those before them are forgotten, entry by entry. ``forgotten_ns`` says up to when they
   had arrived: an unknown file that arrived before that may have been read, and is not read again.
4. A file whose state is another one than when it was read was written again. It is not read again; its new state is noted, so
   that this is told once.

Entries from before states were kept have only digests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np
import orjson

from lakebed.log.actions import Action, Domain
from lakebed.log.entries import FILES
from lakebed.log.entry_values import checked, document_of, reading
from lakebed.log.snapshot import Snapshot

FILES_MAX = 500_000
_ENTRY_FILES = 256
_DIGEST_BYTES, _STATE_BYTES = 8, 4
_LONG_AGO = -(2**63)
_UNKNOWN = 0
"""The state of a file that was read before states were kept."""


@dataclass(frozen=True, slots=True)
class FileRead:
    """A file that a batch reads. ``url``: as in ``sources.files.settings``; the rest as in ``files.folder.State``."""

    url: str
    modified_ns: int
    size: int
    arrived_ns: int

    @property
    def state(self) -> int:
        text = f"{self.modified_ns // 1_000_000}:{self.size}".encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=_STATE_BYTES).digest(), "little") or 1

    @property
    def time_ns(self) -> int:
        """The time of the file, but no later than when it arrived: a time in the future says nothing of others."""
        return min(self.modified_ns, self.arrived_ns)


def same_path(path: str) -> str:
    """A path in the one spelling of the several that Spark has for a local file."""
    return "file:/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the log; ``newest_ns`` and ``arrived_ns`` are the greatest of its files."""

    digests: bytes = b""
    states: bytes = b""
    newest_ns: int = 0
    arrived_ns: int = 0
    forgotten_ns: int = 0

    def __len__(self) -> int:
        return len(self.digests) // _DIGEST_BYTES

    def plus(self, files: Sequence[FileRead]) -> Entry:
        """With more files."""
        return Entry(
            digests=self.digests + b"".join(_digest(one.url) for one in files),
            states=self.states + b"".join(one.state.to_bytes(_STATE_BYTES, "little") for one in files),
            newest_ns=max([one.time_ns for one in files] + ([self.newest_ns] if self.digests else [])),
            arrived_ns=max([self.arrived_ns, *(one.arrived_ns for one in files)]),
            forgotten_ns=self.forgotten_ns,
        )

    def with_states(self, states: Mapping[int, int]) -> Entry:
        """With other states, by the place of their files."""
        all_states = np.frombuffer(self.states, "<u4").copy()
        for place, state in states.items():
            all_states[place] = state
        return replace(self, states=all_states.tobytes())

    def to_domain(self, number: int) -> Domain:
        document = {
            "digests": base64.b64encode(self.digests).decode(),
            "states": base64.b64encode(self.states).decode(),
            "newest_ns": self.newest_ns,
            "arrived_ns": self.arrived_ns,
            "forgotten_ns": self.forgotten_ns,
        }
        return Domain(f"{FILES}{number}", orjson.dumps(document).decode())


@lru_cache(maxsize=4096)
def files_in(domain: str, text: str) -> tuple[int, Entry]:
    """The number of an entry of the log, and what it has. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        digests = base64.b64decode(checked(str, document["digests"], "digests"), validate=True)
        states = base64.b64decode(checked(str, document.get("states", ""), "states"), validate=True)
        if not states:
            states = bytes(len(digests) // _DIGEST_BYTES * _STATE_BYTES)
        if len(digests) % _DIGEST_BYTES or len(digests) // _DIGEST_BYTES != len(states) / _STATE_BYTES:
            raise ValueError(f"it has {len(digests)} bytes of digests and {len(states)} of states")
        times = {
            name: checked(int, document.get(name, 0), name) for name in ("newest_ns", "arrived_ns", "forgotten_ns")
        }
        return int(domain.removeprefix(FILES)), Entry(digests=digests, states=states, **times)


@dataclass(frozen=True, slots=True)
class FilesRead:
    """The files that a table has read, by the number of their entry."""

    entries: Mapping[int, Entry] = field(default_factory=dict)

    @staticmethod
    def of(snapshot: Snapshot) -> FilesRead:
        """Those of a version of the table. Raises Corrupt."""
        found = [files_in(domain, text) for domain, text in snapshot.domains.items() if domain.startswith(FILES)]
        return FilesRead(dict(sorted(found)))

    @property
    def newest_ns(self) -> int:
        """The time of the newest file that was read; far before every other if none was."""
        return max((entry.newest_ns for entry in self.entries.values()), default=_LONG_AGO)

    @property
    def forgotten_ns(self) -> int:
        """Files that arrived up to then may have been read and forgotten; 0 if none was forgotten."""
        return max((entry.forgotten_ns for entry in self.entries.values()), default=0)

    def places(self, urls: Sequence[str]) -> dict[str, tuple[int, int]]:
        """Of the files that were read and are still known: the number of the entry, and the place in it."""
        wanted = np.frombuffer(b"".join(map(_digest, urls)), "<u8")
        numbers, entries = list(self.entries), list(self.entries.values())
        if not len(wanted) or not entries:
            return {}
        known = np.frombuffer(b"".join(entry.digests for entry in entries), "<u8")
        in_order = np.unique(wanted)
        at = np.minimum(np.searchsorted(in_order, known), len(in_order) - 1)
        hits = np.flatnonzero(in_order[at] == known)
        firsts = np.cumsum([0, *map(len, entries)])
        of_entry = np.searchsorted(firsts, hits, side="right") - 1
        found = {
            int(known[hit]): (numbers[entry], int(hit - firsts[entry]))
            for hit, entry in zip(hits, of_entry, strict=True)
        }
        both = zip(urls, wanted.tolist(), strict=True)
        return {url: found[digest] for url, digest in both if digest in found}

    def without(self, urls: Sequence[str]) -> list[str]:
        """Those that the table has not read, as far as it remembers."""
        known = self.places(urls)
        return [url for url in urls if url not in known]

    def rewritten(self, files: Sequence[FileRead]) -> list[FileRead]:
        """Those that were read in another state."""
        places = self.places([one.url for one in files])
        return [
            one for one in files if one.url in places and self._state(*places[one.url]) not in (_UNKNOWN, one.state)
        ]

    def _state(self, number: int, place: int) -> int:
        return int(np.frombuffer(self.entries[number].states, "<u4")[place])

    def plus(self, files: Sequence[FileRead], rewritten: Sequence[FileRead] = ()) -> ReadFiles:
        """What a commit does that brings these files, and notes the new states of others."""
        changed: dict[int, Entry] = {}
        places = self.places([one.url for one in rewritten])
        for one in rewritten:
            if one.url in places:
                number, place = places[one.url]
                changed[number] = changed.get(number, self.entries[number]).with_states({place: one.state})
        gone: list[int] = []
        if files:
            number = max(self.entries, default=1)
            entry = changed.get(number) or self.entries.get(number, Entry())
            if len(entry) >= _ENTRY_FILES:
                number, entry = number + 1, Entry()
            total, forgotten_ns = len(entry) + len(files), self.forgotten_ns
            for older in sorted(self.entries, reverse=True):
                if older != number:
                    total += len(self.entries[older])
                    if total > FILES_MAX:
                        gone.append(older)
                        forgotten_ns = max(forgotten_ns, self.entries[older].arrived_ns)
            changed[number] = replace(entry.plus(files), forgotten_ns=forgotten_ns)
        kept = {number: entry for number, entry in changed.items() if number not in gone}
        return ReadFiles(self, len(files), kept, tuple(gone))


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """The entries that a commit sets and removes, which ``brings`` so many files. ``before``: what the table had read when it was
    planned."""

    before: FilesRead
    brings: int
    entries: Mapping[int, Entry]
    forgotten: tuple[int, ...]

    @property
    def domains(self) -> frozenset[str]:
        """The entries that the commit sets."""
        return frozenset(f"{FILES}{number}" for number in self.entries)

    def is_current(self, snapshot: Snapshot) -> bool:
        """Whether nobody has read files since."""
        return FilesRead.of(snapshot) == self.before

    def actions(self) -> list[Action]:
        """The actions that set the entries."""
        gone: list[Action] = [Domain(f"{FILES}{number}", "", removed=True) for number in self.forgotten]
        return [*(entry.to_domain(number) for number, entry in self.entries.items()), *gone]


def _digest(url: str) -> bytes:
    return hashlib.blake2b(same_path(url).encode(), digest_size=_DIGEST_BYTES).digest()
