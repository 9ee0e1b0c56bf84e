"""Those who maintain the table: settlers, replicas that merge, cleanups, and who handles whole partitions."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, MergeResult, Progress
from lakebed.compaction.recluster_job import ReclusterJob
from lakebed.compaction.replicate import Replication
from lakebed.compaction.settle import SettleResult, settle
from lakebed.compaction.volatile import VolatileMerger
from lakebed.errors import Cancelled, Corrupt, InvalidInput, Retry, StoreUnavailable, VersionNotFound
from lakebed.log.holds import trim_log
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.merge.materialized import LocalParts, overlay
from lakebed.operations.cleanup import (
    BackgroundCleanup,
    expire_snapshots,
    remove_orphan_files,
    time_of_cleaning,
    vacuum,
)
from lakebed.operations.partitions import Partitions
from lakebed.operations.references import hold
from lakebed.operations.region import detached_of
from lakebed.operations.restore import restore
from lakebed.operations.time_to_live import RowExpiry
from lakebed.parts.changes import WriteSpec
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.planning.plan import Goal
from lakebed.planning.settling import UploadRules
from lakebed.storage.part_storage import PartStorage
from tests.simulation.actors import PARTITIONS, Cast, Poison, forgive, rest
from tests.simulation.auditor import RETENTION_SECONDS
from tests.simulation.files import Locator, SimulatedStorage, decode, live_rows, merge_rows
from tests.simulation.stand_ins import old_before
from tests.simulation.world import Actor, Crash

LEASE_SECONDS = 40
DISK_LOST, DISK_DAMAGED = 0.1, 0.1  # of the starts of a replica
DAY_SECONDS = 86_400


def settle_all(log: TableLog, storage: SimulatedStorage, changes_max: int = 1000) -> SettleResult:
    """Settle as a table does."""
    locator = Locator(storage)
    return settle(
        log,
        storage,
        DeletionVectorCache(storage),
        lambda spec: locator,
        lambda part, rows: None,
        changes_max=changes_max,
    )


def settler(cast: Cast) -> Callable[[Actor], None]:
    """Settles what is in the tail, in pieces of several sizes."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            try:
                settle_all(log, storage, cast.world.random.choice((1, 8, 1000)))
            except (Retry, FileNotFoundError, Corrupt) as error:
                forgive(error)
            rest(cast, actor, 6)

    return live


def replica(cast: Cast) -> Callable[[Actor], None]:
    """Merges as a replica does: claims, works, carries over what died meanwhile, commits. Between any two steps it may
    crash, be overtaken, or give up.
    """

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        lease_seconds = cast.world.random.choice((LEASE_SECONDS, LEASE_SECONDS, 10 * RETENTION_SECONDS))
        merger = Merger(
            log, storage, DeletionVectorCache(storage), actor.name, lambda: cast.world.clock(actor), lease_seconds
        )
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            try:
                if cast.world.random.random() < 0.1:
                    merger.tidy()
                else:
                    merge_some(cast, actor, log, storage, merger)
            except (Retry, Cancelled, FileNotFoundError, Corrupt) as error:
                forgive(error)

    return live


def reclusterer(cast: Cast) -> Callable[[Actor], None]:
    """Runs recluster jobs of one round and of all, and stops some of them."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        merger = Merger(
            log, storage, DeletionVectorCache(storage), actor.name, lambda: cast.world.clock(actor), LEASE_SECONDS
        )

        # One merge of the job is over when the next one begins.
        kernel = _Kernel(cast, actor, storage, merger.replica, begin=partial(cast.world.begin_anew, actor))
        random = cast.world.random
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            final, patience = random.random() < 0.5, random.choice((0.01, 0.1))
            try:
                stop = partial(_stops, cast, patience)
                result = ReclusterJob(
                    "simulated", log, storage, where=None, final=final, on_progress=None, stop=stop
                ).run(merger, kernel)
                cast.world.counts["reclustered parts"] += result.parts_in
                cast.world.counts["jobs finished"] += final and result.finished
                if final and result.finished:
                    cast.world.note(actor.name, f"left nothing to recluster: {dict(result.depth_after)}")
            except (Retry, Cancelled, FileNotFoundError, Corrupt) as error:
                forgive(error)
            except InvalidInput as error:
                assert "neither a sort key nor keys" in str(error)
            rest(cast, actor, 20)

    return live


def _stops(cast: Cast, patience: float) -> bool:
    return cast.world.closing or cast.world.random.random() < patience


def volatile_replica(cast: Cast, host: str, on_host: int) -> Callable[[Actor], None]:
    """Merges to its local disk and uploads now and then. When it starts, the disk may be lost or damaged.

    ``on_host``: how many replicas share the host.
    """

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        base = cast.folder / host
        if on_host == 1:
            _treat_disk(cast, actor, base)
        try:
            merger = VolatileMerger(
                log, storage, DeletionVectorCache(storage), base, lambda: cast.world.clock(actor), LEASE_SECONDS
            )
        except Retry:
            return
        places = sorted(os.listdir(base))
        assert len(places) <= on_host, f"{on_host} replicas have the places {places} on {host}"
        cast.world.counts["taken up"] += len(merger.held())
        try:
            while not cast.world.closing and cast.world.random.random() > 0.03:
                cast.world.begin_anew(actor)
                _work(cast, actor, log, storage, merger)
            merger.close()
        except Retry:
            pass
        finally:
            if merger._lock_file >= 0:
                os.close(merger._lock_file)  # as when its process ends

    return live


def replicating_reader(cast: Cast) -> Callable[[Actor], None]:
    """Builds on a host of its own what volatile replicas merge on theirs, and reads the newest version and old ones with it.

    When it starts, its disk may be lost or damaged.
    """

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        local = LocalParts(cast.folder / "host of readers")
        _treat_disk(cast, actor, local.base)
        replication = Replication(log, storage, DeletionVectorCache(storage), local, lambda: cast.world.clock(actor))
        try:
            while not cast.world.closing and cast.world.random.random() > 0.02:
                rest(cast, actor, 3)
                cast.world.begin_anew(actor)
                try:
                    newest = log.refresh() if cast.world.random.random() < 0.8 else log.newest
                    built = replication.look(_Copies(cast, actor, storage))
                    cast.world.counts["replicated"] += built is not None
                    _require_no_purged_rows(cast, local, -1 if newest is None else newest.version)
                    _require_same_rows(cast, log, storage, local)
                except (Retry, Cancelled, FileNotFoundError, Corrupt, VersionNotFound) as error:
                    if "materialized part" not in str(error):
                        forgive(error)
        finally:
            replication.close()  # as when its process ends

    return live


def _require_same_rows(cast: Cast, log: TableLog, storage: SimulatedStorage, local: LocalParts) -> None:
    """B2: who reads replicated parts in place of their sources sees the same rows, at any version."""
    if not local.load():
        return
    random, deletion_vectors = cast.world.random, DeletionVectorCache(storage)
    newest = log.refresh()
    for version in (newest.version, *(max(0, newest.version - random.randint(0, 12)) for _ in range(2))):
        snapshot = log.at_version(version)
        seen, substitutes = overlay(snapshot, local.load(), deletion_vectors.of)
        shown = {row.key: row for row in cast.auditor.told(version, live_rows(seen, storage, deletion_vectors))}
        expected = cast.auditor.visible(version, cast.auditor.tables[version])
        assert shown == expected, f"B2: with replicated parts {version} shows {shown}, not {expected}"
        cast.world.counts["replicated read"] += bool(substitutes)
        cast.world.counts["replicated read of an old version"] += bool(substitutes) and version < newest.version
        cast.world.counts["replicated rows died"] += any(substitute.dead for substitute in substitutes.values())


def _require_no_purged_rows(cast: Cast, local: LocalParts, version: int) -> None:
    """No file on the disk, used or not, has rows that a purge had taken out when the replica last looked."""
    gone = cast.auditor.purges.gone_before(version)
    for place in local.base.rglob("*.parquet"):
        left = [row for row in decode(place.read_bytes()) if row.value in gone]
        assert not left, f"purge: the local file {place.name} still has {left} at version {version}"


@dataclass(frozen=True)
class _Copies:
    """Merges with dictionaries while others go on, for no claim of its own."""

    cast: Cast
    actor: Actor
    storage: SimulatedStorage

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        world = self.cast.world
        merged = merge_rows(sources, spec, output, self.storage, world.random.choice((4, 1000)))
        for _ in range(world.random.choice((0, 2, 5, 40))):
            world.pause(self.actor)
            world.may_crash(self.actor, "while it replicates")
        if world.random.random() < 0.05:
            raise Cancelled
        return merged


def _treat_disk(cast: Cast, actor: Actor, base: os.PathLike[str]) -> None:
    draw = cast.world.random.random()
    if cast.world.closing or not os.path.isdir(base):
        return
    if draw < DISK_LOST:
        cast.world.note(actor.name, "its local disk is lost")
        shutil.rmtree(base)
    elif draw < DISK_LOST + DISK_DAMAGED:
        places = sorted(os.path.join(at, name) for at, _, names in os.walk(base) for name in names)
        damaged = [place for place in places if place.endswith(".parquet")]
        if damaged:
            cast.world.note(actor.name, "a file on its local disk is damaged")
            with open(cast.world.random.choice(damaged), "wb") as file:
                file.write(b"[]")


def _work(cast: Cast, actor: Actor, log: TableLog, storage: SimulatedStorage, merger: VolatileMerger) -> None:
    draw = cast.world.random.random()
    try:
        if draw < 0.45:
            merge_some(cast, actor, log, storage, merger)
        elif draw < 0.8:
            for result in merger.upload_due(
                UploadRules(age_seconds=cast.world.random.choice((0, 60)), local_bytes_max=200)
            ):
                cast.world.counts[f"upload {result.outcome.value}"] += 1
                cast.world.counts["carried"] += result.carried_rows
        elif draw < 0.95:
            merger.extend()
        else:
            merger.tidy()
        _check_overlay(cast, log, storage, merger)
    except (Retry, Cancelled, FileNotFoundError, Corrupt) as error:
        if "materialized part" not in str(error):
            forgive(error)


def _check_overlay(cast: Cast, log: TableLog, storage: SimulatedStorage, merger: VolatileMerger) -> None:
    """B2: who reads materialized parts in place of their sources sees the same rows."""
    if not merger.held():
        return
    snapshot, deletion_vectors = log.refresh(), DeletionVectorCache(storage)
    seen, substitutes = overlay(snapshot, merger.held(), deletion_vectors.of)
    rows = cast.auditor.told(snapshot.version, live_rows(seen, storage, deletion_vectors))
    shown = {row.key: row for row in rows}
    expected = cast.auditor.visible(snapshot.version, cast.auditor.tables[snapshot.version])
    assert shown == expected, f"B2: the overlay of {snapshot.version} shows {shown}, not {expected}"
    cast.world.counts["overlay"] += bool(substitutes)


def merge_some(
    cast: Cast, actor: Actor, log: TableLog, storage: SimulatedStorage, merger: Merger | VolatileMerger
) -> None:
    """Merge a few parts that nobody else has claimed, as far as is known."""
    snapshot = log.refresh()
    view = cast.world.random.choice(merger.views(snapshot, int(cast.world.clock(actor) * 1000)))
    seen, run = view.snapshot, merger.run
    if isinstance(merger, VolatileMerger) and view.goal is not Goal.HERE:
        run = merger.run_and_upload
    chosen = _chosen(cast, seen, view.claimed)
    if not chosen:
        cast.world.pause(actor)
        return

    kernel = _Kernel(cast, actor, storage, merger.replica)
    result: MergeResult = run(chosen, 1 + max(seen.parts[path].level for path in chosen), kernel)
    cast.world.counts[f"{'local ' if result.local else ''}merge {result.outcome.value}"] += 1
    cast.world.counts["carried"] += result.carried_rows
    cast.world.note(actor.name, f"merge of {len(chosen)} parts {result.outcome.value}")
    assert result.outcome is not MergeOutcome.COMPLETED or result.version in cast.auditor.states


@dataclass(frozen=True)
class _Kernel:
    """Merges with dictionaries, while others go on, and now and then stops. ``begin``: what happens first."""

    cast: Cast
    actor: Actor
    storage: SimulatedStorage
    replica: str
    begin: Callable[[], None] = lambda: None

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        self.begin()
        world, actor = self.cast.world, self.actor
        if self.cast.poison is not None:
            self._taste(self.cast.poison, sorted(source.part.path for source in sources))
        claim, beat = self.cast.beats[self.replica]
        actor.claim, actor.claimed_until = claim.domain, claim.lease_ms / 1000 - 2 * world.skew_seconds
        rows_max = world.random.choice((4, 1000))
        work = partial(merge_rows, sources, spec, output, self.storage, rows_max)
        merged = work() if world.random.random() < 0.5 else None
        for _ in range(world.random.choice((0, 2, 5, 40))):
            world.pause(actor)
            world.may_crash(actor, "while it merges")
            if world.random.random() < 0.05:
                beat()
        if world.random.random() < 0.1:
            raise Cancelled
        return work() if merged is None else merged

    def _taste(self, poison: Poison, paths: Sequence[str]) -> None:
        """A merge of the part kills its process. It is tried a few times, then once each time that it was parked."""
        world, actor, now_ms = self.cast.world, self.actor, int(self.cast.world.clock(self.actor) * 1000)
        domains = self.cast.auditor.newest.domains
        failing = [json.loads(text) for name, text in domains.items() if name.startswith("lakebed.failing.")]
        ends = [each["not_before_ms"] for each in failing if poison.path in each["sources"]]
        is_parked = any(now_ms < end <= now_ms + 1000 * DAY_SECONDS for end in ends)
        if not poison.path and not world.closing:
            poison.path = paths[0]
        if poison.path not in paths:
            world.counts["merges beside a parked part"] += is_parked
            return
        assert not is_parked, f"{actor.name} merges a part that is parked"
        if ends:
            assert max(ends) not in poison.parked, f"{poison.path}, which kills, is tried again without a pause"
            poison.parked.add(max(ends))
            world.counts["poison after its time"] += 1
        else:
            day = [each for each in poison.attempts if now_ms / 1000 - each < DAY_SECONDS / 2]
            assert len(day) < 3, f"{poison.path}, which kills, is tried more than three times"
            poison.attempts.append(now_ms / 1000)
        world.counts["poison"] += 1
        world.note(actor.name, f"CRASH by {poison.path}")
        actor.crashed = True
        raise Crash


def _chosen(cast: Cast, seen: Snapshot, taken: frozenset[str]) -> list[str]:
    random = cast.world.random
    # Now and then it does not look who else is at work.
    free = sorted(path for path in seen.parts if path not in taken or random.random() < 0.1)
    if not free:
        return []
    values = seen.parts[random.choice(free)].partition_values
    if cast.poison is not None and cast.poison.path in free and random.random() < 0.9:
        return [cast.poison.path]
    free = [path for path in free if seen.parts[path].partition_values == values]
    return sorted(random.sample(free, min(len(free), random.randint(1, 4))))


def partitioner(cast: Cast) -> Callable[[Actor], None]:
    """Truncates, detaches, attaches, drops and replaces. Others may do the same at the same time."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        locator = Locator(storage)
        partitions = Partitions(
            log,
            storage,
            DeletionVectorCache(storage),
            lambda: settle_all(log, storage),
            lambda spec: locator,
            lambda: cast.world.clock(actor),
        )
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            try:
                _handle(cast, log, partitions)
            except (Retry, FileNotFoundError, Corrupt) as error:
                forgive(error)
            except InvalidInput as error:
                cast.world.counts["refused"] += 1
                cast.world.note(actor.name, f"is refused: {error}")
            rest(cast, actor, 16)

    return live


def _handle(cast: Cast, log: TableLog, partitions: Partitions) -> None:
    random = cast.world.random
    if random.random() < 0.04:
        partitions.truncate()
    if not cast.partitioned:
        return
    columns = log.refresh().columns  # by the time of the command they may have other names: then it is refused
    partition = {columns.logical_name("p"): random.choice(PARTITIONS)}
    names = sorted(detached_of(log.refresh()))
    draw = random.random()
    if names and draw < 0.45:
        partitions.attach(random.choice(names))
    elif names and draw < 0.65:
        cast.world.counts["files dropped"] += partitions.drop(random.choice(names))
    elif draw < 0.85:
        partitions.detach(partition)
    else:
        [name] = partition.values()
        rows = [row._replace(partition=name) for row in cast.new_rows(with_deletes=False)]
        values = {
            "k": [row.key for row in rows],
            "p": [row.partition for row in rows],
            "v": [row.value for row in rows],
        }
        partitions.replace(partition, pa.table({columns.logical_name(at): each for at, each in values.items()}))


def restorer(cast: Cast) -> Callable[[Actor], None]:
    """Makes an earlier version the newest, some of them while a reader holds it, others when it has expired."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        random = cast.world.random
        while not cast.world.closing:
            rest(cast, actor, 40)
            try:
                newest = log.refresh().version
                version = random.choice((newest - 1, newest - random.randint(0, 12), random.randint(0, newest)))
                with hold(log, version, 60) if random.random() < 0.3 else nullcontext():
                    restored = restore(log, storage, log.at_version(max(0, version)), lambda: cast.world.clock(actor))
                cast.world.note(actor.name, f"restores {version} in {restored}")
            except (VersionNotFound, InvalidInput) as error:
                cast.world.note(actor.name, f"can't restore: {error}")
            except (Retry, FileNotFoundError, Corrupt) as error:
                forgive(error)

    return live


def row_expiry(log: TableLog, storage: SimulatedStorage) -> RowExpiry:
    """What removes old rows, as a table has it."""
    return RowExpiry(log, storage, DeletionVectorCache(storage), lambda spec: Locator(storage))


def expirer(cast: Cast) -> Callable[[Actor], None]:
    """Removes old rows: of whole parts, or all of them."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        expiry = row_expiry(log, storage)
        while not cast.world.closing:
            rest(cast, actor, 20)
            try:
                if cast.world.random.random() < 0.5:
                    expiry.run_due()
                else:
                    cast.world.counts["parts with old rows"] += len(expiry.expire(dry_run=False))
            except (Retry, FileNotFoundError, Corrupt) as error:
                forgive(error)

    return live


def caretaker(cast: Cast) -> Callable[[Actor], None]:
    """Writes checkpoints and cleans the log."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        for _ in range(6):
            if cast.world.closing:
                return
            try:
                snapshot = log.refresh()
                cast.auditor.require(snapshot, f"{actor.name} refreshed")
                log.write_checkpoint(snapshot)
                if cast.world.random.random() < 0.7:
                    trim_log(log, cast.auditor.log_retention_seconds, time_of_cleaning(log, storage))
            except StoreUnavailable:
                pass
            rest(cast, actor, 24)

    return live


def cleaner(cast: Cast) -> Callable[[Actor], None]:
    """Deletes files of versions that have expired, and files without a name, in every way there is."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        tidy_up = BackgroundCleanup(log, storage, lambda: cast.world.now)
        while not cast.world.closing:
            began = cast.auditor.newest.version
            seconds = cast.world.random.choice((RETENTION_SECONDS, 2 * RETENTION_SECONDS))
            clean_up = cast.world.random.choice((vacuum, expire_snapshots, remove_orphan_files, None))
            try:
                if clean_up is None:
                    tidy_up.run_once()
                else:
                    clean_up(log, storage, seconds, dry_run=False)
                cast.world.counts["cleanup"] += 1
            except Retry:
                pass
            except VersionNotFound:
                cast.world.counts["cleanup lost a version"] += 1
            except Corrupt as error:
                assert str(error).startswith("no version that is kept refers to a file"), str(error)
                seen = range(began, cast.auditor.newest.version + 1)
                assert not all(cast.auditor.names(version) for version in seen), str(error)
            rest(cast, actor, 30)

    return live


def clock(cast: Cast) -> Callable[[Actor], None]:
    """Lets the clock jump."""

    def live(actor: Actor) -> None:
        while not cast.world.closing:
            rest(cast, actor, 60)
            cast.world.jump(
                actor, cast.world.random.choice((LEASE_SECONDS * 3, RETENTION_SECONDS + 60, 5 * DAY_SECONDS))
            )

    return live


def put_in_order(cast: Cast, log: TableLog, storage: SimulatedStorage) -> None:
    """What is left to do when all have gone: with it, nothing may remain that nobody needs."""
    world = cast.world
    world.now += 4 * DAY_SECONDS
    Merger(log, storage, DeletionVectorCache(storage), "the last", lambda: world.now, LEASE_SECONDS).tidy()
    if cast.keyed:
        settle_all(log, storage)
    if cast.expires:
        row_expiry(log, storage).expire(dry_run=False)
        assert not len(row_expiry(log, storage).expire(dry_run=True)), (
            "old rows are left though nothing changes any more"
        )
        oldest = min((row.value or 0 for row in cast.auditor.tables[log.refresh().version].values()), default=None)
        assert oldest is None or oldest >= old_before(world), f"a row of {oldest} has outlived {old_before(world)}"
    vacuum(log, storage, RETENTION_SECONDS, dry_run=False)
    world.now += 16 * DAY_SECONDS  # all holds have ended
    vacuum(log, storage, RETENTION_SECONDS, dry_run=False)
    remove_orphan_files(log, storage, RETENTION_SECONDS, dry_run=False)
