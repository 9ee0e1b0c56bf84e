"""Those who write and read the table: what each does in one life, from its start to its end or its crash.

An actor keeps in memory only what a process would: a crash loses it. What a process finds again on disk (the batch that
a streaming query had begun) is kept in ``Disk``. Those who maintain the table are in ``maintainers``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pyarrow as pa

from lakebed.errors import Corrupt, InvalidInput, InvalidSchema, Retry, StoreUnavailable, VersionNotFound
from lakebed.log.actions import Action, AddChangePart, AddPart, CommitInfo, Domain, Transaction
from lakebed.log.claims import Claim
from lakebed.log.conflicts import BLIND, ConflictKind, ReadWriteSet
from lakebed.log.removals import fence_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import LogStore
from lakebed.log.table_log import GATE_FEATURE, Committed, Conflicted, Outcome, TableLog, Unknown
from lakebed.operations.alter import alter, set_sort_key
from lakebed.operations.mutate import mutate_unkeyed
from lakebed.operations.mutate_keyed import mutate
from lakebed.operations.references import hold
from lakebed.parts.changes import write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.schema.change import SchemaChange
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import FORMAT, Metadata, Protocol
from lakebed.schema.widening import widening
from lakebed.settings import FORMAT_PROPERTY
from lakebed.sql import Expression
from tests.simulation.auditor import COUNTED_DOMAIN, COUNTED_PROPERTY, RETENTION_SECONDS, Auditor
from tests.simulation.columns import LIMITS
from tests.simulation.files import CORE, Objects, Row, SimulatedStorage, by_partition
from tests.simulation.stand_ins import VALUES, Change
from tests.simulation.world import Actor, FailingStore, World

KEYS = 24
ROWS_MAX = 6
PARTITIONS = ("a", "b", "c")
SCHEMA = schema_to_json(pa.schema([pa.field("k", pa.int64(), nullable=False), ("p", pa.string()), ("v", pa.int64())]))


@dataclass
class Disk:
    """What survives a crash of one writer: the batch it had begun, and whether it was told that it is committed."""

    batch: int = 0
    acknowledged: int = -1


@dataclass
class Poison:
    """A part whose merges kill their process; "" until one is chosen. ``attempts``: the clocks of the processes, in seconds.

    ``parked``: the ends of the times for which it was parked, that a process found to be over.
    """

    path: str = ""
    attempts: list[float] = field(default_factory=list)
    parked: set[int] = field(default_factory=set)


@dataclass
class Cast:
    """The world, the auditor, the stores, and what kind of table it is."""

    world: World
    auditor: Auditor
    objects: Objects
    log_files: LogStore
    folder: Path  # local disks
    keyed: bool
    partitioned: bool
    replicating: bool = False
    beats: dict[str, tuple[Claim, Callable[[], object]]] = field(default_factory=dict)  # by replica: see ``installed``
    disks: dict[str, Disk] = field(default_factory=dict)
    serial: int = 0
    poison: Poison | None = None

    def open(self, actor: Actor) -> tuple[TableLog, SimulatedStorage]:
        """The table as an actor opens it."""
        world = self.world
        store = FailingStore(self.log_files, world, actor, self.auditor.landed, self.auditor.gone)
        log = TableLog(store, clock=lambda: world.clock(actor), sleep=lambda seconds: world.sleep(actor, seconds))
        return log, SimulatedStorage(self.objects, world, actor, self.auditor, self.log_files, self.folder)

    @property
    def expires(self) -> bool:
        """Whether rows have a time to live; drawn apart, so that other worlds stay as they were."""
        return Random(-1 - self.world.seed).random() < 0.35

    def next_serial(self) -> int:
        self.serial += 1
        return self.serial

    def new_rows(self, with_deletes: bool) -> list[Row]:
        """Changes of some keys; a table without keys gets rows that it has not had."""
        random, rows = self.world.random, []
        keys = random.sample(range(KEYS), random.randint(1, ROWS_MAX))
        for key in keys:
            serial = self.next_serial()
            partition = random.choice(PARTITIONS) if self.partitioned else None
            deletes = with_deletes and self.keyed and random.random() < 0.25
            rows.append(Row(key if self.keyed else serial, partition, None if deletes else serial))
        return rows


def create(cast: Cast, log: TableLog) -> None:
    """Write version 0."""
    protocol = Protocol(
        3,
        7,
        frozenset({"deletionVectors"}),
        frozenset({"deletionVectors", "domainMetadata", "appendOnly", "invariants", GATE_FEATURE}),
    )
    properties = {
        "delta.enableDeletionVectors": "true",
        FORMAT_PROPERTY: str(FORMAT),
        "delta.deletedFileRetentionDuration": f"interval {RETENTION_SECONDS} seconds",
        "lakebed.log_retention": f"interval {cast.auditor.log_retention_seconds} seconds",
        **({"lakebed.replicate_local": "on"} if cast.replicating else {}),
    }
    properties |= {
        "lakebed.target_part_bytes": "120",
        "lakebed.plan_bytes_max": "400",
        "lakebed.recluster_depth": cast.world.random.choice(("1", "2", "50%")),
    }
    if cast.expires:
        properties["lakebed.ttl"] = "v: 1 days"
    if cast.keyed:
        properties["lakebed.keys"] = '["k"]'
    metadata = Metadata(
        id="simulated",
        schema_string=SCHEMA,
        partition_columns=("p",) if cast.partitioned else (),
        configuration=properties,
    )
    outcome = log.create([protocol, metadata], CommitInfo(operation="CREATE TABLE", commit_id=""))
    assert isinstance(outcome, Committed)


def writer(cast: Cast, app: str) -> Callable[[Actor], None]:
    """Appends the batches of a streaming query one after the other; after a crash it replays the one it had begun.

    Two actors may run the same query, as when a driver that was given up goes on beside its successor.
    """

    def live(actor: Actor) -> None:
        disk = cast.disks.setdefault(app, Disk())
        log, storage = cast.open(actor)
        while not (cast.world.closing and disk.acknowledged == disk.batch):
            cast.world.begin_anew(actor)
            if disk.acknowledged == disk.batch:
                disk.batch += 1
            number = disk.batch
            outcome = _append(cast, log, storage, actor, Transaction(app, number))
            match outcome:
                case Committed(version, _):
                    assert cast.auditor.states[version].transactions[app] == number
                    disk.acknowledged = max(disk.acknowledged, number)
                case Conflicted(conflict, _) if conflict.kind is ConflictKind.BATCH:
                    assert cast.auditor.holds((app, number)), f"batch {number} is called committed but is not"
                    disk.acknowledged = max(disk.acknowledged, number)
                case _:
                    pass  # the same batch is tried again

    return live


def plain_writer(cast: Cast) -> Callable[[Actor], None]:
    """Appends without a batch id: what it wrote must stand once, though nothing but the commit's own id can tell."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            outcome = _append(cast, log, storage, actor, None)
            if isinstance(outcome, Conflicted):
                assert outcome.conflict.kind is ConflictKind.METADATA, f"a blind append gave way to {outcome.conflict}"
            rest(cast, actor, 8)

    return live


def sleeper(cast: Cast) -> Callable[[Actor], None]:
    """Appends to the version that it saw long ago, which may have left the log since."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            with suppress(StoreUnavailable):
                known = log.refresh()
                for _ in range(cast.world.random.randrange(60)):
                    cast.world.pause(actor)
                _append(cast, log, storage, actor, None, known)

    return live


def _append(
    cast: Cast,
    log: TableLog,
    storage: SimulatedStorage,
    actor: Actor,
    batch: Transaction | None,
    known: Snapshot | None = None,
) -> Outcome | None:
    try:
        seen = known or log.refresh()
        spec = write_spec_of(seen)  # the sort key may change before the commit
        written = []
        for piece in by_partition(cast.new_rows(with_deletes=True)):
            rows, meant = _with_columns(cast, piece, seen)
            written.append(storage.write_rows(rows, spec))
            cast.auditor.meant[written[-1].path] = meant, seen.version
        if batch:
            cast.auditor.batches.update((part.path, (batch.app_id, batch.version)) for part in written)
        actions: list[Action] = [
            AddChangePart(part.change_part(ordinal)) if cast.keyed else AddPart(part.base_part(has_op_column=False))
            for ordinal, part in enumerate(written)
        ]
        snapshot = known or log.refresh()
        if fence_of(seen.domains) != fence_of(snapshot.domains):
            snapshot = seen  # so the purge is met as a conflict
        if not (cast.auditor.columns[seen.version].alive <= cast.auditor.columns[snapshot.version].alive):
            snapshot = seen  # so the drop is met as a conflict
        outcome = log.commit(
            snapshot, actions, CommitInfo(operation="WRITE", commit_id="", blind_append=True), BLIND, batch
        )
    except StoreUnavailable:
        return None
    check(cast, actor, outcome)
    return outcome


def _with_columns(cast: Cast, rows: Sequence[Row], snapshot: Snapshot) -> tuple[list[Row], tuple[Row, ...]]:
    """Rows with values in the further columns that a writer sees: as they go into the file, and as the oracle has them."""
    lines, columns, random = cast.auditor.columns[snapshot.version].lines, snapshot.columns, cast.world.random
    written, meant = [], []
    for row in rows:
        values = {}
        for name in columns.logical.names:
            line, kind = lines[name]
            if line not in CORE and row.value is not None and random.random() < 0.8:
                values[name] = random.choice((1, -1)) * (LIMITS[kind] - random.randint(1, 9))
        written.append(
            row._replace(extra=tuple(sorted((columns.stored_name(name), each) for name, each in values.items())))
        )
        meant.append(row._replace(extra=tuple(sorted((lines[name][0], each) for name, each in values.items()))))
    return written, tuple(meant)


def alterer(cast: Cast) -> Callable[[Actor], None]:
    """Changes the columns: adds, widens, renames, drops, drops and adds again, swaps names. Others may do so at the same time."""

    def live(actor: Actor) -> None:
        log, _ = cast.open(actor)
        while not cast.world.closing:
            try:
                before = log.refresh()
                change = _some_change(cast, before)
                result = alter(log, change)
                cast.world.note(actor.name, f"alters {change.to_json()} in {result.version}")
                cast.world.counts["altered"] += result.changed
                names = set(log.refresh().logical_schema.names)
                others = cast.auditor.newest.version > result.version
                assert others or names >= {*change.add, *change.rename.values()}, f"{change} did not hold: {names}"
            except InvalidSchema as error:
                cast.world.note(actor.name, f"can't alter: {error}")
                cast.world.counts["can't alter"] += 1
            except Retry:
                pass
            rest(cast, actor, 14)

    return live


def _some_change(cast: Cast, snapshot: Snapshot) -> SchemaChange:
    random, columns = cast.world.random, snapshot.columns
    names = list(columns.logical.names)
    extras = [name for name in names if columns.stored_name(name) not in CORE]
    fresh = [name for name in ("a", "b", "c", "key", "value") if name not in names]
    draw = random.random()
    if extras and draw < 0.15:
        return SchemaChange(drop=(random.choice(extras),))
    if extras and draw < 0.3:
        again = random.choice(extras)
        return SchemaChange(drop=(again,), add={again: random.choice(_KINDS)})
    if extras and draw < 0.45:
        wide = random.choice(extras)
        kinds = [each for each in _KINDS if widening(columns.logical.field(wide).type, each)]
        return SchemaChange(widen={wide: random.choice(kinds)} if kinds else {}, comment={wide: str(draw)})
    if fresh and draw < 0.65:
        return SchemaChange(rename={random.choice(names): random.choice(fresh)})
    if draw < 0.75:
        one, other = random.sample(names, 2)
        return SchemaChange(rename={one: other, other: one})
    if fresh and len(extras) < 3:
        return SchemaChange(add={random.choice(fresh): random.choice(_KINDS)})
    return SchemaChange(comment={random.choice(names): str(draw)})


_KINDS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())


def mutator(cast: Cast) -> Callable[[Actor], None]:
    """Deletes and updates rows by what is in them."""

    def live(actor: Actor) -> None:
        log, storage = cast.open(actor)
        while not cast.world.closing:
            cast.world.begin_anew(actor)
            _mutate(cast, actor, log, storage)
            rest(cast, actor, 10)

    return live


def _mutate(cast: Cast, actor: Actor, log: TableLog, storage: SimulatedStorage) -> None:
    number, remainder = cast.next_serial(), cast.world.random.randrange(4)
    assignments = {"v": Expression("an expression", {})} if cast.world.random.random() < 0.5 else None
    where = Expression(f"m{number}", {})
    mutation = Change(where, assignments, matches=lambda row: (row.value or 0) % 4 == remainder, number=number)
    assert number < VALUES
    called = cast.auditor.newest.version
    cast.auditor.mutations[mutation.where.text] = mutation, called
    try:
        if cast.keyed:
            result = mutate(log, storage, lambda *_: None, mutation)  # type: ignore[arg-type]
        else:
            result = mutate_unkeyed(log, storage, DeletionVectorCache(storage), mutation)
    except (Retry, FileNotFoundError, Corrupt) as error:
        forgive(error)
        return
    cast.world.note(actor.name, f"{mutation.operation} {result.rows} rows in {result.version}")
    if not result.rows:
        left = cast.auditor.left_over(mutation, called, result.version)
        assert not left, f"a mutation says that nothing matches in {result.version}, but {left} do"


def setter(cast: Cast) -> Callable[[Actor], None]:
    """Counts up a property and a domain: each says one more than what was read, so an update that is lost shows."""

    def live(actor: Actor) -> None:
        log, _ = cast.open(actor)
        while not cast.world.closing:
            try:
                snapshot = log.refresh()
                if cast.world.random.random() < 0.5:
                    domain = Domain(COUNTED_DOMAIN, str(int(snapshot.domains.get(COUNTED_DOMAIN, 0)) + 1))
                    outcome = log.commit(
                        snapshot, [domain], CommitInfo(operation="SET", commit_id=""), ReadWriteSet(whole_table=True)
                    )
                else:
                    counted = int(snapshot.metadata.configuration.get(COUNTED_PROPERTY, 0)) + 1
                    configuration = {**snapshot.metadata.configuration, COUNTED_PROPERTY: str(counted)}
                    metadata = replace(snapshot.metadata, configuration=configuration)
                    outcome = log.commit(snapshot, [metadata], CommitInfo(operation="SET", commit_id=""), BLIND)
                check(cast, actor, outcome)
            except StoreUnavailable:
                pass
            rest(cast, actor, 12)

    return live


def sorter(cast: Cast) -> Callable[[Actor], None]:
    """Changes the sort key now and then."""

    def live(actor: Actor) -> None:
        log, _ = cast.open(actor)
        while not cast.world.closing:
            with suppress(Retry):
                stored = cast.world.random.choice((["v"], ["k"], ["v", "k"], ["k", "v"], []))
                with suppress(InvalidInput):  # a column has another name by now
                    set_sort_key(log, log.refresh().columns.logical_names(stored))
            rest(cast, actor, 30)

    return live


def reader(cast: Cast) -> Callable[[Actor], None]:
    """Reads the newest version and old ones, long-lived and freshly opened."""

    def live(actor: Actor) -> None:
        log, _ = cast.open(actor)
        for _ in range(8):
            if cast.world.closing:
                return
            floor = cast.auditor.newest.version
            try:
                snapshot = log.refresh()
                cast.auditor.require(snapshot, f"{actor.name} refreshed")
                has_left = snapshot.version not in cast.auditor.commits_kept  # then it is noticed within a minute
                assert snapshot.version >= floor or has_left, f"{actor.name} got {snapshot.version} after {floor} stood"
                wanted = cast.world.random.randint(0, snapshot.version)
                readable = cast.auditor.oldest_readable()
                try:
                    old = log.at_version(wanted)
                    assert old.version == wanted
                    cast.auditor.require(old, f"{actor.name} asked for {wanted}")
                except VersionNotFound:
                    readable = max(readable, cast.auditor.oldest_readable())
                    assert wanted < readable, f"version {wanted} was refused, but is kept (from {readable} on)"
            except StoreUnavailable:
                pass
            rest(cast, actor, 8)

    return live


def holder(cast: Cast, patient: bool = False) -> Callable[[Actor], None]:
    """Holds a version for a while: it stays readable, whatever the clock does, until the hold ends.

    ``patient``: it holds what is newest, for long. If it dies meanwhile, the hold is there until the world is put in order.
    """
    lengths, looks = ((10**6,), (8,)) if patient else ((60, 900, 10**6), (1, 3, 6))

    def live(actor: Actor) -> None:
        log, _ = cast.open(actor)
        while not cast.world.closing:
            try:
                newest = log.refresh().version
                oldest = max(
                    cast.auditor.oldest_readable(), cast.auditor.mark()
                )  # what a cleanup is most likely to want
                version = oldest if cast.world.random.random() < 0.6 else cast.world.random.randint(0, newest)
                if patient:
                    version = newest
                seconds = cast.world.random.choice(lengths)
                until = cast.world.now + seconds - 2 * cast.world.skew_seconds
                with hold(log, version, seconds):
                    cast.world.counts["held"] += 1
                    for _ in range(cast.world.random.choice(looks)):
                        rest(cast, actor, 8)
                        _read_held(cast, actor, log, version, until)
            except (Retry, VersionNotFound):
                pass
            rest(cast, actor, 10)

    return live


def _read_held(cast: Cast, actor: Actor, log: TableLog, version: int, until: float) -> None:
    try:
        snapshot = log.at_version(version)
    except VersionNotFound as error:
        assert cast.world.now >= until, f"G1: version {version} is held, but can't be read: {error}"
    else:
        cast.auditor.require(snapshot, f"{actor.name} holds {version}")
        lost = cast.auditor.names(version) - cast.objects.data.keys()
        assert not lost or cast.world.now >= until, f"G1: version {version} is held, but lacks {sorted(lost)}"


def forgive(error: Exception) -> None:
    """An error that is allowed: the next time it may work. A file of a version that expired while it was read is missing;
    when it was deleted, the auditor saw whether that was right.
    """
    if isinstance(error, Corrupt) and "is missing" not in str(error):
        raise error


def rest(cast: Cast, actor: Actor, steps: int) -> None:
    """Let others go on."""
    for _ in range(cast.world.random.randrange(steps)):
        cast.world.pause(actor)


def check(cast: Cast, actor: Actor, outcome: Outcome) -> None:
    """What a commit says of itself must be so."""
    match outcome:
        case Committed(version, snapshot):
            cast.world.counts["committed"] += 1
            cast.world.note(actor.name, f"committed {version}")
            cast.auditor.require(snapshot, f"{actor.name} committed")
        case Conflicted(conflict, snapshot):
            cast.world.counts["conflicted"] += 1
            cast.world.note(actor.name, f"conflicted with {conflict.version}: {conflict.kind.value}")
            cast.auditor.require(snapshot, f"{actor.name} conflicted")
        case Unknown(version, _, _):
            cast.world.counts["unknown"] += 1
            cast.world.note(actor.name, f"unknown {version}")
