"""Changes fill some columns of their rows, and the other columns keep their values."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakebed
from lakebed.errors import InvalidChanges, InvalidInput
from tests.worlds import examples

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), ("name", pa.string()), ("mail", pa.string()), ("visits", pa.int64())]
)
COLUMNS = ("name", "mail", "visits")


@pytest.fixture
def people(tmp_path: Any) -> lakebed.Table:
    return lakebed.create(str(tmp_path / "people"), SCHEMA, ["id"])


def rows(table: lakebed.Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.to_arrow().sort_by("id").to_pylist()
    return found


def row(id: int, name: str | None = None, mail: str | None = None, visits: int | None = None) -> dict[str, Any]:
    return {"id": id, "name": name, "mail": mail, "visits": visits}


def test_columns_that_were_not_sent_keep_their_values(people: lakebed.Table) -> None:
    people.apply([{"id": 1, "name": "Ada", "visits": 1}], columns="sent")
    people.apply([{"id": 1, "mail": "ada@example"}, {"id": 2, "mail": "bob@example"}], columns="sent")
    expected = [row(1, "Ada", "ada@example", 1), row(2, mail="bob@example")]
    assert rows(people) == expected
    people.settle()
    assert rows(people) == expected


def test_only_the_named_columns_are_filled(people: lakebed.Table) -> None:
    people.apply([row(1, "Ada", "ada@example", 1)])
    people.apply([row(1, "Eve", "eve@example", 2)], columns=["visits"])
    assert rows(people) == [row(1, "Ada", "ada@example", 2)]


def test_a_null_keeps_the_value_if_null_updates_are_ignored(people: lakebed.Table) -> None:
    people.apply([row(1, "Ada", "ada@example", 1)])
    people.apply([row(1, visits=2), row(2, "Bob")], ignore_null_updates=True)
    assert rows(people) == [row(1, "Ada", "ada@example", 2), row(2, "Bob")]


def test_a_null_that_was_sent_is_a_value(people: lakebed.Table) -> None:
    people.apply([row(1, "Ada", "ada@example", 1)])
    people.apply([{"id": 1, "mail": None}], columns="sent")
    assert rows(people) == [row(1, "Ada", None, 1)]


def test_a_row_that_comes_back_after_a_delete_has_nothing_of_the_old_one(people: lakebed.Table) -> None:
    people.apply([row(1, "Ada", "ada@example", 1)])
    people.apply([{"id": 1, "visits": -1}], "visits < 0", columns="sent")
    people.apply([{"id": 1, "mail": "new@example"}], columns="sent")
    assert rows(people) == [row(1, mail="new@example")]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"columns": ["nmae"]}, "columns has 'nmae', which is no column of the table; did you mean 'name'"),
        ({"columns": ["mail"]}, "the changes lack the column 'mail'"),
        ({"columns": "all"}, "columns is 'all'"),
        ({"columns": {"nick": "name"}}, "columns is a mapping; .* renamed_columns"),
    ],
)
def test_columns_that_can_not_be_filled_are_refused(
    people: lakebed.Table, arguments: dict[str, Any], error: str
) -> None:
    with pytest.raises((InvalidChanges, InvalidInput), match=error):
        people.apply([{"id": 1, "name": "Ada"}], **arguments)


def test_a_dataframe_of_spark_fills_columns_too(people: lakebed.Table, spark: SparkSession) -> None:
    people.apply([row(1, "Ada", "ada@example", 1)])
    changes = spark.createDataFrame([(1, None, 7), (2, "bob@example", None)], "id long, mail string, visits long")
    people.apply(changes, "visits = 8", columns="sent", ignore_null_updates=True)
    assert rows(people) == [row(1, "Ada", "ada@example", 7), row(2, mail="bob@example")]


def test_what_does_not_fit_is_kept_beside_what_other_changes_kept(people: lakebed.Table) -> None:
    people.apply([{"id": 1, "visits": "often"}], columns=["visits"], on_mismatch="rescue")
    people.apply([{"id": 1, "visits": 2}], columns=["visits"], on_mismatch="rescue")
    people.apply([{"id": 2, "visits": "never"}], columns=["visits"], on_mismatch="rescue")
    people.apply([{"id": 1, "name": "Ada"}], columns="sent")
    people.settle()
    assert people.to_arrow().sort_by("id")["_rescued"].to_pylist() == ['{"visits":"often"}', '{"visits":"never"}']
    assert people.to_arrow().sort_by("id")["visits"].to_pylist() == [2, None]


def test_a_dataframe_of_some_columns_keeps_what_does_not_fit(people: lakebed.Table, spark: SparkSession) -> None:
    people.apply([row(1, "Ada", "ada@example", 1)])
    changes = spark.createDataFrame([(1, "2", "x"), (2, "often", None)], "id long, visits string, more string")
    people.apply(changes, columns=["visits"], on_mismatch="rescue")
    assert people.to_arrow().sort_by("id").to_pylist() == [
        row(1, "Ada", "ada@example") | {"_rescued": '{"more":"x","visits":"2"}'},
        row(2) | {"_rescued": '{"visits":"often"}'},
    ]


def test_a_table_without_keys_has_no_rows_to_fill(tmp_path: Any) -> None:
    events = lakebed.create(str(tmp_path / "events"), SCHEMA)
    with pytest.raises(InvalidInput, match="no keys"):
        events.apply([{"id": 1}], columns="sent")


def test_a_new_row_that_lacks_a_value_it_needs_is_quarantined_and_reported(tmp_path: Any) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string(), False), ("mail", pa.string())])
    people = lakebed.create(str(tmp_path / "people"), schema, ["id"])
    people.apply([{"id": 1, "name": "Ada", "mail": None}])
    people.apply([{"id": 1, "mail": "ada@example"}, {"id": 2, "mail": "bob@example"}], columns="sent")
    assert people.settle().quarantined_rows == 1
    assert rows(people) == [{"id": 1, "name": "Ada", "mail": "ada@example"}]


@dataclass(frozen=True)
class Step:
    """A batch, and what is done after it."""

    changes: list[dict[str, Any]]
    columns: tuple[str, ...]
    ignores_nulls: bool
    then: str


CHANGE = st.fixed_dictionaries(
    {
        "id": st.integers(0, 3),
        "at": st.integers(0, 5),
        "gone": st.integers(0, 5).map(lambda number: number == 0),
        "name": st.sampled_from([None, "a", "b"]),
        "mail": st.sampled_from([None, "m", "n"]),
        "visits": st.sampled_from([None, 1, 2]),
    }
)
STEPS = st.lists(
    st.builds(
        Step,
        changes=st.lists(CHANGE, min_size=1, max_size=5),
        columns=st.lists(st.sampled_from(COLUMNS), unique=True, max_size=3).map(tuple),
        ignores_nulls=st.booleans(),
        then=st.sampled_from(["", "", "settle", "compact"]),
    ),
    max_size=7,
)


@dataclass
class People:
    """What the table must hold: changes one after the other, each over the newest row so far."""

    newest: dict[int, tuple[int, dict[str, Any] | None]] = field(default_factory=dict)

    def apply(self, step: Step, has_order: bool) -> None:
        for change in step.changes:
            at, before = self.newest.get(change["id"], (-1, None))
            if has_order and change["at"] < at:
                continue
            sent = [name for name in step.columns if not (step.ignores_nulls and change[name] is None)]
            values = {**(before or dict.fromkeys(COLUMNS)), **{name: change[name] for name in sent}}
            self.newest[change["id"]] = change["at"], None if change["gone"] else values

    def rows(self) -> list[dict[str, Any]]:
        return [{"id": id, **values} for id, (_, values) in sorted(self.newest.items()) if values is not None]


@pytest.mark.slow
@pytest.mark.parametrize("sequence_by", [None, "at"])
@given(steps=STEPS)
@examples(10)
def test_streams_that_fill_columns_give_the_rows_of_one_change_after_the_other(
    sequence_by: str | None, steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        table = lakebed.create(f"{folder}/people", SCHEMA, ["id"], sequence_by=sequence_by)
        people = People()
        for step in steps:
            there = ["id", "at", "gone", *step.columns]
            changes = [{name: change[name] for name in there} for change in step.changes]
            table.apply(pa.Table.from_pylist(changes), "gone", columns="sent", ignore_null_updates=step.ignores_nulls)
            people.apply(step, has_order=sequence_by is not None)
            assert rows(table) == people.rows()
            if step.then == "settle":
                table.settle()
            elif step.then == "compact":
                table.maintenance.compact()
            assert rows(table) == people.rows()


@pytest.mark.parametrize("sequence_by", [None, "at"])
def test_each_of_several_changes_keeps_the_values_of_its_own_row(tmp_path: Path, sequence_by: str | None) -> None:
    schema = pa.schema(
        [pa.field("id", pa.int64(), False), ("at", pa.int64()), ("name", pa.string()), ("n", pa.int64())]
    )
    table = lakebed.create(str(tmp_path / "t"), schema, ["id"], sequence_by=sequence_by)
    for ids in (range(5), range(5, 10)):
        table.apply([{"id": id, "at": 1, "name": f"name {id}", "n": 0} for id in ids])
    table.settle()
    table.apply([{"id": id, "at": 2, "n": id} for id in (7, 3, 9, 1, 11)], columns="sent")
    expected = [(id, 2 if id in (7, 3, 9, 1) else 1, f"name {id}", id if id in (7, 3, 9, 1) else 0) for id in range(10)]
    for _ in range(2):
        found = [tuple(row.values()) for row in table.to_arrow().sort_by("id").to_pylist()]
        assert found == [*expected, (11, 2, None, 11)]
        table.settle()
