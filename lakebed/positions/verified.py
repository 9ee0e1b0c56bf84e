"""Comparisons of a table with its source, in entries of its log.

``lakebed.verified`` is what the last one has shown, once it has compared the table to the end. It is for people, and for those
that watch. ``lakebed.verifying`` is how far one is, so that the next one goes on from there if it is stopped. No row rests on
either.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from typing import Literal

import orjson

from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import VERIFIED, VERIFYING, Operation
from lakebed.log.entry_values import decoded, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.positions.resnapshots import ago


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """``unsettled``: all that could be compared is equal, and some keys changed all the time."""

    time_ms: int  # when it ended, epoch milliseconds
    outcome: Literal["equal", "differs", "unsettled"]
    position: str = ""  # in the source's log, as the source writes it: what the outcome is true of
    version: int  # of the table, that was compared last
    rows: int = 0  # of the source
    differing: int = 0  # keys
    unsettled: int = 0  # keys
    left_out: int = 0  # columns that were not compared
    seconds: float = 0.0
    digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verifying:
    """All rows up to a key are equal to the source's. What was compared is a function of ``shape``."""

    time_ms: int  # when that was known, epoch milliseconds
    shape: str
    after: tuple[str, ...]  # the key, as canonical texts
    rows: int
    sum: str  # of the rows' checksums, a number of any size
    buckets: int
    first_position: int | None = None
    seconds: float = 0.0


def verified_of(snapshot: Snapshot) -> Verified | None:
    """The last comparison; None if there was none, or if the entry can't be read."""
    return readable_or_none(VERIFIED, snapshot.domains.get(VERIFIED), partial(decoded, Verified))


def comparison_of(snapshot: Snapshot, now_ms: int) -> str:
    """What the last comparison has shown, and how long ago, in words; empty if there was none."""
    found = verified_of(snapshot)
    return "" if found is None else f"{described(found)}, {ago(found.time_ms, now_ms)}"


def verifying_of(snapshot: Snapshot) -> Verifying | None:
    """How far a comparison was when it stopped; None if it did not stop, or if the entry can't be read."""
    return readable_or_none(VERIFYING, snapshot.domains.get(VERIFYING), partial(decoded, Verifying))


def note_verified(log: TableLog, found: Verified) -> None:
    """Write down what a comparison has shown. Raises Contention, StoreUnavailable, TableNotFound."""
    _note(log, VERIFIED, found)


def note_verifying(log: TableLog, found: Verifying) -> None:
    """Write down how far a comparison is. Raises Contention, StoreUnavailable, TableNotFound."""
    _note(log, VERIFYING, found)


def _note(log: TableLog, name: str, found: Verified | Verifying) -> None:
    def build(snapshot: Snapshot) -> Proposal[None]:
        access = ReadWriteSet(domains=frozenset([VERIFIED, VERIFYING]))
        actions = [Domain(name, orjson.dumps(asdict(found)).decode())]
        if name == VERIFIED and VERIFYING in snapshot.domains:
            actions.append(Domain(VERIFYING, "", removed=True))
        return Proposal(actions=actions, access=access, result=lambda _: None)

    commit_loop(log, Operation.VERIFY, build)


def described(found: Verified) -> str:
    """What it has shown, in words."""
    at = f" at {found.position}" if found.position else ""
    words = {
        "equal": f"equal to the source{at}",
        "differs": f"{found.differing:,} key{'s differ' if found.differing != 1 else ' differs'} from the source{at}",
        "unsettled": f"equal to the source{at}, but for {found.unsettled:,} keys that changed all the time",
    }
    return words[found.outcome]
