"""Logs of many tables, kept open in a process, within so many bytes of memory together.

A log that was not used for the longest time is let go first. Whoever holds it goes on with it; the next one who opens the table
reads it again from its checkpoint. The log that was opened last stays, however large it is.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain, islice

from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog

_LOG_BYTES = 20_000
_PART_BYTES = 600
_STATISTICS_SHARE = 2  # the text, and what is parsed of it
_SAMPLED = 16


def _open(root: str) -> TableLog:
    return TableLog(open_store(root))


@dataclass(slots=True)
class _Kept:
    log: TableLog
    version: int = -2
    bytes: int = _LOG_BYTES


class LogCache:
    """Logs by the root of their table. Safe to use from several threads."""

    def __init__(self, bytes_max: int, open_log: Callable[[str], TableLog] = _open) -> None:
        """``open_log`` makes the log of a root; it reads nothing."""
        self._bytes_max = bytes_max
        self._open_log = open_log
        self._kept: OrderedDict[str, _Kept] = OrderedDict()  # the one used last is last
        self._bytes = 0
        self._lock = threading.Lock()  # of what is kept; nothing is read under it

    @property
    def bytes(self) -> int:
        """An estimate of the memory that the logs need, as of when each was opened last."""
        return self._bytes

    def __len__(self) -> int:
        return len(self._kept)

    def open(self, root: str) -> TableLog:
        """The log at a root; nothing is read yet, and the table need not exist."""
        made = None if root in self._kept else self._open_log(root)
        with self._lock:
            kept = self._kept.get(root)
            if kept is None:
                kept = self._kept[root] = _Kept(made or self._open_log(root))
                self._bytes += kept.bytes
            self._kept.move_to_end(root)
            newest = kept.log.newest
            if newest is not None and newest.version != kept.version:
                self._bytes -= kept.bytes
                kept.version, kept.bytes = newest.version, memory_of(newest)
                self._bytes += kept.bytes
            while self._bytes > self._bytes_max and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1].bytes
            return kept.log

    def forget(self, root: str) -> None:
        """Let a log go, for example of a table that is gone."""
        with self._lock:
            if (kept := self._kept.pop(root, None)) is not None:
                self._bytes -= kept.bytes


def memory_of(snapshot: Snapshot) -> int:
    """About how many bytes of memory a snapshot needs, with what is parsed of its statistics. It looks at a few parts only."""
    parts = len(snapshot.parts) + len(snapshot.tail)
    part_stats = (part.stats for part in snapshot.parts.values())
    sampled = list(islice(chain(part_stats, (part.stats for part in snapshot.tail.values())), _SAMPLED))
    text = sum(len(each or "") for each in sampled) / max(1, len(sampled))
    others = len(snapshot.removed) + len(snapshot.domains) + len(snapshot.transactions)
    return _LOG_BYTES + int(parts * (_PART_BYTES + _STATISTICS_SHARE * text)) + others * _PART_BYTES
