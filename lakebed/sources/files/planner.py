"""Which files the next batch reads. Knows no Spark.

1. Look into the folder. Files that the table has read, by its log, or that this process has planned, are known: only their names
   are looked at. Once a minute (``WHOLE_LOOK_SECONDS``), or less often, known files are asked for their states too.
2. A batch takes the unknown files, oldest first: by their times, then by their paths; no more than ``FILES_MAX`` and
   ``BYTES_MAX``, the limits of the source, and what a table that is behind may take. One file at least.
3. A file that comes later than others that are newer is read when it comes. So nothing waits, and a file that is dated in the
   future holds nothing back.
4. Files that were written again, and unknown ones that arrived before what the table has forgotten, are not read. A batch says
   so, once.

A look costs what it takes to list the names, so looks are paced: they take a share of the time (``LOOK_SHARE``) at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lakebed.positions.files_read import FileRead, FilesRead
from lakebed.sources.batch_limit import BatchLimit
from lakebed.sources.files.look import Found, Looker
from lakebed.sources.files.planned import CHANGED_MAX, FILES_MAX, PlannedFiles
from lakebed.sources.files.settings import FilesSettings, Options

BYTES_MAX = 2 << 30
"""Of the files of a batch. What a batch reads is visible when all of it is written."""
RECORD_BYTES = 100
"""About so many bytes of a file are a record; what limits a batch counts records."""
WHOLE_LOOK_SECONDS = 60.0
LOOK_SHARE, WHOLE_LOOK_SHARE = 0.1, 0.02
"""Of the time, at most, that looks may take."""
STORE_LOOK_SECONDS = 2.0
"""A look into a store is a request for each thousand files, and costs money."""


def _place(found: Found) -> tuple[int, str]:
    """Where a file is in the order of files."""
    return found.state.modified_ns, found.path


class FilesPlanner:
    """Plans the batches of one pipeline. One thread at a time."""

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

    @property
    def left_some(self) -> bool:
        """Whether there are files that the batches so far do not read."""
        return bool(self._waiting)

    @property
    def wait_seconds(self) -> float:
        """How long until a batch may be planned, since looks take their share of the time only; 0 or less if it may be now."""
        return 0.0 if self._waiting else self._next_look_at - self._clock()

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
        chosen = sorted((now for one in chosen if (now := self._as_it_is(one)) is not None), key=_place)
        told, self._changed = self._changed[:CHANGED_MAX], self._changed[CHANGED_MAX:]
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
        waiting = -(-sum(one.state.size for one in files) // RECORD_BYTES)
        bytes_max = min(bytes_max, self._limit.limit(waiting) * RECORD_BYTES)
        total = 0
        for at, one in enumerate(files[:files_max]):
            total += one.state.size
            if at and total > bytes_max:
                return files[:at]
        return files[:files_max]
