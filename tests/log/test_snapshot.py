"""A snapshot is a value: what is in it is compared, and nothing in it changes."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from types import NoneType

from lakebed.log.actions import AddPart, Transaction
from lakebed.log.conflicts import BLIND
from lakebed.log.snapshot import Snapshot
from lakebed.planning.planner import plan
from lakebed.planning.settling import reason_to_settle
from tests.log.test_table_log import INFO, base_part, change_part, committed, new_log


def some_snapshot() -> Snapshot:
    log = new_log()
    actions = [AddPart(base_part("a", dead=2)), AddPart(base_part("b")), change_part("c")]
    snapshot = committed(log.commit(log.refresh(), actions, INFO, BLIND, Transaction("query", 1)))
    return committed(log.commit(snapshot, [snapshot.parts["_lakebed/b.parquet"].removed(7)], INFO, BLIND))


def values_in(value: object) -> Iterator[object]:
    yield value
    if is_dataclass(value):
        for field in fields(value):
            yield from values_in(getattr(value, field.name))
    elif isinstance(value, dict):
        for pair in value.items():
            yield from values_in(pair)
    elif isinstance(value, tuple | frozenset):
        for item in value:
            yield from values_in(item)


def test_a_snapshot_is_made_of_frozen_values_and_maps_of_them_alone() -> None:
    snapshot = some_snapshot()
    assert snapshot.parts and snapshot.tail and snapshot.removed and snapshot.transactions
    for value in values_in(snapshot):
        if is_dataclass(value):
            assert type(value).__dataclass_params__.frozen, value  # type: ignore[attr-defined]
        else:
            assert isinstance(value, str | int | float | tuple | frozenset | dict | NoneType), value


def test_planning_leaves_a_snapshot_as_it_is() -> None:
    snapshot = some_snapshot()
    before = pickle.dumps(snapshot)
    plan(snapshot, (), 0)
    reason_to_settle(snapshot, 0)
    assert pickle.dumps(snapshot) == before and pickle.loads(before) == snapshot
