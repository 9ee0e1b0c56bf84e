"""Overwrites: which rows leave, what is refused, and what becomes of changes that come while the rows are written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Contention, InvalidInput
from lakebed.log.commit_kind import CommitKind, kind_of
from tests.internals import log_of, storage_of
from tests.operations.interrupted import before_its_commits
from tests.operations.overwriting import overwrite_by_tasks
from tests.operations.test_mutations import SCHEMA, batch, make, row, values
from tests.operations.test_partitions import EU, changes_of, merge_base, two_partitions

pytestmark = pytest.mark.usefixtures("own_cache")

HOW: dict[str, Callable[..., int]] = {"at once": lakebed.Table.overwrite, "by tasks": overwrite_by_tasks}


def bare(*rows: Any) -> pa.Table:
    return batch(list(rows), keyed=False)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(
    ("where", "stay"),
    [
        (None, {}),
        ("region in ('eu', 'ap')", {3: 3, 4: 4}),
        ("region is null or REGION = 'eu'", {3: 3}),
        ("region = 'ap'", {1: 1, 2: 2, 3: 3, 4: 4}),
        ("true", {}),
    ],
)
def test_the_partitions_for_which_the_condition_is_true_are_replaced(
    how: str, keyed: bool, where: str | None, stay: dict[int, int], tmp_path: Path
) -> None:
    table = two_partitions(tmp_path, keyed)
    region = "ap" if where and "ap" in where else "eu"
    version = HOW[how](table, bare(row(7, 70, region), row(8, 80, region)), where)
    assert values(table) == {**stay, 7: 70, 8: 80} and version == table.version
    assert table.doctor(deep=True).findings == ()
    [commit] = log_of(table).commits(version, version)
    assert kind_of(commit) is CommitKind.REPLACE_PARTITION
    assert table.inspect.timeline().to_pylist()[0]["operation"] == "OVERWRITE"


@pytest.mark.few(10)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(
    ("where", "new", "stay"),
    [
        ("value >= 3", 70, {1: 1, 2: 2}),
        ("value % 2 = 0 and region = 'eu'", 70, {1: 1, 3: 3, 4: 4}),
        ("region is null or value < 3", 1, {3: 3}),
        ("value > 4", 70, {1: 1, 2: 2, 3: 3, 4: 4}),
        ("id >= 1", 70, {}),
        ("current_date > date '2020-01-01'", 70, {}),
    ],
)
def test_the_rows_for_which_the_condition_is_true_are_replaced(
    how: str, keyed: bool, where: str, new: int, stay: dict[int, int], tmp_path: Path
) -> None:
    table = two_partitions(tmp_path, keyed)
    HOW[how](table, bare(row(7, new), row(8, new)), where)
    assert values(table) == {**stay, 7: new, 8: new}
    assert changes_of(table) == [
        *(("delete", id) for id in (1, 2, 3, 4) if id not in stay),
        ("upsert", 7),
        ("upsert", 8),
    ]
    assert table.doctor(deep=True).findings == ()
    [commit] = log_of(table).commits(table.version, table.version)
    assert commit.info is not None and commit.info.parameters["where"] == where
    HOW[how](table, bare(row(8, 1000)), "id = 8")
    assert values(table) == {**stay, 7: new, 8: 1000}


@pytest.mark.parametrize("how", HOW)
def test_rows_are_replaced_in_parts_that_were_merged_and_have_dead_rows(how: str, tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"], sequence_by="seq")
    table.apply(batch([row(id, id) for id in range(20)]))
    table.apply(batch([row(id, 0, op="d", seq=9) for id in range(5)]))
    table.settle()
    merge_base(table)
    HOW[how](table, bare(row(10, 30), row(30, 31)), "value >= 10")
    HOW[how](table, bare(row(31, 32)), "value >= 30")
    assert values(table) == {**{id: id for id in range(5, 10)}, 31: 32}
    table.apply(batch([row(1, 1, seq=8), row(11, 33, seq=0)]))
    table.settle()
    assert values(table)[11] == 33 and 1 not in values(table), "deletes are remembered, and replaced rows are not"
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(("where", "left"), [(None, {2: 5}), ("region = 'eu'", {2: 5}), ("value < 100", {})])
def test_whole_partitions_leave_with_the_deletes_that_they_remember(
    how: str, where: str | None, left: dict[int, int], tmp_path: Path
) -> None:
    """A condition on rows says nothing about a delete, which has no values: it stays."""
    table = make(tmp_path, [row(1, 1), row(2, 2)], partition_by=["region"], sequence_by="seq")
    table.apply(batch([row(2, 0, seq=9, op="d"), row(3, 3)]))  # a part with both
    table.settle()
    HOW[how](table, bare(), where)
    table.apply(batch([row(2, 5, seq=5)]))
    assert values(table) == left
    table.settle()
    assert values(table) == left


def test_an_update_that_read_a_row_before_it_was_replaced_does_not_bring_it_back(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.overwrite(bare(row(7, 2)), "value = 2")):
        table.update({"value": "value + 100"}, "value >= 2")
    assert values(table) == {1: 1, 3: 103, 4: 104, 7: 102}


@pytest.mark.parametrize("how", HOW)
def test_a_table_without_partitions_is_overwritten_whole(how: str, tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "table", SCHEMA, keys=["id"])
    table.apply(batch([row(1, 1), row(2, 2)]))
    HOW[how](table, bare(row(2, 20)))
    assert values(table) == {2: 20}
    HOW[how](table, bare())
    assert values(table) == {}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("where", "rows", "message"),
    [
        ("worth > 1", [], r"where='worth > 1': .*worth"),
        (
            "value > 2",
            [row(3, 3), row(8, 2)],
            r"the rows for where value > 2 hold one with {'value': 2}, for which that",
        ),
        ("value > 0 and cast(region as int) = 1", [], "Could not convert string 'eu'"),
        ("region = ", [], "is not one SQL expression"),
        ("region = 'eu'", [row(8, 8, "us")], "the rows for where region = 'eu' hold rows of region=us"),
    ],
)
def test_what_can_not_be_replaced_is_refused_and_leaves_no_file(
    how: str, where: str, rows: list[Any], message: str, tmp_path: Path
) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    files = {path for path, *_ in storage_of(table).list("_lakebed/")}
    with pytest.raises(InvalidInput, match=message):
        HOW[how](table, bare(*rows), where)
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}
    assert {path for path, *_ in storage_of(table).list("_lakebed/")} == files


@pytest.mark.parametrize("where", ["region = 'eu'", "value <> 3 or region = 'eu'"])
@pytest.mark.parametrize("rows", [[row(8, 8), row(8, 9)], [row(3, 3)]])
def test_a_refused_key_is_named(rows: list[Any], where: str, tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    key = rows[0]["id"]
    with pytest.raises(InvalidInput, match=rf"the key {{'id': {key}}}"):
        table.overwrite(bare(*rows), where)
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}


def test_rows_that_a_delete_elsewhere_outweighs_are_refused(tmp_path: Path) -> None:
    table = two_partitions(tmp_path, sequence_by="seq")
    table.apply(batch([row(9, 0, "us", 20, "d")]))
    with pytest.raises(InvalidInput, match=r"have the key {'id': 9}, which was deleted with a newer seq"):
        overwrite_by_tasks(table, bare(row(9, 9, "eu", 19)), "region = 'eu'")
    overwrite_by_tasks(table, bare(row(9, 9, "eu", 20)), "region = 'eu'")
    assert values(table)[9] == 9


# -- beside others -----------------------------------------------------------------------------------------------------


AFTER: dict[str, Callable[[lakebed.Table], object]] = {
    "in the tail": lambda table: None,
    "settled": lakebed.Table.settle,
    "merged": merge_base,
}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("where", [None, "region = 'eu'", "value < 3 or value > 9"])
def test_changes_that_come_while_the_rows_are_written_count_after_them(
    where: str | None, after: str, tmp_path: Path
) -> None:
    table = two_partitions(tmp_path)
    other = lakebed.open(table.path)

    def meanwhile() -> None:
        other.apply(batch([row(1, 100), row(7, 70), row(9, 90, "us")]))  # replaced, new, and of another partition
        other.apply(batch([row(10, 0, op="d"), row(9, 91, "us")]))
        AFTER[after](other)

    overwrite_by_tasks(table, bare(row(1, 11), row(10, 10), row(11, 11)), where, meanwhile)
    stay = {3: 3, 4: 4} if where else {}
    assert values(table) == {**stay, 1: 100, 7: 70, 9: 91, 11: 11}
    table.settle()
    assert values(table) == {**stay, 1: 100, 7: 70, 9: 91, 11: 11}
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize("after", AFTER)
def test_a_row_that_moves_to_another_partition_meanwhile_stays_there(after: str, tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    other = lakebed.open(table.path)

    def meanwhile() -> None:
        other.apply(batch([row(1, 5, "eu"), row(7, 7, "eu")]))
        other.apply(batch([row(1, 100, "us"), row(2, 200, "us")]))
        other.apply(batch([row(7, 70, "us")]))
        AFTER[after](other)

    overwrite_by_tasks(table, bare(row(1, 11)), "region = 'eu'", meanwhile)
    assert table.doctor(deep=True).findings == (), (
        "no key is live twice in the base, before the changes are settled again"
    )
    table.settle()
    assert values(table) == {1: 100, 2: 200, 3: 3, 4: 4, 7: 70}


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize(
    ("where", "region", "left"),
    [("region = 'eu'", "eu", {1: 11, 2: 200, 3: 3, 4: 4, 7: 70}), ("value < 23", "us", {1: 11, 2: 200, 7: 70})],
    ids=["partitions", "rows"],
)
def test_with_a_sequence_late_changes_lose_against_the_new_rows(
    where: str, region: str, left: dict[int, int], after: str, tmp_path: Path
) -> None:
    """The change of 1 is newer than its row, and older than the new one."""
    table = two_partitions(tmp_path, sequence_by="seq")
    other = lakebed.open(table.path)

    def meanwhile() -> None:
        other.apply(batch([row(1, 100, "eu", 5), row(2, 200, "eu", 20), row(7, 70, "eu", 5)]))
        AFTER[after](other)

    overwrite_by_tasks(table, bare(row(1, 11, region, 10), row(2, 22, "eu", 10)), where, meanwhile)
    for _ in range(2):
        assert values(table) == left
        assert table.doctor(deep=True).findings == ()
        table.settle()


def test_a_late_change_loses_too_if_it_is_settled_just_before_the_commit(tmp_path: Path) -> None:
    """Its row was not in the base yet when the overwrite looked."""
    table = two_partitions(tmp_path, sequence_by="seq")
    table.settle()
    other = lakebed.open(table.path)
    with before_its_commits(table, other.settle):
        late = batch([row(7, 70, "us", 5)])
        overwrite_by_tasks(table, bare(row(7, 2, "us", 10)), "value = 2", lambda: other.apply(late))
    assert table.doctor(deep=True).findings == (), "no key is live twice"
    assert values(table) == {1: 1, 3: 3, 4: 4, 7: 2}


@pytest.mark.parametrize("where", ["region = 'eu'", "value < 50 and region = 'eu'"], ids=["partitions", "rows"])
def test_a_key_is_live_once_if_its_change_is_settled_just_before_the_commit(where: str, tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    other = lakebed.open(table.path)
    with before_its_commits(table, other.settle):
        overwrite_by_tasks(table, bare(row(7, 7)), where, lambda: other.apply(batch([row(7, 70, "us")])))
    assert table.doctor(deep=True).findings == ()
    assert values(table) == {3: 3, 4: 4, 7: 70}


def test_a_change_that_lost_against_a_row_that_leaves_ends_the_overwrite(tmp_path: Path) -> None:
    """It counts after the rows if it is not settled yet."""
    table = two_partitions(tmp_path, sequence_by="seq")
    other, late = lakebed.open(table.path), batch([row(1, 100, "eu", 0)])
    with pytest.raises(Contention, match="a change came late for one of the rows that it replaces"):
        overwrite_by_tasks(table, bare(), "value < 3", lambda: (other.apply(late), other.settle()))
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}
    overwrite_by_tasks(table, bare(), "value < 3", lambda: other.apply(late))
    assert values(table) == {1: 100, 3: 3, 4: 4}


@pytest.mark.parametrize("where", ["region = 'eu'", "value in (1, 2, 7, 8)"])
def test_rows_that_are_appended_meanwhile_stay(where: str, tmp_path: Path) -> None:
    table = two_partitions(tmp_path, keyed=False)
    other = lakebed.open(table.path)
    overwrite_by_tasks(table, bare(row(7, 7)), where, lambda: other.apply(batch([row(8, 8)], keyed=False)))
    assert values(table) == {3: 3, 4: 4, 7: 7, 8: 8}


@pytest.mark.parametrize("where", ["region = 'eu'", "value < 3 or value = 11"])
@pytest.mark.parametrize(
    ("meanwhile", "why"),
    [
        (lakebed.Table.truncate, "emptied or restored the table"),
        (lambda table: table.restore(1), "emptied or restored the table"),
        (lambda table: table.detach_partition(EU), "rewrote rows of where "),
        (lambda table: table.overwrite(bare(row(5, 5)), "region = 'eu'"), "rewrote rows of where "),
        (lambda table: table.overwrite(bare(row(5, 5)), "value = 5"), "rewrote rows of where "),
        (lambda table: table.update({"value": "5"}, "region = 'eu'"), "a delete or update changed such rows"),
        (lambda table: table.apply(batch([row(1, 1) | {"missing": ["value"]}])), "lack values"),
    ],
)
def test_what_can_not_count_after_the_rows_ends_the_overwrite(
    meanwhile: Callable[[lakebed.Table], object], why: str, where: str, tmp_path: Path
) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    other, before = lakebed.open(table.path), {path for path, *_ in storage_of(table).list("_lakebed/")}
    with pytest.raises(Contention, match=rf"changed nothing: .*{why}.*; run it again"):
        overwrite_by_tasks(table, bare(row(1, 11)), where, lambda: meanwhile(other))
    left = {path for path, *_ in storage_of(table).list("_lakebed/")} - before
    log = "".join(file.read_text() for file in Path(table.path, "_delta_log").glob("*.json"))
    assert all(path in log for path in left if path.endswith(".parquet")), "the rows of the overwrite are deleted"


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("keyed", [True, False])
def test_of_two_overwrites_of_what_no_row_is_yet_the_second_ends(how: str, keyed: bool, tmp_path: Path) -> None:
    """After either of them alone the other's row would have left."""
    table = two_partitions(tmp_path, keyed)
    table.settle()
    other = lakebed.open(table.path)
    faster = before_its_commits(table, lambda: other.overwrite(bare(row(50, 60)), "value > 10"))
    with faster, pytest.raises(Contention, match="rewrote rows of where value > 10"):
        HOW[how](table, bare(row(5, 50)), "value > 10")
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4, 50: 60}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("brings", [lakebed.Table.overwrite, lambda table, *_: table.attach_partition(detached(table))])
def test_a_key_that_comes_into_another_partition_meanwhile_is_refused(
    brings: Callable[..., object], late: bool, tmp_path: Path
) -> None:
    table = two_partitions(tmp_path)
    table.detach_partition({"region": "us"})
    other = lakebed.open(table.path)
    bring = lambda: brings(other, bare(row(3, 3, "us")), "region = 'us'")  # noqa: E731
    interrupted = before_its_commits(table, *([bring] if late else []))
    with interrupted, pytest.raises(InvalidInput, match=r"have the key {'id': 3}, which is live in the table"):
        overwrite_by_tasks(table, bare(row(3, 30)), "region = 'eu'", (lambda: None) if late else bring)
    overwrite_by_tasks(table, bare(row(9, 9)), "region = 'eu'")
    assert values(table).items() >= {3: 3, 9: 9}.items()
    assert table.doctor(deep=True).findings == ()


def detached(table: lakebed.Table) -> str:
    [name] = table.inspect.detached()["name"].to_pylist()
    return str(name)


@pytest.mark.parametrize("scope", ["partition", "table"])
def test_a_rewrite_of_other_rows_passes_unless_the_table_allows_one_at_a_time(scope: str, tmp_path: Path) -> None:
    table = two_partitions(tmp_path, properties={"lakebed.conflict_scope": scope})
    other = lakebed.open(table.path)

    def overwrite() -> None:
        detach = lambda: other.detach_partition({"region": "us"})  # noqa: E731
        overwrite_by_tasks(table, bare(row(1, 11)), "region = 'eu'", detach)

    if scope == "table":
        with pytest.raises(Contention, match=r"lakebed\.conflict_scope is 'table'"):
            overwrite()
    else:
        overwrite()
        assert values(table) == {1: 11, 4: 4}


def test_change_rows_tell_what_left_what_came_and_the_changes_that_count_after_it(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    other = lakebed.open(table.path)
    overwrite_by_tasks(table, bare(row(5, 5)), "region = 'eu'", lambda: other.apply(batch([row(1, 100)])))
    assert changes_of(table) == [("delete", 1), ("delete", 2), ("upsert", 1), ("upsert", 5)]


def test_change_rows_tell_again_of_a_row_that_moved_to_another_partition_before(tmp_path: Path) -> None:
    """Where it was, it leaves only now."""
    table = two_partitions(tmp_path)
    other = lakebed.open(table.path)
    overwrite_by_tasks(table, bare(), "region = 'eu'", lambda: other.apply(batch([row(2, 200, "us")])))
    assert changes_of(table) == [("delete", 1), ("delete", 2), ("upsert", 2)]
    assert values(table) == {2: 200, 3: 3, 4: 4}


class Stream:
    """Commits one batch at each step: changes of rows that leave, join and stay, one that moves, and a new row."""

    def __init__(self, table: lakebed.Table, settles: bool) -> None:
        self.table = lakebed.open(table.path)
        self.settles = settles
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        at, region = self.steps, "us" if self.steps % 2 else "eu"
        changes = [row(1, at), row(3, at, "us"), row(5, at, region), row(100 + at, at, region)]
        self.table.apply(batch([{**change, "seq": 10 + at} for change in changes]))
        if self.settles:
            self.table.settle()

    def left(self, new: dict[int, int]) -> dict[int, int]:
        return {
            4: 4,
            **new,
            **dict.fromkeys((1, 3, 5), self.steps),
            **{100 + at: at for at in range(1, 1 + self.steps)},
        }


@pytest.mark.few(8)
@pytest.mark.parametrize("sequence_by", [None, "seq"])
@pytest.mark.parametrize("settles", [False, True], ids=["", "and its settle"])
@pytest.mark.parametrize("seam", ["before each snapshot", "beside each look-up by tasks", "before many commits"])
@pytest.mark.parametrize("where", ["region = 'eu'", "value < 50 and region = 'eu'"], ids=["partitions", "rows"])
def test_an_overwrite_ends_beside_a_stream_that_commits_in_each_attempt(
    where: str, seam: str, settles: bool, sequence_by: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = two_partitions(tmp_path, sequence_by=sequence_by)
    table.settle()
    stream, log = Stream(table, settles), log_of(table)
    monkeypatch.setattr(log, "sleep", lambda seconds: None)

    def meanwhile() -> None:
        stream.step()
        refresh = log.refresh
        if seam == "before each snapshot":
            monkeypatch.setattr(log, "refresh", lambda *args, **named: (stream.step(), refresh(*args, **named))[1])

    beside_look_ups = stream.step if seam == "beside each look-up by tasks" else lambda: None
    with before_its_commits(table, *([stream.step] * 9 if seam == "before many commits" else [])):
        new = bare(row(1, 11), row(5, 45), row(6, 46))
        version = overwrite_by_tasks(table, new, where, meanwhile, beside_look_ups)
    monkeypatch.undo()
    assert stream.steps < 20, "each attempt is as short as what came since the one before"
    assert values(table) == stream.left({6: 46}) and version == table.version
    assert table.doctor(deep=True).findings == ()
    table.settle()
    assert values(table) == stream.left({6: 46})
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize("where", ["region = 'eu'", "value < 100 and region = 'eu'"], ids=["partitions", "rows"])
def test_a_settle_of_later_changes_under_way_goes_beside_the_commit(where: str, rows: int, tmp_path: Path) -> None:
    """It read them before the overwrite commits, and commits after it."""
    table = two_partitions(tmp_path, sequence_by="seq")
    table.settle()
    settling, ingest, log = lakebed.open(table.path), lakebed.open(table.path), log_of(table)
    commit = log.commit

    def committed_amid_a_settle(*arguments: Any, **named: Any) -> Any:
        log.commit = commit  # type: ignore[method-assign]
        outcome: list[Any] = []
        with before_its_commits(settling, lambda: outcome.append(commit(*arguments, **named))):
            settling.settle()
        return outcome[0]

    def meanwhile() -> None:
        changes = [row(1, 101, seq=5), row(5, 105, "us", 5), row(3, 103, "us", 5), row(2, 0, "eu", 5, "d")]
        ingest.apply(batch(changes))
        log.commit = committed_amid_a_settle  # type: ignore[method-assign]

    overwrite_by_tasks(table, bare(row(1, 11, seq=4), row(5, 5, seq=4), row(7, 7)).slice(0, rows), where, meanwhile)
    for _ in range(2):
        assert values(table) == {1: 101, 3: 103, 4: 4, 5: 105, **({7: 7} if rows else {})}
        assert table.doctor(deep=True).findings == ()
        table.settle()
