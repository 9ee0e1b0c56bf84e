"""One rewrite at a time: with ``lakebed.conflict_scope`` = ``table`` the second one ends before it does any work.

1. Who begins a rewrite (an update, a delete, a replaced partition, …) claims the table: a claim with a name of its own, and
   without sources, so that no merge meets it.
2. The claim is extended while the work goes on, and removed when it ends. If its process dies, it holds until its lease ends;
   then another rewrite takes it over, or maintenance removes it.
3. Who finds a claim that holds ends with Contention.

The claim saves work, and nothing rests on it: whether two rewrites conflict is decided when the second one commits
(``commit_loop``), also where a lease ended too early.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from lakebed.errors import Contention, LakebedError, Retry
from lakebed.log.claims import Claim, claims_of
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog


class _HasLog(Protocol):
    _log: TableLog


P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=_HasLog)
_ID = "rewrite"
_LEASE_MS = 120_000
_EXTENSIONS = 4  # in the time of a lease


@contextmanager
def alone(log: TableLog, operation: Operation) -> Iterator[None]:
    """Lets no other rewrite of the table begin while the block runs, if the table allows one at a time.

    Raises Contention if another one is under way, StoreUnavailable.
    """
    if log.refresh().settings.conflict_scope != "table":
        yield
        return
    claim = _begin(log, operation)
    done = threading.Event()
    keeper = threading.Thread(target=_keep, args=(log, claim, done), name="lakebed-rewrite-lease", daemon=True)
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()
        with suppress(Retry):  # its lease ends
            _set(log, claim, Operation.ABANDON_CLAIM)


def rewrites(
    operation: Operation,
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]:
    """A method runs ``alone``, of an object that has the log."""

    def decorated(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
        @wraps(method)
        def run(self: S, /, *arguments: P.args, **named: P.kwargs) -> T:
            with alone(self._log, operation):
                return method(self, *arguments, **named)

        return run

    return decorated


def _begin(log: TableLog, operation: Operation) -> Claim:
    def build(snapshot: Snapshot) -> Proposal[Claim]:
        now_ms = log.now_ms()
        other = claims_of(snapshot.domains).get(_ID)
        if other is not None and other.is_live(now_ms):
            since = datetime.fromtimestamp(other.since_ms / 1000, UTC)
            raise Contention(
                f"{operation} on {log.root} changed nothing: {other.kind} of {other.replica} has been under way since "
                f"{since:%Y-%m-%d %H:%M:%S} UTC, and lakebed.conflict_scope is 'table', which allows one such operation at a "
                "time; run it again when that has ended",
                table=log.root,
                operation=operation.value,
            )
        claim = Claim(
            id=_ID,
            replica=f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident():x}",
            sources=(),
            level=0,
            lease_ms=now_ms + _LEASE_MS,
            since_ms=now_ms,
            kind=operation.value,
        )
        access = ReadWriteSet(domains=frozenset([claim.domain]))
        return Proposal(actions=[claim.to_action()], access=access, result=lambda _: claim)

    return commit_loop(log, Operation.CLAIM, build)


def _keep(log: TableLog, claim: Claim, done: threading.Event) -> None:
    while not done.wait(_LEASE_MS / 1000 / _EXTENSIONS):
        with suppress(LakebedError):
            _set(log, claim, Operation.EXTEND_CLAIM)


def _set(log: TableLog, claim: Claim, operation: Operation) -> None:
    """Extend or remove the claim, if it is still in the log."""

    def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
        now = claims_of(snapshot.domains).get(_ID)
        if now is None or (now.replica, now.since_ms) != (claim.replica, claim.since_ms):
            return Finished(None)
        extended = replace(claim, lease_ms=log.now_ms() + _LEASE_MS)
        action = extended.to_action() if operation is Operation.EXTEND_CLAIM else now.ended()
        return Proposal(actions=[action], access=ReadWriteSet(domains=frozenset([claim.domain])), result=lambda _: None)

    commit_loop(log, operation, build)
