"""Claims: who may merge which parts, told by the log alone."""

from __future__ import annotations

import pytest

from lakebed.errors import Corrupt
from lakebed.log.actions import Action, AddPart, CommitInfo, Part
from lakebed.log.claims import Claim, claimed_paths, claims_of
from lakebed.log.conflicts import BLIND, ConflictKind, ReadWriteSet
from lakebed.log.deletion_vector import bitmap, inline
from lakebed.log.table_log import Committed, Conflicted, TableLog
from tests.log.test_table_log import INFO, base_part, change_part, committed, new_log

A, B, C = (f"_lakebed/{name}.parquet" for name in "abc")


def claim(name: str, *sources: str, lease_ms: int = 10, replica: str = "r1") -> Claim:
    return Claim(id=name, replica=replica, sources=sources, level=1, lease_ms=lease_ms)


def log_with_parts(*names: str) -> TableLog:
    log = new_log()
    committed(log.commit(log.refresh(), [AddPart(base_part(name)) for name in names], INFO, BLIND))
    return log


def commit_claim(log: TableLog, claim: Claim, ended: tuple[Claim, ...] = ()) -> object:
    access = ReadWriteSet(claimed=frozenset(claim.sources), domains=frozenset(other.domain for other in ended))
    actions = [*(other.ended() for other in ended), claim.to_action()]
    return log.commit(log.refresh(), actions, CommitInfo(operation="CLAIM", commit_id=""), access)


def test_a_claim_reads_back_as_it_was_written_also_from_a_checkpoint() -> None:
    log = log_with_parts("a", "b")
    mine = Claim(id="x", replica="replica one", sources=(A, B), level=2, lease_ms=77, since_ms=7, volatile=True)
    snapshot = committed(commit_claim(log, mine))
    log.write_checkpoint(snapshot)
    assert claims_of(TableLog(log.store).refresh().domains) == {"x": mine}
    assert claimed_paths(snapshot, now_ms=76) == {A, B}
    assert claimed_paths(snapshot, now_ms=77) == frozenset()


def test_of_two_claims_that_meet_the_later_one_loses_and_learns_of_the_other() -> None:
    log = log_with_parts("a", "b", "c")
    read = log.refresh()
    committed(commit_claim(log, claim("x", A, B)))
    late = claim("y", B, C, replica="r2")
    access = ReadWriteSet(claimed=frozenset(late.sources))
    outcome = log.commit(read, [late.to_action()], CommitInfo(operation="CLAIM", commit_id=""), access)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.CLAIM
    assert "r1" in outcome.conflict.detail


def test_claims_that_do_not_meet_do_not_conflict() -> None:
    log = log_with_parts("a", "b", "c")
    read = log.refresh()
    committed(commit_claim(log, claim("x", A, B)))
    apart = claim("y", C)
    assert isinstance(
        log.commit(
            read, [apart.to_action()], CommitInfo(operation="CLAIM", commit_id=""), ReadWriteSet(claimed=frozenset([C]))
        ),
        Committed,
    )


def test_a_claim_loses_to_a_commit_that_takes_a_source_out_but_not_to_one_that_marks_rows() -> None:
    log = log_with_parts("a", "b")
    read = log.refresh()
    part = read.parts[A]
    marked = [part.removed(0), AddPart(part.marked(inline(bitmap([3]))))]
    committed(log.commit(read, marked, INFO, ReadWriteSet(parts={A: ()})))
    mine = claim("x", A)
    access = ReadWriteSet(claimed=frozenset(mine.sources))
    assert isinstance(
        log.commit(read, [mine.to_action()], CommitInfo(operation="CLAIM", commit_id=""), access), Committed
    )
    read = log.refresh()
    committed(log.commit(read, [read.parts[B].removed(0)], INFO, ReadWriteSet(parts={B: ()})))
    late = claim("y", B)
    outcome = log.commit(
        read, [late.to_action()], CommitInfo(operation="CLAIM", commit_id=""), ReadWriteSet(claimed=frozenset([B]))
    )
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.PARTS


def test_a_blind_append_passes_claims_by() -> None:
    log = log_with_parts("a")
    read = log.refresh()
    committed(commit_claim(log, claim("x", A)))
    assert isinstance(log.commit(read, [change_part("n")], INFO, BLIND), Committed)


def test_p4_a_part_of_another_claim_is_not_claimed_even_by_a_commit_that_saw_no_conflict() -> None:
    log = log_with_parts("a", "b")
    committed(commit_claim(log, claim("x", A, B)))
    with pytest.raises(Corrupt, match="P4"):
        log.commit(log.refresh(), [claim("y", B).to_action()], CommitInfo(operation="CLAIM", commit_id=""), BLIND)


def test_an_expired_claim_is_taken_over_by_ending_it_in_the_same_commit() -> None:
    log = log_with_parts("a", "b")
    old = claim("x", A, B)
    committed(commit_claim(log, old))
    snapshot = committed(commit_claim(log, claim("y", B), ended=(old,)))
    assert claims_of(snapshot.domains).keys() == {"y"}


def test_a_heartbeat_that_came_first_keeps_the_claim_from_being_taken_over() -> None:
    log = log_with_parts("a")
    old = claim("x", A)
    committed(commit_claim(log, old))
    read = log.refresh()
    committed(
        log.commit(read, [claim("x", A, lease_ms=99).to_action()], INFO, ReadWriteSet(domains=frozenset([old.domain])))
    )
    mine = claim("y", A)
    access = ReadWriteSet(claimed=frozenset([A]), domains=frozenset([old.domain]))
    outcome = log.commit(read, [old.ended(), mine.to_action()], CommitInfo(operation="CLAIM", commit_id=""), access)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.CLAIM


def test_p1_a_part_that_is_not_in_the_base_is_not_claimed() -> None:
    log = log_with_parts("a")
    with pytest.raises(Corrupt, match="P1"):
        log.commit(log.refresh(), [claim("x", B).to_action()], CommitInfo(operation="CLAIM", commit_id=""), BLIND)


def test_p3_a_commit_that_rearranges_rows_must_leave_as_many_live_ones() -> None:
    log = log_with_parts("a", "b")
    read = log.refresh()
    leaving: list[Action] = [read.parts[path].removed(0, data_change=False) for path in (A, B)]

    def output(rows: int) -> AddPart:
        return AddPart(Part(path=C, rows=rows, bytes=10, level=1, stats=f'{{"numRecords":{rows}}}'), data_change=False)

    with pytest.raises(Corrupt, match="P3"):
        log.commit(read, [*leaving, output(19)], INFO, ReadWriteSet(parts={A: (), B: ()}))
    committed(log.commit(read, [*leaving, output(20)], INFO, ReadWriteSet(parts={A: (), B: ()})))
