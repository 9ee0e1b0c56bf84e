"""How a commit ends: it succeeded, another commit conflicted with it, or the store did not answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lakebed.log.conflicts import Conflict
from lakebed.log.snapshot import Snapshot


@dataclass(frozen=True, slots=True)
class Committed:
    """The commit is this version; ``snapshot`` is the table at it. ``attempts``: how many versions were tried."""

    version: int
    snapshot: Snapshot
    attempts: int = 1


@dataclass(frozen=True, slots=True)
class Conflicted:
    """Another commit came first and conflicts with ours; nothing of ours was committed. ``snapshot`` is at that commit."""

    conflict: Conflict
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Unknown:
    """The store did not answer: the commit may or may not be this version."""

    version: int
    commit_id: str
    cause: str


Outcome: TypeAlias = Committed | Conflicted | Unknown
