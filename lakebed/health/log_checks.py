"""Checks of the log: it is replayed with the same code that every reader uses.

1. The names of files: the versions have no gap, from version 0 or a checkpoint on, up to the newest checkpoint at least (M5).
2. The commits, in order: each can be decoded (M1), was made on the one before (M4), breaks no invariant that has a predicate
   (``log.invariants``), and was written by lakebed, since the table became lakebed's.
3. Each checkpoint equals what replaying gives (M2).
4. A version (``state_findings``): this lakebed may read and write it, its properties and entries can be read, its pipeline has
   not parked it, no part is claimed twice (P4), no claim was left behind, and each change part of the tail has a place of its
   own in the order of changes (T1).

After a commit that can't be read, the replay goes on at the next checkpoint. At most some hundred commits are in memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import pairwise

from lakebed.compaction.merge import LEASE_SECONDS
from lakebed.coordination.failing import failing_of, parked_of, parked_settle
from lakebed.errors import Corrupt, Unsupported
from lakebed.health.file_checks import entry_findings
from lakebed.health.finding import Finding, critical, warning
from lakebed.log.actions import ChangePart, Commit, Part
from lakebed.log.claims import claims_of
from lakebed.log.entries import NAMED_BATCH
from lakebed.log.invariants import Violation, violations
from lakebed.log.snapshot import Snapshot, apply, without_expired
from lakebed.log.table_log import (
    GATE_FEATURE,
    TableLog,
    checkpoint_name,
    commit_name,
    require_readable,
    require_writable,
)
from lakebed.positions.resnapshots import Resnapshot, TopicGone, described, resnapshot_of, topic_gone_of
from lakebed.positions.verified import comparison_of, verified_of
from lakebed.schema.metadata import require_format
from lakebed.settings import wrong_properties

Progress = Callable[[str, int, int], object]
"""What is being checked, how many are done, how many there are."""

_AT_ONCE = 256
_READERS = 8
_FORGET_EVERY = 100
_OURS = "lakebed/"
_CLOCKS_DIFFER_SECONDS = 600
_UNANSWERED_MS = 600_000
_RESTORE = "restore {} from a copy of the store"


@dataclass(slots=True, kw_only=True)
class _LogLook:
    """What was found in the log. ``newest``: the last version that could be read, None if none could."""

    findings: list[Finding] = field(default_factory=list)
    newest: Snapshot | None = None
    commits: int = 0
    checkpoints: int = 0
    version: int = -1  # the newest that has a commit file

    @property
    def is_whole(self) -> bool:
        """Whether the newest version could be read."""
        return self.newest is not None and self.newest.version == self.version


def look_at_log(log: TableLog, path: str, every_commit: bool, progress: Progress) -> _LogLook:
    """Check all commits and checkpoints, or those that the newest version is made of. Raises StoreUnavailable."""
    commits, checkpoints = log.versions()
    look = _LogLook(version=max(commits, default=-1))
    look.findings += _names(commits, checkpoints, path)
    starts = [version for version in checkpoints if version <= look.version]
    oldest = min([*commits[:1], *checkpoints[:1]], default=0)
    first = oldest if every_commit or not starts else starts[-1]
    _Replay(log, path, look, set(commits), set(checkpoints), progress).run(first, every_commit)
    return look


def _names(commits: list[int], checkpoints: list[int], path: str) -> Iterator[Finding]:
    """Step 1."""
    if commits and commits[0] > 0 and not any(version >= commits[0] - 1 for version in checkpoints):
        yield critical(
            "M5",
            commit_name(commits[0]),
            f"the log is cut off: it begins with version {commits[0]}, and no checkpoint holds what came before",
            f"restore the commits before version {commits[0]}, or a checkpoint, from a copy of the store",
        )
    for before, after in pairwise(commits):
        if after == before + 1:
            continue
        if commits[0] > 0 and not any(version <= before for version in checkpoints):
            what = (
                f"version {before} lies below the log, which begins with {after}: a writer that was suspended while the log was "
                "cleaned put it there, and ended before it deleted it; it is no version of the table"
            )
            yield warning(
                "M4", commit_name(before), what, f"nothing: the next cleanup deletes it; or lakebed maintain {path}"
            )
            continue
        missing = f"version {before + 1}" if after == before + 2 else f"versions {before + 1} to {after - 1}"
        lost = f"the log has a gap: {missing} {'is' if after == before + 2 else 'are'} missing between {before} and {after}"
        where, remedy = commit_name(before + 1), _RESTORE.format(commit_name(before + 1))
        if any(version >= after - 1 for version in checkpoints):
            yield warning("M5", where, f"{lost}; a later checkpoint makes up for it, but for old versions", remedy)
        else:
            yield critical("M5", where, f"{lost}, so no version from {before + 1} on can be read", remedy)
    if checkpoints and checkpoints[-1] > max(commits, default=-1):
        yield critical(
            "M5",
            checkpoint_name(checkpoints[-1]),
            f"the log is cut off: there is a checkpoint of version {checkpoints[-1]}, but the newest commit is "
            f"{max(commits, default=-1)}",
            f"restore the commits up to version {checkpoints[-1]} from a copy of the store; stop all writers until then",
        )


class _Replay:
    """Steps 2 and 3."""

    def __init__(
        self, log: TableLog, path: str, look: _LogLook, commits: set[int], checkpoints: set[int], progress: Progress
    ) -> None:
        self._log = log
        self._path = path
        self._look = look
        self._commits = commits
        self._checkpoints = checkpoints
        self._progress = progress
        self._state: Snapshot | None = None

    def run(self, first: int, compares: bool) -> None:
        """Replay from a version on that is 0 or has a checkpoint. ``compares``: also compare checkpoints with the replay."""
        last = self._look.version
        for version, commit in self._read(first, last):
            self._one(version, commit, compares)
            self._progress("commits", version - first + 1, last - first + 1)

    def _one(self, version: int, commit: Commit | Corrupt | None, compares: bool) -> None:
        if isinstance(commit, Corrupt):
            self._unreadable(version, commit)
        if isinstance(commit, Commit):
            self._look.commits += 1
            self._follow(commit)
        else:
            self._state = None
        if version in self._checkpoints and (compares or self._state is None):
            self._compare(version)
        if self._state is not None:
            if version % _FORGET_EVERY == 0:
                self._state = without_expired(self._state, self._state.timestamp_ms)
            self._look.newest = self._state

    def _follow(self, commit: Commit) -> None:
        before = self._state
        where = commit_name(commit.version)
        if before is not None and GATE_FEATURE in before.protocol.writer_features:
            self._look.findings += self._foreign(commit)
            for broken in self._violations(before, commit):
                remedy = f"read a version before {commit.version}, and write a new table from it"
                self._look.findings.append(critical(broken.invariant, where, broken.detail, remedy))
        if before is None and commit.version > 0:
            return  # nothing to follow: what came before could not be read
        try:
            self._state = apply(before, commit)
        except Corrupt as error:
            self._state = None
            self._look.findings.append(critical("M4", where, str(error), _RESTORE.format(where)))

    def _violations(self, before: Snapshot, commit: Commit) -> list[Violation]:
        try:
            return list(violations(before, commit))
        except Corrupt as error:
            return [Violation("M1", str(error))]

    def _foreign(self, commit: Commit) -> Iterator[Finding]:
        info = commit.info
        if info is not None and info.engine.startswith(_OURS):
            return
        who = (
            f"by {info.engine or 'a program that gives no name'}"
            if info
            else "by an unknown program: the commit does not say"
        )
        what = (
            f"version {commit.version} was committed {who}, though only lakebed may write here: keys may be live twice"
        )
        remedy = f"stop that program; then lakebed verify {self._path} --self --deep, and what it finds"
        yield critical("gate", commit_name(commit.version), what, remedy)

    def _unreadable(self, version: int, error: Corrupt) -> None:
        name = commit_name(version)
        remedy = _RESTORE.format(name)
        if version == self._look.version:
            remedy += (
                "; without one, stop all writers and move the file out of the log: the version before is the newest then, and "
                "what this commit held is lost"
            )
        self._look.findings.append(critical("M1", name, f"the log is cut off or damaged: {error}", remedy))

    def _compare(self, version: int) -> None:
        """Step 3: compare the checkpoint with the replay, or begin the replay with it."""
        name = checkpoint_name(version)
        remedy = (
            f"move {name} out of the log; if there are no commits before it, restore it from a copy of the store first"
        )
        try:
            stored = self._log.read_checkpoint(version)
        except FileNotFoundError:  # a cleanup deleted it
            return
        except (Corrupt, ValueError, KeyError, TypeError) as error:
            self._look.findings.append(critical("M2", name, f"the checkpoint can't be read: {error}", remedy))
            return
        self._look.checkpoints += 1
        if self._state is None:
            self._state = stored
            return
        difference = _difference(stored, self._state)
        if difference:
            what = f"the checkpoint is not what replaying the log gives: {difference}"
            self._look.findings.append(critical("M2", name, what, remedy))

    def _read(self, first: int, last: int) -> Iterator[tuple[int, Commit | Corrupt | None]]:
        with ThreadPoolExecutor(_READERS) as pool:
            for start in range(first, last + 1, _AT_ONCE):
                versions = range(start, min(last + 1, start + _AT_ONCE))
                yield from zip(versions, pool.map(self._read_one, versions), strict=True)

    def _read_one(self, version: int) -> Commit | Corrupt | None:
        if version not in self._commits:
            return None
        try:
            return self._log.read_commit(version)  # None: a cleanup deleted it
        except Corrupt as error:
            return error


def _difference(stored: Snapshot, replayed: Snapshot) -> str | None:
    """Where two states differ, in words. What expires with time (removals, named batches) is not compared."""
    if (stored.protocol, _metadata(stored)) != (replayed.protocol, _metadata(replayed)):
        return "its protocol, schema or properties differ"
    for what, one, other in (
        ("parts", _parts(stored), _parts(replayed)),
        ("change parts", _tail(stored), _tail(replayed)),
        ("entries", dict(stored.domains), dict(replayed.domains)),
        ("batches", _batches(stored), _batches(replayed)),
    ):
        wrong = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
        if wrong:
            return f"{len(wrong)} {what} differ, the first is {wrong[0]}"
    return None


def _metadata(snapshot: Snapshot) -> object:
    """The metadata that readers and writers use. Writers spell a schema in several ways, and may omit names, comments, times."""
    metadata = snapshot.metadata
    schema: object = metadata.schema_string
    with suppress(ValueError):
        schema = json.loads(metadata.schema_string)
    return metadata.id, schema, metadata.partition_columns, dict(metadata.configuration), metadata.format_provider


def _parts(snapshot: Snapshot) -> dict[str, object]:
    def essence(part: Part) -> object:
        vector = part.deletion_vector
        return part.bytes, part.rows, part.level, part.min_block, part.max_block, vector and vector.unique_id

    return {path: essence(part) for path, part in snapshot.parts.items()}


def _tail(snapshot: Snapshot) -> dict[str, object]:
    def essence(part: ChangePart) -> object:
        return part.path, part.order, part.rows, part.bytes

    return {domain: essence(part) for domain, part in snapshot.tail.items()}


def _batches(snapshot: Snapshot) -> dict[str, object]:
    return {
        app_id: batch.version for app_id, batch in snapshot.transactions.items() if not app_id.startswith(NAMED_BATCH)
    }


def _parked_finding(snapshot: Snapshot, path: str) -> Finding | None:
    """What is wrong with a table that the pipeline of its database leaves alone; None if it does not."""
    parked = parked_of(snapshot)
    if parked is None:
        return None
    since = datetime.fromtimestamp(parked.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    what = f"the pipeline of its database has left it alone since {since}: {parked.error}"
    return critical("parked", "", what, f"remove the cause, then lakebed resume {path}")


def _settle_finding(snapshot: Snapshot, path: str, now_ms: int) -> Finding | None:
    """Why the tail of a table is left alone; None if it is not."""
    parked = parked_settle(snapshot, now_ms)
    if parked is None:
        return None
    what = f"{parked.error}; readers of lakebed resolve the tail, others see nothing of it"
    return critical("settle", "", what, f"remove the cause, then lakebed resume {path}")


def _failing_findings(snapshot: Snapshot, path: str, now_ms: int) -> Iterator[Finding]:
    """Merges that are parked, because they keep failing."""
    for failing in failing_of(snapshot).values():
        if failing.is_parked(now_ms):
            until = datetime.fromtimestamp(failing.not_before_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
            parts = failing.sources[0] if len(failing.sources) == 1 else f"{len(failing.sources):,} parts"
            what = (
                f"a merge of {parts} failed {failing.failures} times and is left alone until {until}: {failing.error}"
            )
            yield warning("failing", failing.sources[0], what, f"remove the cause, then lakebed resume {path}")


def _source_findings(snapshot: Snapshot, path: str, now_ms: int) -> Iterator[Finding]:
    """What is wrong with what a table is read from, and with what has come of it."""
    if (gone := topic_gone_of(snapshot)) is not None:
        yield _of_topic(gone, path)
    if (asked := resnapshot_of(snapshot)) is not None:
        yield from _of_resnapshot(asked, now_ms)
    if (compared := verified_of(snapshot)) is not None and compared.outcome == "differs":
        what = f"{comparison_of(snapshot, now_ms)}: rows are missing, wrong, or too many"
        yield critical("verify", "", what, "lakebed verify FILE TABLE shows them; with --repair they are mended")


def _of_topic(found: TopicGone, path: str) -> Finding:
    since = datetime.fromtimestamp(found.since_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    what = f"the topic {found.topic} is gone, or can't be read, since {since}: the table stays as it is, and gets nothing new"
    remedy = f"if the source has no such table any more, leave it, or delete {path}; else look at the connector and its rights"
    return warning("topic", "", what, remedy)


def _of_resnapshot(found: Resnapshot, now_ms: int) -> Iterator[Finding]:
    if found.state == "failed":
        yield warning(
            "resnapshot", "", f"the rows that were asked for again: {found.error}", "lakebed source resnapshot"
        )
    elif found.state == "asked" and now_ms - found.asked_ms > _UNANSWERED_MS:
        yield warning(
            "resnapshot",
            "",
            f"rows were {described(found, now_ms)}: the connector does not answer",
            "see that the connector runs, with kafka in signal.enabled.channels, and that the pipeline runs; then ask again",
        )


def state_findings(snapshot: Snapshot, path: str, now_ms: int) -> Iterator[Finding]:
    """Step 4: what a version shows without its files."""
    try:
        require_readable(snapshot.protocol)
        require_writable(snapshot.protocol)
    except Unsupported as error:
        yield critical("gate", "", str(error), f"look at lakebed show commits {path} for who changed the protocol")
    try:
        require_format(snapshot.protocol, snapshot.metadata, path)
    except Unsupported as error:
        yield critical(
            "gate",
            "",
            str(error),
            "nothing is wrong with the table; do what the message says, or use that version of lakebed",
        )
    for name, wrong in wrong_properties(snapshot.metadata.configuration).items():
        remedy = f"lakebed.open({path!r}).set_properties({{{name!r}: …}})"
        yield warning("property", name, f"{wrong}; it counts as not set", remedy)
    yield from entry_findings(snapshot, path)
    if (parked := _parked_finding(snapshot, path)) is not None:
        yield parked
    if (settle := _settle_finding(snapshot, path, now_ms)) is not None:
        yield settle
    yield from _failing_findings(snapshot, path, now_ms)
    yield from _source_findings(snapshot, path, now_ms)
    with suppress(Corrupt):  # a claim that can't be read: see above
        yield from _claim_findings(snapshot, path, now_ms)
    places: dict[tuple[int, int], str] = {}
    for part in snapshot.tail_in_order():
        if part.order in places:
            what = f"it has the same place in the order of changes as {places[part.order]}: nobody can know which one is newer"
            yield critical("T1", part.path, what, f"read version {part.version - 1}, and apply both batches again")
        places[part.order] = part.path
    for part_path, part_of_base in snapshot.parts.items():
        if 0 <= part_of_base.rows < part_of_base.dead_rows:
            what = f"the log says that it has {part_of_base.rows} rows, and {part_of_base.dead_rows} dead ones"
            yield critical("B5", part_path, what, f"lakebed verify {path} --self --deep")


def _claim_findings(snapshot: Snapshot, path: str, now_ms: int) -> Iterator[Finding]:
    claims, claims_by_source = claims_of(snapshot.domains), dict[str, str]()
    for claim in sorted(claims.values(), key=lambda claim: (claim.since_ms, claim.id)):
        for source in claim.sources:
            if source in claims_by_source:
                yield critical(
                    "P4",
                    source,
                    f"the part is a source of two claims, {claims_by_source[source]} and {claim.id}",
                    "stop all maintenance for five minutes, so that both claims expire, and start it again",
                )
            claims_by_source[source] = claim.id
        late_seconds = (now_ms - claim.lease_ms) / 1000
        if late_seconds > LEASE_SECONDS:
            yield warning(
                "claim",
                claim.domain,
                f"the claim of {claim.replica} on {len(claim.sources)} parts was left behind: its lease ended "
                f"{late_seconds:,.0f} s ago, and nobody has removed it, so nobody maintains the table",
                f"lakebed maintain {path}",
            )
        if -late_seconds > LEASE_SECONDS + _CLOCKS_DIFFER_SECONDS:
            yield warning(
                "claim",
                claim.domain,
                f"the claim of {claim.replica} on {len(claim.sources)} parts ends in {-late_seconds / 3600:,.1f} hours, and a "
                f"lease lasts {LEASE_SECONDS:.0f} seconds: that machine's clock is ahead, or this one's is behind",
                "set the clocks right (NTP); if it ends within a day it keeps its parts until then, else it counts as ended",
            )
