"""Some worlds of the simulation, and its own eyes. More of them: ``python -m tests.simulation --seeds 1000``."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path

import pytest
from pyroaring import BitMap64

from lakebed.manifest import invariants, table_log
from lakebed.manifest.actions import Commit, Domain, Transaction
from lakebed.manifest.claims import Claim
from lakebed.manifest.conflicts import Conflict, ConflictKind, Touch, find_conflict
from lakebed.manifest.stores import LocalLogStore, MemoryLogStore
from lakebed.parts.provenance import Provenance
from tests.simulation.run import simulate

SLOW = [pytest.param(first, marks=pytest.mark.slow) for first in range(100, 400, 25)]


@pytest.mark.parametrize("first", [*range(0, 100, 25), *SLOW])
def test_no_version_is_lost_or_doubled_and_no_batch_comes_twice(first: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(first, first + 25):
        total += simulate(seed).counts
    for happened in ("crash", "before", "after", "delayed", "committed", "conflicted"):
        assert total[happened] > 0, f"seeds from {first} on: nothing of the kind {happened!r} happened"


def test_a_seed_is_the_same_world_every_time() -> None:
    assert simulate(7).trace == simulate(7).trace
    assert simulate(7).trace != simulate(11).trace


def test_the_same_worlds_on_a_real_disk(tmp_path: Path) -> None:
    for seed in range(1, 5):
        on_disk = simulate(seed, 200, partial(LocalLogStore, str(tmp_path / str(seed))))
        assert on_disk.trace == simulate(seed, 200).trace


def test_the_auditor_sees_a_store_whose_put_if_absent_overwrites() -> None:
    class Overwriting(MemoryLogStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            self.put(name, data)
            return True

    with pytest.raises(AssertionError, match=r"M1: version .* was written twice"):
        for seed in range(20):
            simulate(seed, new_store=Overwriting)


@pytest.mark.parametrize("kind", [ConflictKind.BATCH, ConflictKind.METADATA, ConflictKind.PARTS, ConflictKind.TABLE])
def test_the_auditor_sees_a_log_that_ignores_conflicts(kind: ConflictKind, monkeypatch: pytest.MonkeyPatch) -> None:
    def ignoring(touch: Touch, batch: Transaction | None, scope: str, winner: Commit) -> Conflict | None:
        conflict = find_conflict(touch, batch, scope, winner)
        return None if conflict and conflict.kind is kind else conflict

    monkeypatch.setattr(table_log, "find_conflict", ignoring)
    with pytest.raises(AssertionError, match=r"seed \d+"):
        for seed in range(60):
            simulate(seed)


def test_the_auditor_sees_a_store_that_forgets_a_commit() -> None:
    class Forgetful(MemoryLogStore):
        def put_if_absent(self, name: str, data: bytes) -> bool:
            return name.endswith("00000012.json") or super().put_if_absent(name, data)

    with pytest.raises(AssertionError, match=r"seed \d+"):
        for seed in range(20):
            simulate(seed, new_store=Forgetful)


def test_the_auditor_sees_a_merge_that_forgets_what_died_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Provenance, "map_rows", lambda self, ordinal, rows: BitMap64())
    monkeypatch.setitem(invariants.CHECKS, "P3", lambda before, commit: iter(()))
    with pytest.raises(AssertionError, match=r"B1: version .* brings rows back to life"):
        for seed in range(60):
            simulate(seed)


def test_the_auditor_sees_two_claims_on_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claim, "is_live", lambda self, now_ms: False)
    monkeypatch.setattr(Claim, "ended", lambda self: Domain("lakebed.claim.nobody", "", removed=True))
    monkeypatch.setitem(invariants.CHECKS, "P4", lambda before, commit: iter(()))
    with pytest.raises(AssertionError, match=r"P4: .* is claimed by"):
        for seed in range(60):
            simulate(seed)
