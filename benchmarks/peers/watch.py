"""What a process tree wrote and used, seen from outside: bytes by inotify, CPU seconds from /proc.

Bytes: every file that is closed after writing, linked or moved into the folder, or found in a new folder counts its size once
(by inode, size and time), also if it is gone a moment later: what an object store would be asked to put. Renames cost nothing.
Checksums that Hadoop's local file system keeps beside its files (``.*.crc``) don't count, since no object store sees them.
A file that is gone within some milliseconds, before it could be looked at, is missed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from inotify_simple import INotify, flags  # type: ignore[import-untyped]

_FLAGS = flags.CREATE | flags.OPEN | flags.CLOSE_WRITE | flags.MOVED_TO
_METADATA = frozenset({"_delta_log", "metadata", ".hoodie", "manifest", "snapshot", "schema"})
_QUIET_SECONDS = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes since the watch began."""

    data: int = 0
    metadata: int = 0

    def __sub__(self, other: Written) -> Written:
        return Written(self.data - other.data, self.metadata - other.metadata)

    @property
    def bytes(self) -> int:
        return self.data + self.metadata


class EventsLost(Exception):
    """The kernel's queue ran over; from then on every look raises this."""


class FolderWatch:
    """Counts the bytes that come into a folder. ``look`` must be called now and then: the kernel's queue is finite."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._notify = INotify()
        self._paths: dict[int, Path] = {}
        self._counted: set[tuple[int, int, int]] = set()
        self._lost = False
        self._linked: set[Path] = set()
        self._found: set[Path] = set()
        self._written = Written()
        self._add(folder)
        self._found.clear()

    def look(self) -> Written:
        """Read what happened until now; bytes since the watch began. Raises EventsLost."""
        while events := self._notify.read(timeout=0):
            for event in events:
                self._lost |= bool(event.mask & flags.Q_OVERFLOW)
                if event.wd in self._paths:
                    self._happened(event.mask, self._paths[event.wd] / event.name)
        if self._lost:
            raise EventsLost(f"too many files came into {self._folder} at once: what was written is not known")
        for path in self._linked:  # made, but never opened: hard links of finished files
            self._count(path)
        self._linked.clear()
        for path in list(self._found):  # closed before their folder was watched, or still being written
            if self._quiet(path):
                self._count(path)
        return self._written

    def _happened(self, mask: int, path: Path) -> None:
        if mask & flags.ISDIR:
            if mask & (flags.CREATE | flags.MOVED_TO):
                self._add(path)
        elif mask & (flags.CLOSE_WRITE | flags.MOVED_TO):
            self._count(path)
        elif mask & flags.CREATE:
            self._linked.add(path)
        elif mask & flags.OPEN:
            self._linked.discard(path)

    def close(self) -> None:
        self._notify.close()

    def _add(self, folder: Path) -> None:
        try:
            self._paths[self._notify.add_watch(str(folder), _FLAGS)] = folder
            entries = list(os.scandir(folder))
        except OSError:
            return  # gone already
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                self._add(Path(entry.path))
            else:
                self._found.add(Path(entry.path))

    def _quiet(self, path: Path) -> bool:
        try:
            return time.time() - path.stat().st_mtime > _QUIET_SECONDS
        except OSError:
            return True  # gone: nothing left to count

    def _count(self, path: Path) -> None:
        self._found.discard(path)
        try:
            status = path.stat()
        except OSError:
            return
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen in self._counted or _is_checksum(path):
            return
        self._counted.add(seen)
        below = path.relative_to(self._folder).parts[:-1]
        if _METADATA.intersection(below):
            self._written = Written(self._written.data, self._written.metadata + status.st_size)
        else:
            self._written = Written(self._written.data + status.st_size, self._written.metadata)


def cpu_seconds(root: int) -> float:
    """User and system time of a process, its descendants, and those of them that have ended."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                fields = Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry)] = int(fields[1])
            ticks[int(entry)] = sum(int(field) for field in fields[11:15])
    total = 0
    for process in parents:
        ancestor: int | None = process
        while ancestor is not None and ancestor != root:
            ancestor = parents.get(ancestor)
        total += ticks[process] if ancestor == root else 0
    return total / _TICKS


def _is_checksum(path: Path) -> bool:
    return path.name.startswith(".") and path.name.endswith(".crc")


def stored(folder: Path) -> tuple[int, int]:
    """Files and bytes in a folder now, checksums left out."""
    sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file() and not _is_checksum(p)]
    return len(sizes), sum(sizes)
