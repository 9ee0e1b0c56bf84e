"""Invariants B1, B2, M2, M3: whatever is applied, settled, checkpointed and cleaned in whatever order, every version
equals a dictionary that applied the same changes one by one.

``LAKEBED_SEEDS=2000 pytest tests/table/test_every_version_equals_the_oracle.py`` runs more worlds; a failing one names its seed.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.errors import VersionNotFound
from lakebed.manifest.snapshot import replay
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN
from tests.oracle import Oracle, Row, in_order

SEEDS = int(os.environ.get("LAKEBED_SEEDS", "40"))
REGIONS = ["eu", "us", "ap", None]


@dataclass
class World:
    """One table under random treatment, and what it should be at every version."""

    random: random.Random
    table: lakebed.Table
    oracle: Oracle
    hidden_sequence: bool
    with_unavailable: bool
    schema: pa.Schema
    ids: int
    late_share: float
    states: dict[int, list[Row]] = field(default_factory=dict)
    oldest: int = 0
    clock: int = 0
    batch: int = 0


def make_world(seed: int, folder: Path) -> World:
    rng = random.Random(seed)
    keys = rng.choice([(), ("id",), ("id",), ("id", "name"), ("name",)])
    sequence = rng.choice([None, None, "seq", "lsn"]) if keys else None
    fields = [
        pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("value", pa.float64()),
        pa.field("region", pa.string()), pa.field("seq", pa.int64()),
    ]  # fmt: skip
    schema = pa.schema(fields)
    table = lakebed.create(
        folder / "table", schema, keys=keys, sort_key=rng.choice([(), ("region", "value"), ("value",)]), sequence_by=sequence,
        partition_by=rng.choice([(), (), ("region",)]),
        properties={"lakebed.checkpoint_interval": str(rng.choice([2, 5, 100]))},
    )  # fmt: skip
    world = World(
        rng, table, Oracle(keys, tuple(schema.names), sequence), sequence == "lsn",
        bool(keys) and rng.random() < 0.4, schema, rng.choice([2, 12]), rng.choice([0.2, 0.6]),
    )  # fmt: skip
    world.states[0] = []
    return world


def random_changes(world: World) -> list[Row]:
    rng = world.random
    out = []
    for _ in range(rng.choice([1, 1, 3, 10, 40])):
        world.clock += 1
        late = rng.random() < world.late_share
        row: Row = {
            "id": rng.randrange(world.ids),
            "name": rng.choice(["a", "b", "ü–ß", "", "long " * 12][: world.ids]),
            "value": rng.choice([None, 0.5, -1.0, float(rng.randrange(100))]),
            "region": rng.choice(REGIONS),
            "seq": world.clock - (rng.randrange(rng.choice([3, 30])) if late else 0),
            "op": rng.choice(["u", "u", "u", "d"]) if world.oracle.keys else "u",
        }
        row["lsn"] = row["seq"]
        row["missing"] = None
        if world.with_unavailable and row["op"] == "u" and rng.random() < 0.4:
            row["missing"] = rng.choice([["value"], ["value"], ["region"], ["region", "value"]])
            row |= dict.fromkeys(row["missing"])
        out.append(row)
    return out


def step(world: World, folder: Path) -> None:
    rng, table = world.random, world.table
    action = rng.choice(["apply"] * 6 + ["settle"] * 3 + ["checkpoint", "clean", "reopen", "replay"])
    before = table.version
    if action == "apply":
        changes = random_changes(world)
        world.batch += 1
        version = table.apply(as_arrow(changes, world), batch_id=world.batch)
        assert version == before + 1
        world.oracle.apply(changes, unavailable="missing")
        world.states[version] = world.oracle.rows()
        if rng.random() < 0.2:
            assert table.apply(as_arrow(changes, world), batch_id=world.batch) == version, (
                "a replayed batch writes nothing"
            )
    elif action == "settle":
        result = table.settle()
        for version in range(before + 1, result.version + 1):
            world.states[version] = world.oracle.rows()
        assert table.detail()["tail_parts"].to_pylist() == [0]
        assert table.settle().commits == 0, "settling a settled table does nothing"
    elif action == "checkpoint":
        table._log.write_checkpoint(table._log.refresh())
    elif action == "clean":
        table._log.write_checkpoint(table._log.refresh())
        table._log.clean(retention_seconds=0)
        world.oldest = max(world.oldest, table.version)
    elif action == "reopen":
        world.table = lakebed.open(folder / "table")
    elif action == "replay" and world.oldest == 0:
        log = table._log
        assert replay(log.commits(0, table.version)) == log.at_version(table.version)
        assert lakebed.open(folder / "table")._log.refresh() == log.refresh(), "M2: from a checkpoint or from the start"


def as_arrow(changes: list[Row], world: World) -> pa.Table:
    schema = world.schema
    if world.oracle.keys:
        schema = schema.append(pa.field(OP_COLUMN, pa.string()))
        changes = [{**row, OP_COLUMN: row["op"]} for row in changes]
    if world.hidden_sequence:
        schema = schema.append(pa.field("lsn", pa.int64()))
    if world.with_unavailable:
        schema = schema.append(pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string())))
        changes = [{**row, UNAVAILABLE_COLUMN: row["missing"]} for row in changes]
    return pa.Table.from_pylist([{name: row[name] for name in schema.names} for row in changes], schema)


def check(world: World) -> None:
    for version, rows in world.states.items():
        if version < world.oldest:
            continue
        try:
            found = world.table.to_arrow(version=version)
        except VersionNotFound:
            assert version < world.oldest
            continue
        assert in_order(found.to_pylist()) == rows, f"version {version}"


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_version_equals_the_oracle(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    world = make_world(seed, tmp_path)
    for _ in range(world.random.choice([5, 12, 25])):
        step(world, tmp_path)
    world.states[world.table.version] = world.oracle.rows()
    check(world)
