"""Reclustering and a new sort key on real tables, whatever others commit meanwhile."""

from __future__ import annotations

import shutil
from collections import namedtuple
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.compaction import recluster_job
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome
from lakebed.compaction.recluster_job import ReclusterProgress
from lakebed.compaction.volatile import VolatileMerger
from lakebed.errors import InvalidInput, StoreUnavailable
from lakebed.log.claims import Claim, claims_of
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.planning.plan import Goal, Planning
from lakebed.planning.settling import UploadRules
from tests.internals import compaction_of, deletion_vectors_of, log_of, storage_of

SCHEMA = pa.schema([("id", pa.int64()), ("place", pa.int64()), ("value", pa.string())])
SMALL_PARTS = {
    "lakebed.target_part_rows": "1000", "lakebed.target_part_bytes": "4000", "lakebed.plan_bytes_max": "9000",
    "lakebed.purge_dead_ratio": "1",
}  # fmt: skip
CASES = {
    "no key, a sort key": ([], ["place"]),
    "a key, no sort key": (["id"], []),
    "the key is the sort key": (["id"], ["id"]),
    "another sort key": (["id"], ["place", "id"]),
}
BATCHES, ROWS = 12, 400


pytestmark = [pytest.mark.usefixtures("own_cache"), pytest.mark.few(2)]


class Filled:
    """A table with overlapping level-0 parts, and what must be in it."""

    def __init__(self, path: Path, keys: Sequence[str], sort_key: Sequence[str], **properties: str) -> None:
        self.rng = np.random.default_rng(1)
        self.table = lakebed.create(path, SCHEMA, keys, sort_key, properties=SMALL_PARTS | properties)
        self.rows: dict[int, dict[str, Any]] = {}
        self.ids = self.rng.permutation(100_000).tolist()
        for number in range(BATCHES):
            self.append(ROWS, f"batch {number}")

    def append(self, rows: int, value: str) -> None:
        ids = [self.ids.pop() for _ in range(rows)]
        self._apply(ids, value)

    def update(self, rows: int, value: str) -> None:
        """Replace some rows; a table without keys has them updated where they lie."""
        ids = self.rng.choice(sorted(self.rows), rows, replace=False).tolist()
        if self.table.inspect.detail()["keys"].to_pylist() == [[]]:
            self.table.update({"value": f"'{value}'"}, f"id in ({', '.join(map(str, ids))})")
            for id in ids:
                self.rows[id]["value"] = value
        else:
            self._apply(ids, value)

    def delete(self, share: int) -> None:
        self.table.delete(f"id % {share} = 0")
        self.rows = {id: row for id, row in self.rows.items() if id % share}
        self.table.settle()

    def _apply(self, ids: Sequence[int], value: str) -> None:
        new: list[dict[str, Any]] = [{"id": id, "place": int(self.rng.integers(1000)), "value": value} for id in ids]
        self.table.apply(pa.Table.from_pylist(new, SCHEMA))
        self.table.settle()
        self.rows |= {row["id"]: row for row in new}

    def check(self) -> None:
        found = {row["id"]: row for row in lakebed.open(self.table.path).to_arrow().to_pylist()}
        assert found == self.rows
        detail = self.table.inspect.detail().to_pylist()[0]
        order_by = detail["sort_key"] or detail["keys"]
        for part in self.table.inspect.parts().to_pylist():
            if order_by and part["state"] == "base" and part["sort_key_version"] == detail["sort_key_version"]:
                rows = pq.read_table(Path(self.table.path, part["path"])).select(order_by).to_pylist()
                keys = [tuple(row.values()) for row in rows]
                assert keys == sorted(keys), f"{part['path']} is not in the order of version {part['sort_key_version']}"


@pytest.fixture(params=CASES)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    keys, sort_key = CASES[request.param]
    return Filled(tmp_path / "table", keys, sort_key)


def unsorted(table: lakebed.Table) -> int:
    return int(table.inspect.clustering()["unsorted_part_count"][0].as_py())


def at_first(act: Callable[[], object]) -> Callable[[ReclusterProgress], None]:
    """Something that happens once, while the first merge is at work."""
    done: list[bool] = []

    def hook(progress: ReclusterProgress) -> None:
        if not done and progress.rows > 0:
            done.append(True)
            act()

    return hook


def test_a_table_without_any_order_says_why_it_can_not_be_reclustered(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "table", [], [])
    with pytest.raises(InvalidInput, match=r"neither a sort key nor keys.*set_sort_key"):
        filled.table.maintenance.recluster()
    filled.table.set_sort_key(["place"])
    assert filled.table.maintenance.recluster(final=True).finished and unsorted(filled.table) == 0
    filled.check()


def test_the_next_round_is_planned_when_no_merge_of_this_one_is_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Filled(tmp_path / "table", ["id"], []).table
    before = log_of(table).refresh()
    table.maintenance.recluster()
    after = log_of(table).refresh()
    found: list[list[int]] = []

    class SideBySide:
        """Merges nothing, but has it planned; the first group ends while another one is at work."""

        def __init__(self, *inside: object, planner: Callable[..., Planning], **more: object) -> None:
            self.planner, self.at_work = planner, ["a merge"]

        def running(self) -> list[str]:
            return self.at_work

        def run_until_idle(self) -> list[object]:
            for snapshot in (before, after):
                self._plan(snapshot)
            self.at_work = []
            self._plan(after)
            return []

        def _plan(self, snapshot: Snapshot) -> None:
            planning = self.planner(snapshot, (), log_of(table).now_ms(), 0, {}, Goal.ALL)
            found.append([merge.level for merge in planning.merges])

    monkeypatch.setattr(recluster_job, "MergeRunner", SideBySide)
    result = table.maintenance.recluster(final=True, stop=lambda: len(found) == 3)
    assert (found, result.rounds) == ([[1], [], [2]], 2), "levels that are written"


def test_final_makes_every_level_as_shallow_as_its_threshold_and_one_round_makes_one(filled: Filled) -> None:
    before = filled.table.version
    predicted = filled.table.maintenance.recluster(final=True, dry_run=True)
    assert filled.table.version == before and predicted.estimated and predicted.depth_before == {0: BATCHES}
    one = filled.table.maintenance.recluster()
    assert (one.rounds, one.finished, one.depth_before) == (1, True, {0: BATCHES})
    assert one.depth_after.get(0, 0) <= 2 < one.depth_after[1]
    rest = filled.table.maintenance.recluster(final=True)
    assert rest.depth_before == one.depth_after and all(depth <= 2 for depth in rest.depth_after.values())
    assert one.bytes_in + rest.bytes_in == pytest.approx(predicted.bytes_in, rel=0.5)
    again = filled.table.maintenance.recluster(final=True)
    assert (again.plans, again.version) == (0, rest.version)
    filled.check()


def test_what_others_commit_while_it_runs_is_neither_lost_nor_waited_for(filled: Filled) -> None:
    def others() -> None:
        filled.delete(7)
        filled.append(300, "in between")
        filled.update(300, "changed in between")

    result = filled.table.maintenance.recluster(final=True, on_progress=at_first(others))
    assert result.finished and all(depth <= 2 for depth in result.depth_after.values())
    filled.check()
    assert filled.table.maintenance.recluster(final=True).finished
    filled.check()


def test_a_new_sort_key_is_what_parts_are_sorted_by_bit_by_bit(filled: Filled) -> None:
    filled.table.maintenance.recluster(final=True)
    assert unsorted(filled.table) == 0
    version = filled.table.set_sort_key(["value", "place"])
    assert filled.table.set_sort_key(["value", "place"]) == version, "the same again changes nothing"
    detail = filled.table.inspect.detail().to_pylist()[0]
    assert detail["sort_key"] == ["value", "place"] and detail["sort_key_version"] == 2
    assert unsorted(filled.table) == detail["unsorted_parts"] == detail["parts"]
    filled.append(300, "after")
    assert unsorted(filled.table) == detail["parts"]
    filled.check()
    result = filled.table.maintenance.recluster(final=True)
    assert result.finished and unsorted(filled.table) == 0
    filled.check()
    filled.table.set_sort_key([])
    assert filled.table.inspect.detail()["sort_key_version"].to_pylist() == [3]


def test_a_sort_key_set_while_it_runs_is_the_one_that_all_parts_have_in_the_end(filled: Filled) -> None:
    def others() -> None:
        filled.delete(5)
        filled.table.set_sort_key(["value", "id"])
        filled.update(200, "in between")

    filled.table.maintenance.recluster(final=True, on_progress=at_first(others))
    versions = set(filled.table.inspect.parts()["sort_key_version"].to_pylist())
    assert versions == {2}, "the merge that had begun wrote version 1, and its output was sorted again"
    filled.check()


def test_a_batch_that_was_written_before_the_sort_key_changed_is_committed_in_the_old_order(filled: Filled) -> None:
    from lakebed.ingest.batch_writer import commit_written, write_arrow
    from lakebed.parts.changes import prepare, write_spec_of
    from lakebed.storage.engine import connect

    read = log_of(filled.table).refresh()
    rows = pa.table({"id": [100_001, 100_000], "place": [1, 2], "value": ["b", "a"]}, SCHEMA)
    written = write_arrow(prepare(rows, write_spec_of(read), connect()), write_spec_of(read), filled.table.path)
    filled.table.set_sort_key(["value"])
    commit_written(log_of(filled.table), read, written, None, Operation.APPLY)
    filled.table.settle()
    filled.rows |= {row["id"]: row for row in rows.to_pylist()}
    assert filled.table.inspect.parts()["sort_key_version"].to_pylist() == [1] * (BATCHES + 1)
    filled.check()


def test_maintenance_sorts_anew_by_itself(filled: Filled) -> None:
    filled.table.maintenance.compact()
    filled.table.set_sort_key(["value"])
    assert (
        "resort" in filled.table.maintenance.plan()["what"].to_pylist()
        or filled.table.maintenance.plan()["what"].to_pylist()[0] == "merge"
    )
    filled.table.maintenance.compact()
    assert unsorted(filled.table) == 0 and filled.table.maintenance.compact().merges == 0
    filled.check()


def test_compact_reclusters_if_that_is_the_policy(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "table", ["id"], ["place"], **{"lakebed.merge": "recluster"})
    assert filled.table.maintenance.plan()["what"].to_pylist()[0] == "recluster"
    filled.table.maintenance.compact()
    depths = filled.table.maintenance.recluster(dry_run=True, final=True)
    assert depths.plans == 0 and all(depth <= 2 for depth in depths.depth_before.values())
    filled.check()


def test_where_restricts_it_to_parts_that_may_match(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "table", SCHEMA, sort_key=["id"], properties=SMALL_PARTS)
    for number in range(20):
        at = 10_000 if number % 2 else 0
        table.apply(pa.table({"id": range(at, at + 50), "place": [0] * 50, "value": ["x"] * 50}, SCHEMA))
    result = table.maintenance.recluster(where="id >= 10000", final=True)
    assert result.parts_in == 10 and result.depth_before == {0: 10.0}
    assert table.inspect.parts()["level"].to_pylist().count(0) == 10
    with pytest.raises(InvalidInput, match="nothing"):
        table.maintenance.recluster(where="nothing > 1")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_job_leaves_a_table_that_is_right_and_goes_on_when_called_again(
    filled: Filled, kind: type[BaseException]
) -> None:
    def interrupt() -> None:
        raise kind

    with pytest.raises(kind):
        filled.table.maintenance.recluster(final=True, on_progress=at_first(interrupt))
    assert not claims_of(log_of(filled.table).refresh().domains)
    filled.check()
    assert filled.table.maintenance.recluster(final=True).finished
    filled.check()


def test_a_job_that_is_asked_to_stop_says_that_it_did_not_finish(filled: Filled) -> None:
    told: list[bool] = []
    result = filled.table.maintenance.recluster(
        final=True, on_progress=at_first(lambda: told.append(True)), stop=lambda: bool(told)
    )
    assert not result.finished and result.gave_way == 1
    assert not claims_of(log_of(filled.table).refresh().domains)
    assert filled.table.maintenance.recluster(final=True).finished
    filled.check()


def test_the_claim_of_a_replica_that_was_killed_is_waited_for_and_then_its_work_is_done(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recluster_job, "_WAIT_SECONDS", 0.05)
    table = filled.table
    killed = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "killed")
    killed.claim(sorted(log_of(table).refresh().parts)[:8], 1)
    [claim] = claims_of(log_of(table).refresh().domains).values()
    late = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "killed", lease_seconds=0.0)
    waited: list[Claim] = []

    def end_the_lease_once_it_is_waited_for(progress: ReclusterProgress) -> None:
        if progress.waiting and not waited:
            waited.extend(late.extend([claim]))

    result = table.maintenance.recluster(final=True, on_progress=end_the_lease_once_it_is_waited_for)
    assert waited and result.finished and all(depth <= 2 for depth in result.depth_after.values())
    filled.check()


def test_a_part_that_another_merge_takes_meanwhile_is_planned_again_and_the_rest_is_done(filled: Filled) -> None:
    table = filled.table

    def rival() -> None:
        free = sorted(
            set(log_of(table).refresh().parts)
            - {path for c in claims_of(log_of(table).refresh().domains).values() for path in c.sources}
        )
        merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "rival")
        kernel = compaction_of(table).local_kernel()
        assert merger.run(free[:3], 1, kernel).outcome is MergeOutcome.COMPLETED

    assert table.maintenance.recluster(final=True, on_progress=at_first(rival)).finished
    filled.check()


def test_outputs_that_stay_on_local_disk_for_a_while_keep_the_version_of_their_sort_key(filled: Filled) -> None:
    table = filled.table
    replica = VolatileMerger(
        log_of(table), storage_of(table), deletion_vectors_of(table), compaction_of(table).volatile_base
    )
    filled.delete(7)
    replica.run(sorted(log_of(table).refresh().parts), 1, compaction_of(table).local_kernel())
    table.set_sort_key(["value"])
    _, here = replica.views(log_of(table).refresh(), 0)
    assert {part.sort_key_version for part in here.snapshot.parts.values()} == {1}
    replica.upload_due(UploadRules(age_seconds=0, local_bytes_max=0))
    assert set(table.inspect.parts()["sort_key_version"].to_pylist()) == {1}
    filled.check()
    replica.close()
    restarted = VolatileMerger(
        log_of(table), storage_of(table), deletion_vectors_of(table), compaction_of(table).volatile_base
    )
    restarted.close()


def test_a_disk_without_room_is_shown_before_anything_is_written(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage(10**9, 10**9 - 1000, 1000))
    version = filled.table.version
    with pytest.raises(StoreUnavailable, match="1,000 are free; free space"):
        filled.table.maintenance.recluster(final=True)
    assert filled.table.version == version


def test_an_adopted_table_is_sorted_in_place(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for number in range(4):
        ids = rng.permutation(500) + 500 * number
        rows = pa.table({"id": ids, "place": rng.integers(0, 1000, 500), "value": ["x"] * 500}, SCHEMA)
        write_deltalake(tmp_path / "table", rows, mode="append")
    table = lakebed.convert(tmp_path / "table", keys=["id"])
    table.set_properties(SMALL_PARTS)
    before = sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"])
    assert unsorted(table) == 4 and table.maintenance.compact().merges == 0
    assert table.maintenance.recluster(final=True).finished and unsorted(table) == 0
    table.set_sort_key(["place"])
    table.maintenance.compact()
    assert unsorted(table) == 0
    assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == before
    for part in table.inspect.parts().to_pylist():
        places = pq.read_table(Path(table.path, part["path"]))["place"].to_pylist()
        assert places == sorted(places)


def test_a_sort_key_that_names_no_column_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    filled = Filled(tmp_path / "table", ["id"], ["place"])
    version = filled.table.version
    with pytest.raises(InvalidInput, match="plaze"):
        filled.table.set_sort_key(["plaze"])
    with pytest.raises(InvalidInput, match="set_sort_key"):
        filled.table.set_properties({"lakebed.sort_key": '["id"]'})
    assert filled.table.version == version


@pytest.mark.parametrize("sort_key", [["x"], ["s", "x desc"], ["s", "x nulls last"], ["bucket(4, s)", "x desc"]])
def test_a_final_job_ends_also_over_values_that_are_no_numbers(sort_key: list[str], tmp_path: Path) -> None:
    """NaN and the infinities have a place in the order, so parts of one merge lie side by side."""
    rng = np.random.default_rng(5)
    schema = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("s", pa.string())])
    properties = {
        "lakebed.target_part_rows": "200", "lakebed.target_part_bytes": "12000", "lakebed.plan_bytes_max": "48000",
        "lakebed.merge": "off", "lakebed.recluster_depth": "1",
    }  # fmt: skip
    table = lakebed.create(tmp_path / "t", schema, keys=["id"], sort_key=sort_key, properties=properties)
    for batch in range(16):
        values = rng.choice([np.nan, np.inf, -np.inf, 0.0, 1.5, -2.5], 300, p=[0.3, 0.2, 0.2, 0.1, 0.1, 0.1])
        ids = np.arange(batch * 300, batch * 300 + 300)
        table.apply(pa.table({"id": ids, "x": values, "s": [f"r{n}" for n in rng.integers(0, 4, 300)]}, schema))
        table.settle()
    asked = count()  # so that one that does not end fails
    result = table.maintenance.recluster(final=True, stop=lambda: next(asked) > 20_000)
    assert result.finished and result.rounds <= 6
    assert table.to_arrow().num_rows == 16 * 300
