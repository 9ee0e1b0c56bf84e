"""Those who share the log: what each does in one life, from its start to its end or its crash.

An actor keeps in memory only what a process would: a crash loses it. What a process finds again on disk (the batch that
a streaming query had begun) is kept in ``Disk``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pyroaring import BitMap64

from lakebed.compaction.merge import End, Merger, MergeResult, Sources
from lakebed.errors import Retry, StoreUnavailable, VersionNotFound
from lakebed.manifest.actions import (
    Action,
    AddChangePart,
    AddPart,
    ChangePart,
    CommitInfo,
    Domain,
    Metadata,
    Part,
    Protocol,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.manifest.conflicts import BLIND, ConflictKind, Touch
from lakebed.manifest.deletion_vector import inline, unpack
from lakebed.manifest.snapshot import Snapshot
from lakebed.manifest.table_log import GATE_FEATURE, Committed, Conflicted, Outcome, TableLog, Unknown
from lakebed.parts.dead_rows import DeadRows
from lakebed.parts.merge import MergedPart
from lakebed.parts.provenance import Provenance
from tests.simulation.auditor import COUNTED_DOMAIN, COUNTED_PROPERTY, ROWS, Auditor
from tests.simulation.world import Actor, World

RETENTION_SECONDS = 300
LEASE_SECONDS = 40
SCHEMA = '{"type":"struct","fields":[{"name":"k","type":"long","nullable":false,"metadata":{}}]}'


@dataclass
class Disk:
    """What survives a crash of one writer: the batch it had begun, and whether it was told that it is committed."""

    batch: int = 0
    acknowledged: int = -1


@dataclass
class Cast:
    """The world, the auditor, and how an actor opens the log."""

    world: World
    auditor: Auditor
    open_log: Callable[[Actor], TableLog]
    disks: dict[str, Disk] = field(default_factory=dict)
    files: int = 0

    def new_path(self, kind: str) -> str:
        """A name that was never used, as a uuid would be."""
        self.files += 1
        return f"_lakebed/{kind}-{self.files}.parquet"


def create(cast: Cast, log: TableLog) -> None:
    """Write version 0."""
    protocol = Protocol(
        3, 7, frozenset({"deletionVectors"}),
        frozenset({"deletionVectors", "domainMetadata", "appendOnly", "invariants", GATE_FEATURE}),
    )  # fmt: skip
    properties = {
        "delta.enableDeletionVectors": "true",
        "lakebed.keys": '["k"]',
        "lakebed.log_retention": f"{RETENTION_SECONDS} seconds",
    }
    metadata = Metadata("simulated", SCHEMA, (), properties)
    outcome = log.create([protocol, metadata], CommitInfo("CREATE TABLE", ""))
    assert isinstance(outcome, Committed)


def writer(cast: Cast, app: str) -> Callable[[Actor], None]:
    """Appends the batches of a streaming query one after the other; after a crash it replays the one it had begun.

    Two actors may run the same query, as when a driver that was given up goes on beside its successor.
    """

    def live(actor: Actor) -> None:
        disk = cast.disks.setdefault(app, Disk())
        log = cast.open_log(actor)
        while not (cast.world.closing and disk.acknowledged == disk.batch):
            if disk.acknowledged == disk.batch:
                disk.batch += 1
            number = disk.batch
            paths = [cast.new_path("change") for _ in range(cast.world.random.choice((1, 1, 2)))]
            for ordinal, path in enumerate(paths):  # the first part of a batch stands for it
                cast.auditor.contents[path] = ((app, number),) if ordinal == 0 else ()
            outcome = _append(cast, log, actor, paths, Transaction(app, number))
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
        log = cast.open_log(actor)
        while not cast.world.closing:
            path = cast.new_path("plain")
            cast.auditor.contents[path] = ()
            outcome = _append(cast, log, actor, [path], None)
            if isinstance(outcome, Committed):
                assert path in cast.auditor.states[outcome.version].tail
            elif isinstance(outcome, Conflicted):
                assert outcome.conflict.kind is ConflictKind.METADATA, f"a blind append gave way to {outcome.conflict}"
            for _ in range(5):
                cast.world.pause(actor)

    return live


def _append(cast: Cast, log: TableLog, actor: Actor, paths: list[str], batch: Transaction | None) -> Outcome | None:
    actions = [
        AddChangePart(ChangePart(path, -1, ordinal, ROWS, 1000, stats=_stats(ROWS)))
        for ordinal, path in enumerate(paths)
    ]
    try:
        snapshot = log.refresh()
        outcome = log.commit(snapshot, actions, CommitInfo("WRITE", "", blind_append=True), BLIND, batch)
    except StoreUnavailable:
        return None
    _check(cast, actor, outcome)
    return outcome


def settler(cast: Cast) -> Callable[[Actor], None]:
    """Moves the oldest change parts to the base, and marks rows of parts that are there."""

    def live(actor: Actor) -> None:
        log = cast.open_log(actor)
        while not cast.world.closing:
            try:
                snapshot = log.refresh()
                tail = snapshot.tail_in_order()[: cast.world.random.randint(1, 4)]
                if not tail:
                    cast.world.pause(actor)
                    continue
                marked = _some(cast, sorted(snapshot.parts), 2)
                actions: list[Action] = [action for path in marked for action in _mark_one_row(snapshot.parts[path])]
                for part in tail:
                    actions += [RemoveChangePart(part.domain), AddPart(part.settled(None))]
                touch = Touch(
                    parts={path: () for path in marked},
                    change_parts=frozenset(part.domain for part in tail),
                    looked_up_keys=True,
                )
                _check(cast, actor, log.commit(snapshot, actions, CommitInfo("SETTLE", ""), touch))
            except StoreUnavailable:
                continue

    return live


class Files:
    """The files of the table, as far as merging touches them: no part has rows here, only the auditor knows them."""

    def __init__(self, cast: Cast) -> None:
        self._cast = cast

    def duckdb_url(self, path: str) -> str:
        return path

    def write_bytes(self, path: str, data: bytes) -> None:
        self._cast.auditor.vectors[path] = data

    def read_range(self, path: str, start: int, length: int) -> bytes:
        return self._cast.auditor.vectors[path][start : start + length]

    def delete(self, path: str) -> None:
        assert path not in self._cast.auditor.newest.base, f"G1: {path} is deleted but is in the base"


def replica(cast: Cast) -> Callable[[Actor], None]:
    """Merges as a replica does: claims, works, carries over what died meanwhile, commits. Between any two steps it may
    crash, be overtaken, or give up.
    """

    def live(actor: Actor) -> None:
        log = cast.open_log(actor)
        files: Any = Files(cast)
        merger = Merger(log, files, DeadRows(files), actor.name, lambda: cast.world.now, LEASE_SECONDS)
        while not cast.world.closing:
            try:
                _merge(cast, actor, log, merger)
            except Retry:
                continue

    return live


def _merge(cast: Cast, actor: Actor, log: TableLog, merger: Merger) -> None:
    snapshot = log.refresh()
    seen, taken = merger.sight(snapshot, int(cast.world.now * 1000))
    # Now and then it does not look who else is at work.
    free = sorted(path for path in seen.parts if path not in taken or cast.world.random.random() < 0.1)
    chosen = _some(cast, free, 4)
    if not chosen:
        cast.world.pause(actor)
        return
    claimed = merger.claim(chosen, 1 + max(snapshot.parts[path].level for path in chosen))
    if isinstance(claimed, MergeResult):
        cast.world.counts[f"merge {claimed.end.value}"] += 1
        return
    claim, snapshot = claimed
    sources = merger.sources(claim, snapshot)
    for _ in range(cast.world.random.choice((0, 2, 5, 40))):
        cast.world.pause(actor)
        cast.world.may_crash(actor, "while it merges")
        if cast.world.random.random() < 0.05 and not merger.extend([claim]):
            break
    if cast.world.random.random() < 0.1:
        merger.abandon(claim)
        return
    merged = _merged(cast, sources)
    result = merger.commit(claim, sources, [merged], snapshot)
    cast.world.counts[f"merge {result.end.value}"] += 1
    cast.world.counts["carried"] += result.carried_rows
    cast.world.note(actor.name, f"merge of {len(chosen)} parts {result.end.value}")
    if result.end is End.COMPLETED:
        assert merged.path not in sources.dead and result.version in cast.auditor.states


def _merged(cast: Cast, sources: Sources) -> MergedPart:
    """What the kernel would give: the live rows of the sources, one after the other."""
    path = cast.new_path("merged")
    rows = [
        (ordinal, row)
        for ordinal, part in enumerate(sources.parts)
        for row in range(part.rows)
        if row not in sources.dead[part.path]
    ]
    cast.auditor.contents[path] = tuple(b for part in sources.parts for b in cast.auditor.contents[part.path])
    cast.auditor.rows[path] = tuple(cast.auditor.rows_of(sources.parts[ordinal].path)[row] for ordinal, row in rows)
    provenance = Provenance(
        np.array([ordinal for ordinal, _ in rows], np.uint16), np.array([row for _, row in rows], np.uint32)
    )
    return MergedPart(path, len(rows), 1000, _stats(len(rows)), 0, False, BitMap64(), provenance)


def caretaker(cast: Cast) -> Callable[[Actor], None]:
    """Writes checkpoints and cleans the log."""

    def live(actor: Actor) -> None:
        log = cast.open_log(actor)
        for _ in range(6):
            if cast.world.closing:
                return
            try:
                snapshot = log.refresh()
                cast.auditor.require(snapshot, f"{actor.name} refreshed")
                log.write_checkpoint(snapshot)
                if cast.world.random.random() < 0.7:
                    log.clean(RETENTION_SECONDS)
            except StoreUnavailable:
                pass
            for _ in range(12):
                cast.world.pause(actor)

    return live


def setter(cast: Cast) -> Callable[[Actor], None]:
    """Counts up a property and a domain: each says one more than what was read, so an update that is lost shows."""

    def live(actor: Actor) -> None:
        log = cast.open_log(actor)
        while not cast.world.closing:
            try:
                snapshot = log.refresh()
                if cast.world.random.random() < 0.5:
                    domain = Domain(COUNTED_DOMAIN, str(int(snapshot.domains.get(COUNTED_DOMAIN, 0)) + 1))
                    outcome = log.commit(snapshot, [domain], CommitInfo("SET", ""), Touch(whole_table=True))
                else:
                    counted = int(snapshot.metadata.configuration.get(COUNTED_PROPERTY, 0)) + 1
                    configuration = {**snapshot.metadata.configuration, COUNTED_PROPERTY: str(counted)}
                    metadata = replace(snapshot.metadata, configuration=configuration)
                    outcome = log.commit(snapshot, [metadata], CommitInfo("SET", ""), BLIND)
                _check(cast, actor, outcome)
            except StoreUnavailable:
                pass
            for _ in range(5):
                cast.world.pause(actor)

    return live


def reader(cast: Cast) -> Callable[[Actor], None]:
    """Reads the newest version and old ones, long-lived and freshly opened."""

    def live(actor: Actor) -> None:
        log = cast.open_log(actor)
        for _ in range(8):
            if cast.world.closing:
                return
            floor = cast.auditor.newest.version
            try:
                snapshot = log.refresh()
                cast.auditor.require(snapshot, f"{actor.name} refreshed")
                assert snapshot.version >= floor, f"{actor.name} got {snapshot.version} after {floor} stood"
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
            for _ in range(6):
                cast.world.pause(actor)

    return live


def _check(cast: Cast, actor: Actor, outcome: Outcome) -> None:
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


def _mark_one_row(part: Part) -> list[Action]:
    dead = BitMap64() if part.deletion_vector is None else unpack(part.deletion_vector, None)
    row = next((row for row in range(part.rows) if row not in dead), None)
    if row is None:
        return []
    dead.add(row)
    return [
        RemovePart(part.path, 0, True, part.deletion_vector, part.bytes, {}),
        AddPart(part.marked(inline(dead))),
    ]


def _stats(rows: int) -> str:
    return f'{{"numRecords":{rows}}}'


def _some(cast: Cast, paths: list[str], count_max: int) -> list[str]:
    return sorted(cast.world.random.sample(paths, min(len(paths), cast.world.random.randint(0, count_max))))


def final_check(cast: Cast, log: TableLog, snapshot: Snapshot) -> None:
    """With nothing failing any more: everything acknowledged is there, and every version that is kept reads right."""
    assert snapshot.version == cast.auditor.newest.version
    cast.auditor.require(snapshot, "a fresh reader")
    for name, disk in cast.disks.items():
        assert disk.acknowledged == disk.batch, f"{name} did not finish batch {disk.batch}"
        assert snapshot.transaction_version(name) == disk.batch
    for version in range(cast.auditor.oldest_readable(), snapshot.version + 1):
        cast.auditor.require(log.at_version(version), "a fresh reader going back")
