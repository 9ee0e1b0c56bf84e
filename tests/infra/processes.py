"""What the system tells of processes (Linux): which run, which began which, what they have used."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process runs (one that ended but was not waited for does not)."""
    try:
        return _status_fields(pid)[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def descendants(pid: int) -> list[int]:
    """The processes started by a process, by those, and so on (Linux)."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            children.setdefault(int(_status_fields(int(entry.name))[1]), []).append(int(entry.name))
        except (OSError, IndexError):
            continue
    found: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def processor_seconds(pid: int) -> float:
    """The time that a process, its descendants, and those of them that have ended used of the processors."""
    ticks = 0
    for each in (pid, *descendants(pid)):
        with suppress(OSError, IndexError):
            ticks += sum(map(int, _status_fields(each)[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _status_fields(pid: int) -> list[str]:
    """State, parent and what follows them in ``/proc/<pid>/stat``; the program's name before them may hold anything."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def started_at(pid: int) -> str | None:
    """When a process began, in ticks since boot: with its pid, this names it for good."""
    try:
        return _status_fields(pid)[19]
    except (OSError, IndexError):
        return None


def signal_one(pid: int, how: signal.Signals) -> None:
    """Sends a signal to a process, if it is still there."""
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return


def signal_group(pid: int, how: signal.Signals) -> None:
    """Sends a signal to the processes of a group, if it is still there."""
    try:
        os.killpg(pid, how)
    except (ProcessLookupError, PermissionError):
        return
