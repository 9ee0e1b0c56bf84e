"""What differs is mended while both sides go on: rows come again, those that the source does not have go, and no row is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.debezium.snapshots import SnapshotProgress
from lakebed.errors import Retry
from lakebed.log.snapshot import Snapshot
from lakebed.operations.mutate import run_mutation
from lakebed.pipeline.database.resnapshot import Asking
from lakebed.pipeline.settings import DatabasePipeline, parse_any
from lakebed.positions.resnapshots import active, advance
from lakebed.sources.kafka import cluster
from lakebed.sql import Expression, expression
from lakebed.verify import repair as repair_module
from lakebed.verify.canonical import Shape
from lakebed.verify.comparing import Key
from lakebed.verify.databases import shape_of, verified_by
from lakebed.verify.lake import LakeTable
from lakebed.verify.postgres import SourceColumn
from lakebed.verify.proof import Proof
from lakebed.verify.repair import Resending, Sender, repair
from lakebed.verify.report import Repaired, TableReport, lines
from lakebed.verify.source import Pace
from lakebed.verify.types_of_postgres import SourceType
from tests.clock import Clock
from tests.internals import log_of
from tests.verify.memory import MemorySource, World
from tests.verify.test_tables import doubled

pytestmark = pytest.mark.usefixtures("own_cache")
SCHEMA = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.string())])
COLUMNS = [
    SourceColumn(name=name, type=SourceType(name=kind, modifier=-1, kind="b", written=kind), shown=kind)
    for name, kind in (("id", "int4"), ("v", "text"))
]


@dataclass
class Shop:
    """A database in memory, and its copy in a table of lakebed, which is brought up to a position when it is waited for."""

    table: lakebed.Table
    world: World
    sent: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        snapshot = log_of(self.table).refresh()
        shape = shape_of(COLUMNS, snapshot)
        assert isinstance(shape, Shape)
        self.shape = shape

    def follow(self, position: int) -> None:
        """Bring what the database did up to a position into the table, and rows that were sent again."""
        new = self.world.log[self.world.followed : position]
        changes = [self._change(key, value, at) for at, (key, value) in enumerate(new, self.world.followed + 1)]
        if changes:
            self.table.apply(changes, "op = 'd'", ["op"])
        self.world.followed = max(self.world.followed, position)

    def _change(self, key: int, value: str | None, position: int) -> dict[str, object]:
        return {"id": key, "v": value, "source.lsn": position, "op": "d" if value is None else "u"}

    def send(self, keys: Sequence[Key]) -> None:
        """As an incremental snapshot does: each row as it is now, at a place of its own in the log."""
        for (text,) in keys:
            self.sent.append(int(text))
            if int(text) in self.world.rows:
                self.world.write(int(text), self.world.rows[int(text)][0])
        self.follow(len(self.world.log))

    def repaired(self, send: Sender | None = None) -> Repaired:
        """What differs is found, then mended."""
        internals = lakebed.table.internals_of(self.table)

        def reach(position: int) -> Snapshot:
            self.follow(self.world.chance.randint(position, len(self.world.log)))
            return internals.log.refresh()

        with closing(LakeTable(internals, self.shape, reach)) as lake:
            proof = Proof(self.shape, MemorySource(self.world), lake, Pace(float("inf")))
            proof.run()
            found = list(proof.found.differing)
            return repair(found, proof, internals, self.shape, internals.log.refresh, send or self.send)

    def rows(self) -> dict[int, str]:
        self.follow(len(self.world.log))
        found = self.table.to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found)
        return {row["id"]: row["v"] for row in found}


def shop_of(path: Path, seed: int, sequence_by: str | None = "source.lsn") -> Shop:
    world = World(random.Random(seed))
    for key in range(0, 60, 2):
        world.write(key, f"value {key}")
    shop = Shop(lakebed.create(path, SCHEMA, keys=["id"], sequence_by=sequence_by), world)
    shop.follow(len(world.log))
    return shop


def plant(shop: Shop) -> set[int]:
    """A row that is missing, one that is wrong, and two that the database does not have."""
    missing, wrong = shop.world.chance.sample(range(0, 60, 2), 2)
    surplus = shop.world.chance.sample(range(1, 60, 2), 2)
    shop.table.delete(f"id = {missing}")
    shop.table.update({"v": "'wrong'"}, f"id = {wrong}")
    shop.table.apply([{"id": key, "v": "gone long ago", "source.lsn": 1} for key in surplus])
    return {missing, wrong, *surplus}


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(8))
def test_what_differs_is_mended_and_nothing_that_comes_meanwhile_is_lost(tmp_path: Path, seed: int) -> None:
    shop = shop_of(tmp_path / "t", seed)
    planted = plant(shop)
    asked = iter(range(10_000))
    chance = random.Random(seed)

    def goes_on() -> None:
        """First other keys, then those that differ, too: also the database gets rows where it had none."""
        number = next(asked)
        if chance.random() < 0.4 and number < 60:
            key = chance.choice(sorted(planted) if number > 12 else [k for k in range(60) if k not in planted])
            shop.world.write(key, None if chance.random() < 0.2 else f"new {number}")

    shop.world.before = goes_on
    repaired = shop.repaired()
    assert repaired.left == 0
    assert shop.rows() == {key: value for key, (value, _) in shop.world.rows.items()}


def test_rows_come_again_and_rows_that_the_source_lacks_go(tmp_path: Path) -> None:
    shop = shop_of(tmp_path / "t", 1)
    planted = plant(shop)
    repaired = shop.repaired()
    assert (repaired.sent_again, repaired.removed, repaired.left, repaired.shown) == (2, 2, 0, [])
    assert sorted(shop.sent) == sorted(key for key in planted if key % 2 == 0)
    assert shop.rows() == {key: value for key, (value, _) in shop.world.rows.items()}


def test_a_row_that_comes_before_it_is_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shop = shop_of(tmp_path / "t", 1)
    shop.table.apply([{"id": 7, "v": "gone long ago", "source.lsn": 1}])

    def comes_first(*given: Any) -> Any:
        shop.world.write(7, "back")
        shop.follow(len(shop.world.log))
        return run_mutation(*given)

    monkeypatch.setattr(repair_module, "run_mutation", comes_first)
    repaired = shop.repaired()
    assert (repaired.removed, repaired.left, shop.rows()[7]) == (0, 0, "back")


def test_without_an_order_of_the_source_rows_that_it_lacks_are_kept_and_the_report_says_so(tmp_path: Path) -> None:
    shop = shop_of(tmp_path / "t", 1, sequence_by=None)
    shop.table.apply([{"id": 7, "v": "gone long ago"}])
    shop.table.update({"v": "'wrong'"}, "id = 8")
    repaired = shop.repaired()
    assert (repaired.sent_again, repaired.removed, repaired.left) == (1, 0, 1)
    assert "in the order of arrival" in repaired.kept
    assert [one.kind for one in repaired.shown] == ["surplus"]


def test_a_repair_that_ends_early_says_what_it_did_and_what_may_still_differ(tmp_path: Path) -> None:
    shop = shop_of(tmp_path / "t", 1)
    plant(shop)

    def refuses(keys: Sequence[Key]) -> None:
        raise Retry("does its pipeline run?")

    repaired = shop.repaired(refuses)
    assert (repaired.sent_again, repaired.removed, repaired.left) == (0, 2, 4)
    report = TableReport(table="t", outcome="differs", differences=4, repaired=repaired)
    assert list(lines(report))[-2:] == [
        "  repaired: 0 keys sent again, 2 rows removed; 4 keys may still differ",
        "  it ended early: does its pipeline run?",
    ]


def test_a_connector_that_stops_in_the_midst_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    shop, clock = shop_of(tmp_path / "t", 1), Clock()

    class Asked:
        def send(self, *given: object, **named: object) -> None:
            return None

        def follow(self, sent: object, tell: Callable[[str], None], waiting: Callable[[], None]) -> None:
            for text in ("begun", "half of it"):
                clock.now += 50
                waiting()
                tell(text)
            for _ in range(1_000):
                clock.now += 0.5
                waiting()

    asking: Any = Asked()
    slept: list[float] = []
    send = Resending(
        asking=asking, table="t", log=log_of(shop.table), condition=lambda keys: "true", wait_seconds=60,
        tell=lambda text: None, clock=clock, sleep=slept.append,
    )  # fmt: skip
    with pytest.raises(Retry, match="stopped sending rows of t again"):
        send([("1",)])
    assert clock.now == 1_160 and len(slept) == 122  # so that it also ends with the process


FILE = """
database: {{path: '{}', signal_topic: shop-signal, notification_topic: shop-told}}
source: {{kind: kafka, topic_pattern: 'shop\\..*', config: {{bootstrap.servers: "127.0.0.1:1"}}}}
format: debezium-json
"""


def test_nothing_waits_for_rows_of_which_the_connector_never_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop, clock = shop_of(tmp_path / "shop/public/t", 1), Clock()
    log, pipeline = log_of(shop.table), parse_any(FILE.format(tmp_path / "shop"), "shop.yml", {})
    assert isinstance(pipeline, DatabasePipeline)
    reaches: list[type[BaseException] | None] = [SystemExit]

    def send(*_: object) -> None:
        if reaches and (error := reaches.pop()):
            raise error

    monkeypatch.setattr(cluster, "partitions_of", lambda *_: [0])
    monkeypatch.setattr(cluster, "ends_of", lambda *_: {})
    monkeypatch.setattr(cluster, "send", send)
    asking = Asking(pipeline)
    with pytest.raises(SystemExit):
        asking.send(["public.t"], "id = 1")
    assert active(log.refresh()) is None, "one that was terminated says that it is over"

    sent = asking.send(["public.t"], "id = 1")  # as if it was killed before that
    monkeypatch.setattr(Asking, "follow", lambda *_: SnapshotProgress("", "shop", ()))
    mend = Resending(
        asking=asking, table="public.t", log=log, condition=lambda keys: "true", wait_seconds=60,
        tell=lambda text: None, clock=clock, sleep=clock.sleep,
    )  # fmt: skip
    with pytest.raises(Retry, match="are being sent again already"):
        mend([("1",)])
    later = log.now_ms() + 61_000
    monkeypatch.setattr(log, "now_ms", lambda: later)
    with pytest.raises(Retry, match="does its pipeline run"):
        mend([("1",)])
    found = active(log.refresh())
    assert found is not None and found.id != sent.signal_id
    advance(log, found.id, lambda one: replace(one, state="running"))
    with pytest.raises(Retry, match="are being sent again already"):
        mend([("1",)])


def test_no_signal_is_longer_than_a_record_of_kafka_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Sequence[Key]] = []
    monkeypatch.setattr(Resending, "_send", lambda self, keys: asked.append(keys))
    asking: Any = None
    send = Resending(
        asking=asking, table="t", log=log_of(lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])), wait_seconds=60,
        condition=lambda keys: " or ".join(f"k = '{text}'" for (text,) in keys), tell=lambda text: None,
    )  # fmt: skip
    keys = [(letter * 200_000,) for letter in "abcde"] + [("ä" * 400_000,)]
    send(keys)
    assert [key for some in asked for key in some] == keys
    assert [len(some) for some in asked] == [1, 2, 1, 1, 1], "a single one is sent whatever it takes"


def test_columns_that_change_meanwhile_end_the_comparison_in_a_sentence(tmp_path: Path) -> None:
    shop = shop_of(tmp_path / "t", 1)
    plant(shop)
    repaired = shop.repaired(lambda keys: shop.table.alter(rename={"id": "number"}, add={"id": "int"}) and None)
    assert repaired.left == 4 and repaired.error.startswith("columns of the table were renamed")


def test_a_condition_names_few_keys_as_its_cost_grows_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = shop_of(tmp_path / "t", 1)
    plant(shop)
    conditions: list[str] = []

    def noted(text: str, name: str) -> Expression:
        conditions.append(text)
        return expression(text, name)

    monkeypatch.setattr(repair_module, "AT_ONCE", 1)
    monkeypatch.setattr(repair_module, "expression", noted)
    repaired = shop.repaired()
    assert (repaired.removed, repaired.left) == (2, 0)
    assert len(conditions) == 6 and not any(" or " in text for text in conditions)


def test_rows_that_are_there_twice_are_there_once_again(tmp_path: Path) -> None:
    shop = shop_of(tmp_path / "t", 1)
    doubled(shop.table)
    repaired = shop.repaired()
    assert (repaired.sent_again, repaired.removed, repaired.left) == (30, 0, 0)
    assert shop.rows() == {key: value for key, (value, _) in shop.world.rows.items()}
    shop.table.settle()
    assert shop.rows() == {key: value for key, (value, _) in shop.world.rows.items()}


def test_a_repair_says_nothing_of_rows_that_were_not_compared() -> None:
    mended = Repaired(sent_again=2, last_position=1 << 33)
    plain = TableReport(table="t", outcome="differs", differences=2, last_position=1 << 32)
    assert (plain.mended(mended).outcome, plain.mended(replace(mended, left=1)).outcome) == ("repaired", "differs")
    assert verified_by(plain.mended(mended)).outcome == "equal"

    changing = replace(plain, unsettled=3).mended(mended)
    assert (changing.outcome, verified_by(changing).outcome) == ("unsettled", "unsettled")
    assert next(lines(changing)) == "t: 2 keys differed from the source at 1/0"
    assert "  3 more keys changed all the time and were not compared" in list(lines(changing))

    cut = replace(plain, is_cut=True).mended(mended)
    noted = verified_by(cut)
    assert (cut.outcome, noted.outcome, noted.differing, noted.position) == ("differs", "differs", 2, "1/0")
    assert "  it ended after 2 differences: rows behind them were not compared" in list(lines(cut))


def test_a_snapshot_is_reported_at_its_own_position() -> None:
    report = TableReport(table="t", outcome="equal", first_position=1 << 32, last_position=1 << 33)
    assert next(lines(report)) == "t: equal to the source at 2/0"
    assert next(lines(replace(report, is_of_snapshot=True))) == "t: equal to the source as it was at 1/0"
