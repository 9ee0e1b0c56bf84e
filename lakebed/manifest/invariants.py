"""The invariants that a commit can be held against, numbered as in docs/invariants.md.

One predicate each: it is checked before a commit is written, by the tests after every step, and counted by monitoring.
What needs the rows of parts (B1, B2, S1, S2) is checked by the tests' auditor on real files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakebed.errors import Corrupt
from lakebed.manifest.actions import (
    AddChangePart,
    AddPart,
    Commit,
    Domain,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.manifest.claims import Claim, claim_of, claims_of
from lakebed.manifest.snapshot import Snapshot

Check = Callable[[Snapshot, Commit], Iterator[str]]


@dataclass(frozen=True, slots=True)
class Violation:
    """A numbered invariant that a commit would break, and how."""

    invariant: str
    detail: str


def violations(before: Snapshot, commit: Commit) -> list[Violation]:
    """Everything that the commit would break; empty for a sound one. Costs what the commit holds, not the table."""
    return [Violation(name, detail) for name, check in CHECKS.items() for detail in check(before, commit)]


def require_sound(before: Snapshot, commit: Commit) -> None:
    """Raises Corrupt, naming the invariants, if the commit would break one."""
    found = violations(before, commit)
    if found:
        text = "; ".join(f"{violation.invariant}: {violation.detail}" for violation in found[:5])
        raise Corrupt(f"version {commit.version} was not written because it would break the table: {text}")


def _m1_versions_follow_each_other(before: Snapshot, commit: Commit) -> Iterator[str]:
    if commit.version != before.version + 1:
        yield f"version {commit.version} can't follow {before.version}"


def _m3_a_batch_is_committed_once(before: Snapshot, commit: Commit) -> Iterator[str]:
    for action in commit.actions:
        if isinstance(action, Transaction) and action.version <= before.transaction_version(action.app_id):
            yield f"batch {action.version} of {action.app_id} is committed already"


def _b1_base_changes_add_up(before: Snapshot, commit: Commit) -> Iterator[str]:
    removed = {action.path: action for action in commit.actions if isinstance(action, RemovePart)}
    for path, action in removed.items():
        part = before.parts.get(path)
        if part is None:
            yield f"{path} is removed but is not in the base"
        elif part.deletion_vector != action.deletion_vector:
            yield f"{path} is removed with another deletion vector than it has"
    for part, data_change in ((a.part, a.data_change) for a in commit.actions if isinstance(a, AddPart)):
        earlier = before.parts.get(part.path)
        same_dead_rows = earlier is not None and part.deletion_vector == earlier.deletion_vector
        if earlier and part.path not in removed and (data_change or not same_dead_rows):
            yield f"{part.path} is added but is in the base already"  # but for its statistics alone
        if earlier and part.path in removed and same_dead_rows:
            yield f"{part.path} is removed and added with the same dead rows: some readers would take it for gone"
        if part.deletion_vector and not 0 < part.deletion_vector.dead_rows <= part.rows:
            yield f"{part.path} has {part.rows} rows but {part.deletion_vector.dead_rows} dead ones"
        if earlier and earlier.dead_rows > part.dead_rows:
            yield f"dead rows of {part.path} would become live again ({earlier.dead_rows} to {part.dead_rows})"
        if part.deletes > part.dead_rows:
            yield f"{part.path} has {part.deletes} delete rows but only {part.dead_rows} dead ones"
        if part.min_block > part.max_block or part.max_block > commit.version:
            yield f"{part.path} has the block range [{part.min_block}, {part.max_block}] in version {commit.version}"


def _b2_the_tail_leaves_in_order(before: Snapshot, commit: Commit) -> Iterator[str]:
    leaving = {action.domain for action in commit.actions if isinstance(action, RemoveChangePart)}
    for domain in sorted(leaving - before.tail.keys()):
        yield f"{domain} leaves the tail but is not in it"
    staying = [part.order for domain, part in before.tail.items() if domain not in leaving]
    left = [before.tail[domain].order for domain in leaving if domain in before.tail]
    if leaving and staying and left and max(left) > min(staying):
        yield f"a change part of version {max(left)[0]} leaves the tail before one of version {min(staying)[0]}"
    for action in commit.actions:
        if isinstance(action, AddChangePart) and action.part.version != commit.version:
            yield f"{action.part.path} joins the tail as version {action.part.version} in version {commit.version}"


def _p1_claimed_parts_are_in_the_base(before: Snapshot, commit: Commit) -> Iterator[str]:
    for claim in _claims_added(before, commit):
        for path in claim.sources:
            if path not in before.parts:
                yield f"claim {claim.id} names {path}, which is not in the base"


def _p3_parts_leave_only_for_what_replaces_them(before: Snapshot, commit: Commit) -> Iterator[str]:
    """The part of S2 that a log can show: a commit that only rearranges rows leaves as many live ones as there were."""
    removed = {a.path for a in commit.actions if isinstance(a, RemovePart) and not a.data_change}
    if not removed:
        return
    added = [a.part for a in commit.actions if isinstance(a, AddPart) and not a.data_change]
    live_before = sum(before.parts[path].live_rows for path in removed if path in before.parts)
    live_after = sum(part.live_rows for part in added if part.path in removed or part.path not in before.parts)
    if live_before != live_after:
        yield f"{len(removed)} parts with {live_before} live rows are replaced by {live_after} rows"


def _p4_a_part_is_claimed_once(before: Snapshot, commit: Commit) -> Iterator[str]:
    new = _claims_added(before, commit)
    if not new:
        return
    touched = {action.domain for action in commit.actions if isinstance(action, Domain)}
    claimed = {
        path: claim.id
        for claim in claims_of(before.domains).values()
        if claim.domain not in touched
        for path in claim.sources
    }
    for claim in new:
        for path in claim.sources:
            if path in claimed:
                yield f"{path} is claimed by {claimed[path]} and by {claim.id}"
            claimed[path] = claim.id


def _claims_added(before: Snapshot, commit: Commit) -> list[Claim]:
    """Claims that the commit brings or whose sources it changes; a heartbeat is none of these."""
    claims = []
    for action in commit.actions:
        if isinstance(action, Domain) and not action.removed:
            claim = claim_of(action.domain, action.configuration)
            known = before.domains.get(action.domain)
            earlier = claim_of(action.domain, known) if claim and known else None
            if claim and (earlier is None or earlier.sources != claim.sources):
                claims.append(claim)
    return claims


CHECKS: dict[str, Check] = {
    "M1": _m1_versions_follow_each_other,
    "M3": _m3_a_batch_is_committed_once,
    "B1": _b1_base_changes_add_up,
    "B2": _b2_the_tail_leaves_in_order,
    "P1": _p1_claimed_parts_are_in_the_base,
    "P3": _p3_parts_leave_only_for_what_replaces_them,
    "P4": _p4_a_part_is_claimed_once,
}
