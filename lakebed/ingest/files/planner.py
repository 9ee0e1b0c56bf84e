"""Which files the next batch reads. Knows no Spark.

1. Look into the folder. Files that the table has read, by its log, or that this process has planned, are known: only their names
   are looked at. Once a minute (``WHOLE_LOOK_SECONDS``) known files are asked for their states too.
2. A batch takes the unknown files, oldest first: by their times, then by their paths; no more than ``FILES_MAX`` and
   ``BYTES_MAX``, the limits of the source, and what a table that is behind may take. One file at least.
3. A file that comes later than others that are newer is read when it comes. So nothing waits, and a file that is dated in the
   future holds nothing back.
4. Files that were written again, and unknown ones that arrived before what the table has forgotten, are not read. A batch says
   so, once.

A look costs what it takes to list the names, so looks are paced: they take a tenth of the time at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lakebed.ingest.batch_limit import BatchLimit
from lakebed.ingest.files.look import Found, Looker
from lakebed.ingest.files.planned import CHANGED_MAX, FILES_MAX, PlannedFiles
from lakebed.ingest.files.settings import FilesSettings, Options
from lakebed.ingest.files_read import FileRead, FilesRead

BYTES_MAX = 2 << 30
"""Of the files of a batch. What a batch reads is visible when all of it is written."""
RECORD_BYTES = 100
"""About so many bytes of a file are a record; what limits a batch counts records."""
WHOLE_LOOK_SECONDS = 60.0
LOOK_SHARE = 0.1
STORE_LOOK_SECONDS = 2.0
"""A look into a store is a request for each thousand files, and costs money."""


class FilesPlanner:
    """Plans the batches of one pipeline. One thread at a time."""

    def __init__(self, settings: FilesSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = Options.of(settings)
        self._looker = Looker(settings)
        self._limit = BatchLimit(settings.table)
        self._clock = clock
        self._known: set[str] = set()
        self._told: set[Found] = set()
        self._only: list[Found] | None = None
        self._whole_at = float("-inf")
        self._next_look_at = float("-inf")
        self.left_some = False

    @property
    def wait_seconds(self) -> float:
        """How long until the next look, so that looks take no more than their share; 0 or less if it may be now."""
        return self._next_look_at - self._clock()

    def only_what_is_there_now(self) -> None:
        """From now on plan the files that are there now, and no others."""
        self._only = list(self._looker.files())

    def next(self, start: Mapping[str, Any]) -> dict[str, Any]:
        """The document of the next batch; ``start`` itself if there is nothing to say. Raises StoreUnavailable, InvalidInput."""
        before = PlannedFiles.of(start)
        self._known.update(one.path for one in before.files)
        read = self._read()
        is_whole = self._only is not None or self._clock() - self._whole_at >= WHOLE_LOOK_SECONDS
        began = self._clock()
        there = self._look(is_whole)
        self._pace(began, is_whole)
        unknown, changed = self._sorted_out(there, read)
        chosen = self._within_limits(sorted(unknown, key=lambda one: (one.state.modified_ns, one.path)))
        self.left_some = len(chosen) < len(unknown)
        if not chosen and not changed:
            return dict(start)
        self._known.update(one.path for one in chosen)
        told = changed[:CHANGED_MAX]
        self._told.update(told)
        return PlannedFiles(number=before.number + 1, files=tuple(chosen), changed=tuple(told)).document()

    def _read(self) -> FilesRead:
        """What the table has read; nothing if that is not known now: it is compared again before a batch is committed."""
        snapshot = self._limit.snapshot()
        return FilesRead() if snapshot is None else FilesRead.of(snapshot)

    def _look(self, is_whole: bool) -> list[Found]:
        """The files to be looked at, all of them with their states."""
        if self._only is not None:
            return [one for one in self._only if one.path not in self._known]
        if not is_whole:
            return list(self._looker.files(lambda path: path not in self._known))
        there = list(self._looker.files())
        self._known.intersection_update([one.path for one in there])
        self._whole_at = self._clock()
        return there

    def _pace(self, began: float, is_whole: bool) -> None:
        now = self._clock()
        pause = 0.0 if self._looker.folder.is_quick else STORE_LOOK_SECONDS
        self._next_look_at = now + max(pause, (now - began) * (1 / LOOK_SHARE - 1))

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
