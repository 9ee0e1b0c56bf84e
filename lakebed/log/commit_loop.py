"""The commit loop: every operation that commits uses it, and tries again after a conflict.

1. ``build`` gets the newest snapshot. It returns what to commit on it (``Proposal``), that there is nothing to commit
   (``Finished``), or that the table is not ready for it yet (``NotYet``). It may raise: then the operation ends with that error.
2. The proposal is committed. If this succeeds, the operation ends with the proposal's result.
3. If another commit conflicts, nothing of ours was committed, and step 1 builds again on the newest snapshot. The builder
   decides what an attempt keeps for the next one (files written, rows looked up).
4. If nobody knows whether the commit succeeded (the store did not answer): StoreUnavailable. The error says whether the operation
   may be repeated at once (a commit that succeeded is found, and not made twice) or whether its user must look into the
   timeline first.
5. After ``ATTEMPTS_MAX`` attempts: Contention. For each attempt that we lost, another commit of the table succeeded.

The loop serves both classes of operation (see ``table_log``). *Act first, then commit*: the builder writes files under new names;
``discard`` deletes those that no commit refers to, when the operation ends and each of its commits was certainly refused. *Read
first, commit, then act*: the proposal's ``result`` touches files, and is called only after the commit succeeded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from lakebed import events
from lakebed.errors import Contention, LakebedError, Retry, StoreUnavailable
from lakebed.log.actions import Action, CommitInfo, Domain, Transaction
from lakebed.log.commit_kind import REWRITES, is_append, kind_of
from lakebed.log.conflicts import Committed, Conflict, Conflicted, ReadWriteSet, Unknown
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.version import ENGINE

ATTEMPTS_MAX = 50
_AT_ONCE = 3  # attempts without a pause: most conflicts are over with the next attempt
_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS_MAX = 1.0

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal(Generic[R]):
    """What to commit on the snapshot that the builder was given. ``parameters`` and ``metrics`` are for people."""

    actions: Sequence[Action]
    access: ReadWriteSet | None = None
    """What it read or replaces; None for the entries that it sets, and nothing else."""
    result: Callable[[Committed], R]
    """Returns what the operation ends with; it is called after the commit succeeded."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    batch: Transaction | None = None


_REWRITES = frozenset(
    {
        Operation.DELETE,
        Operation.UPDATE,
        Operation.MERGE_INTO,
        Operation.TRUNCATE,
        Operation.REPLACE_PARTITION,
        Operation.OVERWRITE,
        Operation.DETACH_PARTITION,
        Operation.ATTACH_PARTITION,
        Operation.RESTORE,
    }
)


@dataclass(frozen=True, slots=True)
class Finished(Generic[R]):
    """There is nothing to commit: the operation ends with this result."""

    result: R


@dataclass(frozen=True, slots=True)
class NotYet:
    """Nothing can be proposed on this snapshot, but perhaps on the next one. ``reason`` is a clause for a message."""

    reason: str


_Build: TypeAlias = Callable[[Snapshot], Proposal[R] | Finished[R] | NotYet]


def commit_loop(
    log: TableLog,
    operation: Operation,
    build: _Build[R],
    *,
    first: Snapshot | None = None,
    newest: Callable[[], Snapshot] | None = None,
    discard: Callable[[], None] | None = None,
    repeatable: bool = True,
) -> R:
    """Commit what ``build`` proposes; returns its result.

    ``first``: the snapshot of the first attempt (default: the newest); ``newest``: how to get the others (default:
    ``log.refresh``); ``discard``: deletes files that no commit refers to; ``repeatable``: whether it is safe to repeat the
    operation when nobody knows whether it was done. Raises Contention, StoreUnavailable, and what ``build`` raises.
    """
    started = time.perf_counter()
    newest = newest or log.refresh
    lost_to, snapshot = "", first or newest()
    for attempt in range(1, ATTEMPTS_MAX + 1):
        step = _built(build, snapshot, discard)
        match step:
            case Finished(result):
                return result
            case NotYet(reason):
                lost_to = reason
            case Proposal():
                access = _of_entries(step.actions) if step.access is None else step.access
                info = CommitInfo(
                    operation=operation,
                    commit_id="",
                    parameters=step.parameters,
                    metrics=step.metrics,
                    blind_append=access.is_blind and is_append(step.actions, step.batch),
                    engine=ENGINE,
                )
                outcome = log.commit(snapshot, step.actions, info, access, step.batch)
                match outcome:
                    case Committed():
                        return step.result(outcome)
                    case Conflicted(conflict):
                        lost_to = f"version {conflict.version} came first ({conflict.kind.value}: {conflict.detail})"
                        if operation in _REWRITES and _forbids(snapshot, conflict, log):
                            raise _forbidden(log, operation, lost_to, attempt, discard)
                    case Unknown():
                        raise _unknown(log, operation, outcome, repeatable)
        if attempt < ATTEMPTS_MAX:
            if attempt >= _AT_ONCE:
                log.sleep(min(_PAUSE_SECONDS_MAX, _PAUSE_SECONDS * 2.0 ** (attempt - _AT_ONCE)))
            snapshot = newest()
    if discard is not None:
        discard()
    seconds = time.perf_counter() - started
    events.emit(events.CommitGivenUp(table=log.root, operation=operation, attempts=ATTEMPTS_MAX, seconds=seconds))
    raise Contention(
        f"{operation} on {log.root} gave up after {ATTEMPTS_MAX} attempts, the last because {lost_to}; try it again "
        "when fewer commits come in",
        table=log.root,
        operation=operation.value,
        attempts=ATTEMPTS_MAX,
    )


def _of_entries(actions: Sequence[Action]) -> ReadWriteSet:
    return ReadWriteSet(domains=frozenset(action.domain for action in actions if isinstance(action, Domain)))


def _forbids(snapshot: Snapshot, conflict: Conflict, log: TableLog) -> bool:
    """Whether the table allows no rewrite beside the one that came first."""
    if snapshot.settings.conflict_scope != "table":
        return False
    winner = log.read_commit(conflict.version)
    return winner is not None and kind_of(winner) in REWRITES


def _forbidden(
    log: TableLog, operation: Operation, lost_to: str, attempts: int, discard: Callable[[], None] | None
) -> Contention:
    if discard is not None:
        discard()
    return Contention(
        f"{operation} on {log.root} changed nothing: {lost_to}, and lakebed.conflict_scope is 'table', which allows one such "
        "operation at a time; look at what the other one did, and run it again",
        table=log.root,
        operation=operation.value,
        attempts=attempts,
    )


def _built(
    build: _Build[R], snapshot: Snapshot, discard: Callable[[], None] | None
) -> Proposal[R] | Finished[R] | NotYet:
    try:
        return build(snapshot)
    except Retry:  # a store that does not answer can't delete either: the cleanup will
        raise
    except LakebedError:
        if discard is not None:
            discard()
        raise


def _unknown(log: TableLog, operation: Operation, outcome: Unknown, repeatable: bool) -> StoreUnavailable:
    repeat = "repeat it when the store answers: nothing is done twice"
    if not repeatable:
        repeat = f"look in the timeline whether version {outcome.version} is this {operation} before you repeat it"
    return StoreUnavailable(
        f"{operation} on {log.root}: whether version {outcome.version} was written is unknown: {outcome.cause}; "
        f"{repeat}",
        table=log.root,
        version=outcome.version,
    )
