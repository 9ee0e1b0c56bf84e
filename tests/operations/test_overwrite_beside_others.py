"""Overwrites of tables with a time to live, first rows, groups of columns, points, or Iceberg's metadata; and beside a purge or
other rewrites.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import Contention, InvalidInput
from lakebed.operations.purge import files as purge_files
from lakebed.operations.purge.files import Clearing
from lakebed.table import internals_of
from tests.iceberg.readers import pyiceberg
from tests.operations import test_time_to_live as ttl
from tests.operations.interrupted import before_its_commits
from tests.operations.overwriting import overwrite_by_tasks
from tests.operations.test_mutations import batch, row, values
from tests.operations.test_overwrite import HOW, bare, detached
from tests.operations.test_partitions import two_partitions
from tests.oracle import Row
from tests.resolve.test_first_rows import created as first_rows
from tests.resolve.test_first_rows import rows as events
from tests.resolve.test_groups_of_columns import GROUPS, sent
from tests.resolve.test_groups_of_columns import SCHEMA as PEOPLE
from tests.resolve.test_groups_of_columns import created as with_groups
from tests.resolve.test_groups_of_columns import rows as people

pytestmark = pytest.mark.usefixtures("own_cache")

AT = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


# -- time to live ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize(("where", "stay"), [(None, []), ("value = 7", [4, 6])])
def test_rows_that_expire_while_others_are_written_stay_away(
    keyed: bool, where: str | None, stay: list[int], tmp_path: Path
) -> None:
    batches = [[(1, 50, 7), (2, 40, 7)], [(3, 31), (4, 29), (8, 29, 7)], [(6, 1)]]
    table = ttl.make(tmp_path, [[ttl.row(*one) for one in each] for each in batches], keyed)
    other = lakebed.open(table.path)
    new = pa.Table.from_pylist([ttl.row(9, 2, 7), ttl.row(2, 60, 7)], ttl.SCHEMA)
    overwrite_by_tasks(table, new, where, lambda: ttl.expired(other))
    assert ttl.ids(table) == [2, *stay, 9]
    ttl.expired(table)
    assert ttl.ids(table) == [*stay, 9]
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize("where", [None, "value = 7"])
def test_rows_that_are_replaced_before_their_expiry_commits_are_not_missed(where: str | None, tmp_path: Path) -> None:
    table = ttl.make(tmp_path, [[ttl.row(1, 50, 7), ttl.row(2, 40)], [ttl.row(3, 5, 7)]])
    other = lakebed.open(table.path)
    new = pa.Table.from_pylist([ttl.row(1, 1, 7), ttl.row(5, 60, 7)], ttl.SCHEMA)
    with before_its_commits(table, lambda: other.overwrite(new, where)):
        ttl.expired(table)
    assert ttl.ids(table)[0] == 1
    ttl.expired(table)
    assert ttl.ids(table) == [1]


# -- Iceberg -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("keyed", [True, False])
def test_readers_of_iceberg_see_what_replaced_partitions_and_rows(how: str, keyed: bool, tmp_path: Path) -> None:
    table = two_partitions(tmp_path, keyed, properties={"lakebed.iceberg": "on"})
    for where, new in (("value >= 3", [row(3, 30), row(9, 9, "us")]), ("region = 'us'", [row(8, 8, "us")]), (None, [])):
        HOW[how](table, bare(*new), where)
        published = table.maintenance.publish_iceberg()
        assert published.version == table.version
        found = pyiceberg(table).sort_by("id").to_pydict()
        assert dict(zip(found["id"], found["value"], strict=True)) == values(table)


# -- first rows and groups ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", [None, "id < 3"])
@pytest.mark.parametrize("sequence_by", [None, "at"])
def test_rows_that_replace_first_ones_are_the_first(
    how: str, where: str | None, sequence_by: str | None, tmp_path: Path
) -> None:
    table = first_rows(tmp_path, sequence_by)
    table.apply([{"id": 1, "at": 5, "text": "a"}, {"id": 2, "at": 6, "text": "b"}, {"id": 3, "at": 1, "text": "c"}])
    HOW[how](table, pa.Table.from_pylist([{"id": 1, "at": 9, "text": "A"}], table.schema), where)
    stays = {} if where is None else {3: (1, "c")}
    table.apply([{"id": 1, "at": 10, "text": "late"}, {"id": 2, "at": 6, "text": "again"}])
    for _ in range(2):
        assert events(table) == {1: (9, "A"), 2: (6, "again"), **stays}
        table.settle()
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize("where", [None, "id < 3"])
def test_events_of_the_rows_that_are_replaced_end_the_overwrite_and_others_do_not(
    where: str | None, tmp_path: Path
) -> None:
    table = first_rows(tmp_path, "at")
    table.apply([{"id": 1, "at": 5, "text": "a"}])
    other = lakebed.open(table.path)
    new = pa.Table.from_pylist([{"id": 1, "at": 9, "text": "A"}], table.schema)
    with pytest.raises(Contention, match="first rows"):
        overwrite_by_tasks(table, new, where, lambda: other.apply([{"id": 1, "at": 4, "text": "late"}]))
    assert events(table) == {1: (4, "late")}
    if where is not None:
        overwrite_by_tasks(table, new.slice(0, 0), where, lambda: other.apply([{"id": 7, "at": 9, "text": "new"}]))
        assert events(table) == {7: (9, "new")}


WHOLE = {
    "id": 1,
    "status": "s",
    "note": "n",
    "changed": 5,
    "name": "N",
    "mail": "m",
    "named": 5,
    "score": 1.0,
    "scored": AT,
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("where", [None, "status = 's'"])
def test_each_group_of_a_new_row_is_as_new_as_it_says(how: str, where: str | None, tmp_path: Path) -> None:
    table = with_groups(str(tmp_path / "people"))
    table.apply([WHOLE, WHOLE | {"id": 2, "status": "stays", "name": "of 2"}])
    table.settle()
    new = pa.Table.from_pylist([WHOLE | {"name": "new", "named": 3, "note": "new"}], table.schema)
    HOW[how](table, new, where)
    sent(table, id=1, name="older", named=2)
    sent(table, id=1, score=2.0, scored=AT + datetime.timedelta(1))
    sent(table, id=1, status="late", changed=4)
    for _ in range(2):
        [found, *others] = people(table)
        assert (found["name"], found["named"], found["score"], found["status"]) == ("new", 3, 2.0, "s")
        assert [one["name"] for one in others] == ([] if where is None else ["of 2"])
        table.settle()
    assert table.doctor(deep=True).findings == ()


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    ("waits", "newer"),
    [
        ({"name": "waits", "named": 9}, "'waits' as a newer name than 'N'"),
        ({"name": "N", "mail": "m", "named": 9}, "9 as a newer named than 5"),
    ],
)
def test_a_new_row_is_refused_if_newer_values_wait_for_it(
    how: str, waits: dict[str, Any], newer: str, tmp_path: Path
) -> None:
    """They would appear in it with the next change of another group."""
    table = with_groups(str(tmp_path / "people"))
    sent(table, id=1, **waits)
    sent(table, id=2, name="waits", named=4)
    table.settle()
    new = [WHOLE, WHOLE | {"id": 2}]
    with pytest.raises(InvalidInput, match=rf"have the key {{'id': 1}}, of which the table remembers {newer}"):
        HOW[how](table, pa.Table.from_pylist(new, table.schema), "status = 's'")
    new[0] = WHOLE | waits
    HOW[how](table, pa.Table.from_pylist(new, table.schema), "status = 's'")
    sent(table, id=1, score=2.0, scored=AT + datetime.timedelta(1))
    assert [one["name"] for one in people(table)] == [waits["name"], "N"]
    HOW[how](table, pa.Table.from_pylist([WHOLE], table.schema))  # what waits leaves with the whole table
    sent(table, id=1, score=2.0, scored=AT + datetime.timedelta(1))
    assert [one["name"] for one in people(table)] == ["N"]


@pytest.mark.parametrize("how", HOW)
def test_so_is_one_of_a_partition(how: str, tmp_path: Path) -> None:
    groups = {"lakebed.groups": GROUPS}
    table = lakebed.create(
        tmp_path / "t", PEOPLE, ["id"], sequence_by="changed", partition_by=["status"], properties=groups
    )
    sent(table, id=1, name="waits", named=9)
    table.settle()
    with pytest.raises(InvalidInput, match="the table remembers 'waits' as a newer name than 'N'"):
        HOW[how](table, pa.Table.from_pylist([WHOLE], PEOPLE), "status = 's'")
    HOW[how](table, pa.Table.from_pylist([WHOLE | {"id": 2}], PEOPLE), "status = 's'")
    assert [one["id"] for one in people(table)] == [2]


@pytest.mark.parametrize("settled", [True, False])
def test_a_partition_is_not_attached_while_newer_values_wait_for_one_of_its_rows(settled: bool, tmp_path: Path) -> None:
    groups = {"lakebed.groups": GROUPS}
    table = lakebed.create(
        tmp_path / "t", PEOPLE, ["id"], sequence_by="changed", partition_by=["status"], properties=groups
    )
    table.apply([WHOLE, WHOLE | {"id": 2}])
    name = table.detach_partition({"status": "s"})
    sent(table, id=1, name="waits", named=9)
    sent(table, id=2, name="waits", named=4)
    if settled:
        table.settle()
    newer = (
        "the rows of partition .* have the key {'id': 1}, of which the table remembers 'waits' as a newer name than 'N'"
    )
    with pytest.raises(InvalidInput, match=rf"{newer}: delete the key"):
        table.attach_partition(name)
    sent(table, "true", id=1, changed=6)
    table.attach_partition(name)
    assert [(one["id"], one["name"]) for one in people(table)] == [(2, "N")]
    table.apply([WHOLE | {"changed": 7}])
    assert [(one["id"], one["name"]) for one in people(table)] == [(1, "waits"), (2, "N")]
    assert table.doctor(deep=True).findings == ()


# -- points ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["region = 'eu'", "value < 3"])
def test_a_table_that_was_overwritten_is_settled_up_to_later_versions_only(where: str, tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    other = lakebed.open(table.path)
    point = table.version
    overwrite_by_tasks(table, bare(row(1, 1)), where, lambda: other.apply(batch([row(2, 2), row(9, 9, "us")])))
    settler = internals_of(table).settler
    assert settler.settle_to(point) is None
    point = table.version
    other.apply(batch([row(2, 200), row(3, 300, "us")]))
    settled = settler.settle_to(point)
    assert settled is not None and values(table) == {1: 1, 2: 200, 3: 300, 4: 4, 9: 9}
    assert pa.Table.from_pylist(table.to_arrow(version=point).to_pylist()).num_rows == 5
    log = internals_of(table).log
    base = log.at_version(settled)
    assert sum(part.live_rows for part in base.parts.values()) == 5
    assert {part.version for part in base.tail.values()} == {point + 1}


# -- purge -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fenced", [True, False])
@pytest.mark.parametrize("where", ["region = 'eu'", "value < 3"])
def test_a_purge_ends_an_overwrite_that_began_before(
    where: str, fenced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes that it would bring once more may have had rows that were purged."""
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    table = two_partitions(tmp_path)
    table.settle()
    other = lakebed.open(table.path)

    def meanwhile() -> None:
        other.apply(batch([row(1, 4711)]))
        other.apply(batch([row(1, 1)]))
        if not fenced:
            monkeypatch.setattr(Clearing, "run", lambda self: [])
        other.purge("value = 4711")

    refused = pytest.raises(Contention, match=r"purged rows|the log has lost what was committed since")
    with before_its_commits(table, meanwhile), refused:
        overwrite_by_tasks(table, bare(row(7, 2)), where)
    assert values(table) == {1: 1, 2: 2, 3: 3, 4: 4}


@pytest.mark.parametrize("where", ["region = 'eu'", "region = 'eu' and value < 5"])
def test_no_change_is_told_once_more_after_a_newer_one_of_its_key(where: str, tmp_path: Path) -> None:
    """A change of a key far from the new rows is told again if it came with one of a near key."""
    table = two_partitions(tmp_path)
    table.apply(batch([row(9, 9, "us")]))
    table.settle()
    other = lakebed.open(table.path)
    with before_its_commits(table, lambda: other.apply(batch([row(9, 91, "us")]))):
        meanwhile = lambda: other.apply(batch([row(2, 20, "us"), row(9, 90, "us")]))  # noqa: E731
        overwrite_by_tasks(table, bare(row(1, 3)), where, meanwhile)
    for _ in range(2):
        assert values(table) == {1: 3, 2: 20, 3: 3, 4: 4, 9: 91}
        table.settle()


# -- rewrites of others -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("came", "rewrites", "left"),
    [
        ([row(1, 10, "us")], lambda table: table.overwrite(bare(row(9, 9, "us")), "region = 'us'"), {2: 2, 9: 9, 4: 4}),
        ([row(1, 10, "us")], lambda table: table.detach_partition({"region": "us"}), {2: 2, 4: 4}),
        (
            [row(7, 10), row(7, 11, "us")],
            lambda table: table.overwrite(bare(row(9, 9, "us")), "region = 'us'"),
            {1: 1, 2: 2, 9: 9, 4: 4},
        ),
        (
            [row(7, 10), row(7, 11, op="d")],
            lambda table: table.overwrite(bare(row(7, 9, "us")), "region = 'us'"),
            {1: 1, 2: 2, 7: 9, 4: 4},
        ),
        (
            [row(3, 10), row(3, 11, op="d")],
            lambda table: table.attach_partition(detached(table)),
            {1: 1, 2: 2, 3: 3, 4: 4},
        ),
    ],
    ids=["moved and replaced", "moved and detached", "came, moved and replaced", "deleted and brought", "and attached"],
)
def test_a_change_does_not_count_once_more_after_another_rewrite_of_its_row(
    came: list[Row], rewrites: Callable[[lakebed.Table], object], left: dict[int, int], late: bool, tmp_path: Path
) -> None:
    """It would bring back what the other one took away, or take away what that one brought."""
    table = two_partitions(tmp_path)
    table.settle()
    if came[0]["id"] == 3:
        table.detach_partition({"region": "us"})
    other = lakebed.open(table.path)

    def meanwhile() -> None:
        for change in came:
            other.apply(batch([change]))
            other.settle()
        if not late:
            rewrites(other)

    interrupted = before_its_commits(table, *([lambda: rewrites(other)] if late else []))
    with interrupted, pytest.raises(Contention, match="others rewrote rows"):
        overwrite_by_tasks(table, bare(row(1, 5)), "region = 'eu'", meanwhile)
    assert values(table) == left
    overwrite_by_tasks(table, bare(row(5, 5)), "region = 'eu'")
    assert values(table)[5] == 5


def test_a_rewrite_of_others_passes_if_the_changes_before_are_of_other_rows(tmp_path: Path) -> None:
    table = two_partitions(tmp_path)
    table.settle()
    other = lakebed.open(table.path)

    def meanwhile() -> None:
        other.apply(batch([row(3, 30, "us"), row(8, 8), row(1, 10)]))
        other.settle()
        other.overwrite(bare(row(7, 7, "us"), row(9, 9, "us")), "region = 'us'")

    overwrite_by_tasks(table, bare(row(2, 20)), "region = 'eu'", meanwhile)
    assert values(table) == {1: 10, 2: 20, 4: 4, 7: 7, 8: 8, 9: 9}
    assert table.doctor(deep=True).findings == ()
