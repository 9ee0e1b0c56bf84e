"""The real code, broken on purpose in many ways: in the world that is pinned for it the auditor complains of each.

A break that takes much to show also makes frequent what it takes, such as purges.
Other code may make other worlds of the same seeds, in which a rare break no longer shows. Then pin other seeds:

    python -m tests.simulation --pin
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyroaring import BitMap64

from lakebed.compaction import replicate, volatile
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import Sources
from lakebed.log import holds, invariants
from lakebed.log.actions import Commit, Domain, Part
from lakebed.log.claims import Claim, claimed_paths
from lakebed.log.conflicts import BLIND, ReadWriteSet
from lakebed.log.entries import DETACHED, Operation
from lakebed.log.snapshot import Snapshot, apply
from lakebed.log.table_log import Committed, TableLog
from lakebed.merge.materialized import Materialized, MaterializedFolder, overlay
from lakebed.merge.provenance import Provenance
from lakebed.operations import (
    cleanup,
    commit_changes,
    joining,
    mutate_keyed,
    partitions,
    references,
    restore,
    time_to_live,
)
from lakebed.operations import mutate as mutate_unkeyed
from lakebed.operations.purge import files as purge_files
from lakebed.operations.purge.rows import RowsToPurge
from lakebed.parts.changes import WriteSpec
from lakebed.parts.part_filter import KeyRanges
from lakebed.positions.positions import removals
from lakebed.schema import evolve
from lakebed.schema.column_mapping import PHYSICAL_NAME
from lakebed.schema.widening import widening
from tests.simulation import actors, files, maintainers, run
from tests.simulation.files import CORE, Row
from tests.simulation.run import simulate

Break = Callable[[pytest.MonkeyPatch], None]


def unchecked(broken: pytest.MonkeyPatch, invariant: str) -> None:
    """No commit is held against it. Its place in the registry stays, which other tests of the process read."""
    broken.setitem(invariants.INVARIANTS, invariant, replace(invariants.INVARIANTS[invariant], check=None))


def a_merge_forgets_what_died_meanwhile(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(Provenance, "map_rows", lambda self, ordinal, rows: BitMap64())
    unchecked(broken, "P3")


def change_what_is_merged(broken: pytest.MonkeyPatch, change: Callable[[Part, Snapshot], Part]) -> None:
    """Merges commit their parts as this makes them."""
    actions = Merger._actions

    def changed(self: Merger, claim: Claim, sources: Any, merged: Any, died: Any, snapshot: Snapshot) -> Any:
        return actions(self, claim, sources, [change(part, snapshot) for part in merged], died, snapshot)

    broken.setattr(Merger, "_actions", changed)


def a_merge_says_it_is_sorted_by_the_newest_sort_key(broken: pytest.MonkeyPatch) -> None:
    change_what_is_merged(
        broken, lambda part, snapshot: replace(part, sort_key_version=snapshot.settings.sort_key_version)
    )


def a_merge_forgets_its_passes(broken: pytest.MonkeyPatch) -> None:
    change_what_is_merged(broken, lambda part, snapshot: replace(part, passes=0))


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
    broken.setattr(maintainers, "DISK_DAMAGED", 0.9)  # so that it does not take hundreds of worlds


def a_cleanup_overlooks_holds(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(cleanup, "held_versions", lambda domains, now_ms: frozenset())


def a_cleanup_of_the_log_overlooks_who_begins_to_hold(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(run, "HOLDERS", 1.0)
    broken.setattr(run, "HOLDER_WEIGHT", 4.0)
    broken.setattr(run, "LOG_RETENTION_SECONDS", (1,))
    broken.setattr(holds, "expire_before", lambda log, version, now_ms: log.refresh())


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
        broken.setattr(run, "PARTITIONED", 1.0)
        broken.setattr(run, "PARTITIONERS", (2,))
        whose, method_of = threading.local(), getattr(partitions.Partitions, method)

        def marked(self: partitions.Partitions, *arguments: Any) -> Any:
            whose.careless = True
            try:
                return method_of(self, *arguments)
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
    seen, spec_of, live = threading.local(), mutate_unkeyed.write_spec_of, mutate_unkeyed.live

    def spec_of_seen(snapshot: Snapshot) -> Any:
        seen.snapshot = snapshot
        return spec_of(snapshot)

    def of_free_parts(parts: Any, *arguments: Any) -> Any:
        taken = claimed_paths(seen.snapshot, seen.snapshot.timestamp_ms)
        return live({path: part for path, part in parts.items() if path not in taken}, *arguments)

    broken.setattr(mutate_unkeyed, "write_spec_of", spec_of_seen)
    broken.setattr(mutate_unkeyed, "live", of_free_parts)


def a_mutation_keeps_what_it_computed(broken: pytest.MonkeyPatch) -> None:
    came_since = commit_changes.came_since

    def nothing(*arguments: Any) -> Any:
        return None if came_since(*arguments) is None else []

    broken.setattr(commit_changes, "came_since", nothing)


def a_mutation_leaves_out_rows_that_changed(broken: pytest.MonkeyPatch) -> None:
    commit = mutate_keyed.commit_changes

    def of_all_rows(
        log: TableLog, storage: Any, operation: Operation, compute: Any, *arguments: Any, **named: Any
    ) -> Any:
        def computed(snapshot: Snapshot, among: Any) -> Any:
            return compute(snapshot, None) if among is None else commit_changes.Pending()

        return commit(log, storage, operation, computed, *arguments, **named)

    broken.setattr(mutate_keyed, "commit_changes", of_all_rows)


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
    broken.setattr(run, "PURGES", 1.0)
    broken.setattr(replicate.Replication, "_drop_useless", lambda self, snapshot: None)


def replicated_parts_are_kept_for_readers_after_a_purge(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(run, "PURGES", 1.0)
    broken.setattr(replicate, "purged_before", lambda domains: 0)


careless_attach, careless_replace = careless("attach"), careless("replace")
BREAKS: Mapping[Break, str] = {
    a_commit_is_not_looked_at_again: "committed: version",
    a_merge_forgets_what_died_meanwhile: "B1|B2",
    an_upload_forgets_what_died_meanwhile: "B1|B2",
    two_claims_on_one_part: "P1|P4",
    a_damaged_local_file_is_used: "B2: (the overlay|with replicated parts) .* shows|UPLOAD .* lacks",
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
    a_mutation_keeps_what_it_computed: "(DELETE|UPDATE) .* shows",
    a_mutation_leaves_out_rows_that_changed: "(DELETE|UPDATE) .* shows|says that nothing matches",
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
    a_damaged_local_file_is_used,
    replicated_parts_have_rows_that_were_dead,
    local_parts_are_read_without_what_died_since,
    local_parts_are_read_at_older_versions,
    local_parts_are_read_when_their_sources_have_left,
    replicated_parts_outlive_their_claims,
    replicated_parts_are_kept_for_readers_after_a_purge,
}
PATIENT = {  # they show where a reader holds a version past retention: few worlds have one
    a_cleanup_overlooks_holds,
}
WORLDS_A_BREAK = 12
"""In the one that is pinned or in the next of them a break shows."""
PINNED = Path(__file__).with_name("seeds_of_breaks.json")


def pinned() -> dict[str, int]:
    """The seed of a world in which a break shows, by the break's name."""
    seeds: dict[str, int] = json.loads(PINNED.read_text())
    return seeds


def complaint_in(seed: int, break_it: Break) -> str:
    """What the auditor says of a world in which the code is broken; empty if nothing."""
    with pytest.MonkeyPatch.context() as broken:
        break_it(broken)
        try:
            simulate(seed, patient_holder=break_it in PATIENT, replicating=break_it in REPLICATING)
        except AssertionError as complaint:
            return str(complaint)
    return ""


def shows(seed: int, break_it: Break) -> bool:
    """Whether the auditor complains, and of what the break does."""
    return re.match(rf"seed \d+: .*({BREAKS[break_it]})", complaint_in(seed, break_it)) is not None


def pin(seeds_max: int) -> bool:
    """Write a seed for each break, the one that is pinned if the break still shows there. Whether all have one."""
    seeds = pinned() if PINNED.exists() else {}
    for break_it in BREAKS:
        name = break_it.__name__
        tried = itertools.chain([seeds[name]] if name in seeds else [], range(seeds_max))
        found = next((seed for seed in tried if shows(seed, break_it)), None)
        print(f"{name}: {'shows in none' if found is None else found}", flush=True)
        seeds = {**seeds, name: found} if found is not None else {one: at for one, at in seeds.items() if one != name}
    PINNED.write_text(json.dumps(seeds, indent=1) + "\n")
    return len(seeds) == len(BREAKS)
