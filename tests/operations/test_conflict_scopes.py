"""What a table forbids, or allows, beside a delete or an update (``lakebed.conflict_scope``)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.coordination import rewriting
from lakebed.errors import Contention
from lakebed.log.actions import Action, CommitInfo
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import Outcome, TableLog
from lakebed.operations import mutate_keyed, partitions
from tests.internals import log_of

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), False),
        ("status", pa.string()),
        ("changed", pa.int64()),
        ("name", pa.string()),
        ("named", pa.int64()),
    ]
)
GROUPS = {"profile": {"columns": ["name"], "sequence_by": "named"}}


def created(path: Path, scope: str) -> lakebed.Table:
    properties = {"lakebed.groups": GROUPS, "lakebed.conflict_scope": scope}
    table = lakebed.create(str(path / "t"), SCHEMA, ["id"], sequence_by="changed", properties=properties)
    table.apply([{"id": 1, "status": "new", "changed": 1, "name": "Ada", "named": 1}])
    return table


def beside(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[int]:
    """Has something done after a mutation was computed, once; counts how often it is computed."""
    computed, write = list[int](), mutate_keyed.write_parts

    def raced(*arguments: Any) -> Any:
        computed.append(1)
        if len(computed) == 1:
            act()
        return write(*arguments)

    monkeypatch.setattr(mutate_keyed, "write_parts", raced)
    return computed


def rows(table: lakebed.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.to_arrow().to_pylist()]


@pytest.fixture
def days(tmp_path: Path) -> lakebed.Table:
    """A table with two partitions and a detached one, and the scope ``table``."""
    table = lakebed.create(
        str(tmp_path / "days"), pa.schema([pa.field("id", pa.int64(), False), pa.field("day", pa.string(), False)]),
        ["id", "day"], partition_by=["day"], properties={"lakebed.conflict_scope": "table"},
    )  # fmt: skip
    table.apply([{"id": id, "day": day} for id, day in enumerate("abc")])
    return table


REWRITES: dict[str, Callable[[lakebed.Table, str], object]] = {
    "DELETE": lambda table, _: table.delete("day = 'a'"),
    "TRUNCATE": lambda table, _: table.truncate(),
    "RESTORE": lambda table, _: table.restore(1),
    "REPLACE PARTITION": lambda table, _: table.replace_partition({"day": "a"}, [{"id": 9, "day": "a"}]),
    "OVERWRITE": lambda table, _: table.overwrite([{"id": 9, "day": "a"}], "day = 'a'"),
    "DETACH PARTITION": lambda table, _: table.detach_partition({"day": "a"}),
    "ATTACH PARTITION": lambda table, name: table.attach_partition(name),
}


@pytest.mark.parametrize("second", REWRITES)
def test_the_scope_table_ends_a_second_rewrite_before_it_does_any_work(
    days: lakebed.Table, monkeypatch: pytest.MonkeyPatch, second: str
) -> None:
    name = days.detach_partition({"day": "c"})
    other, write, refused = lakebed.open(days.path), partitions.write_parts, list[str]()

    def raced(*arguments: Any) -> Any:
        version = days.version
        with pytest.raises(Contention, match=r"REPLACE PARTITION of .* has been under way since .* one such"):
            REWRITES[second](other, name)
        refused.append(second)
        assert days.version == version
        return write(*arguments)

    monkeypatch.setattr(partitions, "write_parts", raced)
    days.replace_partition({"day": "b"}, [{"id": 5, "day": "b"}])
    assert (refused, sorted(rows(days))) == ([second], [(0, "a"), (5, "b")])
    monkeypatch.undo()
    assert days.inspect.claims().num_rows == 0
    REWRITES[second](other, name)


def test_the_rewrite_of_a_process_that_died_holds_others_up_until_its_lease_ends(days: lakebed.Table) -> None:
    died = rewriting.alone(log_of(days), Operation.UPDATE)
    died.__enter__()
    log = log_of(lakebed.open(days.path))
    with pytest.raises(Contention, match="UPDATE of"), rewriting.alone(log, Operation.DELETE):
        pass
    log.clock = lambda: time.time() + 121.0
    with rewriting.alone(log, Operation.DELETE):
        died.__exit__(None, None, None)  # it only slept, and takes nothing from the other one
        [claim] = days.inspect.claims().to_pylist()
    assert (claim["kind"], claim["parts"], days.inspect.claims().num_rows) == ("DELETE", 0, 0)


def test_the_scope_table_has_a_rewrite_worked_out_again_after_a_batch(
    days: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, commit, came = lakebed.open(days.path), TableLog.commit, list[Any]()

    def raced(log: TableLog, read: Snapshot, actions: Sequence[Action], info: CommitInfo, *rest: Any) -> Outcome:
        if info.operation is Operation.DETACH_PARTITION and not came:
            came.append(other.apply([{"id": 7, "day": "b"}]))
        return commit(log, read, actions, info, *rest)

    monkeypatch.setattr(TableLog, "commit", raced)
    days.detach_partition({"day": "a"})
    assert (len(came), sorted(rows(days))) == (1, [(1, "b"), (2, "c"), (7, "b")])


def test_the_scope_table_allows_one_update_of_a_version_also_when_a_lease_ended_too_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, "table")
    other = lakebed.open(table.path)
    log_of(other).clock = lambda: time.time() + 121.0
    beside(monkeypatch, lambda: other.update({"status": "'theirs'"}, "id = 1"))
    with pytest.raises(
        Contention, match=r"changed nothing: version 4 came first .* allows one such operation at a time"
    ):
        table.update({"status": "'ours'"}, "id = 1")
    assert rows(table) == [(1, "theirs", 1, "Ada", 1)]


@pytest.mark.parametrize("act", ["apply", "settle", "compact"])
def test_the_scope_table_allows_batches_and_maintenance_beside_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    table = created(tmp_path, "table")
    other = lakebed.open(table.path)
    acts: dict[str, Callable[[], object]] = {
        "apply": lambda: other.apply([{"id": 2, "status": "new", "changed": 1}], columns="sent"),
        "settle": other.settle,
        "compact": other.maintenance.compact,
    }
    beside(monkeypatch, acts[act])
    table.update({"status": "'ours'"}, "id = 1")
    assert (1, "ours", 1, "Ada", 1) in rows(table)


@pytest.mark.parametrize(
    ("scope", "condition", "computations"),
    [("file", "id = 1", 2), ("column", "id = 1", 1), ("column", "NAME > 'A'", 2), ("column", "status = 'new'", 1)],
)
def test_with_the_scope_column_a_change_of_another_group_is_no_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str, condition: str, computations: int
) -> None:
    table = created(tmp_path, scope)
    profile = [{"id": 1, "name": "Eve", "named": 2}]
    computed = beside(monkeypatch, lambda: lakebed.open(table.path).apply(profile, columns="sent"))
    table.update({"status": "'ours'"}, condition)
    assert len(computed) == computations
    assert rows(table) == [(1, "ours", 1, "Eve", 2)]


def test_with_the_scope_column_a_change_of_the_same_group_is_a_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, "column")
    profile = [{"id": 1, "name": "Eve", "named": 2}]
    computed = beside(monkeypatch, lambda: lakebed.open(table.path).apply(profile, columns="sent"))
    table.update({"name": "upper(name)"}, "true")
    assert (len(computed), rows(table)) == (2, [(1, "new", 1, "EVE", 2)])
