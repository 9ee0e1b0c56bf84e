"""A volatile merge that is given up puts the claims back that its own took the place of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeResult
from lakebed.errors import Contention
from lakebed.log.actions import AddPart
from lakebed.log.claims import Claim, claims_of
from lakebed.log.conflicts import BLIND, ReadWriteSet
from lakebed.log.table_log import Outcome, TableLog
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.storage.data_files import LocalPartStorage
from tests.log.test_table_log import INFO, base_part, committed, new_log


def claimed(merger: Merger, paths: list[str], ending: tuple[Claim, ...] = ()) -> Claim:
    result = merger.claim(paths, level=1, volatile=True, ending=ending)
    assert not isinstance(result, MergeResult)
    return result[0]


def test_a_claim_does_not_come_back_if_its_source_left_in_that_moment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = new_log()
    parts = [base_part(name) for name in "abc"]
    committed(log.commit(log.refresh(), [AddPart(part) for part in parts], INFO, BLIND))
    a, b, c = (part.path for part in parts)
    storage = LocalPartStorage(str(tmp_path))
    merger = Merger(log, storage, DeletionVectorCache(storage), "replica")
    inner = claimed(merger, [a]), claimed(merger, [b])
    outer = claimed(merger, [a, b, c], inner)
    settler, commit = TableLog(log.store), log.commit

    def late(*arguments: Any) -> Outcome:
        snapshot = settler.refresh()
        if a in snapshot.parts:  # its last rows were deleted
            committed(settler.commit(snapshot, [snapshot.parts[a].removed(0)], INFO, ReadWriteSet(parts={a: ()})))
        return commit(*arguments)

    monkeypatch.setattr(log, "commit", late)
    merger.abandon(outer, restoring=inner)
    assert [claim.sources for claim in claims_of(log.refresh().domains).values()] == [(b,)]


def test_a_claim_that_can_not_be_given_back_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = new_log()
    part = base_part("a")
    committed(log.commit(log.refresh(), [AddPart(part)], INFO, BLIND))
    storage = LocalPartStorage(str(tmp_path))
    merger = Merger(log, storage, DeletionVectorCache(storage), "replica")
    claim = claimed(merger, [part.path])
    twin, commit = TableLog(log.store), log.commit

    def late(*arguments: Any) -> Outcome:
        committed(twin.commit(twin.refresh(), [claim.to_action()], INFO, BLIND))  # extended in that moment, each time
        return commit(*arguments)

    monkeypatch.setattr(log, "commit", late)
    with pytest.raises(Contention, match="ABANDON CLAIM"):
        merger.abandon(claim)
    assert claims_of(log.refresh().domains) == {claim.id: claim}
