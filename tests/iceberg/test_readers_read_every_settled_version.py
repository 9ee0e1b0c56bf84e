"""At each settled version readers of Iceberg read what lakebed reads, whatever was applied, altered, merged and moved before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import lakebed
from lakebed.errors import InvalidSchema
from lakebed.iceberg import manifests
from lakebed.iceberg.manifests import CUTS, DATA, DELETES
from lakebed.operations.purge import files as purge_files
from lakebed.quoting import quote
from tests.iceberg.readers import all_agree, opened
from tests.infra.foreign_duckdb import ICEBERG, ForeignDuckDB
from tests.internals import log_of
from tests.table.test_schemas_that_move import World, as_sql, check, make_world, step
from tests.worlds import seeds


@pytest.fixture(scope="module")
def duckdb() -> Iterator[ForeignDuckDB]:
    with ForeignDuckDB(ICEBERG) as found:
        yield found


def turn_on(world: World) -> bool:
    """Whether Iceberg can say the table."""
    try:
        world.table.set_properties({"lakebed.iceberg": "on"})
    except InvalidSchema as error:
        assert "which Iceberg can't say" in str(error)
        return False
    return True


def also(world: World, duckdb: ForeignDuckDB | None = None) -> None:
    """What the dictionary does not have: a restore and back, with readers in between; a drop that is undone; a purge."""
    table, model, rng = world.table, world.model, world.rng
    name = rng.choice(["restore", "drop", "purge"])
    world.changes.append(name)
    if name == "restore":
        table.settle()
        now = table.version
        table.restore(version=rng.randint(log_of(table).oldest_version(), now))
        table.settle()
        table.maintenance.publish_iceberg()
        if duckdb is not None:
            all_agree(table, duckdb)
        table.restore(version=now)
    elif name == "drop":
        table.drop()
        world.table = lakebed.undrop(table.path)
    elif model.key and model.rows:
        key = rng.choice(list(model.rows))
        model.remove(key)
        table.purge(f"{quote(model.key)} = {as_sql(key)}")
    check(world)


@pytest.mark.few(4)
@seeds(4, quick=0)
def test_rows_of_random_histories(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, duckdb: ForeignDuckDB
) -> None:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)
    if seed % 2:  # manifests of one or two parts are joined and cut all the time
        small = CUTS[DATA]._replace(newest=3, small=1, large=2)
        monkeypatch.setattr(manifests, "CUTS", {DATA: small, DELETES: small})
    world = make_world(seed, tmp_path)
    is_late, seen = world.rng.random() < 0.3, dict[int, list[str]]()
    is_on = not is_late and turn_on(world)
    try:
        for at in range(world.rng.choice([8, 16, 24])):
            step(world)
            if is_on and world.rng.random() < 0.2:
                also(world, duckdb)
            if is_late and at == 5:
                is_on = turn_on(world)
            if is_on and world.rng.random() < 0.5:
                world.table.settle()
                published = world.table.maintenance.publish_iceberg()
                seen[published.version] = all_agree(world.table, duckdb)
    except BaseException as error:
        error.add_note(f"seed {seed}: " + "; ".join(world.changes))
        raise
    if seen:
        assert [str(each) for each in world.table.doctor().findings] == []
        for version in {int(each.snapshot_id) - 1 for each in opened(world.table).metadata.snapshots} & seen.keys():
            all_agree(world.table, duckdb, version)
