"""Rebuilds a key index in a thread of its own, after the type of a key changed so that its words are others.

1. Look-ups meanwhile read the parts (``locate.ScanLocator``). They are as right as ever, and slower.
2. The thread reads the base in pieces of some million rows, and reports each (``events.KeyIndexRebuilt``). Between two pieces the
   index is free, and what it has stays on disk: a process that starts again goes on from there.
3. When it ends, the next look-up adds what joined the base since. A part that is gone by the time it is read ends the thread; the
   next look-up starts it again with the base of that time.

A small base is not worth a thread: its index is built by the look-up that needs it, as for a new table.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping

import duckdb
import pyarrow as pa

from lakebed import events
from lakebed.errors import LakebedError
from lakebed.failures import Outage
from lakebed.keyindex.key_index import KeyIndex
from lakebed.log.actions import Part

AT_ONCE_ROWS = 500_000
PIECE_ROWS = 4_000_000
_logger = logging.getLogger("lakebed.keyindex")

ReadKeys = Callable[[Part], Iterator[pa.RecordBatch]]


class IndexRebuild:
    """The building of one index. Safe to use from several threads."""

    def __init__(self, index: KeyIndex, table: str) -> None:
        """``table``: its root, for events."""
        self._index = index
        self._table = table
        self._outage = Outage(f"building the key index of {table}", _logger)
        self._lock = threading.Lock()  # guards _thread
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._done = False

    def covers(self, base: Mapping[str, Part], read_keys: ReadKeys) -> bool:
        """Whether the index can be asked about ``base`` now. If not, it is being built, and ``read_keys`` reads a part for it."""
        if self._done or self._index.abandoned:
            return True
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return False
            if sum(max(part.rows, 0) for path, part in base.items() if path not in self._index.parts) <= AT_ONCE_ROWS:
                self._done = True
                return True
            self._thread = threading.Thread(
                target=self._build, args=(dict(base), read_keys), name="lakebed-key-index", daemon=True
            )
            self._thread.start()
        return False

    @property
    def is_running(self) -> bool:
        thread = self._thread
        return thread is not None and thread.is_alive()

    def stop(self) -> None:
        """End the thread after the batch that it reads, and wait for it."""
        self._stopped = True
        thread = self._thread
        if thread is not None:
            thread.join()

    def _build(self, base: Mapping[str, Part], read_keys: ReadKeys) -> None:
        started = time.perf_counter()
        self._report(base, started)

        def read(path: str) -> Iterator[pa.RecordBatch]:
            for batch in read_keys(base[path]):
                if self._stopped:
                    raise _Stopped
                yield batch

        try:
            for piece in _pieces([part for path, part in base.items() if path not in self._index.parts]):
                if self._index.sync(self._index.parts | piece, read) is None:
                    return
                self._report(base, started)
            self._done = True
            self._outage.works()
        except _Stopped:
            pass
        except (LakebedError, duckdb.Error) as error:
            self._outage.failed(error)

    def _report(self, base: Mapping[str, Part], started: float) -> None:
        have = self._index.parts
        events.emit(
            events.KeyIndexRebuilt(
                table=self._table,
                parts=len(base),
                parts_left=sum(path not in have for path in base),
                rows=sum(part.rows for part in base.values()),
                rows_left=sum(part.rows for path, part in base.items() if path not in have),
                seconds=time.perf_counter() - started,
            )
        )


class _Stopped(Exception):
    """The process closes the index."""


def _pieces(parts: list[Part]) -> Iterator[frozenset[str]]:
    piece: set[str] = set()
    rows = 0
    for part in parts:
        piece.add(part.path)
        rows += max(part.rows, 0)
        if rows >= PIECE_ROWS:
            yield frozenset(piece)
            piece, rows = set(), 0
    if piece:
        yield frozenset(piece)
