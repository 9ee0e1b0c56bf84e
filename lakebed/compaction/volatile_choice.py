"""Whether merges of a process stay on its local disk for now: ``lakebed.volatile``, and why."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from lakebed.settings import TableSettings
from lakebed.storage.roots import LocalRoot, parse_root

ROOM_PLANS = 4
"""A local disk has room if so many times ``lakebed.plan_bytes_max`` are free."""


@dataclass(frozen=True, slots=True)
class _VolatileChoice:
    """What was chosen for a process, and why."""

    is_on: bool
    why: str

    def __str__(self) -> str:
        return f"{'on' if self.is_on else 'off'}: {self.why}"


def volatile_choice(
    settings: TableSettings, root: str, folder: Path, on_cluster: bool = False, in_fleet: bool = False
) -> _VolatileChoice:
    """The choice for a process on this host. ``folder``: where it would keep its parts; ``on_cluster``: merges are Spark jobs;
    ``in_fleet``: the process is a worker of a fleet.
    """
    if settings.volatile == "off":
        return _VolatileChoice(False, "lakebed.volatile is off")
    if on_cluster:
        return _VolatileChoice(False, "merges are jobs of a cluster, which has many local disks")
    if settings.volatile == "on":
        return _VolatileChoice(True, "lakebed.volatile is on")
    if isinstance(parse_root(root), LocalRoot):
        return _VolatileChoice(False, "lakebed.volatile is auto, the table is on a file system")
    if in_fleet:
        return _VolatileChoice(False, "lakebed.volatile is auto, and no reader runs on the host of a fleet's worker")
    room, place = ROOM_PLANS * settings.plan_bytes_max, _existing(folder)
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return _VolatileChoice(False, f"lakebed.volatile is auto, and {place} is no folder that can be written")
    free = shutil.disk_usage(place).free
    text = f"{free / 1e9:,.1f} GB are free at {place}"
    if free < room:
        return _VolatileChoice(False, f"lakebed.volatile is auto, and only {text}; it takes {room / 1e9:,.1f} GB")
    return _VolatileChoice(True, f"lakebed.volatile is auto, the table is in an object store, and {text}")


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
