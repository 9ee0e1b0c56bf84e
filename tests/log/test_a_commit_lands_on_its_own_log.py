"""Writers, readers, cleanups and a table made anew, one inside the other at every step of each: no acknowledged row is lost.

Each of them is a function of the store that it works on. ``nested`` runs the first, and lets the second run as a whole
before its n-th operation on the store, the third before the m-th of the second: for all n and m. So each of them may sleep
between any two of its steps for as long as the others need for whatever they do. No clock is asked: time stands still.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import count, permutations
from typing import Any

import pyarrow as pa
import pytest

from lakebed.errors import Corrupt, StoreUnavailable, TableNotFound, VersionNotFound
from lakebed.log.actions import AddPart, Commit, CommitInfo, Part, Transaction
from lakebed.log.conflicts import BLIND, ConflictKind
from lakebed.log.holds import trim_log_before
from lakebed.log.log_reader import LogReader
from lakebed.log.snapshot import Snapshot, apply, follows
from lakebed.log.stores import LOG_FOLDER, LogFiles, MemoryLogStore, commit_name
from lakebed.log.table_log import Committed, Conflicted, Outcome, TableLog, Unknown
from lakebed.operations.create import create_log
from lakebed.settings import TableSettings
from tests.worlds import TIMES

INFO = CommitInfo(operation="TEST", commit_id="", blind_append=True)
SCHEMA = pa.schema([("id", pa.int64())])


class Stepped:
    """A store that calls ``interrupt`` before its n-th operation."""

    def __init__(self, inner: Any, at: int = -1, interrupt: Callable[[], object] = lambda: None) -> None:
        self.inner, self.left, self.interrupt = inner, at, interrupt
        self.root = inner.root

    def _step(self) -> None:
        self.left -= 1
        if self.left == -1:
            self.interrupt()

    def put_if_absent(self, name: str, data: bytes) -> bool:
        self._step()
        return self.inner.put_if_absent(name, data)

    def put(self, name: str, data: bytes) -> None:
        self._step()
        self.inner.put(name, data)

    def read(self, name: str) -> bytes:
        self._step()
        return self.inner.read(name)

    def list_from(self, folder: str, start: str) -> list[str]:
        self._step()
        return self.inner.list_from(folder, start)

    def delete(self, name: str) -> None:
        self._step()
        self.inner.delete(name)


class World:
    """A store, what was acknowledged, and handles that were opened when the table had two versions."""

    def __init__(self) -> None:
        self.store = MemoryLogStore()
        log = self.log(self.store)
        assert isinstance(create_log(log, SCHEMA, TableSettings(), (), {}, "test"), Committed)
        self.names = (f"p{number}" for number in count())
        self.acknowledged: dict[str, str] = {}  # path → the table that it was acknowledged in
        self.maybe: set[str] = set()
        self.shown: set[str] = set()
        self.kept = 0  # the oldest version in the log when all began
        self.told_of_batch = ""  # in which table
        self.remade = ""  # the table that was made in place of the first
        self.append(log)
        self.asleep = log.refresh()

    def log(self, store: object) -> TableLog:
        return TableLog(store, lambda: 1_800_000_000.0, sleep=lambda seconds: None)  # type: ignore[arg-type]

    def opened(self, store: object) -> TableLog:
        """A handle that knows the table as it was."""
        log = self.log(store)
        log._newest, log._listed_at = self.asleep, log.clock()
        return log

    def append(self, log: TableLog, batch: Transaction | None = None) -> None:
        """Append a row, as a writer does that goes on until it knows."""
        path = f"_lakebed/{next(self.names)}.parquet"
        snapshot = log.refresh()
        for _ in range(5):
            outcome = log.commit(
                snapshot, [AddPart(Part(path=path, rows=1, bytes=1, min_block=-1, max_block=-1))], INFO, BLIND, batch
            )
            match outcome:
                case Committed(_, after):
                    self.acknowledged[path] = after.metadata.id
                    return
                case Conflicted(conflict, newest) if conflict.kind is ConflictKind.BATCH:
                    self.told_of_batch = newest.metadata.id
                    return
                case Conflicted(_, newest):
                    if newest.metadata.id != snapshot.metadata.id:
                        return
                    snapshot = newest
                case Unknown():
                    self.maybe.add(path)
                    return
        raise AssertionError("it never ends")

    # -- the actors --------------------------------------------------------------------------------------------------

    def writer(self, store: object) -> None:
        """Knows an old version, appends, and appends again."""
        log = self.opened(store)
        self.append(log)
        self.append(log)

    def query(self, store: object) -> None:
        """One of two drivers of the same streaming query, with its only batch."""
        log = self.opened(store)
        self.append(log, Transaction("query", 1))

    def dying_query(self, store: object) -> None:
        """Another driver of that query; its process ends as soon as its commit has landed."""

        class Dying(Stepped):
            landed = False

            def put_if_absent(self, name: str, data: bytes) -> bool:
                self.landed = super().put_if_absent(name, data)
                return self.landed

            def read(self, name: str) -> bytes:
                if self.landed:
                    raise EOFError
                return super().read(name)

        log = self.opened(Dying(store))
        path = f"_lakebed/{next(self.names)}.parquet"
        self.maybe.add(path)
        with suppress(EOFError):
            log.commit(
                self.asleep,
                [AddPart(Part(path=path, rows=1, bytes=1, min_block=-1, max_block=-1))],
                INFO,
                BLIND,
                Transaction("query", 1),
            )

    def reader(self, store: object) -> None:
        """Knows an old version, and reads what is new."""
        log = self.opened(store)
        for _ in range(2):
            snapshot = log.refresh()
            if snapshot.metadata.id == self.asleep.metadata.id:
                self.shown |= snapshot.parts.keys()
                known = self.asleep.version
                assert snapshot.version == known or snapshot.version >= self.kept, (
                    "it took what came too late for a version"
                )

    def newcomer(self, store: object) -> None:
        """Opens the table, and appends."""
        log = self.log(store)
        self.shown |= log.refresh().parts.keys()
        self.append(log)

    def cleaner(self, store: object) -> None:
        """Commits a few versions, and cleans up all before them."""
        log = self.log(store)
        for _ in range(2):
            self.append(log)
        log.write_checkpoint(log.refresh())
        self.append(log)
        trim_log_before(log, log.refresh().version)

    def checkpointer(self, store: object) -> None:
        """Knows an old version, and writes its checkpoint."""
        self.opened(store).write_checkpoint(self.asleep)

    def remake_once_written(self, store: object) -> None:
        """Drops the table, and makes another in its place, whose next version is that of who sleeps."""
        self.remake(store)
        self.append(self.log(self.store))

    def remake_longer(self, store: object) -> None:
        """Drops the table, and makes another in its place, with more versions."""
        self.remake(store)
        for _ in range(3):
            self.append(self.log(self.store))

    def remake(self, store: object) -> None:
        """Drops the table, and makes another in its place."""
        while names := self.store.list_from(LOG_FOLDER, ""):
            for name in names:
                store.delete(f"{LOG_FOLDER}/{name}")  # type: ignore[attr-defined]
        outcome = create_log(self.log(self.store), SCHEMA, TableSettings(), (), {}, "test")
        assert isinstance(outcome, Committed)
        self.remade = outcome.snapshot.metadata.id

    # -- what must be so in the end ------------------------------------------------------------------------------------

    def check(self) -> None:
        log = self.log(self.store)
        newest = log.refresh()
        assert self.remade in ("", newest.metadata.id), "the table before is back"
        expected = {path for path, table in self.acknowledged.items() if table == newest.metadata.id}
        assert expected <= newest.parts.keys(), f"{sorted(expected - newest.parts.keys())} are lost"
        assert newest.parts.keys() <= expected | self.maybe
        assert self.shown <= self.acknowledged.keys() | self.maybe, "somebody saw what is no version of the table"
        if self.told_of_batch == newest.metadata.id:
            assert newest.transaction_version("query") == 1, "a batch is called committed, and is lost"
        self.append(log)
        fresh = self.log(self.store)
        assert fresh.refresh().version == newest.version + 1
        of_tables = {fresh.read_checkpoint(version).metadata.id for version in fresh.versions()[1]}
        assert of_tables <= {newest.metadata.id}, "a checkpoint of the table before is there"
        assert len(LogReader(self.store).at_version(fresh.oldest_version()).parts) <= len(newest.parts)


Actor = Callable[[World, object], None]


def nested(actors: Sequence[Actor], steps: Sequence[int], is_aged: bool) -> tuple[World, int]:
    """Run actors one inside the other; returns the world, and at which depth a step was never reached, -1 for none.

    ``is_aged``: before they begin, all versions that they know have left the log.
    """
    world = World()
    if is_aged:
        world.cleaner(world.store)
        world.kept = LogReader(world.store).oldest_version()
    reached = [False] * len(steps)

    def run(depth: int) -> None:
        if depth == len(actors):
            return

        def inner() -> None:
            reached[depth] = True
            run(depth + 1)

        at = steps[depth] if depth < len(steps) else -1
        try:
            actors[depth](world, Stepped(world.store, at, inner))
        except (TableNotFound, StoreUnavailable):
            pass
        except Corrupt:  # a log that is half deleted
            assert {World.remake, World.remake_once_written, World.remake_longer} & {*actors}

    run(0)
    world.check()
    return world, next((depth for depth, was in enumerate(reached) if not was), -1)


def all_nestings(actors: Sequence[Actor], is_aged: bool = False) -> Iterator[World]:
    """The ways in which the actors can run one inside the other: of three only some, unless more are asked for."""
    stride = 1 if len(actors) < 3 or TIMES > 1 else 97
    steps = [0] * (len(actors) - 1)
    while True:
        world, missed = nested(actors, steps, is_aged)
        yield world
        if missed == 0:
            return
        if missed > 0:
            steps[missed - 1] += 1
            steps[missed:] = [steps[missed - 1] % stride] * (len(steps) - missed)
        else:
            steps[-1] += stride


W = World
CASTS = [
    (W.writer, W.cleaner),
    (W.cleaner, W.writer),
    (W.newcomer, W.cleaner),
    (W.cleaner, W.newcomer),
    (W.reader, W.cleaner),
    (W.cleaner, W.cleaner),
    (W.writer, W.remake),
    (W.writer, W.remake_once_written),
    (W.writer, W.remake_longer),
    (W.checkpointer, W.remake),
    (W.remake, W.writer),
    (W.newcomer, W.remake),
    (W.writer, W.cleaner, W.writer),
    (W.writer, W.writer, W.cleaner),
    (W.query, W.query, W.cleaner),
    (W.query, W.cleaner, W.query),
    (W.newcomer, W.cleaner, W.writer),
    (W.reader, W.writer, W.cleaner),
    (W.writer, W.remake, W.writer),
    (W.writer, W.writer, W.remake_longer),
]  # a cleanup that is stopped while it deletes, and goes on in another table, is beyond every check: see operations.md

AGED = [
    *permutations([W.writer, W.reader]),
    (W.query, W.query),
    (W.query, W.dying_query),
    (W.reader, W.dying_query),
    (W.newcomer, W.dying_query),
    (W.writer, W.newcomer),
    (W.writer, W.reader, W.writer),
]


DEAR = [
    (W.cleaner, W.newcomer),
    (W.cleaner, W.cleaner),
    (W.newcomer, W.cleaner, W.writer),
    (W.writer, W.newcomer),
    (W.writer, W.reader, W.writer),
]
"""Those that take seconds each."""


def name_of(cast: Sequence[Actor]) -> str:
    return " in ".join(actor.__name__ for actor in reversed(cast))


def nested_casts(casts: Sequence[Sequence[Actor]]) -> list[Any]:
    """The first pair is quick; the others are slow."""
    of_dear, of_others = [pytest.mark.long], [pytest.mark.slow]
    return [
        pytest.param(cast, id=name_of(cast), marks=of_dear if cast in DEAR else of_others if at else [])
        for at, cast in enumerate(casts)
    ]


@pytest.mark.worlds
@pytest.mark.parametrize("cast", nested_casts(CASTS))
def test_whoever_sleeps_wherever_no_acknowledged_row_is_lost(cast: Sequence[Actor]) -> None:
    assert sum(1 for _ in all_nestings(cast)) > 1


@pytest.mark.worlds
@pytest.mark.parametrize("cast", nested_casts(AGED))
def test_nobody_takes_a_commit_that_came_too_late_for_a_version(cast: Sequence[Actor]) -> None:
    assert sum(1 for _ in all_nestings(cast, is_aged=True)) > 1


# -- without each of the checks it goes wrong ---------------------------------------------------------------------------


def a_commit_is_not_looked_at_again(broken: pytest.MonkeyPatch) -> None:
    def verified(self: TableLog, read: Snapshot, known: Snapshot, ours: Commit) -> Outcome:
        return Committed(ours.version, apply(known, ours))

    broken.setattr(TableLog, "_verified", verified)


def what_is_new_is_not_looked_at_again(broken: pytest.MonkeyPatch) -> None:
    def forward(self: LogReader, known: Snapshot) -> Snapshot:
        while (commit := self.read_commit(known.version + 1)) is not None and follows(known, commit):
            known = apply(known, commit)
        return known

    broken.setattr(LogReader, "_forward", forward)


def a_winner_is_not_looked_at_again(broken: pytest.MonkeyPatch) -> None:
    is_in_log = TableLog._is_in_log

    def in_verified_alone(self: TableLog, snapshot: Snapshot) -> bool:
        return is_in_log(self, snapshot) if sys._getframe(1).f_code.co_name != "_commit" else True

    broken.setattr(TableLog, "_is_in_log", in_verified_alone)


def a_cleanup_deletes_the_newest_first(broken: pytest.MonkeyPatch) -> None:
    before = LogFiles.before
    broken.setattr(LogFiles, "before", lambda self, version: before(self, version)[::-1])


@pytest.mark.parametrize(
    ("break_it", "cast"),
    [
        (a_commit_is_not_looked_at_again, (W.writer, W.cleaner)),
        (a_commit_is_not_looked_at_again, (W.writer, W.remake)),
        (what_is_new_is_not_looked_at_again, (W.writer, W.reader)),
        (a_winner_is_not_looked_at_again, (W.query, W.dying_query)),
        (a_cleanup_deletes_the_newest_first, (W.cleaner, W.writer)),
    ],
)
def test_without_a_check_a_row_is_lost(
    break_it: Callable[[pytest.MonkeyPatch], None], cast: Sequence[Actor], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises((AssertionError, Corrupt)):
        for _ in all_nestings(cast, cast in AGED):
            pass


@pytest.mark.parametrize("before", range(16))
def test_a_log_is_not_called_corrupt_while_a_cleanup_frees_a_name_that_a_sleeper_takes(before: int) -> None:
    world = World()
    late = [AddPart(Part(path="_lakebed/late.parquet", rows=1, bytes=1, min_block=-1, max_block=-1))]
    log = world.log(world.store)
    for _ in range(3):
        world.append(log)
    log.write_checkpoint(log.refresh())

    def clean_up_and_wake() -> None:
        for version in range(world.asleep.version + 2):  # a cleanup, oldest first, has come so far
            world.store.delete(commit_name(version))
        sleeper = world.opened(Stepped(world.store, 1, end))
        with suppress(EOFError):
            sleeper.commit(world.asleep, late, INFO, BLIND)

    def end() -> None:
        raise EOFError  # before it sees that its commit counts for nobody

    reader = LogReader(Stepped(world.store, before, clean_up_and_wake))
    try:
        found = reader.at_version(3)
    except VersionNotFound:
        return
    assert "_lakebed/late.parquet" not in found.parts
