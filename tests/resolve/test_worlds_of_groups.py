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
from lakebed.operations.purge import files as purge_files
from lakebed.parts.write_arrow import PARTS_FOLDER
from lakebed.storage.local_folders import files_below
from tests.marker import holds
from tests.resolve.test_groups_of_columns import AGGREGATED, AGGREGATES, SCHEMA, rows
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


@dataclass
class Join:
    """What the table must hold: for each key and group, the change that was newest, over the values it had before."""

    creates: bool
    newest: dict[tuple[int, tuple[str, ...]], tuple[int, dict[str, Any] | None]] = field(default_factory=dict)
    terms: dict[tuple[int, str], list[tuple[int, Any]]] = field(default_factory=dict)
    """The values of all changes of an aggregated column, each with its order."""

    def take(self, id: int, group: tuple[str, ...], at: int, values: dict[str, Any] | None, *, gone: bool) -> None:
        for name in set(values or {}) & ALL:
            value = (values or {}).pop(name)
            if value is not None and not gone:
                self.terms.setdefault((id, name), []).append((at, value))
        if values and not gone and "kept" in values and values["kept"] is None:
            del values["kept"]
        before_at, before = self.newest.get((id, group), (-1, None))
        if at >= before_at:
            filled = None if values is None else dict.fromkeys(group) | (before or {}) | values
            self.newest[id, group] = at, filled

    def rows(self) -> list[dict[str, Any]]:
        out = []
        for id in sorted({id for id, _ in self.newest}):
            owner = self.newest.get((id, OWNER))
            if owner[1] is not None if owner else self.creates:
                row: dict[str, Any] = {"id": id}
                for group, order in ORDERS.items():
                    at, values = self.newest.get((id, group), (None, None))
                    row |= {order: at} | (values or {})
                for name in ALL:
                    if terms := self.terms.get((id, name)):
                        row[name] = AGGREGATE_OF[AGGREGATES[name]](terms)
                if any(value is not None for name, value in row.items() if name != "id"):
                    out.append({name: value for name, value in row.items() if value is not None})
        return out


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
        self.hidden = {order for order in ORDERS.values() if self.random.random() < 0.5}
        for order in self.hidden:
            schema = schema.remove(schema.get_field_index(order))
        self.table = lakebed.create(
            path, schema, ["id"], sequence_by="changed",
            properties={"lakebed.groups": groups, "lakebed.read_budget": 1, **aggregates},
        )  # fmt: skip
        self.mails = [f"mail-{seed}-{number}-{self.random.getrandbits(64):x}" for number in range(3)]
        self.join = Join(self.creates)
        self.history: dict[int, Join] = {}

    def batch(self) -> None:
        group = self.random.choice(list(ORDERS))
        columns = [name for name in group if name == "status" or self.random.random() < 0.7] or [group[0]]
        changes = []
        for _ in range(self.random.randint(1, 6)):
            id, at, gone = self.random.randint(0, 4), self.random.randint(0, 9), self.random.random() < 0.25
            values = {name: self.value(name) for name in columns}
            changes.append({"id": id, ORDERS[group]: at, "gone": gone} | values)
            emptied = None if group is OWNER else dict.fromkeys(group)
            self.join.take(id, group, at, emptied if gone else dict(values), gone=gone)
        given = pa.Table.from_pylist(changes)
        if group is SCORE:
            given = given.set_column(
                1, "scored", given["scored"].cast(pa.timestamp("us")).cast(SCHEMA.field("scored").type)
            )
        self.table.apply(given, "gone", columns=self.random.choice(["sent", [*columns, *self.order_of(group)]]))

    def order_of(self, group: tuple[str, ...]) -> list[str]:
        return [] if group is OWNER or ORDERS[group] in self.hidden else [ORDERS[group]]

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
        self.table.purge(f"mail = '{mail}'")
        for known in (self.join.newest, self.join.terms):
            for id, name in list(known):
                if id in found - kept:
                    del known[id, name]
        assert self.files_with(mail) == []
        self.history.clear()

    def step(self) -> None:
        self.batch()
        self.check()
        match self.random.choice(["", "", "settle", "compact", "restore", "update", "alter", "purge"]):
            case "settle":
                self.table.settle()
            case "compact":
                self.table.maintenance.compact()
            case "restore":
                version = self.random.choice(list(self.history))
                self.table.restore(version)
                self.join = deepcopy(self.history[version])
            case "purge":
                self.purge()
            case "alter":
                self.table.alter(add={f"more_{self.table.version}": "string"})
            case "update":
                if self.random.random() < 0.5:
                    self.table.settle()
                group, name = self.random.choice([(OWNER, "note"), (PROFILE, "name")])
                self.table.update({name: "'n'"}, "id = 1" if group is OWNER else "id = 1 and name is not null")
                [row] = [row for row in self.join.rows() if row["id"] == 1] or [{}]
                if row and (group is OWNER or "name" in row):  # one that its owner never brought is older than all
                    at, values = self.join.newest.get((1, group), (-(2**63), {}))
                    self.join.newest[1, group] = at, (values or {}) | {name: "n"}
            case _:
                pass
        self.check()

    def check(self) -> None:
        expected = [{name: value for name, value in row.items() if name not in self.hidden} for row in self.join.rows()]
        found = [
            row | ({"scored": int(row["scored"].timestamp() * 1e6)} if "scored" in row else {})
            for row in rows(self.table)
        ]
        assert found == expected
        self.history[self.table.version] = deepcopy(self.join)


@seeds(4)
def test_a_row_is_the_join_of_what_is_newest_in_each_group(
    tmp_path: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    world = World(str(tmp_path / "people"), seed)
    for _ in range(12):
        world.step()
