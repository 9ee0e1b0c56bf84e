"""Groups of columns, each with an order of its own: a row is the join of what was newest in each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import lakebed
from lakebed.cli import main
from lakebed.compaction.settle import settle
from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.ingest import batch_writer
from lakebed.parts import write
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.changes import write_spec_of
from lakebed.positions.remarks import remarks_of
from lakebed.resolve.batches import newest_in_layers
from lakebed.resolve.groups import States
from lakebed.table import internals_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        pa.field("status", pa.string(), False),
        ("note", pa.string()),
        ("changed", pa.int64()),
        ("name", pa.string()),
        ("mail", pa.string()),
        ("named", pa.int64()),
        ("score", pa.float64()),
        ("scored", pa.timestamp("us", "UTC")),
    ]
)
GROUPS = {
    "profile": {"columns": ["name", "mail"], "sequence_by": "named"},
    "score": {"columns": ["score"], "sequence_by": "scored"},
}


def created(
    path: str, groups: dict[str, Any] | None = None, sequence_by: str = "changed", **properties: Any
) -> lakebed.Table:
    return lakebed.create(
        path, SCHEMA, ["id"], sequence_by=sequence_by, properties={"lakebed.groups": groups or GROUPS, **properties}
    )


@pytest.fixture
def people(tmp_path: Any) -> lakebed.Table:
    return created(str(tmp_path / "people"))


def rows(table: lakebed.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().sort_by("id").to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in found]


def sent(table: lakebed.Table, deletes: str | None = None, **values: Any) -> None:
    table.apply([values], deletes, columns="sent")


def settled(table: lakebed.Table) -> Iterator[list[dict[str, Any]]]:
    """The rows before and after a settle."""
    yield rows(table)
    table.settle()
    yield rows(table)


def settle_singly(table: lakebed.Table) -> None:
    """Settle each part of the tail in a commit of its own, as those of a batch that is too large for one."""
    internals = internals_of(table)
    settle(
        internals.log,
        internals.storage,
        internals.deletion_vectors,
        internals.locators.for_settling,
        lambda part, records: None,
        changes_max=1,
    )


def assert_newest_states_are_known(table: lakebed.Table, ids: Iterable[int]) -> None:
    """Of what the base remembers of a key without a row, beside that it was deleted, one state has the highest version."""
    internals = internals_of(table)
    snapshot = internals.log.refresh()
    spec, keys = write_spec_of(snapshot), pa.table({"id": pa.array(ids, pa.int64())})
    vectors, locator = internals.deletion_vectors, internals.locators.for_settling(write_spec_of(snapshot))
    found = States.of_base(keys, snapshot.parts, spec, internals.storage, vectors, locator)
    orders = [group.sequence_by for group in spec.groups]
    orders += [one.order_column or one.column for one in spec.aggregates if one.counts_all]
    says = np.any([found.rows[name].is_valid().to_numpy() for name in orders], axis=0)
    for key in set(found.key.tolist()) - set(found.key[found.is_live].tolist()):
        versions = found.versions[says & (found.key == key)].tolist()
        assert versions.count(max(versions, default=0)) <= 1, versions


def test_a_late_change_loses_within_its_group_alone(people: lakebed.Table) -> None:
    sent(people, id=1, status="new", changed=10)
    sent(people, id=1, name="Ada", mail="a@example", named=5)
    sent(people, id=1, name="Old", named=4)
    sent(people, id=1, status="old", changed=9)
    sent(people, id=1, name="Eve", named=6)
    expected = [{"id": 1, "status": "new", "changed": 10, "name": "Eve", "mail": "a@example", "named": 6}]
    assert list(settled(people)) == [expected, expected]


def test_status_says_how_many_changes_wait(people: lakebed.Table, capsys: pytest.CaptureFixture[str]) -> None:
    sent(people, id=1, name="Ada", named=5)
    people.settle()
    main(["status", people.path])
    assert "1 of 'profile' had no row of their owner" in capsys.readouterr().out


def test_a_change_waits_for_the_row_of_the_owner(people: lakebed.Table) -> None:
    sent(people, id=1, name="Ada", named=5)
    assert list(settled(people)) == [[], []]
    sent(people, id=2, score=1.5, scored=datetime(2026, 1, 1, tzinfo=UTC))
    assert people.settle().waiting_rows == 1
    assert remarks_of(internals_of(people).log.refresh()).counts["waiting_for_owner"] == {"profile": 1, "score": 1}
    sent(people, id=1, name="Older", named=3)
    assert list(settled(people)) == [[], []]
    sent(people, id=1, status="new", changed=1)
    expected = [{"id": 1, "status": "new", "changed": 1, "name": "Ada", "named": 5}]
    assert list(settled(people)) == [expected, expected]


def test_what_waits_is_listed_by_key_and_group(people: lakebed.Table) -> None:
    assert people.inspect.waiting().to_pylist() == []
    sent(people, id=1, name="Ada", named=5)
    sent(people, id=2, status="new", changed=1)
    sent(people, id=2, name="Eve", named=5)
    sent(people, id=1, score=1.5, scored=datetime(2026, 1, 1, tzinfo=UTC))
    expected = [{"id": 1, "group": "profile", "version": 1}, {"id": 1, "group": "score", "version": 4}]
    assert people.inspect.waiting().to_pylist() == expected
    people.settle()
    people.maintenance.compact()
    assert people.inspect.waiting()["group"].to_pylist() == ["profile", "score"]
    sent(people, id=1, status="new", changed=1)
    assert people.inspect.waiting().num_rows == 0
    people.settle()
    assert people.inspect.waiting().num_rows == 0
    people.delete("id = 2")
    assert people.inspect.waiting()["id"].to_pylist() == [2]


def test_only_the_owner_brings_a_deleted_row_back(people: lakebed.Table) -> None:
    sent(people, id=1, status="new", changed=1)
    sent(people, id=1, name="Ada", named=5)
    people.settle()
    sent(people, "status = 'gone'", id=1, status="gone", changed=2)
    assert list(settled(people)) == [[], []]
    sent(people, id=1, name="Eve", named=6)
    assert list(settled(people)) == [[], []]
    sent(people, id=1, status="late", changed=1)
    assert list(settled(people)) == [[], []]
    sent(people, id=1, status="back", changed=3)
    expected = [{"id": 1, "status": "back", "changed": 3, "name": "Eve", "named": 6}]
    assert list(settled(people)) == [expected, expected]


def test_of_equal_changes_the_last_counts_among_those_that_wait_too(people: lakebed.Table) -> None:
    for number in range(1, 5):  # each settle adds to what the base remembers of the keys that wait
        for id in range(number, 5):
            sent(people, id=id, name=f"{number}", named=5)
        people.settle()
        sent(people, id=number, status="new", changed=1)
        row = {"id": number, "status": "new", "changed": 1, "name": f"{number}", "named": 5}
        assert [rows(people)[-1], len(rows(people))] == [row, number]
        if number % 2:
            people.maintenance.compact()


def in_tasks(changes: pa.Table, spec: Any, connection: Any, ends: Sequence[int]) -> Any:
    """``newest_in_layers``, as several tasks do it, each with a piece of the batch."""
    pieces = [changes.slice(start, end - start) for start, end in itertools.pairwise([0, *ends, len(changes)])]
    of_pieces = [newest_in_layers(piece, spec, connection) for piece in pieces]
    return [layer for layers, _ in of_pieces for layer in layers], of_pieces[0][1]


@pytest.mark.few(3)
@pytest.mark.parametrize("settle", [settle_singly, lakebed.Table.settle])
@pytest.mark.parametrize(("is_deleted", "scores"), [(False, "sum"), (True, "sum"), (True, "last")])
def test_so_it_does_if_a_batch_has_several_parts_whatever_clocks_say(
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
    settle: Callable[[lakebed.Table], object],
    is_deleted: bool,
    scores: str,
) -> None:
    more = {"lakebed.read_budget": 1, "lakebed.aggregate.score": scores}
    people, clock = created(str(tmp_path / "people"), **more), itertools.count(4_000_000_000, -1)
    monkeypatch.setattr(write, "time", SimpleNamespace(time=lambda: next(clock)))
    monkeypatch.setattr(batch_writer, "newest_in_layers", partial(in_tasks, ends=range(2, 8, 2)))
    moment, changes = datetime(2026, 1, 1, tzinfo=UTC), list[dict[str, Any]]()
    for number in range(4):
        groups = {"id": 1, "name": f"{number}", "mail": "m", "named": 5, "score": 1.0, "scored": moment}
        if is_deleted:
            gone = {"status": "gone", "note": "n", "changed": 5} | dict.fromkeys(groups) | {"id": 1}
            changes += [groups | {"status": "old", "note": "n", "changed": 4}, gone]
        else:
            changes += [groups, groups | {"mail": None}]  # what the latter keeps only the table can say
    people.apply(changes, "status = 'gone'" if is_deleted else None, columns="sent", ignore_null_updates=True)
    assert len(internals_of(people).log.refresh().tail) > 3
    for _ in range(3):
        settle(people)
        assert_newest_states_are_known(people, [1])
        people.maintenance.compact()
        assert_newest_states_are_known(people, [1])
        sent(people, id=2, name="Eve", named=5)
    sent(people, id=1, status="new", changed=6)
    score = {"last": 1.0, "sum": 4.0 if is_deleted else 8.0}[scores]
    row = groups | {"status": "new", "changed": 6, "score": score}
    assert list(settled(people)) == [[row]] * 2


def test_a_delete_of_the_owner_that_has_the_row_as_it_was_says_nothing_of_groups(people: lakebed.Table) -> None:
    sent(people, id=1, status="new", changed=1)
    sent(people, id=1, name="Ada", mail="a@example", named=5)
    sent(people, "true", id=1, status="new", changed=2, name="Old", named=5)
    assert list(settled(people)) == [[], []]
    sent(people, id=1, status="back", changed=3)
    expected = [{"id": 1, "status": "back", "changed": 3, "name": "Ada", "mail": "a@example", "named": 5}]
    assert list(settled(people)) == [expected, expected]


def test_what_waits_and_that_the_owner_deleted_is_forgotten_together_with_deletes(tmp_path: Any) -> None:
    people = created(str(tmp_path / "people"), **{"lakebed.tombstone_retention": "0 seconds", "lakebed.read_budget": 1})
    for id, mail in ((1, None), (2, "b@example")):
        sent(people, id=id, name="Ada", mail=mail, named=5)
        people.settle()
    sent(people, id=2, status="new", changed=5)
    sent(people, "true", id=2, status="new", changed=6)
    people.settle()
    people.maintenance.compact()
    assert people.inspect.waiting().num_rows == 0
    for id in (1, 2):
        sent(people, id=id, status="late", changed=4)
    assert list(settled(people)) == [[{"id": id, "status": "late", "changed": 4} for id in (1, 2)]] * 2


def test_a_delete_of_a_group_takes_its_values_and_keeps_late_ones_out(people: lakebed.Table) -> None:
    sent(people, id=1, status="new", changed=1)
    sent(people, id=1, name="Ada", mail="a@example", named=5)
    people.settle()
    sent(people, "true", id=1, name="Ada", mail="a@example", named=7)
    sent(people, id=1, name="Late", named=6)
    expected = [{"id": 1, "status": "new", "changed": 1, "named": 7}]
    assert list(settled(people)) == [expected, expected]


def test_a_group_that_creates_makes_rows_that_the_owner_has_not_deleted(tmp_path: Any) -> None:
    schema = pa.schema([one.with_nullable(one.name != "id") for one in SCHEMA])
    groups = {"profile": {"columns": ["name", "mail"], "sequence_by": "named", "creates": True}}
    people = lakebed.create(
        str(tmp_path / "people"), schema, ["id"], sequence_by="changed", properties={"lakebed.groups": groups}
    )
    sent(people, id=1, name="Ada", named=5)
    assert list(settled(people)) == [[{"id": 1, "name": "Ada", "named": 5}]] * 2
    sent(people, "true", id=1, status="gone", changed=1)
    assert list(settled(people)) == [[], []]
    sent(people, id=1, name="Eve", named=6)
    assert list(settled(people)) == [[], []]


def test_rows_are_among_the_changes_and_what_waits_is_not(people: lakebed.Table) -> None:
    sent(people, id=1, name="Ada", named=5)
    people.settle()
    sent(people, id=1, name="Eve", named=6)
    people.settle()
    sent(people, id=2, status="new", changed=1)
    sent(people, id=1, status="new", changed=2)
    people.settle()
    sent(people, "true", id=1, status="new", changed=3)
    people.settle()
    found = [
        (row["_change_type"], row["id"], row["status"], row["name"])
        for version in versions_with_changes(people.path, 0, people.version)
        for batch in read_version(people.path, version)
        for row in batch.to_pylist()
    ]
    assert found[:2] == [("upsert", 1, "new", "Eve"), ("upsert", 2, "new", None)]
    assert {row[:2] for row in found[2:]} == {("delete", 1)}


@pytest.mark.parametrize(
    ("groups", "error"),
    [
        ({"a": {"columns": ["id"], "sequence_by": "named"}}, "'id' of the group 'a' is a key"),
        ({"a": {"columns": ["status"], "sequence_by": "named"}}, "'status' of the group 'a' is NOT NULL"),
        ({"a": {"columns": ["changed"], "sequence_by": "named"}}, "orders the changes of the owner"),
        ({"a": {"columns": ["nmae"], "sequence_by": "named"}}, "'nmae' of the group 'a' is no column"),
        ({"a": {"columns": ["name"], "sequence_by": "score"}}, "which orders the group 'a', is double"),
        ({"a": {"columns": ["name"], "sequence_by": "named"}, "b": {"columns": ["name"], "sequence_by": "scored"}}, "too"),
        ({"a": {"columns": [], "sequence_by": "named"}}, "columns .a list of names"),
        ({"a": {"columns": ["name"], "sequence_by": "named", "creates": True}}, "'status' is NOT NULL"),
        ({"a": {"columns": ["name"], "sequence_by": "chnaged"}}, "did you mean 'changed'"),
        ({"a.b": {"columns": ["name"], "sequence_by": "kafka.offset"}}, "must not have a dot"),
    ],
)  # fmt: skip
def test_groups_that_do_not_fit_the_table_are_refused(tmp_path: Any, groups: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        created(str(tmp_path / "people"), groups)
    people = lakebed.create(str(tmp_path / "others"), SCHEMA, ["id"], sequence_by="changed")
    with pytest.raises(InvalidInput, match=error):
        people.set_properties({"lakebed.groups": groups})


def test_a_table_without_an_order_has_no_groups(tmp_path: Any) -> None:
    with pytest.raises(InvalidInput, match="needs keys and sequence_by"):
        lakebed.create(str(tmp_path / "people"), SCHEMA, ["id"], properties={"lakebed.groups": GROUPS})


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"id": 1, "name": "Ada"}, "lack the column 'named', which orders the group 'profile'"),
        ({"id": 1, "name": "Ada", "named": None}, "a value of 'name' but none of 'named'"),
        ({"id": 1, "name": None, "named": None}, "says nothing of any group"),
        ({"id": 1}, "lack the column 'changed'"),
        ({"id": 1, "status": "new", "name": "Ada", "named": 1}, "lack the column 'changed'"),
    ],
)
def test_changes_that_do_not_say_how_new_they_are_are_refused(
    people: lakebed.Table, change: dict[str, Any], error: str
) -> None:
    with pytest.raises((InvalidChanges, InvalidInput), match=error):
        people.apply([change], columns="sent")


HIDDEN = {"profile": {"columns": ["name", "mail"], "sequence_by": "moment"}, "score": GROUPS["score"]}


def test_the_order_of_a_group_may_be_no_column(tmp_path: Any) -> None:
    people = created(str(tmp_path / "people"), HIDDEN, sequence_by="lsn")
    sent(people, id=1, status="new", lsn=1)
    sent(people, id=1, name="Ada", mail="a@example", moment=datetime.fromtimestamp(5, UTC))
    people.alter(rename={"name": "called"})
    people.settle()
    sent(people, id=1, called="Late", moment=datetime.fromtimestamp(4, UTC))
    sent(people, id=1, mail="b@example", moment=datetime.fromtimestamp(6, UTC))
    expected = [{"id": 1, "status": "new", "called": "Ada", "mail": "b@example"}]
    assert list(settled(people)) == [expected, expected]
    people.update({"called": "'Eve'"}, "true")  # as new as what it read
    sent(people, id=1, called="Late", moment=datetime.fromtimestamp(5, UTC))
    assert list(settled(people)) == [[expected[0] | {"called": "Eve"}]] * 2
    sent(people, "true", id=1, moment=datetime.fromtimestamp(7, UTC))
    assert list(settled(people)) == [[{"id": 1, "status": "new"}]] * 2


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"id": 1, "name": "Ada"}, "lack the column 'moment', which orders the group 'profile'"),
        ({"id": 1, "name": "Ada", "moment": None}, "a value of 'name' but none of 'moment'"),
        ({"id": 1, "name": "Ada", "moment": "noon"}, "must be an integer or a timestamp"),
    ],
)
def test_changes_of_a_group_need_its_order_also_if_it_is_no_column(
    tmp_path: Any, change: dict[str, Any], error: str
) -> None:
    people = created(str(tmp_path / "people"), HIDDEN)
    with pytest.raises(InvalidChanges, match=error):
        people.apply([change], columns="sent")
    with pytest.raises(InvalidInput, match="'moment' of events orders the group 'profile'"):
        people.alter(add={"moment": "timestamp"})


def test_groups_follow_renamed_columns(people: lakebed.Table) -> None:
    sent(people, id=1, status="new", changed=1)
    sent(people, id=1, name="Ada", mail="a@example", named=5)
    people.alter(rename={"name": "called", "named": "called_at"})
    assert json.loads(people.properties["lakebed.groups"])["profile"]["sequence_by"] == "called_at"
    sent(people, id=1, called="Late", called_at=4)
    sent(people, id=1, mail="b@example", called_at=6)
    expected = [{"id": 1, "status": "new", "changed": 1, "called": "Ada", "mail": "b@example", "called_at": 6}]
    assert list(settled(people)) == [expected, expected]
    with pytest.raises(Exception, match="in a group of columns"):
        people.alter(drop=["mail"])


AGGREGATES = {"origin": "first", "kept": "last_non_null", "best": "max", "least": "min", "total": "sum"}
AGGREGATED = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("at", pa.int64()),
        ("origin", pa.string()),
        ("kept", pa.string()),
        ("best", pa.float64()),
        ("least", pa.string()),
        ("total", pa.int64()),
    ]
)


@pytest.fixture
def visits(tmp_path: Any) -> lakebed.Table:
    properties = {f"lakebed.aggregate.{name}": function for name, function in AGGREGATES.items()}
    return lakebed.create(str(tmp_path / "visits"), AGGREGATED, ["id"], sequence_by="at", properties=properties)


def test_columns_are_aggregated_over_all_changes_of_a_row_late_ones_too(visits: lakebed.Table) -> None:
    sent(visits, id=1, at=5, origin="b", kept="x", best=2.0, least="m", total=1)
    sent(visits, id=1, at=6, origin="c", kept=None, best=1.0, least="z", total=1)
    expected = [{"id": 1, "at": 6, "origin": "b", "kept": "x", "best": 2.0, "least": "m", "total": 2}]
    assert list(settled(visits)) == [expected, expected]
    sent(visits, id=1, at=3, origin="a", kept="old", best=9.0, least="a", total=10)
    sent(visits, id=1, at=3, origin="y")  # of equally old ones the first to come
    expected = [{"id": 1, "at": 6, "origin": "a", "kept": "x", "best": 9.0, "least": "a", "total": 12}]
    assert list(settled(visits)) == [expected, expected]


def test_batches_that_end_in_a_delete_add_to_the_sum(visits: lakebed.Table) -> None:
    for at in (1, 3):
        changes = [{"at": at, "total": at}, {"at": at + 1, "best": 9.0}]
        visits.apply([dict.fromkeys(AGGREGATED.names) | {"id": 1, "kept": "x"} | each for each in changes], "best = 9")
        visits.settle()
        assert_newest_states_are_known(visits, [1])
    sent(visits, id=1, at=5, kept="x")
    assert list(settled(visits)) == [[{"id": 1, "at": 5, "kept": "x", "total": 4}]] * 2


def test_what_a_late_delete_brought_is_not_first_among_equals(visits: lakebed.Table) -> None:
    for origin, at, deletes in (("a", 8, None), ("b", 6, '"at" = 6')):
        changes = [{"at": 2, "origin": origin}, {"at": at, "origin": None}]
        visits.apply([dict.fromkeys(AGGREGATED.names) | {"id": 1, "kept": "x"} | each for each in changes], deletes)
        visits.settle()
    sent(visits, id=1, at=1, total=1)
    assert list(settled(visits)) == [[{"id": 1, "at": 8, "origin": "a", "kept": "x", "total": 1}]] * 2


@pytest.mark.parametrize(("value", "bound"), [(2**62, 2**63 - 1), (-(2**62), -(2**63) + 1)])
def test_a_sum_stays_at_the_bound_of_its_type(visits: lakebed.Table, value: int, bound: int) -> None:
    for at in range(3):
        sent(visits, id=1, at=at, total=value)
    assert list(settled(visits)) == [[{"id": 1, "at": 2, "total": bound}]] * 2


def test_a_delete_removes_the_row_and_the_aggregates_go_on_when_it_comes_back(visits: lakebed.Table) -> None:
    sent(visits, id=1, at=5, total=1)
    sent(visits, "total = 7", id=1, at=6, total=7)
    assert list(settled(visits)) == [[], []]
    sent(visits, id=1, at=7, total=2)
    assert list(settled(visits)) == [[{"id": 1, "at": 7, "total": 3}]] * 2


def test_what_all_changes_decide_is_not_set_and_a_source_of_sums_is_not_read_again(visits: lakebed.Table) -> None:
    for name in ("origin", "best", "least", "total"):
        with pytest.raises(InvalidInput, match=f"set assigns '{name}', which is the {AGGREGATES[name]} of all changes"):
            visits.update({name: "null"}, "true")
    with pytest.raises(InvalidInput, match="'total' is a sum of all changes"):
        visits.maintenance.rewind("t")


@pytest.mark.parametrize(
    ("column", "function", "error"),
    [
        ("none", "max", "no such column"),
        ("id", "max", "keys, partition columns and what orders changes"),
        ("at", "max", "keys, partition columns and what orders changes"),
        ("origin", "sum", "a sum is a long, a double"),
        ("best", "average", "one of last, last_non_null, first, max, min, sum"),
    ],
)
def test_aggregates_that_do_not_fit_the_column_are_refused(
    visits: lakebed.Table, column: str, function: str, error: str
) -> None:
    with pytest.raises(InvalidInput, match=error):
        visits.set_properties({f"lakebed.aggregate.{column}": function})


def test_aggregates_follow_renamed_columns(visits: lakebed.Table) -> None:
    sent(visits, id=1, at=5, origin="b", total=1)
    visits.alter(rename={"origin": "source", "total": "n"})
    visits.settle()
    sent(visits, id=1, at=4, source="a", n=2)
    assert list(settled(visits)) == [[{"id": 1, "at": 5, "source": "a", "n": 3}]] * 2
    with pytest.raises(Exception, match="it is aggregated"):
        visits.alter(drop=["n"])


def test_a_dataframe_of_spark_brings_the_order_of_a_group_that_is_no_column(tmp_path: Any, spark: SparkSession) -> None:
    people = created(str(tmp_path / "people"), {"profile": HIDDEN["profile"]}, sequence_by="lsn")
    rows_of_owner = spark.createDataFrame([(1, "new", 1)], "id long, status string, lsn long")
    people.apply(rows_of_owner, columns="sent")
    profiles = spark.createDataFrame([(1, "Late", 4), (1, "Ada", 5)], "id long, name string, moment long")
    people.apply(profiles, columns="sent")
    with pytest.raises(InvalidChanges, match="lack the column 'moment', which orders the group 'profile'"):
        people.apply(profiles.drop("moment"), columns="sent")
    assert list(settled(people)) == [[{"id": 1, "status": "new", "name": "Ada"}]] * 2
