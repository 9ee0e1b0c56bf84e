"""Many tables, several processes at once, checkpoints that are old or lost: no record is lost or comes twice at any version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lakebed.ingest import batch_writer
from lakebed.ingest.batch_writer import Moved, in_this_process
from lakebed.ingest.table_batch import Batch, TableIngest, _Reading
from lakebed.log.commit_loop import Proposal
from lakebed.log.conflicts import BLIND
from lakebed.operations import restore
from lakebed.parts import quarantine
from lakebed.parts.quarantine import Handover
from lakebed.positions.positions import Position, entry_of
from lakebed.sources.source import Range
from tests.simulation.pipelines import Kept, Shop, add_table, ingest_of, quarantined, simulate
from tests.simulation.topics import Broker, Fact, SimulatedReader, Topic
from tests.simulation.world import Actor, Faults, World
from tests.worlds import worlds


@pytest.mark.slow
@pytest.mark.worlds
def test_every_version_of_every_table_has_the_records_below_its_positions_each_once() -> None:
    total: Counter[str] = Counter()
    for seed in worlds(5):
        total += simulate(seed).counts
    for happened in (
        "crash",
        "before",
        "after",
        "delayed",
        "committed",
        "nothing to do",
        "failed",
        "checkpoint lost",
        "checkpoint old",
        "checkpoint foreign",
        "settled",
        "quarantined",
        "worked again",
        "restored",
    ):
        assert total[happened] > 0, f"nothing of the kind {happened!r} happened: {dict(total)}"


def test_a_seed_is_the_same_world_every_time() -> None:
    assert simulate(2, 150).trace == simulate(2, 150).trace


def test_two_processes_that_quarantine_records_of_two_topics_at_once_lose_none(tmp_path: Path) -> None:
    shop = calm_shop()
    topics = [Topic(name, False, False, [[Fact("bad"), Fact("bad")]]) for name in ("shop.a", "shop.b")]
    kept = add_table(shop, tmp_path / "t", topics)
    batches = [batch_of(shop, kept, topic.name) for topic in topics]
    works = [next(batch) for batch in batches]  # both have seen the same version
    for batch, work in zip(batches, works, strict=True):
        with pytest.raises(StopIteration):
            batch.send(in_this_process(work.task, work.ranges))
    assert quarantined(kept) == shop.broker.unreadable(kept.topics)


def calm_shop() -> Shop:
    """Where nothing happens to anybody."""
    world = World(0, Faults(0, 0, 0, 0, 0))
    world.closing = True
    world.pause = lambda actor: None  # type: ignore[method-assign]
    return Shop(world, Broker({}), [])


def batch_of(shop: Shop, kept: Kept, topic: str) -> Batch:
    """A new process reads all there is of a topic with one partition."""
    ingest = ingest_of(shop, kept, Actor("one", lambda actor: None), SimulatedReader(shop.broker))
    return ingest.batch([Range(topic, 0, 0, shop.broker.ends()[topic, 0], is_first=True)])


# -- the real code, broken on purpose: each time the worlds show it -----------------------------------------------------

Break = Callable[[pytest.MonkeyPatch], None]


def positions_do_not_conflict(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(batch_writer, "position_entry", lambda topic: f"another.{topic}")


def positions_are_not_compared(broken: pytest.MonkeyPatch) -> None:
    moved: Any = _Reading.moved
    broken.setattr(
        _Reading, "moved", lambda self, written, cut: Moved(before={}, after=moved(self, written, cut).after)
    )


def positions_are_not_committed(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(batch_writer, "entry_of", lambda topic, position: entry_of(topic, Position(offsets={})))


def the_checkpoint_decides_where_a_batch_begins(broken: pytest.MonkeyPatch) -> None:
    begins: Any = TableIngest._begins
    broken.setattr(TableIngest, "_begins", lambda self, plans, positions: begins(self, plans, {}))


def records_are_not_handed_over(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(Handover, "deliver", lambda self, snapshot: None)


def two_may_hand_over_the_same_records(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(quarantine, "Proposal", partial(Proposal, access=BLIND))


def a_restore_leaves_positions_where_they_are(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(restore, "_positions", lambda earlier, now: iter(()))


def a_restore_remembers_truncates_that_are_read_again(broken: pytest.MonkeyPatch) -> None:
    broken.setattr(restore, "SOURCE_TRUNCATES", "lakebed.none")


FIRST = {
    a_restore_leaves_positions_where_they_are: 3,
    a_restore_remembers_truncates_that_are_read_again: 8,
    the_checkpoint_decides_where_a_batch_begins: 1,
}
"""The world to begin with: one where the break shows, or one a little before it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "break_it",
    [
        a_restore_leaves_positions_where_they_are,
        a_restore_remembers_truncates_that_are_read_again,
        positions_do_not_conflict,
        positions_are_not_compared,
        positions_are_not_committed,
        the_checkpoint_decides_where_a_batch_begins,
        records_are_not_handed_over,
        two_may_hand_over_the_same_records,
    ],
)
def test_the_worlds_show_what_is_broken(break_it: Break, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=r"seed \d+"):
        for seed in range(FIRST.get(break_it, 0), 300):
            simulate(seed)
