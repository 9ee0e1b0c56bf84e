"""Which files the next batch reads, and the offset document of the query that says so. Knows no Spark.

1. Look into the folder. Files that the table has read, by its log, or that this process has planned, are known: only their names
   are looked at. Once a minute (``WHOLE_LOOK_SECONDS``), or less often, known files are asked for their states too.
2. A batch takes the unknown files, oldest first: by their times, then by their paths; no more than ``FILES_MAX`` and
   ``BYTES_MAX``, the limits of the source, and what a table that is behind may take. One file at least.
3. A file that comes later than others that are newer is read when it comes. So nothing waits, and a file that is dated in the
   future holds nothing back.
4. Files that were written again, and unknown ones that arrived before what the table has forgotten, are not read. A batch says
   so, once.

A look costs what it takes to list the names, so looks are paced: they take a share of the time (``LOOK_SHARE``) at most.

**The document**

    {"batch": 17, "files": [["day=1/a.json", 1790000000123456789, 4711, 1790000000130000000]], "changed": [[…]]}

1. ``files`` are in the order in which they are read: by their times, then by their paths. Each has its path, its time, its size
   and when it arrived (``folder.State``). A replay reads the same files in the same order.
2. ``changed``: files that are not read, and of which something is to be said: they were written again, or forgotten.
3. A document has the files of its own batch alone, and no more than ``FILES_MAX``. What was read before is in the table's log.

A document of Spark's own source of files, which lakebed used before, has no files: what its batch did not bring is planned again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakebed.positions.files_read import FileRead, FilesRead
from lakebed.sources.files.folder import Found, Looker, State
from lakebed.sources.files.settings import FilesSettings, Options
from lakebed.sources.source import BatchLimit, Range, RangePlanner

FILES_MAX = 10_000
_CHANGED_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles:
    """The files of a batch; ``number``: 1 for the first batch of a checkpoint."""

    number: int = 0
    files: tuple[Found, ...] = ()
    changed: tuple[Found, ...] = ()

    @staticmethod
    def of(document: Mapping[str, Any]) -> PlannedFiles:
        """The batch of an offset document; number 0 for ``{}``, and for a document of Spark's own source."""
        return PlannedFiles(
            number=document.get("batch", 0),
            files=tuple(_found(document.get("files", ()))),
            changed=tuple(_found(document.get("changed", ()))),
        )

    def document(self) -> dict[str, Any]:
        """The offset document."""
        document: dict[str, Any] = {"batch": self.number, "files": list(map(_listed, self.files))}
        return document | ({"changed": list(map(_listed, self.changed))} if self.changed else {})


def _found(listed: Iterable[Any]) -> Iterable[Found]:
    return (
        Found(path, State(modified_ns=modified, size=size, arrived_ns=arrived))
        for path, modified, size, arrived in listed
    )


def _listed(found: Found) -> list[Any]:
    return [found.path, found.state.modified_ns, found.state.size, found.state.arrived_ns]


def ranges_of(
    url: str, ordinal: int, state: State, cuts: Iterable[tuple[int, int]], record_bytes: int = 1
) -> list[Range]:
    """A file as ranges of its bytes: its URL is their topic, its place in the batch their partition."""
    version, micros = f"{state.modified_ns}:{state.size}:{state.arrived_ns}", state.modified_ns // 1000
    return [
        Range(url, ordinal, start, end, clock_micros=micros, topic_id=version, offsets_each=record_bytes)
        for start, end in cuts
    ]


def file_of(one: Range) -> FileRead:
    """The file that a range is of."""
    modified_ns, size, arrived_ns = map(int, str(one.topic_id).split(":"))
    return FileRead(url=one.topic, modified_ns=modified_ns, size=size, arrived_ns=arrived_ns)


BYTES_MAX = 2 << 30
"""Of the files of a batch. What a batch reads is visible when all of it is written."""
_RECORD_BYTES = 100
"""About so many bytes of a file are a record; what limits a batch counts records."""
WHOLE_LOOK_SECONDS = 60.0
LOOK_SHARE, WHOLE_LOOK_SHARE = 0.1, 0.02
"""Of the time, at most, that looks may take."""
STORE_LOOK_SECONDS = 2.0
"""A look into a store is a request for each thousand files, and costs money."""


def _place(found: Found) -> tuple[int, str]:
    """Where a file is in the order of files."""
    return found.state.modified_ns, found.path


class FilesPlanner(RangePlanner):
    """Plans which files each batch reads."""

    def __init__(self, settings: FilesSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = Options.of(settings)
        self._looker = Looker(settings)
        self._limit = BatchLimit(settings.table)
        self._clock = clock
        self._known: set[str] = set()  # paths that need no look, as far as they are there
        self._waiting: list[Found] = []  # to be read, in their order
        self._changed: list[Found] = []  # to be told of
        self._told: set[Found] = set()
        self._is_bounded = False
        self._next_look_at = self._next_whole_at = float("-inf")

    def only_what_is_there_now(self) -> None:
        """Plan the files that are there now, and from now on no others."""
        self._look()
        self._is_bounded = True

    def next(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """The document of the next batch; ``start`` itself if there is nothing to say. Raises StoreUnavailable, InvalidInput."""
        before = PlannedFiles.of(start)
        planned = {one.path for one in before.files}
        self._known |= planned
        self._waiting = [one for one in self._waiting if one.path not in planned]
        if not self._is_bounded and self._clock() >= self._next_look_at:
            self._look()
        chosen = self._within_limits(self._waiting)
        self._waiting = self._waiting[len(chosen) :]
        self.left_some = bool(self._waiting)
        chosen = sorted((now for one in chosen if (now := self._as_it_is(one)) is not None), key=_place)
        told, self._changed = self._changed[:_CHANGED_MAX], self._changed[_CHANGED_MAX:]
        if not chosen and not told:
            return dict(start)
        self._known.update(one.path for one in chosen)
        self._told.update(told)
        return PlannedFiles(number=before.number + 1, files=tuple(chosen), changed=tuple(told)).document()

    def _look(self) -> None:
        began = self._clock()
        is_whole = began >= self._next_whole_at
        there = list(self._looker.files(lambda path: is_whole or path not in self._known))
        if is_whole:
            self._known.intersection_update([one.path for one in there])
        unknown, self._changed = self._sorted_out(there, self._read())
        self._waiting = sorted(unknown, key=_place)
        now = self._clock()
        pause = 0.0 if self._looker.folder.is_quick else STORE_LOOK_SECONDS
        if is_whole:
            self._next_whole_at = now + max(WHOLE_LOOK_SECONDS, (now - began) / WHOLE_LOOK_SHARE)
        self._next_look_at = now + max(pause, (now - began) * (1 / LOOK_SHARE - 1))

    def _read(self) -> FilesRead:
        """What the table has read; nothing if that is not known now: it is compared again before a batch is committed."""
        snapshot = self._limit.snapshot()
        return FilesRead() if snapshot is None else FilesRead.of(snapshot)

    def _as_it_is(self, found: Found) -> Found | None:
        """A file that has waited, as it is now; None if it is gone, or empty. In a store nobody is asked again."""
        if not self._looker.folder.is_quick:
            return found
        try:
            state = self._looker.folder.state(found.path)
        except FileNotFoundError:
            return None
        return Found(found.path, state) if state.size else None

    def _sorted_out(self, there: Iterable[Found], read: FilesRead) -> tuple[list[Found], list[Found]]:
        """The files to read; and those of which something is to be said."""
        by_url = {self._looker.url(one.path): one for one in there}
        states = {
            url: FileRead(url, one.state.modified_ns, one.state.size, one.state.arrived_ns)
            for url, one in by_url.items()
        }
        known = read.places(list(by_url))
        changed = [by_url[one.url] for one in read.rewritten([states[url] for url in known])]
        unknown = []
        for url, one in by_url.items():
            if url in known or one.path in self._known:
                self._known.add(one.path)
            elif 0 < read.forgotten_ns >= one.state.arrived_ns:
                changed.append(one)
            else:
                unknown.append(one)
        return unknown, [one for one in changed if one not in self._told]

    def _within_limits(self, files: list[Found]) -> list[Found]:
        """The beginning of the files that a batch may take: one at least."""
        files_max = min(FILES_MAX, self._options.files_max or FILES_MAX)
        bytes_max = min(BYTES_MAX, self._options.bytes_max or BYTES_MAX)
        waiting = -(-sum(one.state.size for one in files) // _RECORD_BYTES)
        bytes_max = min(bytes_max, self._limit.limit(waiting) * _RECORD_BYTES)
        total = 0
        for at, one in enumerate(files[:files_max]):
            total += one.state.size
            if at and total > bytes_max:
                return files[:at]
        return files[:files_max]
