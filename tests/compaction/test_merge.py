"""A merge takes minutes: what others do meanwhile is neither lost nor stopped, and a merge that ends badly leaves nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import LEASE_SECONDS, Merger
from lakebed.compaction.merge_runner import FAILURES_MAX, MergeRunner
from lakebed.compaction.merge_values import MergeOutcome, Progress
from lakebed.compaction.volatile import VolatileMerger
from lakebed.errors import Cancelled, Corrupt, StoreUnavailable, Unexpected
from lakebed.events import Event, MergeFailed, listen
from lakebed.log.actions import CommitInfo
from lakebed.log.claims import claims_of
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.stores import LocalLogStore
from lakebed.log.table_log import Committed, Outcome, TableLog, Unknown
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.parts.changes import WriteSpec
from lakebed.planning.plan import Goal
from lakebed.planning.settling import UploadRules
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.clock import Clock
from tests.internals import compaction_of, deletion_vectors_of, log_of, storage_of, table_of

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])
ALL = UploadRules(age_seconds=0, local_bytes_max=0)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    """Three base parts: ids 0 to 9, 10 to 19, 20 to 29."""
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"], properties={"lakebed.read_budget": "1"})
    for start in (0, 10, 20):
        upsert(table, range(start, start + 10))
        table.settle()
    return table


def upsert(table: lakebed.Table, ids: Sequence[int], value: str = "first") -> None:
    table.apply(pa.table({"id": list(ids), "value": [value] * len(ids)}, SCHEMA))


def delete(table: lakebed.Table, ids: Sequence[int]) -> None:
    rows = pa.table({"id": pa.array(ids, pa.int64()), "value": pa.nulls(len(ids), pa.string())})
    table.apply(rows, apply_as_deletes="true")
    table.settle()


def content(table: lakebed.Table) -> dict[int, str]:
    return {row["id"]: row["value"] for row in table.to_arrow().to_pylist()}


def paths(table: lakebed.Table) -> list[str]:
    return sorted(log_of(table).refresh().parts)


def files(table: lakebed.Table) -> set[str]:
    return {path.name for path in Path(table.path, "_lakebed").glob("*.parquet")}


def merger(table: lakebed.Table, name: str = "r1", clock: Callable[[], float] | None = None) -> Merger:
    more = {"clock": clock} if clock else {}
    return Merger(log_of(table), storage_of(table), deletion_vectors_of(table), name, **more)  # type: ignore[arg-type]


@dataclass(frozen=True)
class kernel:
    """The real kernel, with something that happens before or after its work."""

    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        self.before()
        merged = merge_parts(sources, spec, output, connect())
        self.after()
        return merged


def test_rows_that_die_while_a_merge_runs_are_dead_in_its_output(table: lakebed.Table) -> None:
    def others() -> None:
        delete(table, [3, 14])
        upsert(table, [5, 25], "second")
        table.settle()

    result = merger(table).run(paths(table), 1, kernel(after=others))
    assert (result.outcome, result.carried_rows, result.parts_in) == (MergeOutcome.COMPLETED, 4, 3)
    expected = {id: "first" for id in range(30) if id not in (3, 14)} | {5: "second", 25: "second"}
    assert content(table) == expected
    assert lakebed.open(table.path).inspect.parts()["level"].to_pylist().count(1) == 1


def test_a_writer_and_a_settle_never_wait_for_a_merge_and_never_fail_because_of_it(table: lakebed.Table) -> None:
    def others() -> None:
        for number in range(5):
            upsert(table, [number], f"write {number}")
            assert table.settle().conflicts == 0

    assert merger(table).run(paths(table), 1, kernel(before=others)).outcome is MergeOutcome.COMPLETED
    assert [content(table)[number] for number in range(5)] == [f"write {number}" for number in range(5)]


def test_of_two_merges_of_one_part_the_second_ends_before_it_costs_anything(table: lakebed.Table) -> None:
    a, b, c = paths(table)
    ends = []

    def rival() -> None:
        def never() -> None:
            raise AssertionError("the second merge did work")

        ends.append(merger(table, "r2").run([b, c], 1, kernel(before=never)).outcome)

    assert merger(table).run([a, b], 1, kernel(before=rival)).outcome is MergeOutcome.COMPLETED
    assert ends == [MergeOutcome.CLAIMED]
    assert merger(table).run([a, c], 1, kernel()).outcome is MergeOutcome.REPLACED


def test_a_lease_that_ended_lets_another_replica_take_over_and_the_first_gives_up(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    late = merger(table, "late", clock)
    before = files(table)

    def overtake() -> None:
        clock.now += 3600
        assert merger(table, "quick", clock).run(paths(table), 1, kernel()).outcome is MergeOutcome.COMPLETED

    result = late.run(paths(table)[:2], 1, kernel(after=overtake))
    assert result.outcome is MergeOutcome.OVERTAKEN
    assert len(files(table) - before) == 1, "the files of the merge that gave way are deleted"
    assert content(table) == {id: "first" for id in range(30)}


def test_a_merge_whose_lease_ended_is_still_completed_if_nobody_took_over(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)

    def sleep() -> None:
        clock.now += 3600

    assert merger(table, clock=clock).run(paths(table), 1, kernel(after=sleep)).outcome is MergeOutcome.COMPLETED


def test_a_claim_of_a_replica_that_is_gone_for_two_leases_is_ended_by_another_and_no_other_claim_is(
    table: lakebed.Table,
) -> None:
    clock = Clock(1_900_000_000.0)
    mine, gone = merger(table, "mine", clock), merger(table, "gone", clock)
    a, b, c = paths(table)
    gone.claim([a, b], 1)
    mine.claim([c], 1)

    clock.now += 2 * LEASE_SECONDS - 1
    mine.tidy()
    assert len(claims_of(log_of(table).refresh().domains)) == 2
    clock.now += 2
    mine.tidy()

    assert [claim.replica for claim in claims_of(log_of(table).refresh().domains).values()] == ["mine"]


@pytest.mark.parametrize("is_volatile", [False, True])
def test_a_replica_that_closes_gives_back_the_claim_of_a_merge_that_can_not_be_stopped(
    table: lakebed.Table, is_volatile: bool
) -> None:
    a, b, c = paths(table)
    replica = volatile(table) if is_volatile else merger(table)
    kept = set()
    inputs = [a, b]
    if isinstance(replica, VolatileMerger):
        replica.run([a, b], 1, kernel())
        [one] = replica.held()
        inputs, kept = [one.url(one.parts[0]), c], {one.claim.id}

    def close() -> None:
        replica.close()
        assert claims_of(log_of(table).refresh().domains).keys() == kept

    ends = []
    try:
        ends.append(replica.run(inputs, 2, kernel(after=close)).outcome)
    finally:
        assert claims_of(log_of(table).refresh().domains).keys() == kept
    assert content(table) == {id: "first" for id in range(30)}
    assert is_volatile or ends == [MergeOutcome.OVERTAKEN]


def test_a_table_that_is_truncated_under_a_merge_stays_empty(table: lakebed.Table) -> None:
    def truncate() -> None:
        snapshot = log_of(table).refresh()
        actions = [part.removed(0) for part in snapshot.parts.values()]
        log_of(table).commit(
            snapshot, actions, CommitInfo(operation="TRUNCATE", commit_id=""), ReadWriteSet(whole_table=True)
        )

    before = files(table)
    result = merger(table).run(paths(table), 1, kernel(after=truncate))
    assert result.outcome in (MergeOutcome.COMPLETED, MergeOutcome.OVERTAKEN) and result.parts_out == 0
    assert content(table) == {} and not claims_of(log_of(table).refresh().domains)
    assert files(table) - before <= files(table), "its file is no part of the table"
    assert paths(table) == []


def test_a_merge_that_fails_gives_its_claim_back_and_leaves_no_file(table: lakebed.Table) -> None:
    before = files(table)

    def fail() -> None:
        raise StoreUnavailable("the disk is on fire")

    with pytest.raises(StoreUnavailable, match="on fire"):
        merger(table).run(paths(table), 1, kernel(before=fail))
    assert files(table) == before
    assert not claims_of(log_of(table).refresh().domains)

    def stop() -> None:
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        merger(table).run(paths(table), 1, kernel(before=stop))
    assert not claims_of(log_of(table).refresh().domains)
    assert content(table) == {id: "first" for id in range(30)}


def test_a_part_that_can_not_be_read_is_parked_and_reported_and_the_others_are_merged(table: lakebed.Table) -> None:
    broken = paths(table)[1]
    Path(table.path, broken).write_bytes(b"PAR1 rubbish")
    failed: list[Event] = []
    stop = listen(lambda event: failed.append(event) if isinstance(event, MergeFailed) else None)
    clock = Clock(1_900_000_000.0)
    merge_runner = MergeRunner(
        table.path, log_of(table), merger(table), LocalKernel(storage_of(table), log_of(table).refresh), clock=clock
    )
    job = merge_runner.next_plan()
    assert job is not None
    with pytest.raises(Corrupt, match=broken):
        merge_runner.run(*job)
    stop()
    assert [event.parked for event in failed if isinstance(event, MergeFailed)] == [True]
    assert broken in str(failed) and merge_runner.parked() == {broken}
    merge_runner.run_until_idle()
    assert broken in paths(table) and len(paths(table)) == 2
    clock.now += 3601
    with pytest.raises(Corrupt, match=broken):
        merge_runner.run_until_idle()


def test_a_plan_that_keeps_failing_is_tried_later_and_later_and_then_parked(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)

    def fail() -> None:
        raise Unexpected("a value can't be sorted")

    failing = kernel(before=fail)
    merge_runner = MergeRunner(table.path, log_of(table), merger(table, clock=clock), failing, clock=clock)
    attempts, started = 0, clock.now
    while clock.now < started + 600:
        if job := merge_runner.next_plan():
            with pytest.raises(Unexpected):
                merge_runner.run(*job)
            attempts += 1
        clock.now += 1
    assert attempts == FAILURES_MAX
    assert merge_runner.parked() == set(paths(table))


def test_merging_until_nothing_is_left_ends_and_changes_no_row(table: lakebed.Table) -> None:
    delete(table, range(0, 30, 3))
    before = content(table)
    result = table.maintenance.compact()
    assert result.merges >= 1 and content(table) == before
    assert table.maintenance.compact().merges == 0
    assert [row for row in table.maintenance.plan()["what"].to_pylist() if not row.startswith("left")] == []


# -- on a local disk -------------------------------------------------------------------------------------------------


def volatile(table: lakebed.Table, clock: Callable[[], float] | None = None) -> VolatileMerger:
    more = {"clock": clock} if clock else {}
    base = compaction_of(table).volatile_base
    return VolatileMerger(log_of(table), storage_of(table), deletion_vectors_of(table), base, **more)  # type: ignore[arg-type]


def test_a_materialized_part_is_read_here_and_its_sources_everywhere_else_with_the_same_rows(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = paths(table)
    replica = volatile(table)
    assert replica.run(before, 1, kernel()).outcome is MergeOutcome.COMPLETED
    delete(table, [7, 17])
    assert set(before) <= set(paths(table)), "the sources stay in the log"
    here = content(table)
    for path in before:
        Path(table.path, path).rename(Path(table.path, path + ".away"))
    assert content(lakebed.open(table.path)) == here == {id: "first" for id in range(30) if id not in (7, 17)}
    for path in before:
        Path(table.path, path + ".away").rename(Path(table.path, path))
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "another host"))
    assert content(lakebed.open(table.path)) == here


def test_a_materialized_part_is_merged_again_and_uploaded_once_in_place_of_all_that_it_covers(
    table: lakebed.Table,
) -> None:
    a, b, c = paths(table)
    replica = volatile(table)
    replica.run([a, b], 1, kernel())
    delete(table, [1])
    [first] = replica.held()
    replica.run([first.url(first.parts[0]), c], 2, kernel(after=lambda: delete(table, [2, 22])))
    [second] = replica.held()
    assert second.oldest_ms == first.oldest_ms < second.made_ms, "merging on does not put off the upload"
    assert sorted(second.claim.sources) == sorted([a, b, c])
    delete(table, [3])
    written = files(table)
    [result] = replica.upload_due(ALL)
    assert (result.outcome, result.parts_in, result.carried_rows) == (MergeOutcome.COMPLETED, 3, 3)
    assert len(files(table) - written) == 1, "one object for all"
    assert not replica.held() and not claims_of(log_of(table).refresh().domains)
    assert content(table) == {id: "first" for id in range(4, 30) if id != 22} | {0: "first"}


def test_a_replica_that_starts_again_goes_on_with_what_is_on_its_disk(table: lakebed.Table) -> None:
    replica = volatile(table)
    replica.run(paths(table)[:2], 1, kernel())
    name, held = replica.replica, [one.claim.id for one in replica.held()]
    replica.close()
    again = volatile(table)
    assert (again.replica, [one.claim.id for one in again.held()]) == (name, held)
    other = volatile(table)
    assert other.replica != name and other.held() == [], "two replicas on a host have folders of their own"


def test_a_replica_that_lost_its_disk_gives_its_claims_back_when_it_starts(table: lakebed.Table) -> None:
    replica = volatile(table)
    replica.run(paths(table)[:2], 1, kernel())
    [one] = replica.held()
    Path(one.local_path(one.parts[0])).unlink()
    replica.close()
    assert volatile(table).held() == []
    assert not claims_of(log_of(table).refresh().domains)
    assert content(table) == {id: "first" for id in range(30)}


def test_a_materialized_part_that_was_damaged_is_dropped_and_nothing_is_lost(table: lakebed.Table) -> None:
    replica = volatile(table)
    replica.run(paths(table), 1, kernel())
    [one] = replica.held()
    local = Path(one.local_path(one.parts[0]))
    data = bytearray(local.read_bytes())
    data[len(data) // 2] ^= 0xFF
    local.write_bytes(bytes(data))
    with pytest.raises(Corrupt, match=str(local)):
        replica.upload_due(ALL)
    assert replica.held() == [] and not claims_of(log_of(table).refresh().domains)
    assert content(lakebed.open(table.path)) == {id: "first" for id in range(30)}


def test_an_upload_that_was_overtaken_deletes_its_object(table: lakebed.Table) -> None:
    clock = Clock(1_900_000_000.0)
    replica = volatile(table, clock)
    replica.run(paths(table)[:2], 1, kernel())
    clock.now += 3600
    assert merger(table, "quick", clock).run(paths(table), 1, kernel()).outcome is MergeOutcome.COMPLETED
    before = files(table)
    [result] = replica.upload_due(ALL)
    assert result.outcome is MergeOutcome.OVERTAKEN and files(table) == before
    assert replica.held() == [] and content(table) == {id: "first" for id in range(30)}


def test_an_upload_that_stands_though_nobody_said_so_keeps_its_object(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = volatile(table)
    replica.run(paths(table), 1, kernel())
    commit = log_of(table).commit

    def silent(*arguments: Any) -> Outcome:
        outcome = commit(*arguments)
        assert isinstance(outcome, Committed)
        return Unknown(outcome.version, "", "no answer")

    monkeypatch.setattr(log_of(table), "commit", silent)
    with pytest.raises(StoreUnavailable, match="unknown"):
        replica.upload_due(ALL)
    monkeypatch.undo()
    [result] = replica.upload_due(ALL)
    assert result.outcome is MergeOutcome.COMPLETED and replica.held() == []
    assert all(Path(table.path, path).exists() for path in paths(table)), "no file that the log names is deleted"
    assert content(lakebed.open(table.path)) == {id: "first" for id in range(30)}


class LateStore(LocalLogStore):
    """A store that answers no more, and puts what was last asked for when it likes."""

    silent = False
    late: tuple[str, bytes] | None = None

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self.silent:
            self.late = name, data
            raise StoreUnavailable("no answer")
        return super().put_if_absent(name, data)

    def land(self) -> None:
        self.silent = False
        assert self.late is not None and super().put_if_absent(*self.late)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("fate", ["merged", "detached"])
def test_an_object_whose_commit_came_late_is_never_deleted_by_the_replica_that_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: str, restarts: bool
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    clock = Clock(1_900_000_000.0)
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"], partition_by=["value"])
    for start in (0, 10, 20):
        upsert(table, range(start, start + 10))
        table.settle()
    store = LateStore(table.path)
    cut_off = table_of(table.path, TableLog(store, clock, sleep=lambda seconds: None))
    replica = volatile(cut_off, clock)
    replica.run(paths(table), 1, kernel())
    store.silent = True
    with pytest.raises(StoreUnavailable, match="unknown"):
        replica.upload_due(ALL)
    if restarts:
        replica.close()
        replica = volatile(cut_off, clock)
        assert replica.held()
    store.land()
    others = table_of(table.path, TableLog(LocalLogStore(table.path), clock))
    uploaded, held = others.version, content(others)
    if fate == "merged":
        upsert(others, [0, 99], "second")
        others.settle()
        firsts = [
            row["path"] for row in others.inspect.parts().to_pylist() if dict(row["partition"])["value"] == "first"
        ]
        assert merger(others, "quick", clock).run(firsts, 2, kernel()).outcome is MergeOutcome.COMPLETED
    else:
        name = others.detach_partition({"value": "first"})
    clock.now += 4 * 3600  # what was removed is forgotten
    others.maintenance.clean_log()
    assert [result.outcome for result in replica.upload_due(ALL)] == [MergeOutcome.OVERTAKEN]
    again = lakebed.open(table.path)
    assert {row["id"]: row["value"] for row in again.to_arrow(version=uploaded).to_pylist()} == held
    if fate == "detached":
        again.attach_partition(name)
        assert content(again) == held


def test_a_merge_on_local_disk_that_fails_gives_back_the_materialized_parts_it_had_taken(table: lakebed.Table) -> None:
    a, b, c = paths(table)
    replica = volatile(table)
    replica.run([a, b], 1, kernel())
    [one] = replica.held()

    def stop() -> None:
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        replica.run([one.url(one.parts[0]), c], 2, kernel(before=stop))
    assert [held.claim.id for held in replica.held()] == [one.claim.id]
    assert claims_of(log_of(table).refresh().domains).keys() == {one.claim.id}
    assert [result.outcome for result in replica.upload_due(ALL)] == [MergeOutcome.COMPLETED]


def test_what_is_old_is_uploaded_and_the_local_disk_stays_within_its_bound(
    table: lakebed.Table,
) -> None:
    replica = volatile(table)
    replica.run(paths(table), 1, kernel())
    [one] = replica.held()
    now = one.made_ms
    assert UploadRules(age_seconds=5, local_bytes_max=one.bytes).due([one], now + 4999) == []
    assert UploadRules(age_seconds=5, local_bytes_max=one.bytes).due([one], now + 5000) == [one]
    assert UploadRules(age_seconds=5, local_bytes_max=one.bytes - 1).due([one], now) == [one]


def test_what_is_merged_for_readers_elsewhere_is_uploaded_from_what_the_disk_has_of_it(table: lakebed.Table) -> None:
    a, b, c = paths(table)
    replica = volatile(table)
    replica.run([a, b], 1, kernel())
    [one] = replica.held()
    local, delete_meanwhile = one.local_path(one.parts[0]), lambda: delete(table, [2, 22])
    Path(table.path, a).rename(Path(table.path, a + ".away"))  # it is not read again
    result = replica.run_and_upload([a, b, c], 2, kernel(after=delete_meanwhile))
    assert (result.outcome, result.parts_in, result.carried_rows, result.local) == (MergeOutcome.COMPLETED, 3, 2, False)
    assert not {a, b, c} & set(paths(table)) and not replica.held()
    assert Path(local).exists(), "whoever has begun to read it goes on"
    assert not claims_of(log_of(table).refresh().domains)
    assert content(lakebed.open(table.path)) == {id: "first" for id in range(30) if id not in (2, 22)}


def test_what_stands_for_more_than_is_merged_for_readers_elsewhere_is_dropped(table: lakebed.Table) -> None:
    a, b, c = paths(table)
    replica = volatile(table)
    replica.run([a, b], 1, kernel())
    result = replica.run_and_upload([b, c], 1, kernel())
    assert (result.outcome, result.parts_in) == (MergeOutcome.COMPLETED, 2)
    assert a in paths(table) and len(paths(table)) == 2 and replica.held() == []
    assert not claims_of(log_of(table).refresh().domains), "nobody claims the other part any more"
    assert content(lakebed.open(table.path)) == {id: "first" for id in range(30)}


def test_what_is_merged_already_is_only_uploaded(table: lakebed.Table) -> None:
    replica = volatile(table)
    replica.run(paths(table), 1, kernel())

    def never() -> None:
        raise AssertionError("it was merged again")

    assert replica.run_and_upload(paths(table), 1, kernel(before=never)).outcome is MergeOutcome.COMPLETED
    assert len(paths(table)) == 1 and replica.held() == []


def test_readers_elsewhere_are_planned_for_first_and_a_full_disk_is_planned_around(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = volatile(table)
    a, b, c = paths(table)
    replica.run([a, b], 1, kernel())
    snapshot = log_of(table).refresh()
    store, here = replica.views(snapshot, log_of(table).now_ms())
    assert (store.goal, set(store.snapshot.parts), store.claimed) == (Goal.ELSEWHERE, {a, b, c}, frozenset())
    assert (here.goal, len(here.snapshot.parts), here.claimed) == (Goal.HERE, 2, {a, b})
    table.set_properties({"lakebed.volatile_bytes_max": "1"})
    replica.tidy()
    [store] = replica.views(log_of(table).refresh(), log_of(table).now_ms())
    assert (store.goal, set(store.snapshot.parts), store.claimed) == (Goal.ALL, {a, b, c}, frozenset())


def test_compacting_ends_though_parts_reach_across_values_of_the_first_sort_column(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
    properties = {"lakebed.read_budget": "1", "lakebed.target_part_rows": "20"}
    table = lakebed.create(tmp_path / "sorted", schema, ["id"], ["region", "amount"], properties=properties)
    rng = random.Random(0)
    for _ in range(4):
        rows = [
            {"id": rng.randrange(1000), "region": rng.choice("abc"), "amount": rng.randrange(100)} for _ in range(60)
        ]
        table.apply(pa.Table.from_pylist(rows, schema))
        table.settle()
    plans: list[Any] = []
    merge = MergeRunner.run

    def counted(merge_runner: MergeRunner, number: int, plan: Any) -> Any:
        plans.append(plan)
        assert len(plans) < 100, "it merges the same parts again and again"
        return merge(merge_runner, number, plan)

    monkeypatch.setattr(MergeRunner, "run", counted)
    table.maintenance.compact()
    assert table.inspect.clustering()["max_depth"][0].as_py() <= 2, "neighbours may share a key"


def test_a_dead_replica_whose_clock_was_a_year_ahead_keeps_nobody_from_its_parts(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), ("v", pa.int64())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], properties={"lakebed.read_budget": "2"})
    for number in range(12):
        ids = list(range(number, 200, 3))
        table.apply(pa.table({"id": ids, "v": [number] * len(ids)}, schema=schema))
        table.settle()
    ahead = Merger(
        log_of(table), storage_of(table), deletion_vectors_of(table), "ahead", lambda: time.time() + 365 * 86_400
    )
    assert isinstance(ahead.claim(list(log_of(table).refresh().parts), 1), tuple)
    assert table.status().claims_live == 0
    assert table.maintenance.compact().merges > 0
    assert table.to_arrow().num_rows == 200 and not table.inspect.claims().num_rows
