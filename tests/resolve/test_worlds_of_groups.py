"""Random streams of groups of columns, with work on the table between: a row is the join of what was newest in each."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import lakebed
from lakebed.ingest import batch_writer
from lakebed.operations.purge import files as purge_files
from lakebed.parts.change_rows import read_version, versions_with_changes
from lakebed.parts.write_arrow import PARTS_FOLDER
from lakebed.storage.local_folders import files_below
from lakebed.table import internals_of
from tests.marker import holds
from tests.resolve.test_groups_of_columns import (
    AGGREGATED,
    AGGREGATES,
    SCHEMA,
    assert_newest_states_are_known,
    in_tasks,
    settle_singly,
)
from tests.worlds import seeds

OWNER, PROFILE, SCORE = ("status", "note", "origin", "kept"), ("name", "mail", "least"), ("score", "best", "total")
ALL = {"origin", "best", "least", "total"}
"""Columns for which all changes count."""
AGGREGATE_OF: dict[str, Callable[[list[tuple[int, Any]]], Any]] = {
    "first": lambda terms: min(terms, key=lambda term: term[0])[1],
    "max": lambda terms: max(value for _, value in terms),
    "min": lambda terms: min(value for _, value in terms),
    "sum": lambda terms: sum(value for _, value in terms),
}
ORDERS = {OWNER: "changed", PROFILE: "named", SCORE: "scored"}
NAMES = {PROFILE: "profile", SCORE: "score"}
KEYS = range(5)
NEVER = -(2**63)
"""The order of a row that no change of its owner brought."""
Said = dict[tuple[str, ...], tuple[int, dict[str, Any]]]
"""What a change says of each group: how new it is, and the values."""


@dataclass
class Join:
    """What the table must hold: for each key and group, the change that was newest, over the values it had before."""

    creates: bool
    newest: dict[tuple[int, tuple[str, ...]], tuple[int, dict[str, Any] | None]] = field(default_factory=dict)
    terms: dict[tuple[int, str], list[tuple[int, Any]]] = field(default_factory=dict)
    """The values of all changes of an aggregated column, each with its order."""

    def take(self, id: int, said: Said, *, gone: bool) -> None:
        """A change; ``gone``: that deletes the row, or without its owner what the groups have of it."""
        for group, (at, values) in said.items():
            if gone:
                if group is OWNER or OWNER not in said:
                    self._take(id, group, at, None if group is OWNER else dict.fromkeys(group))
                continue
            for name in ALL & values.keys():
                if values[name] is not None:
                    self.terms.setdefault((id, name), []).append((at, values[name]))
            values = {name: value for name, value in values.items() if name not in ALL}
            if values.get("kept", "") is None:
                del values["kept"]
            if group is OWNER and "status" not in values and not self.creates and not self.has_row(id):
                continue  # it goes to the quarantine
            self._take(id, group, at, values)

    def _take(self, id: int, group: tuple[str, ...], at: int, values: dict[str, Any] | None) -> None:
        before_at, before = self.newest.get((id, group), (NEVER, None))
        if at >= before_at:
            self.newest[id, group] = at, None if values is None else dict.fromkeys(group) | (before or {}) | values

    def set(self, id: int, group: tuple[str, ...], values: dict[str, Any] | None) -> None:
        """A statement sets values, or deletes the row: it is as new as the row that it has read."""
        at, before = self.newest.get((id, group), (NEVER, {}))
        self.newest[id, group] = at, None if values is None else (before or {}) | values

    def has_row(self, id: int) -> bool:
        owner = self.newest.get((id, OWNER))
        if owner is not None:
            return owner[1] is not None
        return self.creates and any((id, group) in self.newest for group in NAMES)

    def row(self, id: int) -> dict[str, Any]:
        row: dict[str, Any] = {"id": id}
        for group, order in ORDERS.items():
            at, values = self.newest.get((id, group), (None, None))
            row |= {order: at} | (values or {})
        for name in ALL:
            if terms := self.terms.get((id, name)):
                row[name] = AGGREGATE_OF[AGGREGATES[name]](terms)
        return {name: value for name, value in row.items() if value is not None}

    def rows(self) -> list[dict[str, Any]]:
        return [self.row(id) for id in KEYS if self.has_row(id)]

    def waiting(self) -> list[tuple[int, str]]:
        return [
            (id, name) for id in KEYS for group, name in NAMES.items()
            if (id, group) in self.newest and not self.has_row(id)
        ]  # fmt: skip

    def forget(self, ids: set[int]) -> None:
        for known in (self.newest, self.terms):
            for id, name in list(known):
                if id in ids:
                    del known[id, name]


class World:
    """Batches of several streams, of changes that come in any order, with work on the table between."""

    def __init__(self, path: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.creates = self.random.random() < 0.3
        more = [one for one in AGGREGATED if one.name not in ("id", "at")]
        schema = pa.schema(
            [*(one.with_nullable(self.creates or one.nullable) for one in SCHEMA if one.name != "id"), *more]
        )
        schema = schema.insert(0, SCHEMA.field("id"))
        groups = {
            "profile": {"columns": PROFILE, "sequence_by": "named", "creates": self.creates},
            "score": {"columns": SCORE, "sequence_by": "scored", "creates": self.creates},
        }
        aggregates = {f"lakebed.aggregate.{name}": function for name, function in AGGREGATES.items()}
        scope = {"lakebed.conflict_scope": "column"} if self.random.random() < 0.5 else {}
        self.hidden = {order for order in ORDERS.values() if self.random.random() < 0.5}
        for order in self.hidden:
            schema = schema.remove(schema.get_field_index(order))
        table = lakebed.create(
            path, schema, ["id"], sequence_by="changed",
            partition_by=["status"] if self.random.random() < 0.3 else [],
            properties={"lakebed.groups": groups, "lakebed.read_budget": 1, **aggregates, **scope},
        )  # fmt: skip
        self.tables = [table, lakebed.open(path)]
        self.names = {name: name for name in schema.names}
        """What the columns are called now."""
        self.mails = [f"mail-{seed}-{number}-{self.random.getrandbits(64):x}" for number in range(3)]
        self.join = Join(self.creates)
        self.is_purged = False
        self.history: dict[int, tuple[Join, list[dict[str, Any]]]] = {}

    @property
    def table(self) -> lakebed.Table:
        """One of the processes that share the table."""
        return self.random.choice(self.tables)

    def batch(self) -> None:
        groups = self.random.sample(list(ORDERS), self.random.choice([1, 1, 1, 2, 3]))
        is_whole = len(groups) == 3 and self.random.random() < 0.5
        columns = {
            group: [name for name in group if is_whole or self.random.random() < (0.95 if name == "status" else 0.7)]
            or [group[0]]
            for group in groups
        }
        keeps_nulls = self.random.random() < 0.2
        changes = []
        for _ in range(self.random.randint(1, 6)):
            id, gone = self.random.choice(KEYS), self.random.random() < 0.25
            said: Said = {}
            change: dict[str, Any] = {"id": id, "gone": gone}
            for group in groups:
                at = self.random.randint(0, 9)
                values = {name: self.value(name) for name in columns[group]}
                if group is not OWNER and (said or OWNER in groups) and self.random.random() < 0.3:
                    change |= dict.fromkeys([*values, ORDERS[group]])
                    continue
                change |= values | {ORDERS[group]: at}
                if keeps_nulls:
                    values = {name: value for name, value in values.items() if value is not None}
                said[group] = at, values
            self.join.take(id, said, gone=gone)
            changes.append(change)
        self.apply(changes, groups, columns, is_whole, keeps_nulls)

    def apply(
        self,
        changes: list[dict[str, Any]],
        groups: list[tuple[str, ...]],
        columns: dict[tuple[str, ...], list[str]],
        is_whole: bool,
        keeps_nulls: bool,
    ) -> None:
        sent = [name for group in groups for name in (*columns[group], ORDERS[group])]
        kinds = {one.name: one.type for one in [*SCHEMA, *AGGREGATED]}
        given = pa.table(
            {
                "id": pa.array([change["id"] for change in changes], pa.int64()),
                "gone": [change["gone"] for change in changes],
                **{
                    self.names.get(name, name): pa.array([change[name] for change in changes], pa.int64()).cast(
                        kinds[name]
                    )
                    if name == "scored"
                    else pa.array([change[name] for change in changes], kinds[name])
                    for name in sent
                },
            }
        )
        more = [name for name in self.tables[0].schema.names if name.startswith("more")]
        if is_whole and not more:
            self.table.apply(given, "gone", ignore_null_updates=keeps_nulls)
            return
        listed = [self.names[name] for name in sent if name in self.names and name != "changed"]
        self.table.apply(given, "gone", columns=self.random.choice(["sent", listed]), ignore_null_updates=keeps_nulls)

    def in_tasks(self, changes: pa.Table, spec: Any, connection: Any) -> Any:
        """The batch, perhaps written by several tasks."""
        ends = self.random.sample(range(1, len(changes)), self.random.choice([0, 0, 0, 1, 2]) % max(len(changes), 1))
        return in_tasks(changes, spec, connection, sorted(ends))

    def value(self, name: str) -> Any:
        if name in ("score", "best"):
            return self.random.choice([None, 1.5, 2.5, 3.5])
        if name == "total":
            return self.random.choice([None, 1, 10, 100])
        if name == "mail":
            return self.random.choice([None, *self.mails])
        return self.random.choice(["a", "b", "c"] if name == "status" else [None, "a", "b", "c"])

    def files_with(self, mail: str) -> list[str]:
        return [path for path, _ in files_below(Path(self.table.path)) if holds(Path(path).read_bytes(), path, mail)]

    def purge(self) -> None:
        """Of the keys that ever had the mail nothing is known any more, unless they have a row with another one."""
        mail = self.random.choice(self.mails)
        parts = [
            pq.read_table(path, columns=["id", "mail"]) for path in self.files_with(mail) if f"/{PARTS_FOLDER}/" in path
        ]
        found = {id for part in parts for id, value in zip(*part.to_pydict().values(), strict=True) if value == mail}
        kept = {row["id"] for row in self.join.rows() if row.get("mail") != mail}
        table = self.table
        table.purge(f"{self.names['mail']} = '{mail}'")
        self.tables = [table, lakebed.open(table.path)]  # the other process would follow within FOLLOW_SECONDS
        self.join.forget(found - kept)
        assert self.files_with(mail) == []
        self.is_purged = True
        self.history.clear()

    def settle(self) -> None:
        """Of the whole tail, of what came up to a version, or in as many commits as there are parts."""
        match self.random.choice(["all", "some", "singly"]):
            case "all":
                self.table.settle()
            case "some":
                version = self.table.version - self.random.randint(0, 3)
                internals_of(self.table).settler.settle(until_version=version)
            case "singly":
                settle_singly(self.table)

    def restore(self) -> None:
        version = self.random.choice(list(self.history))
        self.table.restore(version)
        self.join = deepcopy(self.history[version][0])

    def alter(self) -> None:
        name = self.random.choice(["note", "mail", "origin", "total", "named", "more"])
        if name not in self.names:
            self.table.alter(add={f"more_{self.table.version}": "string"})
            return
        renamed = name if self.names[name] != name else f"{name}_of_old"
        self.table.alter(rename={self.names[name]: renamed})
        self.names[name] = renamed

    def statement(self) -> None:
        """An update or a delete."""
        if self.random.random() < 0.5:
            self.table.settle()
        id = self.random.choice(KEYS)
        if self.random.random() < 0.4:
            assert self.table.delete(f"id = {id}").rows == self.join.has_row(id)
            if self.join.has_row(id):
                self.join.set(id, OWNER, None)
            return
        group, name, new = self.random.choice([(OWNER, "note", "n"), (PROFILE, "name", "n"), (SCORE, "score", 9.5)])
        column = self.names[name]
        condition = "true" if group is OWNER else f"{column} is not null"
        self.table.update({column: f"'{new}'"}, f"id = {id} and {condition}")
        if self.join.has_row(id) and (group is OWNER or name in self.join.row(id)):
            self.join.set(id, group, {name: new})

    def step(self) -> None:
        for _ in range(self.random.choice([1, 1, 2, 3])):
            self.batch()
        self.check()
        works = ["", "settle", "settle", "settle", "compact", "restore", "statement", "alter", "purge", "truncate"]
        match self.random.choices(works, [2, 2, 2, 2, 2, 1, 2, 1, 1, 0.2])[0]:
            case "":
                return
            case "compact":
                self.table.maintenance.compact()
            case "truncate":
                self.table.truncate()
                self.join = Join(self.creates)
            case "purge":
                self.purge()
            case work:
                getattr(self, work)()
        self.check()

    def visible(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row as readers see it."""
        return {self.names[name]: value for name, value in row.items() if name in self.names}

    def check(self) -> None:
        expected = [self.visible(row) for row in self.join.rows()]
        assert shown(self.table.to_arrow()) == expected
        if self.random.random() < 0.4:
            ids = self.random.sample(KEYS, 2)
            assert shown(self.table.lookup(ids)) == [row for row in expected if row["id"] in ids]
        if self.random.random() < 0.2:
            waiting = self.table.inspect.waiting().sort_by([("id", "ascending"), ("group", "ascending")])
            assert (
                list(zip(waiting["id"].to_pylist(), waiting["group"].to_pylist(), strict=True)) == self.join.waiting()
            )
        if self.random.random() < 0.2:
            assert_newest_states_are_known(self.tables[0], KEYS)
        self.history[self.table.version] = deepcopy(self.join), expected

    def check_history(self) -> None:
        """Versions that are kept have the rows that they had, and a copy that is made of all changes has those of the last."""
        for version in self.random.sample(list(self.history), min(6, len(self.history))):
            expected = self.history[version][1]
            assert shown(self.table.to_arrow(version=version)) == expected, version
        if self.is_purged or (self.creates and "changed" not in self.hidden):
            return  # changes are gone, or have no order that a copy could take
        self.table.settle()
        order = "_change_sequence" if "changed" in self.hidden else "changed"
        path = self.table.path
        copy = lakebed.create(f"{path}_copy", self.table.schema, ["id"], sequence_by=order)
        for each in versions_with_changes(path, 0, self.table.version):
            for batch in read_version(path, each):
                if batch["_change_type"][0].as_py() == "truncate":
                    copy.truncate()
                else:
                    copy.apply(pa.Table.from_batches([batch]), "_change_type = 'delete'")
        assert shown(copy.to_arrow()) == shown(self.table.to_arrow())


def shown(rows: pa.Table) -> list[dict[str, Any]]:
    found = [{name: value for name, value in row.items() if value is not None} for row in rows.to_pylist()]
    return sorted(
        (row | ({"scored": int(row["scored"].timestamp() * 1e6)} if "scored" in row else {}) for row in found),
        key=lambda row: int(row["id"]),
    )


@seeds(2)
def test_a_row_is_the_join_of_what_is_newest_in_each_group(
    tmp_path: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    world = World(str(tmp_path / "people"), seed)
    monkeypatch.setattr(batch_writer, "newest_in_layers", world.in_tasks)
    for _ in range(10):
        world.step()
    world.check_history()
