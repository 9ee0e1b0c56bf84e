"""Some worlds of the simulation, and its own eyes. More of them: ``python -m tests.simulation --seeds 1000``."""

from __future__ import annotations

import re
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from lakebed.log import table_log
from lakebed.log.actions import Commit, Transaction
from lakebed.log.conflicts import Conflict, ConflictKind, ReadWriteSet, find_conflict
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LocalLogStore, MemoryLogStore
from tests.simulation.breaks import BREAKS, WORLDS_A_BREAK, Break, pinned, shows
from tests.simulation.run import simulate
from tests.worlds import worlds


@pytest.mark.slow
@pytest.mark.worlds
def test_every_version_shows_the_rows_of_the_oracle_and_nothing_needed_is_deleted() -> None:
    total: Counter[str] = Counter()
    for seed in worlds(25):
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
        "sorted by version 2",
    ):
        assert total[happened] > 0, f"nothing of the kind {happened!r} happened"


@pytest.mark.slow
def test_readers_of_another_host_see_the_same_rows_in_what_they_build_from_claims() -> None:
    total: Counter[str] = Counter()
    for seed in range(28, 40):  # in one world of ten rows die in what is built so: three of these
        total += simulate(seed, replicating=True).counts
    for happened in ("replicated", "replicated read", "replicated read of an old version", "replicated rows died"):
        assert total[happened] > 0, f"nothing of the kind {happened!r} happened"


@pytest.mark.slow
def test_what_a_reader_holds_past_retention_stays() -> None:
    for seed in range(10):
        simulate(seed, patient_holder=True)


def test_a_seed_is_the_same_world_every_time() -> None:
    assert simulate(7).trace == simulate(7).trace
    assert simulate(7).trace != simulate(11).trace


def without_names(trace: tuple[str, ...]) -> list[str]:
    """A store on disk draws names too, so those of deletion vectors and of detached partitions differ."""
    return [re.sub(r"[_'][0-9a-f-]{36}", "", line) for line in trace]


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("break_it", [pytest.param(break_it, id=break_it.__name__) for break_it in BREAKS])
def test_the_auditor_sees_that(break_it: Break) -> None:
    first = pinned()[break_it.__name__]
    seeds = range(first, first + WORLDS_A_BREAK)
    assert any(shows(seed, break_it) for seed in seeds), "pin other worlds: python -m tests.simulation --pin"
