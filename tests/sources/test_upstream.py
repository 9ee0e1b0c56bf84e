"""A layer: a table that another one is the source of. It equals its upstream, and reads no change twice, whatever happens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.errors import DataLoss, LakebedError
from lakebed.ingest.table_batch import BatchDone, TableIngest, run_alone
from lakebed.log.holds import holds_of
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.positions.positions import positions_of
from lakebed.schema.fitting import EvolvePolicy
from lakebed.sources.rows import SEQUENCE, ChangeRows
from lakebed.sources.source import Range
from lakebed.sources.upstream import (
    EMPTY_VERSIONS_MAX,
    MOVE_SECONDS,
    UpstreamPlanner,
    UpstreamReader,
    UpstreamSettings,
    ranges_between,
)
from lakebed.storage.data_files import LocalPartStorage
from lakebed.table import internals_of
from tests.clock import Clock
from tests.ingest.crashes import POINTS, Crash, dying
from tests.internals import log_of
from tests.oracle import Row, in_order
from tests.sources.memory_source import here
from tests.view.test_a_copy_of_changes import SCHEMA, World, as_arrow, change, rows_of
from tests.worlds import seeds

ALL: frozenset[Any] = frozenset(["add", "widen", "relax"])
HOUR = 3600


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(autouse=True)
def _store_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk's clock is no earlier than the tables', which some tests set."""
    monkeypatch.setattr(LocalPartStorage, "now", lambda self: 3_800_000_000.0)


class Layer:
    """A pipeline from one table into another. Each ``restart`` is a new process."""

    def __init__(
        self, upstream: lakebed.Table, copy: lakebed.Table, *, policy: EvolvePolicy | None = None, **settings: Any
    ) -> None:
        self.copy = copy
        self.settings = UpstreamSettings(path=upstream.path, table=copy.path, **settings)
        self.policy = policy or EvolvePolicy(allowed=ALL, by_schema=True)
        self.checkpoint: dict[str, Any] = {}
        self.planned: list[Range] = []
        self.restart()

    def restart(self, checkpoint: Mapping[str, Any] | None = None) -> None:
        """``checkpoint``: what is there at the start, by default what was left."""
        self.checkpoint = dict(self.checkpoint if checkpoint is None else checkpoint)
        self.planner = UpstreamPlanner(self.settings)
        table = lakebed.open(self.copy.path)
        inside = internals_of(table)
        snapshot = inside.log.refresh()
        keys, sequence_by = snapshot.logical_settings.keys, snapshot.logical_settings.sequence_by
        columns = DecoderSchema.of_table(snapshot.logical_schema, keys, sequence_by, self.policy)
        self.ingest = TableIngest(
            table.path,
            inside.log,
            UpstreamReader(self.settings),
            ChangeRows(columns),
            evolution=inside.evolution("its records need it"),
            quarantine_log=inside.quarantine_log,
        )

    def batch(self) -> BatchDone | None:
        """The next batch; None if there is nothing to read."""
        end = self.planner.next(self.checkpoint)
        if end == self.checkpoint:
            return None
        ranges = ranges_between(self.checkpoint, end)
        self.planned += ranges
        done = run_alone(self.ingest.batch(ranges), here)
        self.checkpoint = end
        return done

    def follow(self) -> list[BatchDone]:
        return list(self._batches())

    def _batches(self) -> Iterator[BatchDone]:
        while (done := self.batch()) is not None:
            yield done

    def rows(self) -> list[Row]:
        return in_order(lakebed.open(self.copy.path).to_arrow().to_pylist())

    @property
    def position(self) -> int:
        [position] = positions_of(log_of(lakebed.open(self.copy.path)).refresh()).values()
        return position.offsets[0]


def a_table(folder: Path, name: str = "ods", **more: Any) -> lakebed.Table:
    return lakebed.create(folder / name, SCHEMA, keys=["id"], **more)


def a_layer(upstream: lakebed.Table, folder: Path, **more: Any) -> Layer:
    return Layer(upstream, lakebed.create(folder / "dwd", upstream.schema, keys=["id"]), **more)


def quarantined(layer: Layer) -> list[tuple[int, int, dict[str, Any], str]]:
    path = layer.copy.path + QUARANTINE_SUFFIX
    rows = lakebed.open(path).to_arrow().to_pylist() if Path(path, "_delta_log").exists() else []
    return [(row["partition"], row["offset"], json.loads(row["value"]), row["reason"]) for row in rows]


class LayeredWorld(World):
    """The copy is a layer, whose process may die at any point, or lose its checkpoint."""

    def __init__(self, seed: int, folder: Path, sequence: str | None) -> None:
        super().__init__(seed, folder, sequence)
        order = {"column": "seq", "hidden": SEQUENCE}.get(sequence or "")
        copy = lakebed.create(folder / "layer", self.table.schema, keys=["id"], sequence_by=order)
        begins = self.random.choice([0, "snapshot"])
        self.copy = Layer(self.table, copy, starting_version=begins)  # type: ignore[assignment]
        self.checkpoints: list[dict[str, Any]] = [{}]

    def step(self) -> None:
        layer: Layer = self.copy  # type: ignore[assignment]
        chance = self.random.random()
        if chance < 0.15:
            with dying(*self.random.choice(POINTS)), suppress(Crash):
                layer.follow()
            layer.restart(self.random.choice([layer.checkpoint, *self.checkpoints]))
        elif chance < 0.25:
            self.checkpoints.append(layer.checkpoint)
        super().step()


@pytest.mark.few(3)
@pytest.mark.parametrize("sequence", [None, "column", "hidden"])
@seeds(1)
def test_a_layer_equals_its_upstream_whatever_happens_to_both(seed: int, sequence: str | None, tmp_path: Path) -> None:
    world = LayeredWorld(seed, tmp_path, sequence)
    for _ in range(20):
        world.step()
    world.table.settle()
    world.copy.follow()
    world.check()


def test_a_table_without_keys_gets_each_change_once_whatever_is_lost(tmp_path: Path) -> None:
    upstream = lakebed.create(tmp_path / "ods", SCHEMA.remove(3))
    layer = Layer(upstream, lakebed.create(tmp_path / "dwd", upstream.schema))
    expected = []
    for number in range(12):
        row = {"id": number, "region": "eu", "small": number}
        expected.append(row)
        upstream.apply([row])
        with dying(*POINTS[number % len(POINTS)]), suppress(Crash):
            layer.follow()
        layer.restart({} if number % 2 else None)
    layer.follow()
    assert layer.rows() == in_order(expected)


def test_two_processes_on_one_pipeline_bring_each_change_once(tmp_path: Path) -> None:
    upstream = lakebed.create(tmp_path / "ods", SCHEMA)
    copy = lakebed.create(tmp_path / "dwd", SCHEMA)
    one, other = Layer(upstream, copy), Layer(upstream, copy)
    for number in range(4):
        upstream.apply([{"id": number, "region": "eu", "small": number, "large": ""}])
        for layer in (one, other) if number % 2 else (other, one):
            layer.follow()
    assert [row["id"] for row in one.rows()] == [0, 1, 2, 3]


def test_a_truncate_of_the_upstream_empties_the_layer_and_what_came_after_it_stays(tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    layer = a_layer(upstream, tmp_path)
    upstream.apply(as_arrow([change(1, 1, "a"), change(2, 1, "b")], upstream))
    layer.follow()
    upstream.apply(as_arrow([change(3, 1, "c")], upstream))
    upstream.truncate()
    upstream.apply(as_arrow([change(4, 1, "d")], upstream))
    layer.follow()
    assert [row["id"] for row in layer.rows()] == [4]
    before = lakebed.open(layer.copy.path).version
    layer.restart({})
    layer.follow()  # the truncate is not applied again
    assert [row["id"] for row in layer.rows()] == [4] and lakebed.open(layer.copy.path).version == before


def test_the_layer_follows_the_schema_of_its_upstream(tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    layer = a_layer(upstream, tmp_path)
    upstream.apply(as_arrow([change(1, 1, "a")], upstream))
    upstream.alter(add={"more": "string"})
    upstream.apply([{"id": 2, "region": "eu", "small": 2, "large": "b", "more": "m"}])
    upstream.alter(drop=["region"])
    upstream.alter(rename={"large": "text"})
    upstream.apply([{"id": 3, "small": 3, "text": "c", "more": None}])
    layer.follow()
    found = {row["id"]: (row.get("text"), row["more"]) for row in layer.rows()}
    assert found == {1: ("a", None), 2: ("b", "m"), 3: ("c", None)}


def test_a_row_that_does_not_fit_is_quarantined_with_its_version_and_its_reason(tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    narrow = pa.schema([pa.field("id", pa.int64()), pa.field("small", pa.int8())])
    layer = Layer(upstream, lakebed.create(tmp_path / "dwd", narrow, keys=["id"]), policy=EvolvePolicy())
    upstream.apply(as_arrow([change(1, 7, "a")], upstream))
    version = upstream.apply(as_arrow([change(2, 700, "b"), change(3, 8, "c")], upstream))
    layer.follow()
    assert [(row["id"], row["small"]) for row in layer.rows()] == [(1, 7), (3, 8)]
    [(partition, offset, value, reason)] = quarantined(layer)
    assert (partition, offset, value["id"], value["small"]) == (0, version, 2, 700) and "small" in reason


def test_what_does_not_fit_is_rescued_if_asked(tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    narrow = pa.schema([pa.field("id", pa.int64()), pa.field("small", pa.int8())])
    policy = EvolvePolicy(on_mismatch="rescue")
    layer = Layer(upstream, lakebed.create(tmp_path / "dwd", narrow, keys=["id"]), policy=policy)
    upstream.apply(as_arrow([change(2, 700, "b")], upstream))
    layer.follow()
    [row] = layer.rows()
    assert row["small"] is None
    assert json.loads(row["_rescued"]) == {"small": 700, "region": "eu", "large": "b"}


# -- what is kept for a reader -----------------------------------------------------------------------------------------


def forget(table: lakebed.Table, clock: Any) -> None:
    """Clean up all that retention allows."""
    log_of(table).clock = clock
    table.maintenance.expire_snapshots("1 hour", dry_run=False)
    table.maintenance.clean_log()


def some_history(upstream: lakebed.Table, clock: Clock) -> None:
    log_of(upstream).clock = clock
    for number in range(6):
        clock.now += 2 * HOUR
        upstream.apply(as_arrow([change(one, number, f"{number}") for one in range(4)], upstream))
        upstream.settle()


def at(layer: Layer, clock: Clock) -> Layer:
    layer.planner.log.clock = clock
    return layer


def test_nothing_expires_that_a_layer_has_not_read(tmp_path: Path) -> None:
    clock, upstream = Clock(1_900_000_000.0), a_table(tmp_path)
    log_of(upstream).clock = clock
    layer = at(a_layer(upstream, tmp_path), clock)
    upstream.apply(as_arrow([change(9, 9, "first")], upstream))
    layer.follow()
    some_history(upstream, clock)
    forget(upstream, clock)
    layer.follow()
    assert layer.rows() == rows_of(upstream)
    [held] = holds_of(log_of(upstream).refresh().domains)
    assert held.onward and held.reader == layer.copy.path


def test_the_version_before_the_next_is_held_since_it_has_the_rows_that_left(tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    for number in range(3):
        upstream.apply(as_arrow([change(number, number, "x")], upstream))
    a_layer(upstream, tmp_path).planner.next({"table": log_of(upstream).refresh().metadata.id, "next": 2})
    assert [held.version for held in holds_of(log_of(upstream).refresh().domains)] == [1]


def test_a_hold_moves_on_as_the_layer_reads_but_not_with_each_batch(tmp_path: Path) -> None:
    clock, upstream = Clock(1_900_000_000.0), a_table(tmp_path)
    log_of(upstream).clock = clock
    layer = at(a_layer(upstream, tmp_path), clock)
    held = []
    for number in range(6):
        upstream.apply(as_arrow([change(1, number, "x")], upstream))
        layer.follow()
        clock.now += MOVE_SECONDS / 2
        held.append(holds_of(log_of(upstream).refresh().domains)[0].version)
    assert held == sorted(held) and held[-1] > 0 and len(set(held)) <= 3


def test_changes_that_expired_before_a_layer_began_are_an_error_that_says_so(tmp_path: Path) -> None:
    clock, upstream = Clock(1_900_000_000.0), a_table(tmp_path)
    some_history(upstream, clock)
    forget(upstream, clock)
    with pytest.raises(
        DataLoss, match=r"from version 0 on are not all there: the oldest version that it still has is \d+"
    ):
        at(a_layer(upstream, tmp_path), clock).follow()


def test_what_was_lost_is_skipped_if_asked(tmp_path: Path) -> None:
    clock, upstream = Clock(1_900_000_000.0), a_table(tmp_path)
    some_history(upstream, clock)
    layer = at(a_layer(upstream, tmp_path, on_data_loss="skip"), clock)
    [first] = ranges_between({}, layer.planner.next({}))
    run_alone(layer.ingest.batch([Range(first.topic, 0, 0, 1, is_first=True)]), here)  # the table stopped at version 1
    held = holds_of(log_of(upstream).refresh().domains)
    clock.now += 10 * 86_400  # longer than it is kept
    assert held
    some_history(upstream, clock)
    forget(upstream, clock)
    layer.restart({})
    done = at(layer, clock).follow()
    assert layer.rows() == rows_of(upstream) and done[0].written.lost > 0


def test_a_table_made_anew_is_an_error_and_read_from_its_beginning_if_losses_are_skipped(tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    layer = a_layer(upstream, tmp_path)
    for number in range(3):
        upstream.apply(as_arrow([change(number, 1, "a")], upstream))
    layer.follow()
    Path(upstream.path).rename(tmp_path / "gone")
    anew = a_table(tmp_path)
    anew.apply(as_arrow([change(7, 7, "new")], anew))
    layer.restart()
    with pytest.raises(DataLoss, match="created again"):
        layer.follow()
    layer.settings = UpstreamSettings(path=upstream.path, table=layer.copy.path, on_data_loss="skip")
    layer.restart()
    layer.follow()
    assert 7 in [row["id"] for row in layer.rows()]


# -- where it begins, and how much a batch takes -----------------------------------------------------------------------


@pytest.mark.parametrize(("starting", "expected"), [(0, [1, 2, 3]), (2, [2, 3]), ("newest", [3])])
def test_a_layer_begins_at_the_version_that_it_is_told(starting: Any, expected: list[int], tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    for number in (1, 2):
        upstream.apply(as_arrow([change(number, 1, "a")], upstream))
    layer = a_layer(upstream, tmp_path, starting_version=starting)
    layer.follow()
    upstream.apply(as_arrow([change(3, 1, "a")], upstream))
    layer.follow()
    assert [row["id"] for row in layer.rows()] == expected


def test_a_layer_that_begins_with_the_whole_table_needs_no_earlier_version(tmp_path: Path) -> None:
    clock, upstream = Clock(1_900_000_000.0), a_table(tmp_path)
    some_history(upstream, clock)
    upstream.apply(as_arrow([change(1, 90, None, "d"), change(7, 7, "tail")], upstream))
    forget(upstream, clock)
    layer = at(a_layer(upstream, tmp_path, starting_version="snapshot"), clock)
    [first, *rest] = layer.follow()
    assert layer.rows() == rows_of(upstream) and not rest and first.rows == 5  # of the deleted row too
    upstream.apply(as_arrow([change(8, 8, "more")], upstream))
    layer.restart({})  # a lost checkpoint
    [again] = at(layer, clock).follow()
    assert layer.rows() == rows_of(upstream) and again.rows == 1


def test_a_late_change_of_a_deleted_row_loses_in_a_layer_that_began_after_the_delete(tmp_path: Path) -> None:
    upstream = lakebed.create(tmp_path / "ods", SCHEMA, keys=["id"], sequence_by="seq")
    layer = Layer(
        upstream,
        lakebed.create(tmp_path / "dwd", SCHEMA, keys=["id"], sequence_by=SEQUENCE),
        starting_version="snapshot",
    )
    upstream.apply(as_arrow([change(1, 1, "a", seq=1), change(2, 2, "b", seq=2)], upstream))
    upstream.apply(as_arrow([change(1, 0, None, "d", seq=9)], upstream))
    upstream.settle()
    layer.follow()
    upstream.apply(as_arrow([change(1, 5, "late", seq=5)], upstream))
    layer.follow()
    assert layer.rows() == rows_of(upstream) and [row["id"] for row in layer.rows()] == [2]


@pytest.mark.parametrize("older_first", [True, False])
def test_two_processes_that_begin_a_table_without_keys_bring_each_row_once(older_first: bool, tmp_path: Path) -> None:
    upstream = lakebed.create(tmp_path / "ods", SCHEMA)
    row = {"region": "eu", "small": 1, "large": ""}
    upstream.apply([{"id": 1, **row}])
    copy = lakebed.create(tmp_path / "dwd", SCHEMA)
    layers = [Layer(upstream, copy, starting_version="snapshot") for _ in range(2)]
    planned = [ranges_between({}, layers[0].planner.next({}))]
    upstream.apply([{"id": 2, **row}])
    planned.append(ranges_between({}, layers[1].planner.next({})))
    for number in (0, 1) if older_first else (1, 0):
        run_alone(layers[number].ingest.batch(planned[number]), here)
    for layer in layers:
        layer.follow()
    assert [found["id"] for found in layers[0].rows()] == [1, 2]


def test_versions_that_only_rearrange_rows_are_no_batch_until_they_are_many(tmp_path: Path) -> None:
    upstream = a_table(tmp_path)
    layer = a_layer(upstream, tmp_path)
    upstream.apply(as_arrow([change(1, 1, "a")], upstream))
    layer.follow()
    upstream.settle()
    assert layer.follow() == []
    for _ in range(EMPTY_VERSIONS_MAX):
        upstream.set_properties({"lakebed.read_budget": str(4 + upstream.version % 2)})
    assert [done.rows for done in layer.follow()] == [0]
    assert layer.position == upstream.version + 1


def test_a_large_backlog_is_read_in_batches_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upstream = a_table(tmp_path)
    for number in range(8):
        upstream.apply(as_arrow([change(one, number, "x" * 100) for one in range(50)], upstream))
    size = max(part.bytes for part in log_of(upstream).refresh().tail.values())
    monkeypatch.setattr("lakebed.sources.upstream.BYTES_MAX", 2 * size)
    layer = a_layer(upstream, tmp_path)
    assert len(layer.follow()) >= 4
    assert layer.rows() == rows_of(upstream)


def test_each_batch_but_the_last_says_that_versions_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakebed.sources.upstream.BYTES_MAX", 1)
    upstream = a_table(tmp_path)
    layer = a_layer(upstream, tmp_path)
    layer.follow()  # it holds the upstream from now on, which is a version too
    for number in range(3):
        upstream.apply(as_arrow([change(number, 1, "a")], upstream))
    assert [layer.planner.left_some for _ in iter(layer.batch, None)] == [True, True, False]


def test_a_chain_of_layers_comes_to_rest(tmp_path: Path) -> None:
    ods = a_table(tmp_path)
    dwd = a_layer(ods, tmp_path)
    last = Layer(dwd.copy, lakebed.create(tmp_path / "ads", ods.schema, keys=["id"]))
    for number in range(3):
        ods.apply(as_arrow([change(number, 1, "a")], ods))
        dwd.follow()
        last.follow()
    assert dwd.follow() == last.follow() == []
    assert last.rows() == rows_of(ods)


def test_an_upstream_that_cannot_be_read_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(LakebedError):
        UpstreamPlanner(UpstreamSettings(path=str(tmp_path / "nothing"))).next({})
