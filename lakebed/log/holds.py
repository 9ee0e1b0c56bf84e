"""How cleanups and readers of old versions coordinate, by entries of the log; and the cleanup of the log itself.

- A reader's *hold*, ``lakebed.hold.<uuid>``: until when it needs a version. A hold *onward* is of a reader of changes: it needs
  all versions from that one on.
- The *first unexpired version*, ``lakebed.expired``: older versions have expired, and their files may be gone. It only grows.

A cleanup commits this version before it deletes anything, and a reader commits its hold before it reads. The two commits
conflict, so one of them always comes first: the cleanup sees the hold and leaves the version alone, or the reader sees that
the version has expired and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from lakebed.errors import VersionNotFound
from lakebed.log.actions import Action, Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import EXPIRED, HOLD, Operation
from lakebed.log.entry_values import decoded, integer_of
from lakebed.log.removals import purged_before
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog

_NEWEST_KEPT = 2  # commit files that no cleanup deletes: the log itself always shows its newest version


@dataclass(frozen=True, slots=True)
class Hold:
    """A version that a reader holds until ``until_ms`` (epoch milliseconds); ``onward``: and all later ones.

    ``reader``: who holds it, for people.
    """

    id: str
    version: int
    until_ms: int
    onward: bool = False
    reader: str = ""

    @property
    def domain(self) -> str:
        return HOLD + self.id

    def is_live(self, now_ms: int) -> bool:
        """Whether the reader still holds the version."""
        return now_ms < self.until_ms

    def to_action(self) -> Domain:
        """The action that adds the hold to the log."""
        value: dict[str, object] = {"version": self.version, "until_ms": self.until_ms}
        if self.onward:
            value |= {"onward": True, "reader": self.reader}
        return Domain(self.domain, orjson.dumps(value).decode())

    def ended(self) -> Domain:
        """The action that removes the hold from the log."""
        return Domain(self.domain, "", removed=True)


def holds_of(domains: Mapping[str, str]) -> list[Hold]:
    """All holds among a snapshot's domains, also those that have ended. Raises Corrupt."""
    return [hold_of(domain, text) for domain, text in domains.items() if domain.startswith(HOLD)]


def hold_of(domain: str, text: str) -> Hold:
    """The hold in an entry of the log. Raises Corrupt."""
    return decoded(Hold, domain, text, id=domain.removeprefix(HOLD))


def held_versions(domains: Mapping[str, str], now_ms: int) -> frozenset[int]:
    """Versions that readers hold now."""
    return frozenset(hold.version for hold in holds_of(domains) if hold.is_live(now_ms))


def held_onward(domains: Mapping[str, str], now_ms: int) -> int | None:
    """The oldest version that a reader of changes holds with all later ones now; None without such readers."""
    return min(
        (hold.version for hold in holds_of(domains) if hold.onward and hold.is_live(now_ms)),
        default=None,
    )


def first_unexpired(domains: Mapping[str, str]) -> int:
    """The oldest version that has not expired: files of versions before it may be gone. Raises Corrupt."""
    return integer_of(EXPIRED, domains.get(EXPIRED), "before")


def expired_before(version: int) -> Domain:
    """The action that lets all versions before this one expire."""
    return Domain(EXPIRED, orjson.dumps({"before": version}).decode())


def require_unpurged(domains: Mapping[str, str], version: int, is_held: bool = False) -> None:
    """Raises VersionNotFound for a version that is gone because rows were purged (``removals``), unless a reader holds it;
    and for a negative number, which no version has.
    """
    if version < 0:
        raise VersionNotFound(f"there is no version {version}: the first is 0", version=version)
    before = purged_before(domains)
    if version < before and not is_held:
        raise VersionNotFound(
            f"version {version} was purged: it had rows that were erased for good, so it can't be read or restored; the oldest "
            f"version that is kept is {before}",
            version=version,
            oldest=before,
        )


def require_unexpired(domains: Mapping[str, str], version: int, now_ms: int) -> None:
    """Raises VersionNotFound for a version whose files may be gone; one that a reader holds is there."""
    first, onward = first_unexpired(domains), held_onward(domains, now_ms)
    is_held = version in held_versions(domains, now_ms) or (onward is not None and onward <= version)
    require_unpurged(domains, version, is_held)
    if version < first and version not in held_versions(domains, now_ms):
        raise VersionNotFound(
            f"version {version} has expired: a cleanup deleted its files; the oldest version that is kept is {first}",
            version=version,
            oldest=first,
        )


def expire_before(log: TableLog, version: int, now_ms: int) -> Snapshot:
    """A snapshot in which all versions before this one have expired, and no hold has ended that is still in the log.

    Versions that a reader of changes holds do not expire. From then on no reader can begin to hold an older version.
    Raises Contention, StoreUnavailable (it may be repeated).
    """

    def build(snapshot: Snapshot) -> Proposal[Snapshot] | Finished[Snapshot]:
        ended = [hold for hold in holds_of(snapshot.domains) if not hold.is_live(now_ms)]
        actions: list[Action] = [hold.ended() for hold in ended]
        onward = held_onward(snapshot.domains, now_ms)
        before = version if onward is None else min(version, onward)
        if first_unexpired(snapshot.domains) < before:
            actions.append(expired_before(before))
        if not actions:
            return Finished(snapshot)
        access = ReadWriteSet(domains=frozenset([EXPIRED, *(hold.domain for hold in ended)]))
        return Proposal(
            actions=actions, access=access, result=lambda committed: committed.snapshot, parameters={"before": version}
        )

    return commit_loop(log, Operation.EXPIRE_VERSIONS, build)


def trim_log(log: TableLog, retention_seconds: int, now_ms: int | None = None) -> int:
    """Delete commits and checkpoints that no version within retention needs; returns how many files went.

    ``now_ms``: the time that ages are judged by (default: the log's clock).
    """
    now_ms = log.now_ms() if now_ms is None else now_ms
    try:
        return trim_log_before(log, log.version_at(now_ms - retention_seconds * 1000), now_ms)
    except VersionNotFound:  # all versions are within retention, or another cleanup was faster
        return 0


def trim_log_before(log: TableLog, version: int, now_ms: int | None = None) -> int:
    """Delete commits and checkpoints that neither a version from this one on nor a held one needs; returns how many.

    The newest checkpoint at or before these versions stays, and everything after it, the two newest commits at least; older
    files are deleted one after the other, oldest first: step 5 of a commit rests on that (``table_log``), and a crash in between
    leaves a log without gaps. The versions expire first, so that no reader begins to hold one that is about to go.
    """
    now_ms = log.now_ms() if now_ms is None else now_ms
    newest = log.refresh()
    last = min(version, newest.version - _NEWEST_KEPT + 1)
    if not log.files_before(max((each for each in log.versions()[1] if each <= last), default=0)):
        return 0
    try:
        kept = log.checkpoint_before(min([last, *held_versions(newest.domains, now_ms)]))
        if not log.files_before(kept):
            return 0
        held = held_versions(expire_before(log, kept, now_ms).domains, now_ms)
        names = log.files_before(log.checkpoint_before(min([kept, *held])))
    except FileNotFoundError:  # another cleanup was faster
        return 0
    for name in names:
        log.store.delete(name)
    return len(names)
