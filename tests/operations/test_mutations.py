"""DELETE and UPDATE … WHERE: what they change, what they refuse, and who wins against commits that come in between."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, Progress
from lakebed.errors import Contention, Corrupt, InvalidInput
from lakebed.log import commit_loop
from lakebed.log.actions import CommitInfo
from lakebed.log.claims import Claim, claims_of
from lakebed.log.conflicts import BLIND
from lakebed.log.entry_values import MS_MAX
from lakebed.log.table_log import Committed
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.operations import commit_changes, mutate_keyed, mutation
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN, WriteSpec
from lakebed.quoting import quote
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.operations.interrupted import before_its_commits
from tests.oracle import Oracle, Row, in_order
from tests.worlds import seeds

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("value", pa.int64()), ("seq", pa.int64())])


pytestmark = pytest.mark.usefixtures("own_cache")


def row(id: int, value: int | None, region: str | None = "eu", seq: int = 1, op: str = "u") -> Row:
    return {"id": id, "region": region, "value": value, "seq": seq, "op": op, "missing": None}


def batch(rows: list[Row], keyed: bool = True, hidden_sequence: bool = False) -> pa.Table:
    schema = SCHEMA
    if keyed:
        schema = schema.append(pa.field(OP_COLUMN, pa.string()))
    if any(one["missing"] for one in rows):
        schema = schema.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
    if hidden_sequence:
        schema = schema.append(pa.field("lsn", pa.int64()))
    extra = {OP_COLUMN: "op", UNAVAILABLE_COLUMN: "missing", "lsn": "seq"}
    values = [{name: one[extra.get(name, name)] for name in schema.names} for one in rows]
    return pa.Table.from_pylist(values, schema)


def make(folder: Path, rows: list[Row], keyed: bool = True, **options: Any) -> lakebed.Table:
    table = lakebed.create(folder / "table", SCHEMA, keys=["id"] if keyed else [], **options)
    if rows:
        table.apply(batch(rows, keyed))
    return table


def values(table: lakebed.Table) -> dict[int, int]:
    found = table.to_arrow(["id", "value"]).to_pylist()
    out = {one["id"]: one["value"] for one in found}
    assert len(out) == len(found), "a key is live at most once"
    return out


# -- tables with keys --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
def test_a_delete_and_an_update_see_the_tail_and_the_base(tmp_path: Path, settled: bool) -> None:
    table = make(tmp_path, [row(id, id) for id in range(6)])
    table.settle()
    table.apply(batch([row(1, 10), row(6, 6)]))
    if settled:
        table.settle()
    deleted = table.delete("value >= 5")
    assert (deleted.rows, deleted.version) == (3, table.version)
    updated = table.update({"value": "value * 2", "region": "'us'"}, "id >= 2")
    assert updated.rows == 3
    expected = {0: 0, 2: 4, 3: 6, 4: 8}
    assert values(table) == expected
    table.settle()
    assert values(table) == expected
    assert sorted(table.to_arrow(["region"])["region"].to_pylist()) == ["eu", "us", "us", "us"]


def test_versions_before_a_mutation_stay_as_they_were(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)])
    version = table.settle().version
    table.delete("id = 1")
    table.settle()
    assert table.to_arrow(["id"], version=version).num_rows == 2


def test_a_mutation_that_matches_nothing_commits_nothing(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    version = table.version
    assert table.delete("value > 1").rows == 0
    assert table.update({"value": "0"}, "value is null").rows == 0
    assert table.delete("null").rows == 0
    assert table.version == version


def test_an_update_moves_a_row_to_another_partition(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)], partition_by=["region"])
    table.settle()
    table.update({"region": "'us'"}, "id = 1")
    table.settle()
    found = {part["partition"][0][1]: part["rows"] - part["dead_rows"] for part in table.inspect.parts().to_pylist()}
    assert found == {"eu": 1, "us": 1}


def test_expressions_may_hold_comments_and_odd_names(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ('say"so"', pa.string()), ("file_row_number", pa.int64())])
    for keys in (["id"], []):
        table = lakebed.create(tmp_path / f"odd{len(keys)}", schema, keys=keys)
        table.apply(pa.table([[1, 2], ["x", "y"], [7, 8]], schema=schema))
        loud = "upper(" + quote('say"so"') + ") -- loud"
        table.update({'say"so"': loud, "file_row_number": "id"}, "file_row_number = 8 -- the last")
        expected = [
            {"id": 1, 'say"so"': "x", "file_row_number": 7},
            {"id": 2, 'say"so"': "Y", "file_row_number": 2},
        ]
        assert in_order(table.to_arrow().to_pylist()) == in_order(expected)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(
    ("assignments", "where", "named"),
    [
        (None, "nothing = 1", "where='nothing = 1'"),
        (None, "value", None),
        (None, "region", "where='region'"),
        (None, "sum(value) > 1", "where='sum(value) > 1'"),
        ({"valeu": "1"}, "true", "did you mean 'value'"),
        ({"value": "sum(value)"}, "true", "set 'value'='sum(value)'"),
        ({"value": "region"}, "true", "set={'value': 'region'}"),
        ({"value": "nothing"}, "true", "set 'value'='nothing'"),
        ({}, "true", "set assigns no column"),
    ],
)
def test_what_can_not_be_evaluated_is_named(
    tmp_path: Path, keyed: bool, assignments: dict[str, str] | None, where: str, named: str | None
) -> None:
    table = make(tmp_path, [row(1, 0)], keyed)
    version = table.version

    def run() -> None:
        table.delete(where) if assignments is None else table.update(assignments, where)

    if named is None:
        run()
    else:
        with pytest.raises(InvalidInput) as caught:
            run()
        assert named in str(caught.value)
    assert table.version == version


def test_keys_and_the_sequence_can_not_be_set(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)], sequence_by="seq")
    with pytest.raises(InvalidInput, match="'id', a key"):
        table.update({"id": "2"}, "true")
    with pytest.raises(InvalidInput, match="'seq', which orders the changes"):
        table.update({"seq": "2"}, "true")


@pytest.mark.parametrize("keys", [["id"], []])
def test_a_column_that_is_not_null_stays_so(tmp_path: Path, keys: list[str]) -> None:
    schema = pa.schema([("id", pa.int64()), pa.field("value", pa.int64(), nullable=False)])
    table = lakebed.create(tmp_path / "table", schema, keys=keys)
    table.apply(pa.table([[1], [1]], schema=schema))
    with pytest.raises(InvalidInput, match="'value' is NOT NULL"):
        table.update({"value": "null"}, "true")


def test_a_large_mutation_comes_in_several_change_parts_of_one_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutation, "CHUNK_ROWS", 2048)
    monkeypatch.setattr(mutate_keyed, "BATCH_ROWS", 2048)
    table = make(tmp_path, [row(id, id) for id in range(10_000)])
    result = table.update({"value": "-value"}, "id % 2 = 0")
    assert result.rows == 5000
    assert result.parts_added > 1
    assert values(table) == {id: -id if id % 2 == 0 else id for id in range(10_000)}


def test_a_mutation_is_listed_until_its_changes_are_settled(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)])
    assert table.inspect.mutations().num_rows == 0
    version = table.delete("id = 1").version
    table.apply(batch([row(3, 3)]))
    (listed,) = table.inspect.mutations().to_pylist()
    assert (listed["version"], listed["operation"], listed["where"]) == (version, "DELETE", "id = 1")
    assert (listed["rows"], listed["unsettled_rows"], listed["unsettled_parts"]) == (1, 1, 1)
    table.settle()
    assert table.inspect.mutations().num_rows == 0


@pytest.mark.parametrize("hidden", [False, True])
def test_with_a_sequence_newer_events_still_win_and_older_ones_still_lose(tmp_path: Path, hidden: bool) -> None:
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"], sequence_by="lsn" if hidden else "seq")

    def apply(*rows: Row) -> None:
        table.apply(batch(list(rows), hidden_sequence=hidden))

    apply(*(row(id, id, seq=5) for id in range(4)))
    table.settle()
    table.update({"value": "100"}, "id < 2")
    table.delete("id >= 2")
    for settled in (False, True):
        if settled:
            table.settle()
        assert values(table) == {0: 100, 1: 100}
    apply(row(0, 7, seq=6), row(1, 7, seq=4), row(2, 7, seq=6), row(3, 7, seq=4))
    assert values(table) == {0: 7, 1: 100, 2: 7}
    table.settle()
    assert values(table) == {0: 7, 1: 100, 2: 7}


# -- what comes in between ---------------------------------------------------------------------------------------------


def test_rows_that_changed_in_between_are_changed_from_their_new_values(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(6)])
    other = lakebed.open(table.path)
    with before_its_commits(
        table,
        lambda: other.apply(batch([row(1, 50), row(2, None, op="d"), row(9, 9)])),
        lambda: other.apply(batch([row(1, 60), row(3, 70)])),
    ):
        result = table.update({"value": "value + 1"}, "true")
    assert (result.rows, result.updated, result.deleted, result.conflicts) == (5, 5, 0, 2)
    assert values(table) == {0: 1, 1: 61, 3: 71, 4: 5, 5: 6, 9: 9}
    table.settle()
    assert values(table) == {0: 1, 1: 61, 3: 71, 4: 5, 5: 6, 9: 9}


def test_rows_that_no_longer_match_are_left_as_they_are(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, 1) for id in range(3)])
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(1, 50), row(9, 1)]))):
        result = table.delete("value = 1")
    assert (result.rows, result.deleted, result.conflicts) == (2, 2, 1)
    assert values(table) == {1: 50, 9: 1}


def test_only_the_rows_that_changed_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make(tmp_path, [row(id, id) for id in range(1000)])
    table.settle()
    other = lakebed.open(table.path)
    computed, written = list[int](), mutate_keyed.write_parts

    def counted(rows: pa.Table, *arguments: Any) -> Any:
        computed.append(len(rows))
        return written(rows, *arguments)

    monkeypatch.setattr(mutate_keyed, "write_parts", counted)
    came = [lambda id=id: other.apply(batch([row(id, -id), row(id + 1000, 0)])) for id in (7, 8, 9)]
    with before_its_commits(table, *came):
        result = table.update({"value": "value - 1"}, "id < 500")
    assert (result.rows, computed) == (500, [500, 1, 1, 1])
    assert [values(table)[id] for id in range(6, 11)] == [5, -8, -9, -10, 9]


def test_a_large_part_is_written_again_in_pieces_by_their_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_changes, "PIECE_ROWS", 100)
    table = make(tmp_path, [row(id, id) for id in range(1000)], sort_key=["value desc"])
    other = lakebed.open(table.path)
    again, written = list[int](), commit_changes.write_parts

    def counted(rows: pa.Table, *arguments: Any) -> Any:
        again.append(len(rows))
        return written(rows, *arguments)

    monkeypatch.setattr(commit_changes, "write_parts", counted)
    came = [lambda id=id: other.apply(batch([row(id, -id)])) for id in (951, 952)]
    with before_its_commits(table, *came):
        assert table.update({"value": "value - 1"}, "true").rows == 1000
    assert again == [*[100] * 9, 99, 98]
    assert values(table) == {id: -id - 1 if id in (951, 952) else id - 1 for id in range(1000)}


def test_changes_of_keys_that_lie_elsewhere_are_no_conflict(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(10)])
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(7, 70), row(9, 90)]))):
        result = table.update({"value": "-1"}, "id < 3")
    assert (result.rows, result.conflicts) == (3, 0)
    assert values(table) == {0: -1, 1: -1, 2: -1, 3: 3, 4: 4, 5: 5, 6: 6, 7: 70, 8: 8, 9: 90}


@pytest.mark.parametrize("settled", [False, True])
def test_two_writers_that_count_lose_no_count(tmp_path: Path, settled: bool) -> None:
    table = make(tmp_path, [row(id, 0) for id in range(3)])
    other = lakebed.open(table.path)

    def count() -> None:
        other.update({"value": "value + 1"}, "id < 2")
        if settled:
            other.settle()

    with before_its_commits(table, *[count] * 5):
        assert table.update({"value": "value + 1"}, "true").rows == 3
    assert values(table) == {0: 6, 1: 6, 2: 1}


def test_a_row_that_came_into_the_base_under_a_key_of_ours_is_seen(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)], partition_by=["region"])
    table.settle()
    name = table.detach_partition({"region": "eu"})
    table.apply(batch([row(1, 10, "us")]))
    other = lakebed.open(table.path)

    def back() -> None:
        other.delete("id = 1")
        other.attach_partition(name)

    with before_its_commits(table, back):
        assert table.update({"value": "value + 100"}, "true").rows == 1
    assert values(table) == {1: 101, 2: 2}


def test_a_mutation_of_which_nothing_is_left_commits_nothing(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)])
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(1, 50)]))):
        result = table.delete("value = 1")
    assert (result.rows, result.version) == (0, other.version)
    assert values(table) == {1: 50}


def test_a_late_event_in_between_does_not_undo_a_mutation(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1, seq=5), row(2, 2, seq=5), row(3, 3, seq=5)], sequence_by="seq")
    other = lakebed.open(table.path)
    came = [row(1, 70, seq=4), row(2, 70, seq=5), row(3, 70, seq=6)]
    with before_its_commits(table, lambda: other.apply(batch(came))):
        result = table.update({"value": "value + 1"}, "true")
    assert result.rows == 3
    assert values(table) == {1: 2, 2: 71, 3: 71}
    table.settle()
    assert values(table) == {1: 2, 2: 71, 3: 71}


def test_a_settle_in_between_is_no_conflict(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)])
    table.settle()
    table.apply(batch([row(1, 10), row(2, 20)]))  # settling it takes the first part out of the base
    other = lakebed.open(table.path)
    with before_its_commits(table, other.settle):
        result = table.update({"value": "value + 1"}, "true")
    assert (result.rows, result.conflicts) == (2, 0)
    assert values(table) == {1: 11, 2: 21}


def test_a_mutation_in_between_is_no_conflict_for_a_settle(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)])
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.delete("id = 1")):
        assert table.settle().conflicts == 0
    assert values(table) == {2: 2}


def test_rows_truncated_in_between_do_not_come_back(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)])
    other = lakebed.open(table.path)
    with before_its_commits(table, other.truncate):
        assert table.update({"value": "0"}, "true").rows == 0
    assert values(table) == {}


def test_a_partition_detached_in_between_does_not_come_back(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1, "eu"), row(2, 2, "us")], partition_by=["region"])
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.detach_partition({"region": "eu"})):
        assert table.update({"value": "0"}, "true").rows == 1
    assert values(table) == {2: 0}


def test_a_row_that_came_in_between_without_all_values_takes_them_from_what_it_met(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)])
    other = lakebed.open(table.path)
    came = row(1, None, "us") | {"missing": ["value"]}
    with before_its_commits(table, lambda: other.apply(batch([came]))):
        result = table.update({"value": "value + 100"}, "true")
    assert result.rows == 2
    assert in_order(table.to_arrow(["id", "region", "value"]).to_pylist()) == in_order(
        [{"id": 1, "region": "us", "value": 101}, {"id": 2, "region": "eu", "value": 102}]
    )


def test_an_endless_stream_of_conflicts_ends_in_contention_without_files_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_loop, "ATTEMPTS_MAX", 3)
    table = make(tmp_path, [row(1, 1), row(2, 2)])
    other = lakebed.open(table.path)
    come = [lambda: other.apply(batch([row(1, 9)]))] * 3
    with before_its_commits(table, *come), pytest.raises(Contention, match="gave up after 3 attempts"):
        table.delete("id < 3")
    named = {part["path"] for part in table.inspect.parts().to_pylist()}
    files = {f"_lakebed/{path.name}" for path in (tmp_path / "table" / "_lakebed").glob("*.parquet")}
    assert files == named


# -- tables without keys -----------------------------------------------------------------------------------------------


def test_without_keys_rows_die_where_they_lie_and_new_ones_join(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(4)], keyed=False)
    table.apply(batch([row(4, 4), row(4, 4)], keyed=False))
    before = {part["path"] for part in table.inspect.parts().to_pylist()}
    deleted = table.delete("id = 0 or id = 4")
    assert (deleted.rows, deleted.parts_marked, deleted.parts_added) == (3, 2, 0)
    assert {part["path"] for part in table.inspect.parts().to_pylist()} < before, "a part without a live row leaves"
    updated = table.update({"value": "value + 10"}, "id > 1")
    assert (updated.rows, updated.parts_marked, updated.parts_added) == (2, 1, 1)
    assert values(table) == {1: 1, 2: 12, 3: 13}


def test_without_keys_parts_that_others_marked_are_marked_further(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(6)], keyed=False)
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.delete("id < 2"), lambda: other.delete("id = 5")):
        result = table.update({"value": "-1"}, "id in (1, 2, 5)")
    assert (result.rows, result.conflicts) == (1, 2)
    assert values(table) == {2: -1, 3: 3, 4: 4}


def test_without_keys_rows_appended_in_between_are_newer(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1)], keyed=False)
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(2, 1)], keyed=False))):
        assert table.delete("value = 1").conflicts == 0
    assert values(table) == {2: 1}


def test_without_keys_a_part_under_a_claim_is_marked_and_stays_claimed(tmp_path: Path) -> None:
    table = make(tmp_path, [row(1, 1), row(2, 2)], keyed=False)
    snapshot = log_of(table).refresh()
    claim = Claim(id="c", replica="replica", sources=tuple(snapshot.parts), level=1, lease_ms=MS_MAX)
    assert isinstance(
        log_of(table).commit(snapshot, [claim.to_action()], CommitInfo(operation="CLAIM", commit_id=""), BLIND),
        Committed,
    )
    table.delete("id = 1")
    assert list(claims_of(log_of(table).refresh().domains)) == ["c"]
    assert values(table) == {2: 2}


@pytest.mark.parametrize("keyed", [True, False])
def test_a_mutation_and_a_merge_of_the_same_parts_lose_nothing_of_each_other(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, [row(id, id) for id in range(4)], keyed)
    table.settle()
    table.apply(batch([row(id, id) for id in range(4, 8)], keyed))
    table.settle()

    class MutateMeanwhile:
        def merge(
            self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
        ) -> list[MergedPart]:
            merged = merge_parts(sources, spec, output, connect())
            table.delete("id in (1, 5)")
            table.update({"value": "100"}, "id in (2, 6)")
            table.settle()
            return merged

    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "replica")
    result = merger.run(sorted(log_of(table).refresh().parts), 1, MutateMeanwhile())
    assert (result.outcome, result.carried_rows) == (MergeOutcome.COMPLETED, 4)
    assert values(table) == {0: 0, 2: 100, 3: 3, 4: 4, 6: 100, 7: 7}


@pytest.mark.parametrize("keyed", [True, False])
def test_a_merge_that_commits_first_costs_a_mutation_nothing(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, [row(id, id) for id in range(4)], keyed)
    table.settle()
    other = lakebed.open(table.path)

    def merge() -> None:
        merger = Merger(log_of(other), storage_of(other), deletion_vectors_of(other), "replica")
        parts = sorted(log_of(other).refresh().parts)
        merger.run(parts, 1, LocalKernel(storage_of(other), log_of(other).refresh))

    with before_its_commits(table, merge):
        assert table.update({"value": "-value"}, "id > 1").rows == 2
    assert values(table) == {0: 0, 1: 1, 2: -2, 3: -3}


@pytest.mark.parametrize("keyed", [True, False])
def test_parts_whose_bounds_rule_out_a_match_are_not_read(tmp_path: Path, keyed: bool) -> None:
    table = make(tmp_path, [row(id, id) for id in range(10)], keyed)
    table.apply(batch([row(id, id) for id in range(100, 110)], keyed))
    table.settle()
    for part in table.inspect.parts().to_pylist():
        if part["min_block"] == 2:
            (tmp_path / "table" / part["path"]).unlink()
    assert table.update({"value": "-1"}, "id = 3 and region = 'eu'").parts_read == 1
    assert table.delete("value between 4 and 5").rows == 2
    with pytest.raises(Corrupt, match="missing or damaged"):
        table.delete("region = 'eu'")


def test_a_mutation_tells_when_it_begins_and_how_it_ended(tmp_path: Path) -> None:
    table = make(tmp_path, [row(id, id) for id in range(10)], keyed=False)
    heard: list[events.Event] = []
    stop = events.listen(heard.append)
    result = table.delete("id < 4")
    with pytest.raises(InvalidInput):
        table.delete("nothing = 1")
    stop()
    heard = [event for event in heard if not isinstance(event, events.CommitEnded)]
    assert heard[:3] == [
        events.MutationBegan(table=table.path, operation="delete", where="id < 4"),
        events.MutationEnded(
            table=table.path,
            operation="delete",
            version=result.version,
            rows=4,
            parts_read=1,
            parts_marked=1,
            parts_added=0,
            bytes_written=result.bytes_written,
            conflicts=0,
            seconds=result.seconds,
        ),
        events.MutationBegan(table=table.path, operation="delete", where="nothing = 1"),
    ]
    assert isinstance(heard[3], events.MutationFailed)


# -- anything, in any order --------------------------------------------------------------------------------------------

WHERES: list[tuple[str, Callable[[Row], bool]]] = [
    ("true", lambda r: True),
    ("id % 2 = 0", lambda r: r["id"] % 2 == 0),
    ("value > 20", lambda r: r["value"] is not None and r["value"] > 20),
    ("region = 'eu'", lambda r: r["region"] == "eu"),
    ("value is null or id = 3", lambda r: r["value"] is None or r["id"] == 3),
]
SETS: list[tuple[dict[str, str], Callable[[Row], Row]]] = [
    ({"value": "value + 1"}, lambda r: {"value": None if r["value"] is None else r["value"] + 1}),
    ({"value": "id", "region": "'us'"}, lambda r: {"value": r["id"], "region": "us"}),
    ({"region": "null"}, lambda r: {"region": None}),
]


def mutated(
    oracle: Oracle,
    matches: Callable[[Row], bool],
    become: Callable[[Row], Row] | None,
    read: Oracle | None = None,
) -> Oracle:
    """The oracle after a mutation; each row keeps its sequence. With keys, the rows are changed that also matched in ``read``.

    Of rows without keys only those of ``read`` are looked at, which come first.
    """
    after, read = copy.deepcopy(oracle), read or oracle
    for key, (sequence, known) in oracle.newest.items():
        _, first = read.newest.get(key, (None, None))
        if known is not None and first is not None and matches(known) and matches(first):
            after.newest[key] = (sequence, known | become(known) if become else None)
    rows = [(one, at < len(read.appended) and matches(one)) for at, one in enumerate(oracle.appended)]
    after.appended = [one | become(one) if hit and become else one for one, hit in rows if become or not hit]
    return after


class World:
    """A table under random treatment, beside the oracle that says what it holds at every version."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = random.Random(seed)
        self.keyed = self.random.random() < 0.75
        sequence = self.random.choice([None, "seq", "lsn"]) if self.keyed else None
        self.hidden = sequence == "lsn"
        partition_by = self.random.choice([(), ("region",)])
        self.table = make(
            folder,
            [],
            self.keyed,
            sequence_by=sequence,
            partition_by=partition_by,
            properties={"lakebed.checkpoint_interval": "5"},
        )
        self.other = lakebed.open(self.table.path)
        self.oracle = Oracle(("id",) if self.keyed else (), tuple(SCHEMA.names), "seq" if sequence else None)
        self.states: dict[int, list[Row]] = {0: []}
        self.clock = 0

    def changes(self, partial: bool) -> list[Row]:
        rng, out = self.random, []
        for _ in range(rng.choice([1, 3, 12])):
            self.clock += 1
            late = rng.choice([0, 0, 5])
            one = row(
                rng.randrange(8),
                rng.choice([None, rng.randrange(50)]),
                rng.choice(["eu", "us", None]),
                self.clock - rng.randrange(late + 1),
                rng.choice("uuud") if self.keyed else "u",
            )
            if partial and self.keyed and one["op"] == "u" and rng.random() < 0.5:
                one |= {"value": None, "missing": ["value"]}
            out.append(one)
        return out

    def apply(self, table: lakebed.Table, rows: list[Row]) -> None:
        table.apply(batch(rows, self.keyed, self.hidden))

    def applied(self, oracle: Oracle, rows: list[Row]) -> Oracle:
        after = copy.deepcopy(oracle)
        after.apply(rows, unavailable="missing")
        return after

    def step(self) -> None:
        rng, before = self.random, self.table.version
        action = rng.choice(["apply", "apply", "settle", "truncate", "mutate", "mutate", "mutate"])
        if action == "apply":
            rows = self.changes(partial=rng.random() < 0.3)
            self.apply(self.table, rows)
            self.oracle = self.applied(self.oracle, rows)
        elif action == "settle":
            self.table.settle()
        elif action == "truncate" and rng.random() < 0.3:
            self.table.truncate()
            self.oracle.truncate()
        elif action == "mutate":
            self.mutate(before)
        for version in range(before + 1, self.table.version + 1):
            self.states.setdefault(version, self.oracle.rows())

    def mutate(self, before: int) -> None:
        rng = self.random
        where, matches = rng.choice(WHERES)
        assignments, become = rng.choice([(None, None), *SETS])
        plain = self.oracle
        done = mutated(plain, matches, become)

        def run() -> None:
            self.table.delete(where) if assignments is None else self.table.update(assignments, where)

        if done.rows() == plain.rows() and not any(map(matches, plain.rows())):
            run()  # no commit to come in between
            return
        between = rng.choice(["nothing", "apply", "apply", "apply", "partial", "settle", "truncate"])
        if between == "nothing":
            run()
            self.oracle = done
        elif between == "settle":
            with before_its_commits(self.table, self.other.settle):
                run()
            for version in range(before + 1, self.table.version):
                self.states[version] = plain.rows()
            self.oracle = done
        elif between == "truncate":
            with before_its_commits(self.table, self.other.truncate):
                run()
            self.oracle.truncate()
        else:
            rows = self.changes(partial=between == "partial")
            with before_its_commits(self.table, lambda: self.apply(self.other, rows)):
                run()
            came = self.applied(plain, rows)
            self.states[before + 1] = came.rows()
            self.oracle = mutated(came, matches, become, read=plain)


@seeds(4)
def test_every_version_equals_the_oracle(seed: int, tmp_path: Path) -> None:
    world = World(seed, tmp_path)
    for _ in range(world.random.choice([6, 14])):
        world.step()
    world.table.settle()
    world.states[world.table.version] = world.oracle.rows()
    for version, rows in world.states.items():
        assert in_order(world.table.to_arrow(version=version).to_pylist()) == rows, f"version {version}"
