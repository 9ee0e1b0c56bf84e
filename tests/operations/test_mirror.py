"""At the end of a resnapshot exactly the rows are removed that the source no longer has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import lakebed
from lakebed.health.status import Observer, database_status
from lakebed.log.commit_kind import CommitKind, is_append, kind_of
from lakebed.operations.mutate import why_not
from lakebed.operations.restore import needs_restart
from lakebed.pipeline.database.resnapshot import WAIT_SECONDS
from lakebed.positions.resnapshots import advance
from lakebed.table import internals_of
from tests.internals import log_of
from tests.operations.captured_table import COLUMNS, NAME, TOPIC, World, without_pauses
from tests.worlds import seeds


def run_to_the_end(world: World) -> None:
    """Nothing new happens; the snapshot and all that follows from it end."""
    for _ in range(400):
        world.close_window()
        world.settle()
        world.follow()
        if not world.state.is_active and not world.queue:
            return
    raise AssertionError(f"it does not end: {world.state}")


@pytest.mark.few(3)
@pytest.mark.parametrize("holds_back", [False, True])
@seeds(2, quick=0)
def test_in_the_end_the_table_has_what_the_source_has(seed: int, holds_back: bool, tmp_path: Path) -> None:
    world = World(tmp_path, seed, holds_back=holds_back)
    with without_pauses():
        for _ in range(world.draw.choice([0, 80, 150])):
            world.change()
        world.lose()
        world.ask()
        for _ in range(world.draw.choice([5, 40, 80])):
            world.step()
            if world.draw.random() < 0.02:
                world.ask()
        run_to_the_end(world)
        world.settle()
    assert world.state.state == "ended", world.state.error
    assert world.found() == world.rows, world.state


@pytest.mark.few(1)
@seeds(2, quick=0)
def test_after_moves_of_the_source_too_the_table_has_what_the_source_has(seed: int, tmp_path: Path) -> None:
    """What comes from the other server loses, until a resnapshot restarts the order."""
    world, said = World(tmp_path, seed), 0
    with without_pauses():
        for _ in range(3):
            for _ in range(world.draw.choice([20, 80])):
                world.change()
            world.move()
            for _ in range(world.draw.choice([0, 5, 80])):
                world.change()
            world.settle()
            world.table.settle()
            while needs_restart(world.log.refresh()) or not said:
                said += 1
                world.ask()
                for _ in range(world.draw.choice([5, 40])):
                    world.step()
                run_to_the_end(world)
                world.settle()
                assert world.state.state in ("ended", "failed")
            said = 0
            assert world.found() == world.rows, world.state


@pytest.fixture
def world(tmp_path: Path) -> World:
    """The table has the rows 0 to 9. Then 7, 8 and 9 are deleted while nobody reads the log, and all rows are asked for again."""
    world = World(tmp_path, 1)
    world.lsn = world.last_commit = 1000
    for id in range(10):
        world.open[id] = [("c", id, id, world.lsn)]
        world.commit(id)
    world.settle()
    for id in (7, 8, 9):
        del world.rows[id]
    world.ask()
    return world


def ended(world: World) -> None:
    """The connector has read all, and the table has what it sent."""
    while world.queue:
        world.close_window()
    world.settle()
    for notification in world.notifications:
        world.follower.take(notification)
    for _ in range(3):
        world.now += 60.0
        world.follower.step()


def test_rows_that_are_gone_are_removed_in_the_commit_that_ends_it(world: World) -> None:
    assert world.state.state == "asked"
    ended(world)
    state, version = world.state, world.log.refresh().version
    assert (state.state, state.came, state.read, state.removed) == ("ended", 7, 7, 3)
    assert world.found() == world.rows == {id: id for id in range(7)}
    world.follower.step()
    assert world.log.refresh().version == version, "it is done once"


def test_a_row_that_brokers_took_late_wins_over_its_removal(world: World) -> None:
    while world.queue:
        world.close_window()
    late = list(world.flight[0])
    world.flight[0].clear()
    world.settle()
    advance(world.log, world.state.id, lambda asked: replace(asked, state="read", read=0, ends=world.ends()))
    internals_of(world.table).mirror().end(world.state.id)
    assert (world.state.state, world.state.removed, len(late)) == ("ended", 7, 4) and world.found().keys() == {1, 3, 5}
    world.flight[0].extend(late)
    world.settle()
    assert world.found() == world.rows


def test_nothing_is_removed_while_fewer_rows_came_than_were_read(world: World) -> None:
    while world.queue:
        world.close_window()
    world.flight[0].clear()  # a broker holds them back
    ended(world)
    assert world.state.state == "read" and len(world.found()) == 10
    world.now += WAIT_SECONDS
    world.follower.step()
    assert world.state.state == "failed" and len(world.found()) == 10
    assert "the connector has read 7 rows, and 3 came; no row was removed" in world.state.error


def test_nothing_is_removed_if_a_record_could_not_be_used(world: World) -> None:
    world.source.add(TOPIC, 0, b"{no json")
    ended(world)
    assert "1 records that came meanwhile could not be used" in world.state.error and len(world.found()) == 10


def test_nothing_is_removed_after_positions_of_the_source_began_anew(world: World) -> None:
    """As on another server: what comes counts as older than what the table has."""
    world.lsn = world.last_commit = 10
    ended(world)
    assert world.state.state == "read" and len(world.found()) == 10


def test_a_snapshot_that_was_stopped_removes_nothing(world: World) -> None:
    world.notify("ABORTED")
    world.follower.take(world.notifications[0])
    world.follower.take(world.notifications[-1])
    assert "the snapshot was stopped before its end; no row was removed" in world.state.error


def test_a_scan_that_began_before_it_was_asked_does_not_end_it(world: World) -> None:
    """The connector gives the id of the newest signal to all that it says."""
    world.close_window()
    world.ask()
    while len(world.queue) == 2:
        world.close_window()
    world.settle()
    for notification in world.notifications:
        world.follower.take(notification)
    world.now += 60.0
    world.follower.step()
    assert world.state.state == "running" and len(world.found()) == 10
    ended(world)
    assert world.found() == world.rows


@pytest.mark.parametrize(
    ("keys", "sequence_by", "said"),
    [
        ([], None, "the table has no keys"),
        (["id"], None, "its changes are in the order of arrival; only source.lsn and source.pos"),
        (["id"], "n", "ordered by n"),
        (["id"], "source.scn", "ordered by source.scn"),
        (["id"], "source.lsn", None),
        (["id"], "source.pos", None),
    ],
)
def test_only_positions_in_the_order_of_commits_show_what_is_gone(
    keys: list[str], sequence_by: str | None, said: str | None, tmp_path: Path
) -> None:
    table = lakebed.create(tmp_path / "t", COLUMNS, keys=keys, sequence_by=sequence_by)
    why = why_not(log_of(table).refresh())
    assert why is None if said is None else said in (why or "")


def test_a_batch_that_counts_rows_is_a_batch_as_any_other(world: World) -> None:
    """So what spares its commits, as a mutation of other rows, does so meanwhile too."""
    ended(world)
    commits = list(world.log.commits(world.log.oldest_version(), world.log.refresh().version))
    counting = [one for one in commits if kind_of(one) is CommitKind.APPEND and one.version > 1]
    assert counting and all(is_append(one.actions) for one in counting)
    assert kind_of(commits[-1]) is CommitKind.MUTATION


def test_how_far_it_is_stands_in_the_status(world: World) -> None:
    world.close_window()
    world.deliver(all_of_them=True)
    world.process.run()
    assert Observer(world.table.path).look().resnapshot.startswith("4 rows came, the last")
    [row] = database_status({NAME: world.table.path}).to_pylist()
    assert row["resnapshot"].startswith("4 rows came, the last")
    world.notify("ABORTED")
    ended(world)
    [finding] = [one for one in Observer(world.table.path).look().findings if one.check == "resnapshot"]
    assert "the snapshot was stopped before its end" in finding.what
