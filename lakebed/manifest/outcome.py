"""How a commit ends: it stands, another commit stood in its way, or the store did not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lakebed.manifest.conflicts import Conflict
from lakebed.manifest.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit stands as this version; ``snapshot`` is the table at it. ``attempts``: how many versions were tried."""

    version: int
    snapshot: Snapshot
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another commit came first and stands in the way; nothing of ours was committed. ``snapshot`` is at that commit."""

    conflict: Conflict
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store stayed silent: the commit may or may not stand as this version."""

    version: int
    commit_id: str
    cause: str


Outcome: TypeAlias = Committed | Conflicted | Unknown
