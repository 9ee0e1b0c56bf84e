"""Restore: an earlier version is the newest again, whatever came in between, and ingest goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, Progress
from lakebed.errors import InvalidInput, Unsupported, VersionNotFound
from lakebed.log.actions import Action, CommitInfo, Domain
from lakebed.log.claims import claims_of
from lakebed.log.commit_kind import CommitKind, kind_of
from lakebed.log.conflicts import BLIND, ConflictKind, ReadWriteSet
from lakebed.log.entries import SOURCE_TRUNCATES
from lakebed.log.holds import expired_before
from lakebed.log.table_log import Committed, Conflicted
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.operations.region import detached_of
from lakebed.parts.changes import WriteSpec
from lakebed.positions.positions import Position, entry_of, positions_of
from lakebed.schema.conversion import schema_to_json
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.foreign.readers import delta_rs, own
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.operations.interrupted import before_its_commits
from tests.operations.test_mutations import SCHEMA, batch, make, row, values
from tests.operations.test_partitions import EU, two_partitions
from tests.oracle import in_order

pytestmark = pytest.mark.usefixtures("own_cache")


def rows_at(table: lakebed.Table, version: int | None = None) -> list[dict[str, Any]]:
    return in_order(table.to_arrow(version=version).to_pylist())


def commit(table: lakebed.Table, action: Action) -> None:
    outcome = log_of(table).commit(log_of(table).refresh(), [action], CommitInfo(operation="TEST", commit_id=""), BLIND)
    assert isinstance(outcome, Committed)


def a_mistaken_delete(table: lakebed.Table) -> None:
    table.delete("id >= 2")


def everything(table: lakebed.Table) -> None:
    table.delete("id = 1")
    table.settle()
    table.apply(batch([row(2, 22), row(7, 7)]))
    table.settle()
    merge(table)
    table.truncate()
    table.apply(batch([row(3, 33)]))


def merge(table: lakebed.Table) -> None:
    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "replica")
    outcome = merger.run(
        sorted(log_of(table).refresh().parts), 1, LocalKernel(storage_of(table), log_of(table).refresh)
    )
    assert outcome.outcome is MergeOutcome.COMPLETED


@pytest.mark.parametrize("happens", [a_mistaken_delete, everything])
def test_the_newest_version_has_the_rows_of_the_earlier_one_and_the_versions_between_stay(
    happens: Callable[[lakebed.Table], None], tmp_path: Path
) -> None:
    table = make(tmp_path, [row(id, id) for id in range(5)])
    table.settle()
    table.apply(batch([row(1, 10), row(5, 5)]))  # in the tail of the version
    wanted, expected = table.version, rows_at(table)
    happens(table)
    between = {version: rows_at(table, version) for version in range(wanted, table.version + 1)}
    newest = table.version
    assert table.restore(wanted) == newest + 1
    assert rows_at(table) == expected
    assert {version: rows_at(table, version) for version in between} == between
    table.settle()
    merge(table)
    assert rows_at(lakebed.open(table.path)) == expected
    assert not table.doctor(deep=True).findings
    table.restore(newest)
    assert rows_at(table) == between[newest], "a restore can be restored"


def test_other_readers_see_what_they_saw_at_the_version(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(5)])
    table.settle()
    table.apply(batch([row(1, 10)]))
    wanted = table.version
    table.delete("id > 2")
    table.settle()
    table.restore(wanted)
    assert delta_rs(table) == delta_rs(table, wanted)
    table.settle()
    assert delta_rs(table) == own(table)


def test_a_table_without_keys_is_restored_too(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)], keyed=False)
    table.apply(batch([row(3, 3)], keyed=False))
    wanted = table.version
    table.delete("id = 3")
    table.update({"value": "value + 1"}, "id = 1")
    table.apply(batch([row(4, 4)], keyed=False))
    table.restore(wanted)
    assert values(table) == {1: 1, 2: 2, 3: 3}


def test_the_version_is_found_by_a_time(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    at = log_of(table).refresh().timestamp_ms / 1000
    table.delete("true")
    table.restore(timestamp=at)
    assert values(table) == {1: 1}


def test_restoring_what_is_there_commits_nothing(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    wanted = table.version
    assert table.restore(wanted) == wanted
    table.apply(batch([row(1, 2)]))
    restored = table.restore(wanted)
    assert table.restore(wanted) == table.restore(restored) == restored


def test_the_kind_of_the_commit_follows_from_its_actions_and_the_timeline_says_which_version(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    table.apply(batch([row(1, 2)]))
    version = table.restore(1)
    found = log_of(table).read_commit(version)
    assert found is not None and kind_of(found) is CommitKind.RESTORE
    last = {one["version"]: one for one in table.inspect.timeline().to_pylist()}[version]
    assert last["operation"] == "RESTORE"


# -- what comes meanwhile ----------------------------------------------------------------------------------------------


def test_what_was_committed_before_the_restore_is_taken_out_and_a_batch_after_it_stands(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    wanted = table.version
    table.apply(batch([row(7, 7)]))
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(8, 8)])), other.settle):
        table.restore(wanted)
    assert values(table) == {1: 1}
    other.apply(batch([row(8, 8)]))
    with before_its_commits(table, lambda: other.restore(wanted)):  # the batch was written before
        table.apply(batch([row(9, 9)]))
    table.settle()
    assert values(table) == {1: 1, 9: 9}


def test_a_settle_that_was_worked_out_before_brings_nothing_back(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(3)])
    table.settle()
    wanted = table.version
    table.apply(batch([row(1, 10), row(5, 5)]))
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.restore(wanted)):
        # It has marked rows in a part, and change parts that are not in the tail any more.
        assert table.settle().commits == 0 or values(table) == {0: 0, 1: 1, 2: 2}
    assert values(table) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize("keyed", [True, False])
def test_a_mutation_is_worked_out_again_on_the_rows_that_came_back(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)], keyed)
    table.settle()
    wanted = table.version
    table.delete("id = 1")
    table.settle()  # so the restore brings a row back and takes none away
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.restore(wanted), lambda: None):
        assert table.update({"value": "value + 100"}, "true").rows == 2
    assert values(table) == {1: 101, 2: 102}


def test_a_merge_of_parts_whose_rows_live_again_is_dropped_and_another_goes_on(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(4)])
    table.settle()
    wanted = table.version
    table.delete("id = 1")
    table.settle()

    class Kernel:
        def merge(
            self, sources: list[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
        ) -> list[MergedPart]:
            merged = merge_parts(sources, spec, output, connect())
            lakebed.open(table.path).restore(wanted)
            return merged

    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "replica")
    result = merger.run(sorted(log_of(table).refresh().parts), 1, Kernel())  # type: ignore[arg-type]
    assert result.outcome is MergeOutcome.OVERTAKEN
    assert values(table) == {0: 0, 1: 1, 2: 2, 3: 3}
    assert not claims_of(log_of(table).refresh().domains)
    merge(table)
    assert values(table) == {0: 0, 1: 1, 2: 2, 3: 3}


def test_what_was_read_of_the_source_stays_read(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    wanted = table.version
    table.apply(batch([row(2, 2)]), batch_id=7)
    commit(table, entry_of("orders", Position(offsets={0: 12})))
    table.set_properties({"lakebed.read_budget": "3"})
    table.restore(wanted)
    snapshot = log_of(table).refresh()
    assert positions_of(snapshot)["orders"].offsets == {0: 12}
    assert snapshot.settings.read_budget == 3
    version = table.version
    assert table.apply(batch([row(2, 2)]), batch_id=7) == version, "the batch is committed, though its rows are gone"
    assert values(table) == {1: 1}


def test_positions_go_back_if_asked_and_batches_that_are_under_way_notice(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    first = Position(offsets={0: 12, 1: 3}, topic_id="a")
    commit(table, entry_of("orders", first))
    wanted = table.version
    commit(table, entry_of("orders", Position(offsets={0: 90, 1: 3}, topic_id="a")))
    commit(table, entry_of("new", Position(offsets={0: 5})))
    commit(table, Domain(SOURCE_TRUNCATES, '{"truncates": []}'))
    read = log_of(table).refresh()
    table.restore(wanted, positions=True)
    assert positions_of(log_of(table).refresh()) == {"orders": first}
    assert SOURCE_TRUNCATES not in log_of(table).refresh().domains, "it would not be applied when it is read again"
    moved = entry_of("orders", Position(offsets={0: 95, 1: 3}, topic_id="a"))
    info, access = CommitInfo(operation="TEST", commit_id=""), ReadWriteSet(domains=frozenset([moved.domain]))
    outcome = log_of(table).commit(read, [moved], info, access)
    assert isinstance(outcome, Conflicted) and outcome.conflict.kind is ConflictKind.POSITION
    assert table.restore(wanted, positions=True) == table.version


def test_positions_of_a_topic_that_was_made_anew_do_not_go_back(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    commit(table, entry_of("orders", Position(offsets={0: 12}, topic_id="a")))
    wanted = table.version
    commit(table, entry_of("orders", Position(offsets={0: 2}, topic_id="b")))
    with pytest.raises(InvalidInput, match=r"'orders' can't go back .* the topic was created again"):
        table.restore(wanted, positions=True)


# -- partitions that are detached --------------------------------------------------------------------------------------


def test_a_partition_that_was_detached_since_is_in_the_table_again_and_not_detached(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    wanted = table.settle().version
    name = table.detach_partition(EU)
    table.restore(wanted)
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert table.inspect.detached().num_rows == 0
    with pytest.raises(InvalidInput, match="no detached partition"):
        table.attach_partition(name)


def test_a_partition_that_was_attached_since_is_detached_again_and_its_files_are_kept(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    name = table.detach_partition(EU)
    wanted = table.version
    attached = table.attach_partition(name)
    table.restore(wanted)
    assert values(table) == {3: 3, 4: 4}
    (entry,) = detached_of(log_of(table).refresh()).values()
    assert (entry.name, entry.version, entry.restored) == (name, wanted, table.version)
    commit(table, expired_before(attached))  # all versions from before it was attached
    assert table.drop_detached(name) == 0, "the version at which it was attached can still be read"
    assert len(rows_at(table, attached)) == 4


def test_a_partition_that_was_dropped_stays_dropped(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.detach_partition(EU)
    wanted = table.version
    table.drop_detached(table.inspect.detached()["name"][0].as_py())
    table.apply(batch([row(9, 9, "us")]))
    table.restore(wanted)
    assert values(table) == {3: 3, 4: 4}
    assert table.inspect.detached().num_rows == 0


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_a_version_that_has_expired_is_refused_and_a_held_one_is_restored(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    wanted = table.version
    table.delete("true")
    with table.maintenance.hold(wanted, 3600):
        commit(table, expired_before(table.version))
        table.restore(wanted)
        assert values(table) == {1: 1}
    with pytest.raises(VersionNotFound, match="has expired"):
        table.restore(wanted)
    with pytest.raises(VersionNotFound):
        table.restore(table.version + 1)


def test_a_version_whose_files_are_gone_is_refused_before_anything_is_committed(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(3)])
    table.settle()
    wanted = table.version
    table.apply(batch([row(1, 10)]))
    table.settle()
    merge(table)
    path = next(iter(log_of(table).at_version(wanted).parts))
    storage_of(table).delete(path)
    version = table.version
    with pytest.raises(
        VersionNotFound, match=f"version {wanted} can't be restored: {path} is gone; nothing was changed"
    ):
        table.restore(wanted)
    assert table.version == version


def test_many_files_are_looked_for_by_one_listing(tmp_path: Path) -> None:
    table = make(tmp_path, [])
    for id in range(20):
        table.apply(batch([row(id, id)]))
    wanted = table.version
    table.truncate()
    path = log_of(table).at_version(wanted).tail_in_order()[3].path
    table.restore(wanted)
    assert len(values(table)) == 20
    table.truncate()
    storage_of(table).delete(path)
    with pytest.raises(VersionNotFound, match=path):
        table.restore(wanted)


def test_a_version_or_a_time_is_needed_and_not_both(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    with pytest.raises(InvalidInput, match="a version or a timestamp"):
        table.restore()
    with pytest.raises(InvalidInput, match="not both"):
        table.restore(1, 1.0)


def test_a_version_from_before_the_table_was_adopted_is_refused(tmp_path: Path) -> None:
    for ids in ([1, 1], [2]):
        write_deltalake(tmp_path / "t", pa.table({"id": ids}), mode="append" if ids == [1, 1] else "overwrite")
    table = lakebed.convert(tmp_path / "t", keys=["id"])
    with pytest.raises(Unsupported, match="version 0 can't be restored: it is from before lakebed adopted"):
        table.restore(0)


# -- columns -----------------------------------------------------------------------------------------------------------


def test_rows_come_back_in_the_columns_of_today(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("small", pa.int32()), ("name", pa.string()), ("gone", pa.string())])
    table = lakebed.create(tmp_path / "t", schema, keys=["id"])
    table.apply([{"id": 1, "small": 5, "name": "a", "gone": "x"}])
    wanted = table.version
    table.alter(add={"new": "string"}, widen={"small": "long"}, rename={"name": "title"}, drop=["gone"])
    table.alter(add={"gone": "string"})
    table.apply([{"id": 1, "small": 2**40, "title": "b", "new": "n", "gone": "y"}])
    table.settle()
    table.restore(wanted)
    expected = [{"id": 1, "small": 5, "title": "a", "new": None, "gone": None}]
    assert table.to_arrow().to_pylist() == expected
    table.settle()
    assert table.to_arrow().to_pylist() == expected


def test_a_version_that_the_columns_of_today_can_not_read_is_refused(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    wanted = table.version
    table.truncate()
    narrower = SCHEMA.set(2, pa.field("value", pa.int32()))  # no change that lakebed makes
    snapshot = log_of(table).refresh()
    commit(table, replace(snapshot.metadata, schema_string=schema_to_json(narrower)))
    with pytest.raises(
        InvalidInput, match=r"its column 'value' is int64, .*read that version \(to_arrow\(version=1\)\)"
    ):
        table.restore(wanted)
