"""The invariants that a commit can be held against, numbered as in docs/invariants.md.

One predicate each: it is checked before a commit is written, by the tests after every step, and counted by monitoring.
What needs the rows of parts (B1, B2, S1, S2) is checked by the tests' auditor on real files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakebed.errors import Corrupt
from lakebed.manifest.actions import AddChangePart, AddPart, Commit, RemoveChangePart, RemovePart, Transaction
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


CHECKS: dict[str, Check] = {
    "M1": _m1_versions_follow_each_other,
    "M3": _m3_a_batch_is_committed_once,
    "B1": _b1_base_changes_add_up,
    "B2": _b2_the_tail_leaves_in_order,
}
