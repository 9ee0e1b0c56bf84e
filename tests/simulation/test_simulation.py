"""Some worlds of the simulation, and its own eyes. More of them: ``python -m tests.simulation --seeds 1000``."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from lakebed.compaction import replicate, volatile
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import Sources
from lakebed.log import invariants, table_log
from lakebed.log.actions import Commit, Domain, Part, Transaction
from lakebed.log.claims import Claim, claimed_paths
from lakebed.log.conflicts import BLIND, Conflict, ConflictKind, ReadWriteSet, find_conflict
from lakebed.log.entries import DETACHED, Operation
from lakebed.log.snapshot import Snapshot, apply
from lakebed.log.stores import LocalLogStore, MemoryLogStore
from lakebed.log.table_log import Committed, TableLog
from lakebed.merge.materialized import Materialized, MaterializedFolder, overlay
from lakebed.merge.provenance import Provenance
from lakebed.operations import cleanup, joining, partitions, references, restore, time_to_live
from lakebed.operations import mutate as mutate_unkeyed
from lakebed.operations.purge import files as purge_files
from lakebed.operations.purge.rows import RowsToPurge
from lakebed.parts.changes import WriteSpec
from lakebed.parts.part_filter import KeyRanges
from lakebed.positions.removals import removals
from lakebed.schema import evolve
from lakebed.schema.column_mapping import PHYSICAL_NAME
from lakebed.schema.widening import widening
from tests.simulation import actors, files, maintainers
from tests.simulation.files import CORE, Row
from tests.simulation.run import simulate

SLOW = [pytest.param(first, marks=pytest.mark.slow) for first in range(100, 175, 25)]


@pytest.mark.parametrize("first", [*range(0, 75, 25), *SLOW])
def test_every_version_shows_the_rows_of_the_oracle_and_nothing_needed_is_deleted(first: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, first + 25):
        total += simulate(seed).counts
    for happened in (
        "crash",
        "before",
        "after",
        "delayed",
        "committed",
        "conflicted",
        "jump",
        "held",
        "files deleted",
        "merge",
        "local merge completed",
        "overlay",
        "upload",
        "carried",
        "delete",
        "update",
        "detach partition",
        "restore",
        "purged",
        "purged rows",
        "rows expired",
        "set sort key",
        "jobs finished",
        "altered",
        "passed a change of the columns",
        *(["sorted by version 2"] if first < 100 else []),  # it is too rare for each 25 worlds
    ):
        assert total[happened] > 0, f"seeds from {first} on: nothing of the kind {happened!r} happened"


def test_readers_of_another_host_see_the_same_rows_in_what_they_build_from_claims() -> None:
    total: Counter[str] = Counter()
    for seed in range(12):
        total += simulate(seed, replicating=True).counts
    for happened in ("replicated", "replicated read", "replicated read of an old version", "replicated rows died"):
        assert total[happened] > 0, f"nothing of the kind {happened!r} happened"


def test_what_a_reader_holds_past_retention_stays() -> None:
    for seed in range(10):
        simulate(seed, patient_holder=True)


def test_a_seed_is_the_same_world_every_time() -> None:
    assert simulate(7).trace == simulate(7).trace
    assert simulate(7).trace != simulate(11).trace


def without_names(trace: tuple[str, ...]) -> list[str]:
    """A store on disk draws names too, so those of deletion vectors differ."""
    return [re.sub(r"_[0-9a-f-]{36}", "", line) for line in trace]


def test_the_same_worlds_on_a_real_disk(tmp_path: Path) -> None:
    for seed in range(1, 5):
        on_disk = simulate(seed, 200, partial(LocalLogStore, str(tmp_path / str(seed))))
        assert without_names(on_disk.trace) == without_names(simulate(seed, 200).trace)


def test_the_auditor_sees_a_store_whose_put_if_absent_overwrites() -> None:
    class Overwriting(MemoryLogStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            self.put(name, data)
            return True

    with pytest.raises(AssertionError, match=r"M1: version .* was written twice"):
        for seed in range(20):
            simulate(seed, new_store=Overwriting)


def test_the_auditor_sees_a_store_that_forgets_a_commit() -> None:
    class Forgetful(MemoryLogStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            return name.endswith("00000012.json") or super().put_if_absent(name, data)

    with pytest.raises(AssertionError, match=r"seed \d+"):
        for seed in range(20):
            simulate(seed, new_store=Forgetful)


@pytest.mark.parametrize("kind", [ConflictKind.BATCH, ConflictKind.METADATA, ConflictKind.PARTS, ConflictKind.TABLE])
def test_the_auditor_sees_a_log_that_ignores_conflicts(kind: ConflictKind, monkeypatch: pytest.MonkeyPatch) -> None:
    def ignoring(
        access: ReadWriteSet, batch: Transaction | None, scope: str, winner: Commit, before: Snapshot | None
    ) -> Conflict | None:
        conflict = find_conflict(access, batch, scope, winner, before)
        return None if conflict and conflict.kind is kind else conflict

    monkeypatch.setattr(table_log, "find_conflict", ignoring)
    with pytest.raises(AssertionError, match=r"seed \d+"):
        for seed in range(300):
            simulate(seed)


# -- the real code, broken on purpose: each time the auditor complains -----------------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]


def unchecked(broken: pytest.MonkeyPatch, invariant: str) -> None:
    """No commit is held against it. Its place in the registry stays, which other tests of the process read."""
    broken.setitem(invariants.INVARIANTS, invariant, replace(invariants.INVARIANTS[invariant], check=None))


def a_merge_forgets_what_died_meanwhile(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(Provenance, "map_rows", lambda self, ordinal, rows: BitMap64())
    unchecked(broken, "P3")


def a_merge_says_it_is_sorted_by_the_newest_sort_key(broken: pytest.MonkeyPatch) -> None:
    actions = Merger._actions

    def stamped(self: Merger, claim: Claim, sources: Any, merged: Any, died: Any, snapshot: Snapshot) -> Any:
        version = snapshot.settings.sort_key_version
        merged = [replace(part, sort_key_version=version) for part in merged]
        return actions(self, claim, sources, merged, died, snapshot)

    broken.setattr(Merger, "_actions", stamped)


def a_merge_forgets_its_passes(broken: pytest.MonkeyPatch) -> None:
    actions = Merger._actions

    def forgetting(self: Merger, claim: Claim, sources: Any, merged: Any, died: Any, snapshot: Snapshot) -> Any:
        return actions(self, claim, sources, [replace(part, passes=0) for part in merged], died, snapshot)

    broken.setattr(Merger, "_actions", forgetting)


def an_upload_forgets_what_died_meanwhile(broken: pytest.MonkeyPatch) -> None:
    commit = Merger.commit

    def forgetting(self: Merger, claim: Claim, sources: Any, merged: Any, read: Snapshot, **others: Any) -> Any:
        if others.get("operation") is Operation.UPLOAD:
            now = {part.path: read.parts.get(part.path, part) for part in sources.parts}
            sources = replace(sources, dead={path: self._deletion_vectors.of(part) for path, part in now.items()})
        return commit(self, claim, sources, merged, read, **others)

    broken.setattr(Merger, "commit", forgetting)
    unchecked(broken, "P3")


def two_claims_on_one_part(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(Claim, "is_live", lambda self, now_ms: False)
    broken.setattr(Claim, "ended", lambda self: Domain("lakebed.claim.nobody", "", removed=True))
    unchecked(broken, "P4")


def a_damaged_local_file_is_used(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(MaterializedFolder, "verify", lambda self, one: None)


def a_cleanup_overlooks_holds(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(cleanup, "held_versions", lambda domains, now_ms: frozenset())


def a_cleanup_of_the_log_overlooks_who_begins_to_hold(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(table_log, "expire_before", lambda log, version, now_ms: log.refresh())


def a_cleanup_overlooks_the_tail(broken: pytest.MonkeyPatch) -> None:
    named_by = references.referenced_by
    for place in (cleanup, references):
        broken.setattr(place, "referenced_by", lambda snapshot: named_by(replace(snapshot, tail={})))


def a_cleanup_ends_versions_too_early(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(cleanup, "_current_at", lambda log, horizon_ms: log.refresh().version)


def a_drop_deletes_at_once(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(partitions, "first_unexpired", lambda domains: 1 << 60)


def a_cleanup_overlooks_detached_parts(broken: pytest.MonkeyPatch) -> None:
    named = references._referenced_by_entry
    broken.setattr(
        references, "_referenced_by_entry", lambda name, text: () if name.startswith(DETACHED) else named(name, text)
    )


def careless(method: str) -> Break:
    """A partition command that commits whatever came in between."""

    def break_it(broken: pytest.MonkeyPatch) -> None:
        whose, run = threading.local(), getattr(partitions.Partitions, method)

        def marked(self: partitions.Partitions, *arguments: Any) -> Any:
            whose.careless = True
            try:
                return run(self, *arguments)
            finally:
                whose.careless = False

        broken.setattr(partitions.Partitions, method, marked)
        broken.setattr(
            partitions,
            "ReadWriteSet",
            lambda **named: BLIND if getattr(whose, "careless", False) else ReadWriteSet(**named),
        )

    break_it.__name__ = f"{method} without a conflict"
    return break_it


def claims_outlive_what_was_detached(broken: pytest.MonkeyPatch) -> None:
    def without_claims(snapshot: Snapshot, *arguments: Any) -> Any:
        return [action for action in removals(snapshot, *arguments) if not isinstance(action, Domain)]

    broken.setattr(partitions, "removals", without_claims)


def attach_overlooks_live_keys(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(joining.Joining, "_refuse_live", lambda *arguments: None)


def an_attach_overlooks_changes_that_came_since(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(joining.Joining, "_matters", lambda *arguments: False)


def an_attach_does_not_see_what_comes_before_its_commit(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(KeyRanges, "may_meet", lambda *arguments: False)


def a_mutation_overlooks_claimed_parts(broken: pytest.MonkeyPatch) -> None:
    seen, spec_of, dying = threading.local(), mutate_unkeyed.write_spec_of, mutate_unkeyed._dying

    def spec_of_seen(snapshot: Snapshot) -> Any:
        seen.snapshot = snapshot
        return spec_of(snapshot)

    def of_free_parts(parts: Any, *arguments: Any) -> Any:
        taken = claimed_paths(seen.snapshot, seen.snapshot.timestamp_ms)
        return dying({path: part for path, part in parts.items() if path not in taken}, *arguments)

    broken.setattr(mutate_unkeyed, "write_spec_of", spec_of_seen)
    broken.setattr(mutate_unkeyed, "_dying", of_free_parts)


def a_restore_does_not_see_what_came_in_between(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(restore, "ReadWriteSet", lambda **named: BLIND)


def a_restore_lets_merges_go_on(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(restore, "claims_of", lambda domains: {})


def a_restore_leaves_the_tail_as_it_is(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(restore, "_tail", lambda earlier, now: iter(()))


def a_purge_raises_no_fence(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(purge_files, "next_fence", lambda domains: Domain("lakebed.no_fence", "{}"))


def a_purge_leaves_dead_rows_where_they_are(broken: pytest.MonkeyPatch) -> None:
    going = RowsToPurge.going
    broken.setattr(RowsToPurge, "going", lambda self, part: (going(self, part)[0], BitMap64()))


def a_purge_forgets_files_of_nobody(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(purge_files, "is_file_of_rows", lambda path: False)


def an_expiry_overlooks_the_tail(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(time_to_live._Expiring, "_touched", lambda self, snapshot: {})


def an_expiry_does_not_see_what_came_in_between(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(time_to_live, "ReadWriteSet", lambda **named: BLIND)


def an_expiry_takes_mixed_parts_for_old_ones(broken: pytest.MonkeyPatch) -> None:
    planned = time_to_live.old_parts

    def all_old(*arguments: Any) -> Any:
        found = planned(*arguments)
        return replace(found, old=(*found.old, *found.mixed), mixed=())

    broken.setattr(time_to_live, "old_parts", all_old)


def an_expiry_leaves_mixed_parts_alone(broken: pytest.MonkeyPatch) -> None:
    planned = time_to_live.old_parts
    broken.setattr(time_to_live, "old_parts", lambda *arguments: replace(planned(*arguments), mixed=()))


def a_replica_that_fails_to_start_keeps_its_place(broken: pytest.MonkeyPatch) -> None:
    close = volatile.VolatileMerger.close
    broken.setattr(volatile.VolatileMerger, "close", lambda self: close(self) if hasattr(self, "_started") else None)
    take_up = volatile.VolatileMerger._take_up

    def started(self: Any) -> None:
        take_up(self)
        self._started = True

    broken.setattr(volatile.VolatileMerger, "_take_up", started)


def a_commit_is_not_looked_at_again(broken: pytest.MonkeyPatch) -> None:
    def verified(self: TableLog, read: Snapshot, known: Snapshot, ours: Commit) -> Committed:
        return Committed(ours.version, apply(known, ours))

    broken.setattr(TableLog, "_verified", verified)


def a_stored_name_is_used_again(broken: pytest.MonkeyPatch) -> None:
    unchecked(broken, "C1")
    number = evolve.number
    broken.setattr(evolve, "number", lambda *arguments: number(*arguments[:3], lambda name: name))


def a_rename_changes_the_stored_name(broken: pytest.MonkeyPatch) -> None:
    unchecked(broken, "C1")
    rename = evolve._Evolution.rename

    def moving(self: Any, renames: Any) -> None:
        rename(self, renames)
        for place, name in renames:
            place.metadata[PHYSICAL_NAME] = name

    broken.setattr(evolve._Evolution, "rename", moving)


def a_rename_forgets_the_properties(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(evolve._Evolution, "_rename_in_properties", lambda self, names: None)


def a_drop_passes_as_compatible(broken: pytest.MonkeyPatch) -> None:
    holds = evolve.rows_fit
    broken.setattr(
        evolve,
        "rows_fit",
        lambda old, new: holds([each for each in old if each.name in {one.name for one in new}], new),
    )


def a_merge_forgets_that_what_is_missing_is_null(broken: pytest.MonkeyPatch) -> None:
    def with_zeros(row: Row, spec: WriteSpec) -> Row:
        values = {name: 0 for name in spec.schema.names if name not in CORE} | dict(row.extra)
        return row._replace(extra=tuple(values.items()))

    broken.setattr(files, "in_shape", with_zeros)


def a_widening_is_allowed_the_other_way(broken: pytest.MonkeyPatch) -> None:
    unchecked(broken, "C1")
    broken.setattr(evolve, "widening", lambda narrow, wide: not narrow.equals(wide) and widening(wide, narrow))
    broken.setattr(actors, "widening", lambda narrow, wide: widening(wide, narrow))


def replicated_parts_have_rows_that_were_dead(broken: pytest.MonkeyPatch) -> None:
    inputs_of = replicate.local_inputs

    def with_all_rows(*arguments: Any) -> Any:
        inputs = inputs_of(*arguments)
        return replace(inputs, read=Sources(inputs.read.parts, {part.path: BitMap64() for part in inputs.read.parts}))

    broken.setattr(replicate, "local_inputs", with_all_rows)


def local_parts_are_read_without_what_died_since(broken: pytest.MonkeyPatch) -> None:
    def overlaid(snapshot: Snapshot, local: Sequence[Materialized], dead_of: Callable[[Part], BitMap64]) -> Any:
        dead = {path: rows for one in local for path, rows in one.dead.items()}
        return overlay(snapshot, local, lambda part: dead.get(part.path) or dead_of(part))

    broken.setattr(maintainers, "overlay", overlaid)


def local_parts_are_read_at_older_versions(broken: pytest.MonkeyPatch) -> None:
    def overlaid(snapshot: Snapshot, local: Sequence[Materialized], dead_of: Callable[[Part], BitMap64]) -> Any:
        of_always = [replace(one, version=0, dead=dict.fromkeys(one.dead, BitMap64())) for one in local]
        return overlay(snapshot, of_always, dead_of)

    broken.setattr(maintainers, "overlay", overlaid)


def local_parts_are_read_when_their_sources_have_left(broken: pytest.MonkeyPatch) -> None:
    def overlaid(snapshot: Snapshot, local: Sequence[Materialized], dead_of: Callable[[Part], BitMap64]) -> Any:
        sources = {part.path: part for one in local for part in one.sources}
        return overlay(replace(snapshot, parts={**sources, **snapshot.parts}), local, dead_of)

    broken.setattr(maintainers, "overlay", overlaid)


def replicated_parts_outlive_their_claims(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(replicate.Replication, "_drop_useless", lambda self, snapshot: None)


def replicated_parts_are_kept_for_readers_after_a_purge(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(replicate, "purged_before", lambda domains: 0)


careless_attach, careless_replace = careless("attach"), careless("replace")
BREAKS: Mapping[Break, str] = {
    a_commit_is_not_looked_at_again: "committed: version",
    a_merge_forgets_what_died_meanwhile: "B1|B2",
    an_upload_forgets_what_died_meanwhile: "B1|B2",
    two_claims_on_one_part: "P1|P4",
    a_damaged_local_file_is_used: "the overlay of .* shows|UPLOAD .* lacks",
    a_cleanup_overlooks_holds: "G1",
    a_cleanup_of_the_log_overlooks_who_begins_to_hold: "G1",
    a_cleanup_overlooks_the_tail: "G1",
    a_cleanup_ends_versions_too_early: "G1",
    a_merge_says_it_is_sorted_by_the_newest_sort_key: "S1|E1",
    a_merge_forgets_its_passes: "E1",
    a_cleanup_overlooks_detached_parts: "G1",
    a_drop_deletes_at_once: "G1",
    careless_attach: "is added but is in the base already|ATTACH PARTITION .* shows",
    careless("detach"): "is removed but is not in the base|DETACH PARTITION .* shows|which left: DETACH PARTITION",
    careless_replace: "removed with another deletion vector|REPLACE PARTITION .* shows|which left: REPLACE PARTITION",
    claims_outlive_what_was_detached: "P1",
    attach_overlooks_live_keys: "has a key twice",
    an_attach_overlooks_changes_that_came_since: "B1|has a key twice|(ATTACH|REPLACE) PARTITION .* shows",
    an_attach_does_not_see_what_comes_before_its_commit: "B1|has a key twice|(ATTACH|REPLACE) PARTITION .* shows",
    a_mutation_overlooks_claimed_parts: "(DELETE|UPDATE) .* shows|says that nothing matches",
    a_replica_that_fails_to_start_keeps_its_place: "replicas have the places",
    a_restore_does_not_see_what_came_in_between: "RESTORE .* shows|is removed but is not in the base",
    a_restore_lets_merges_go_on: "P1|B2",
    a_restore_leaves_the_tail_as_it_is: "RESTORE .* shows|which was settled",
    a_purge_raises_no_fence: "G1",
    a_purge_leaves_dead_rows_where_they_are: "purge: .* still has",
    a_purge_forgets_files_of_nobody: "purge: .* still has",
    an_expiry_overlooks_the_tail: "EXPIRE ROWS .* shows",
    an_expiry_does_not_see_what_came_in_between: "it would break the table: B5|EXPIRE ROWS .* shows",
    an_expiry_takes_mixed_parts_for_old_ones: "EXPIRE ROWS .* shows",
    an_expiry_leaves_mixed_parts_alone: "has outlived",
    a_stored_name_is_used_again: "B2|C1|two columns are named",
    a_rename_changes_the_stored_name: "B2|C1|S1|'<' not supported between",  # who expires rows meets the other column's values
    a_rename_forgets_the_properties: "C1: keys, sort key or partitions name",
    a_drop_passes_as_compatible: "C1: .* was planned on version",
    a_merge_forgets_that_what_is_missing_is_null: "B2",
    a_widening_is_allowed_the_other_way: "C1|no widening that lakebed knows",
    replicated_parts_have_rows_that_were_dead: "with replicated parts .* shows",
    local_parts_are_read_without_what_died_since: "B2: (the overlay|with replicated parts)",
    local_parts_are_read_at_older_versions: "B2: with replicated parts .* shows",
    local_parts_are_read_when_their_sources_have_left: "B2: (the overlay|with replicated parts)",
    replicated_parts_outlive_their_claims: "purge: the local file",
    replicated_parts_are_kept_for_readers_after_a_purge: "purge: the local file",
}
REPLICATING = {
    replicated_parts_have_rows_that_were_dead,
    local_parts_are_read_without_what_died_since,
    local_parts_are_read_at_older_versions,
    local_parts_are_read_when_their_sources_have_left,
    replicated_parts_outlive_their_claims,
    replicated_parts_are_kept_for_readers_after_a_purge,
}
FIRST = {  # the world to begin with, one where the break shows or a little before it
    careless_attach: 645, careless_replace: 24, a_damaged_local_file_is_used: 2278, a_mutation_overlooks_claimed_parts: 72,
    a_stored_name_is_used_again: 55, an_upload_forgets_what_died_meanwhile: 17,
    a_cleanup_of_the_log_overlooks_who_begins_to_hold: 53, a_drop_deletes_at_once: 12, a_purge_raises_no_fence: 88,
    a_purge_leaves_dead_rows_where_they_are: 15, a_restore_does_not_see_what_came_in_between: 14,
    an_expiry_does_not_see_what_came_in_between: 30, local_parts_are_read_at_older_versions: 25,
    replicated_parts_outlive_their_claims: 190, replicated_parts_are_kept_for_readers_after_a_purge: 190,
}  # fmt: skip
RARE = {  # so that a break shows, several things must come together: some hundred worlds
    an_upload_forgets_what_died_meanwhile, a_damaged_local_file_is_used,
    a_cleanup_of_the_log_overlooks_who_begins_to_hold, a_drop_deletes_at_once, two_claims_on_one_part,
    a_cleanup_ends_versions_too_early, replicated_parts_outlive_their_claims,
    replicated_parts_are_kept_for_readers_after_a_purge,
}  # fmt: skip
PATIENT = {a_cleanup_overlooks_holds}  # it shows where a reader holds a version past retention: few worlds have one


@pytest.mark.parametrize(
    ("break_it", "complaint"),
    [
        pytest.param(
            break_it,
            complaint,
            id=break_it.__name__,
            marks=[pytest.mark.slow] if break_it in RARE or "without a conflict" in break_it.__name__ else [],
        )
        for break_it, complaint in BREAKS.items()
    ],
)
def test_the_auditor_sees_that(break_it: Break, complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=rf"seed \d+: .*({complaint})"):
        first = FIRST.get(break_it, 0)
        for seed in range(first, first + 1500):
            simulate(seed, patient_holder=break_it in PATIENT, replicating=break_it in REPLICATING)
