"""Invariants B1, B2, M2, M3, P1 to P4, S2: whatever is applied, settled, merged (to the store or to a local disk), uploaded,
restored, checkpointed and cleaned in whatever order, every version equals a dictionary that applied the same changes one by one.
"""

from __future__ import annotations

import copy
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, MergeResult, PlanningView, Progress
from lakebed.compaction.volatile import VolatileMerger
from lakebed.errors import VersionNotFound
from lakebed.log.holds import trim_log
from lakebed.log.snapshot import replay
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN, WriteSpec
from lakebed.planning.settling import UploadRules
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from tests.internals import compaction_of, deletion_vectors_of, log_of, storage_of
from tests.oracle import Oracle, Row, in_order
from tests.worlds import seeds

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
    oracles: dict[int, Oracle] = field(default_factory=dict)
    oldest: int = 0
    clock: int = 0
    batch: int = 0
    replica: VolatileMerger | None = None


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
        folder / "table",
        schema,
        keys=keys,
        sort_key=rng.choice([(), ("region", "value"), ("value",)]),
        sequence_by=sequence,
        partition_by=rng.choice([(), (), ("region",)]),
        properties={
            "lakebed.checkpoint_interval": str(rng.choice([2, 5, 100])),
            "lakebed.read_budget": str(rng.choice([1, 2, 8])),
        },
    )
    world = World(
        rng,
        table,
        Oracle(keys, tuple(schema.names), sequence),
        sequence == "lsn",
        bool(keys) and rng.random() < 0.4,
        schema,
        rng.choice([2, 12]),
        rng.choice([0.2, 0.6]),
    )
    remember(world, 0)
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
    actions = ["apply"] * 6 + ["settle"] * 3 + ["checkpoint", "clean", "reopen", "replay", "restore"]
    actions += ["compact", "merge", "merge", "volatile merge", "volatile merge", "upload", "replica restarts"]
    action = rng.choice(actions)
    before = table.version
    if action == "apply":
        apply(world)
    elif action == "settle":
        settle(world)
    elif action == "compact":
        table.maintenance.compact()
        rows_stay(world, before)
    elif action == "merge":
        snapshot = log_of(table).refresh()
        merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "somebody")
        merge_some(world, merger.run, merger.views(snapshot, snapshot.timestamp_ms)[0])
    elif action == "volatile merge":
        replica = volatile_merger(world)
        elsewhere, here = replica.views(log_of(table).refresh(), log_of(table).now_ms())
        merge_some(world, *rng.choice([(replica.run, here), (replica.run_and_upload, elsewhere)]))
    elif action == "upload":
        for result in volatile_merger(world).upload_due(UploadRules(age_seconds=0, local_bytes_max=1)):
            assert result.outcome is not MergeOutcome.CLAIMED
        rows_stay(world, before)
    elif action == "replica restarts":
        held = {one.claim.id for one in volatile_merger(world).held()}
        close(world.replica)
        world.replica = None
        assert {one.claim.id for one in volatile_merger(world).held()} == held
        rows_stay(world, before)
    elif action == "restore":
        restore(world)
    elif action == "checkpoint":
        log_of(table).write_checkpoint(log_of(table).refresh())
    elif action == "clean":
        log_of(table).write_checkpoint(log_of(table).refresh())
        trim_log(log_of(table), retention_seconds=0)
        world.oldest = max(world.oldest, table.version)
    elif action == "reopen":
        world.table = lakebed.open(folder / "table")
    elif action == "replay" and world.oldest == 0:
        log = log_of(table)
        assert replay(log.commits(0, table.version)) == log.at_version(table.version)
        assert log_of(lakebed.open(folder / "table")).refresh() == log.refresh(), (
            "M2: from a checkpoint or from the start"
        )


def apply(world: World) -> None:
    table, before = world.table, world.table.version
    changes = random_changes(world)
    world.batch += 1
    version = table.apply(as_arrow(changes, world), batch_id=world.batch)
    assert version == before + 1
    world.oracle.apply(changes, unavailable="missing")
    remember(world, version)
    if world.random.random() < 0.2:
        again = table.apply(as_arrow(changes, world), batch_id=world.batch)
        assert again == version, "a replayed batch writes nothing"


def restore(world: World) -> None:
    """Make an earlier version the newest, with what it knew of sequences."""
    earlier = world.random.randint(world.oldest, world.table.version)
    if earlier not in world.oracles:
        return  # of a world that does more than these steps
    rows_stay(world, world.oldest)
    before = world.table.version
    try:
        version = world.table.restore(earlier)
    except VersionNotFound:  # in a world that also cleans up
        assert earlier < before == world.table.version
        return
    world.oracle = copy.deepcopy(world.oracles[earlier])
    remember(world, version)


def remember(world: World, version: int) -> None:
    """What the table is to be at a version."""
    if version not in world.states:
        world.states[version] = world.oracle.rows()
        world.oracles[version] = copy.deepcopy(world.oracle)


def settle(world: World) -> None:
    before = world.table.version
    world.table.settle()
    rows_stay(world, before)
    assert world.table.inspect.detail()["tail_parts"].to_pylist() == [0]
    assert world.table.settle().commits == 0, "settling a settled table does nothing"


def merge_some(world: World, run: Callable[..., MergeResult], view: PlanningView) -> None:
    """Merge some free parts of one partition, while others apply and settle."""
    before = world.table.version
    free = [part for path, part in sorted(view.snapshot.parts.items()) if path not in view.claimed]
    if not free:
        return
    partition = world.random.choice(free).partition_values
    free = [part for part in free if part.partition_values == partition]
    chosen = world.random.sample(free, world.random.randint(1, min(4, len(free))))
    meanwhile = [world.random.choice([apply, settle]) for _ in range(world.random.choice([0, 0, 1, 2]))]

    class Kernel:
        def merge(
            self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
        ) -> list[MergedPart]:
            rows_stay(world, before)
            rows_max, storage = world.random.choice([3, 1000]), storage_of(world.table)
            merged = merge_parts(sources, spec, output, connect(), rows_max=rows_max, read_from=storage)
            for other in meanwhile:
                other(world)
            return merged

    result = run([part.path for part in chosen], 1 + max(part.level for part in chosen), Kernel())
    assert result.outcome is MergeOutcome.COMPLETED
    rows_stay(world, max(before, max(world.states)))


def rows_stay(world: World, before: int) -> None:
    """The versions since changed no row."""
    for version in range(before + 1, world.table.version + 1):
        remember(world, version)


def volatile_merger(world: World) -> VolatileMerger:
    if world.replica is None:
        table = world.table
        base = compaction_of(table).volatile_base
        world.replica = VolatileMerger(log_of(table), storage_of(table), deletion_vectors_of(table), base)
    return world.replica


def close(replica: VolatileMerger | None) -> None:
    if replica is not None:
        replica.close()


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


@pytest.mark.few(8)
@seeds(8, quick=4)
def test_every_version_equals_the_oracle(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    world = make_world(seed, tmp_path)
    for _ in range(world.random.choice([5, 12, 25])):
        step(world, tmp_path)
    world.states[world.table.version] = world.oracle.rows()
    check(world)
    close(world.replica)
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)  # the local disk is lost, and nothing with it
    world.table = lakebed.open(tmp_path / "table")
    check(world)
