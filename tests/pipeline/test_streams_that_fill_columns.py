"""Several pipelines fill the rows of one table, each some columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.errors import InvalidInput
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.pipeline.check import check
from lakebed.pipeline.settings import parse_pipeline
from tests.pipeline.pipelines_in_memory import Copy, PipelineInMemory, Sent

TABLE = """
table:
  path: ${LAKE}/people
  keys: [id]
  schema: {id: long not null, name: string, mail: string, visits: long}
source: {kind: kafka, config: {bootstrap.servers: "localhost:1"}, topics: [t]}
"""
PROFILES = "columns: [name, mail]\nformat: {kind: json, operation_field: op}\n"
VISITS = "columns: [visits]\nformat: debezium-json\n"


class Filling:
    """A pipeline of its own topic."""

    def __init__(self, folder: Path, columns: str, table: str = TABLE) -> None:
        self._pipeline = PipelineInMemory(table + columns, {"LAKE": str(folder)})
        self._topic = columns.partition("\n")[0]

    def feed(self, *records: Sent) -> None:
        self._pipeline.feed(*records, topic=self._topic)
        assert self._pipeline.stopped == {}

    @property
    def copy(self) -> Copy:
        return self._pipeline.copy(self._topic)


def event(op: str, row: dict[str, Any]) -> dict[str, Any]:
    return {"op": op, "before": row if op == "d" else None, "after": None if op == "d" else row, "source": {}}


def test_each_pipeline_fills_its_columns_of_a_row(tmp_path: Path) -> None:
    profiles, visits = Filling(tmp_path, PROFILES), Filling(tmp_path, VISITS)
    profiles.feed((None, {"id": 1, "name": "Ada", "mail": "ada@example"}))
    visits.feed(({"id": 1}, event("c", {"id": 1, "visits": 7})), ({"id": 2}, event("c", {"id": 2, "visits": 1})))
    profiles.feed((None, {"id": 1, "name": "Ada L."}))
    expected = [
        {"id": 1, "name": "Ada L.", "mail": None, "visits": 7},
        {"id": 2, "name": None, "mail": None, "visits": 1},
    ]
    copy = profiles.copy
    assert sorted(copy.rows(), key=lambda row: row["id"]) == expected
    copy.table.settle()
    assert sorted(copy.rows(), key=lambda row: row["id"]) == expected


def test_fields_of_columns_that_others_fill_are_left_out_without_a_remark(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    profiles = Filling(tmp_path, PROFILES)
    visits = Filling(tmp_path, VISITS)
    profiles.feed((None, {"id": 1, "name": "Ada", "mail": "a", "visits": 99}))
    visits.feed(({"id": 1}, event("c", {"id": 1, "name": "Eve", "visits": 1})))
    assert profiles.copy.rows() == [{"id": 1, "name": "Ada", "mail": "a", "visits": 1}]
    assert "no column takes" not in caplog.text


def test_large_values_that_debezium_leaves_out_are_kept_beside_columns_of_others(tmp_path: Path) -> None:
    profiles = Filling(tmp_path, "columns: [name, mail]\nformat: debezium-json\n")
    visits = Filling(tmp_path, VISITS)
    visits.feed(({"id": 1}, event("c", {"id": 1, "visits": 1})))
    profiles.feed(({"id": 1}, event("c", {"id": 1, "name": "Ada", "mail": "long"})))
    profiles.feed(({"id": 1}, event("u", {"id": 1, "name": "Eve", "mail": "__debezium_unavailable_value"})))
    assert profiles.copy.rows() == [{"id": 1, "name": "Eve", "mail": "long", "visits": 1}]


def test_a_delete_of_any_pipeline_removes_the_row(tmp_path: Path) -> None:
    profiles, visits = Filling(tmp_path, PROFILES), Filling(tmp_path, VISITS)
    profiles.feed((None, {"id": 1, "name": "Ada", "mail": "a"}))
    visits.feed(({"id": 1}, event("d", {"id": 1, "visits": 1})))
    assert profiles.copy.rows() == []


def test_records_from_the_quarantine_fill_the_same_columns(tmp_path: Path) -> None:
    profiles, visits = Filling(tmp_path, PROFILES), Filling(tmp_path, VISITS)
    visits.feed(({"id": 1}, event("c", {"id": 1, "visits": "x"})))
    profiles.feed((None, {"id": 1, "name": "Ada", "mail": "a"}))
    assert set(visits.copy.quarantine()) == {0}
    assert profiles.copy.rows() == [{"id": 1, "name": "Ada", "mail": "a", "visits": None}]


GROUPS = """
table:
  path: ${LAKE}/people
  keys: [id]
  sequence_by: changed
  schema: {id: long not null, status: string not null, changed: long, name: string, mail: string, named: long}
  properties:
    lakebed.groups: {profile: {columns: [name, mail], sequence_by: named}}
source: {kind: kafka, config: {bootstrap.servers: "localhost:1"}, topics: [t]}
"""


@pytest.mark.parametrize("form", ["debezium-json", "{kind: json, operation_field: op}"])
def test_a_stream_of_a_group_has_the_order_of_its_group(tmp_path: Path, form: str) -> None:
    owner = Filling(tmp_path, "columns: [status]\nformat: debezium-json\n", GROUPS)
    profiles = Filling(tmp_path, f"columns: [name, mail]\nformat: {form}\n", GROUPS)

    def profile(op: str, **row: Any) -> Sent:
        return ({"id": row["id"]}, event(op, row)) if form == "debezium-json" else (None, row | {"op": op})

    profiles.feed(profile("c", id=1, name="Ada", mail="a", named=5))
    assert profiles.copy.rows() == []
    owner.feed(({"id": 1}, event("c", {"id": 1, "status": "new", "changed": 1})))
    profiles.feed(profile("u", id=1, name="Late", mail="b", named=4))
    row = {"id": 1, "status": "new", "changed": 1, "name": "Ada", "mail": "a", "named": 5}
    assert owner.copy.rows() == [row]
    profiles.feed(profile("d", id=1, name="Ada", mail="a", named=5))
    assert owner.copy.rows() == [row | {"name": None, "mail": None}]
    owner.feed(({"id": 1}, event("d", {"id": 1, "status": "new", "changed": 2})))
    profiles.feed(profile("c", id=1, name="Eve", mail="e", named=6))
    assert owner.copy.rows() == []
    assert (owner.copy.quarantine(), profiles.copy.quarantine()) == ({}, {})


ORDERED_BY_RECORDS = GROUPS.replace("sequence_by: named", "sequence_by: source.lsn").replace(", named: long", "")


def test_a_stream_of_a_group_may_be_ordered_by_its_records(tmp_path: Path) -> None:
    owner = Filling(tmp_path, "columns: [status]\nformat: json\n", ORDERED_BY_RECORDS)
    profiles = Filling(tmp_path, "columns: [name, mail]\nformat: debezium-json\n", ORDERED_BY_RECORDS)

    def profile(op: str, lsn: int, **row: Any) -> Sent:
        return ({"id": row["id"]}, event(op, row) | {"source": {"lsn": lsn}})

    profiles.feed(profile("c", 5, id=1, name="Ada", mail="a"), profile("u", 4, id=1, name="Late", mail="b"))
    owner.feed((None, {"id": 1, "status": "new", "changed": 1}))
    profiles.feed(profile("u", 4, id=1, name="Late", mail="b"))
    row = {"id": 1, "status": "new", "changed": 1, "name": "Ada", "mail": "a"}
    assert owner.copy.rows() == [row]
    profiles.feed(profile("d", 6, id=1, name="Ada", mail="a"), profile("u", 5, id=1, name="Late", mail="b"))
    assert owner.copy.rows() == [row | {"name": None, "mail": None}]
    assert (owner.copy.quarantine(), profiles.copy.quarantine()) == ({}, {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("format: debezium-json\n", "'profile' is ordered by 'source.lsn', which is no column of the table; give"),
        (
            "columns: [status, name]\nformat: debezium-json\n",
            "'profile' is ordered by 'source.lsn', which is no column",
        ),
        ("columns: [name]\nformat: json\n", "flat JSON has no such metadata; use a column or kafka.offset"),
    ],
)
def test_records_that_do_not_say_how_new_they_are_in_a_group_are_refused(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        check(parse_pipeline(ORDERED_BY_RECORDS + text, "p.yml", {"LAKE": str(tmp_path)}))


def test_rows_that_get_other_keys_come_there_and_deletes_that_no_event_explains_are_quarantined(tmp_path: Path) -> None:
    groups = GROUPS.replace("sequence_by: changed", "sequence_by: source.lsn").replace(" changed: long,", "")
    owner = Filling(tmp_path, "columns: [status]\nformat: debezium-json\n", groups)
    owner.feed(*(({"id": id}, event("c", {"id": id, "status": "a"}) | {"source": {"lsn": 1}}) for id in (1, 2)))
    moves: list[Sent] = []
    for old, new in ((1, 2), (2, 3)):  # id = id + 1: for a moment there are two rows of the key 2
        keys, row = ({"id": old}, {"id": new}), {"status": "b"}
        for op, id, name, other in (("d", old, "newkey", keys[1]), ("c", new, "oldkey", keys[0])):
            moved = event(op, {"id": id} | row) | {"source": {"txId": 7, "lsn": 2 + len(moves)}}
            moves.append(({"id": id}, moved, {f"__debezium.{name}": json.dumps(other).encode()}))
    owner.feed(*moves)
    assert sorted(row["id"] for row in owner.copy.rows()) == [1, 2, 3]
    apart = lakebed.open(owner.copy.path + QUARANTINE_SUFFIX).to_arrow()
    # An earlier batch may have the begin of the transaction, with a row that came to 1.
    assert [json.loads(key) for key in apart["key"].to_pylist()] == [{"id": 1}]
    assert "and the event does not say which row it is" in apart["reason"][0].as_py()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("columns: [nmae]\nformat: json\n", "columns has 'nmae', which is no column of the table; did you mean 'name'"),
        ("columns: [name]\nformat: csv\n", "it has no effect"),
        ("columns: [name]\nformat: debezium-json\nevolve: [add]\n", "leave add out"),
    ],
)
def test_columns_that_can_not_be_filled_are_refused_with_their_place(tmp_path: Path, text: str, error: str) -> None:
    with pytest.raises(InvalidInput, match=error):
        check(parse_pipeline(TABLE + text, "p.yml", {"LAKE": str(tmp_path)}))
