"""Sees every object at the moment it really lands, folds the log by itself, and holds everybody to it.

The fold here shares no code with ``lakebed.log``: it reads the JSON lines. After every version:
- M1: the version follows the last one, and was never written before. A commit may land under a name that a cleanup freed;
  it is no version: whoever reads it as one, or acknowledges it, is caught by what the versions are (``require``).
- M3: a batch comes once, with its parts. No update is lost: counters in a property and in a domain go up by one.
- B1, B2: base and tail show the rows that the changes, mutations and partition commands give, applied one by one to a
  dictionary. So settles, merges, uploads, claims and cleanups change none (P3, S2). A mutation changes the rows that matched at
  some version since it was called, from what they are just before its commit (B6); one that did not match meanwhile may be left.
- P1, P4: what a claim names is in the base, and is named by no other claim; no claim names what left the table for good.
- E1: a merge or upload lowers the measure that says that merges come to an end.
- C1: a file's values fit the columns of every version that shows them. A change of the schema gives what it says: values follow a
  rename, and a column that is dropped and added again shows none of its old ones. What was planned before a drop conflicts.
- S1: a part that says which version of the sort key its rows are sorted by is sorted by it.
- A restore shows the rows of the version that it says, and has its partitions detached, but for those that were dropped since.
  Batches, properties and columns stay at the newest.
- Rows that expire were old by their newest value, the tail's if it has one. At the end of a run no old row is left.
- What the commit names lies in the store. The mark of the expired versions passes none that is within retention.
- The numbered invariants of ``lakebed.log.invariants`` hold for the commit.
- A purge leaves no value of its rows in any file that was there before, and no older file of the log.
When a file is deleted, G1: no version from the mark on and none that a reader holds shows rows of it, it is not detached, and
nobody is about to commit it.
After every checkpoint, M2: what it decodes to is the state that was folded for its version.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lakebed.log.actions import AddPart, Commit, Domain, RemovePart
from lakebed.log.checkpoint import decode_checkpoint
from lakebed.log.commit_codec import decode_commit
from lakebed.log.deletion_vector import DeletionVector, unpack
from lakebed.log.entries import DETACHED
from lakebed.log.invariants import violations
from lakebed.log.snapshot import Snapshot, apply
from tests.planning.tables import measure_of
from tests.simulation.audit_of_purges import Purges
from tests.simulation.columns import Columns, Reader, first_columns, shown_of
from tests.simulation.files import Objects, Row, decode, sort_key
from tests.simulation.stand_ins import Change
from tests.simulation.world import Actor, World

Batch = tuple[str, int]
Table = Mapping[int, Row]
RETENTION_SECONDS = 7200
CLAIM_PREFIX = "lakebed.claim."
HOLD_PREFIX = "lakebed.hold."
SCHEMA = "lakebed.schema."
MARK = "lakebed.expired"
COUNTED_DOMAIN = "lakebed.counted"
COUNTED_PROPERTY = "counted"
SORT_KEY_VERSION = "lakebed.sort_key_version"
_FOR_GOOD = ("TRUNCATE", "DETACH PARTITION", "REPLACE PARTITION", "RESTORE")


@dataclass(frozen=True)
class State:
    """The table at one version, as plain values."""

    version: int = -1
    base: Mapping[str, Any] = field(default_factory=dict)  # path → deletion vector as JSON, None for none
    tail: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # path → (version, ordinal)
    transactions: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)
    schema: str = ""
    partition_columns: tuple[str, ...] = ()
    features: frozenset[str] = frozenset()


def state_of(snapshot: Snapshot) -> State:
    """A snapshot of lakebed's as plain values."""
    return State(
        version=snapshot.version,
        base={path: _vector_json(part.deletion_vector) for path, part in snapshot.parts.items()},
        tail={part.path: (part.version, part.ordinal) for part in snapshot.tail.values()},
        transactions={app: transaction.version for app, transaction in snapshot.transactions.items()},
        domains=dict(snapshot.domains),
        configuration=dict(snapshot.metadata.configuration),
        schema=snapshot.metadata.schema_string,
        partition_columns=snapshot.metadata.partition_columns,
        features=snapshot.protocol.reader_features,
    )


class Auditor:
    """What the log and the object store really hold, version by version."""

    def __init__(self, world: World, objects: Objects, log_retention_seconds: int) -> None:
        self.world, self.objects = world, objects
        self.log_retention_seconds = log_retention_seconds
        self.states: dict[int, State] = {}
        self.tables: dict[int, Table] = {-1: {}}  # what the table is to show at each version
        self.batches: dict[str, Batch] = {}  # path of a change part → the batch that it belongs to
        self.mutations: dict[
            str, tuple[Change, int]
        ] = {}  # by its where → the mutation, the version when it was called
        self.columns: dict[int, Columns] = {}  # by version
        self.meant: dict[str, tuple[tuple[Row, ...], int]] = {}  # what a writer wrote, by path, and the version it read
        self.commits_kept: set[int] = set()
        self.checkpoints_kept: set[int] = set()
        self.newest = State()
        self._detached: dict[str, Table] = {}
        self._dropped: dict[str, int] = {}  # entries of partitions, and the version that dropped them
        self._coming = State()  # what the commit makes that is looked at
        self._sort_keys: dict[int, list[str]] = {}  # by version
        self._data: dict[str, bytes] = {}  # every file that was ever written
        self._live: dict[str, tuple[str, dict[int, Row]]] = {}  # path → its vector, its live rows
        self._named_last: dict[str, int] = {}  # path → the newest version that needs it
        self._names: dict[int, frozenset[str]] = {}  # version → all files that a reader of it needs
        self._detached_names: frozenset[str] = frozenset()  # files of what is detached now
        self._times_ms: dict[int, int] = {}
        self._written_at: dict[str, int] = {}  # path → the newest version when it was written
        self.purges = Purges()
        self._snapshot: Snapshot | None = None

    # -- what happens ------------------------------------------------------------------------------------------------

    def landed(self, name: str, data: bytes) -> None:
        """An object of the log was written."""
        head, _, rest = name.removeprefix("_delta_log/").partition(".")
        if rest == "json":
            self._commit(int(head), data)
        elif rest == "checkpoint.parquet":
            self._checkpoint(int(head), data)

    def gone(self, name: str) -> None:
        """An object of the log was deleted."""
        head, _, rest = name.removeprefix("_delta_log/").partition(".")
        if rest == "json":
            self.commits_kept.discard(int(head))
        elif rest == "checkpoint.parquet":
            self.checkpoints_kept.discard(int(head))
        oldest = self.oldest_readable()
        assert oldest <= self.newest.version, f"after {name} was deleted no version can be read"
        for held in self.held():
            assert oldest <= held, f"G1: {name} is deleted, but a reader holds version {held}"

    def file_written(self, path: str, data: bytes) -> None:
        """A data file was written."""
        assert self._data.setdefault(path, data) == data, f"{path} was written twice, with other rows"
        self._written_at.setdefault(path, self.newest.version)

    def file_deleted(self, path: str, actor: Actor) -> None:
        """G1."""
        last, mark = self._named_last.get(path, -1), self.mark()
        assert last < mark or last < 0, f"G1: {path} is deleted, but version {last} names it; the mark is {mark}"
        assert path not in self._detached_names, f"G1: {path} is deleted, but is detached, not dropped"
        for version in self.held():
            assert path not in self._names[version], f"G1: {path} is deleted, but a reader holds version {version}"
        is_uncommitted = self.world.is_uncommitted(path, actor, self.newest.domains)
        assert not is_uncommitted, f"G1: {path} is deleted, but is about to be committed"

    # -- what others ask ---------------------------------------------------------------------------------------------

    def mark(self) -> int:
        """The oldest version that has not expired."""
        return int(json.loads(self.newest.domains.get(MARK, '{"before": 0}'))["before"])

    def held(self) -> list[int]:
        """Versions that readers hold now."""
        now_ms = self.world.now * 1000  # a cleanup ends none before that, whatever its own clock says
        return [hold["version"] for hold in self._holds() if now_ms < hold["until_ms"]]

    def _holds(self) -> list[dict[str, Any]]:
        return [json.loads(text) for name, text in self.newest.domains.items() if name.startswith(HOLD_PREFIX)]

    def committed(self) -> list[str]:
        """Paths of the files with rows that any version has had."""
        return [path for path in self._named_last if path.endswith(".parquet")]

    def data(self, path: str) -> bytes:
        """The bytes of a file, also of one that is gone."""
        return self._data[path]

    def written_at(self, path: str) -> int:
        """The newest version when a file was written."""
        return self._written_at[path]

    def names(self, version: int) -> frozenset[str]:
        """All files that a reader of a version needs."""
        return self._names[version]

    def needed(self) -> frozenset[str]:
        """All files that somebody needs now."""
        versions = [*range(self.mark(), self.newest.version + 1), *self.held()]
        return self._detached_names.union(*(self._names[version] for version in versions))

    def oldest_readable(self) -> int:
        """The oldest version that the files in the store still give."""
        first = self.newest.version
        while first in self.commits_kept:
            first -= 1
        starts = [start for start in self.checkpoints_kept if start >= first]
        return 0 if first < 0 else min(starts, default=self.newest.version + 1)

    def require(self, snapshot: Snapshot, what: str) -> None:
        """A snapshot that somebody got must be the state of its version."""
        expected = self.states.get(snapshot.version)
        assert expected is not None, f"{what}: got version {snapshot.version}, which was never written"
        found = state_of(snapshot)
        assert found == expected, f"{what}: version {snapshot.version} reads as\n{found}\nbut is\n{expected}"

    def holds(self, batch: Batch) -> bool:
        """Is a batch in the newest version?"""
        return self.newest.transactions.get(batch[0], -1) >= batch[1]

    # -- inside ------------------------------------------------------------------------------------------------------

    def _commit(self, version: int, data: bytes) -> None:
        before = self.newest
        if version in self.states and version not in self.commits_kept:
            self.world.counts["came too late"] += 1  # under a name that became free: nobody may take it for a version
            return
        assert version not in self.states, f"M1: version {version} was written twice"
        assert version == before.version + 1, f"M1: version {version} follows {before.version}"
        actions = [json.loads(line) for line in data.decode().splitlines()]
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        after = fold(before, version, actions)
        self.columns[version] = self._columns(after, info)
        self._times_ms[version] = info["timestamp"]
        self._batch_is_whole(actions)
        self._claims_are_apart(after, before, info["operation"])
        self._files_are_there(after)
        self._parts_are_sorted(after, actions)
        self.purges.look(before, after, self)
        self._mark_moves_late(after)
        self._holds_are_of_what_is_there(after)
        self._coming = after
        if info["operation"] == "DROP DETACHED":
            self._dropped.update(dict.fromkeys(before.domains.keys() - after.domains.keys(), version))
        shown = self._shown(after)
        expected = self._expected(version, info, actions, shown)
        visible = self.visible(version, expected)
        assert shown == visible, f"B2: {info['operation']} {version}: {_difference(shown, visible)}"
        commit = decode_commit(version, data)
        if self._snapshot is not None:
            broken = violations(self._snapshot, commit)
            assert not broken, f"version {version} breaks {broken}"
            self._merges_come_to_an_end(self._snapshot, commit, info["operation"])
        self._snapshot = apply(self._snapshot, commit)
        found = state_of(self._snapshot)
        assert found == after, f"version {version} is applied as {found}, not {after}"
        self.tables[version] = expected
        self.states[version] = self.newest = after
        self.commits_kept.add(version)
        self.world.committed(self._names[version])
        self.world.counts[info["operation"].lower()] += 1

    def _batch_is_whole(self, actions: list[dict[str, Any]]) -> None:
        """M3: the batches of the parts are those that the commit says it brings."""
        added = {action["add"]["path"] for action in actions if "add" in action and action["add"]["dataChange"]}
        tail = [action["domainMetadata"] for action in actions if "domainMetadata" in action]
        settled = {domain["domain"].rpartition(".")[2] for domain in tail if domain["removed"]}
        added = {path for path in added if path.rpartition("/")[2].removesuffix(".parquet") not in settled}
        for domain in tail:
            if domain["domain"].startswith("lakebed.part.") and not domain["removed"]:
                added.add(json.loads(domain["configuration"])["path"])
        said = {(action["txn"]["appId"], action["txn"]["version"]) for action in actions if "txn" in action}
        removed = {action["remove"]["path"] for action in actions if "remove" in action}
        brought = {self.batches[path] for path in added - removed if path in self.batches}
        if said:
            assert brought == said, f"M3: the commit says it brings {said}, and brings {brought}"

    def _claims_are_apart(self, after: State, before: State, operation: str) -> None:
        named: dict[str, str] = {}
        for name, text in after.domains.items():
            if name.startswith(CLAIM_PREFIX):
                for path in json.loads(text)["sources"]:
                    assert path not in named, f"P4: {path} is claimed by {named[path]} and {name}"
                    assert name in before.domains or path in after.base, f"P1: {name} claims {path}, which is not there"
                    left = path in before.base and path not in after.base
                    assert not left or operation not in _FOR_GOOD, f"P1: {name} claims {path}, which left: {operation}"
                    named[path] = name

    def _parts_are_sorted(self, after: State, actions: list[dict[str, Any]]) -> None:
        """S1."""
        settings, stored = after.configuration, reader_of(after).names
        columns = json.loads(settings.get("lakebed.sort_key", "[]")) or json.loads(settings.get("lakebed.keys", "[]"))
        named = {*columns, *json.loads(settings.get("lakebed.keys", "[]")), *after.partition_columns}
        assert named <= stored.keys(), f"C1: keys, sort key or partitions name {sorted(named - stored.keys())}"
        columns = [stored[name] for name in columns]
        self._sort_keys[int(settings.get(SORT_KEY_VERSION, 1))] = columns
        stamped = [
            (action["add"]["path"], action["add"]["tags"].get(SORT_KEY_VERSION))
            for action in actions
            if "add" in action
        ]
        for action in actions:
            domain = action.get("domainMetadata", {"domain": ""})
            if domain["domain"].startswith("lakebed.part.") and not domain["removed"]:
                value = json.loads(domain["configuration"])
                stamped.append((value["path"], value.get("sort_key_version")))
        for path, version in stamped:
            if version is not None:
                keys = [sort_key(self._sort_keys[int(version)])(row) for row in decode(self._data[path])]
                assert keys == sorted(keys), f"S1: {path} is not sorted by version {version} of the sort key"
                self.world.counts[f"sorted by version {min(2, int(version))}"] += 1

    def _merges_come_to_an_end(self, before: Snapshot, commit: Commit, operation: str) -> None:
        """Each lowers the measure, unless others commit while it is at work: a source's last rows die, or the sort key is new."""
        if operation not in ("MERGE", "UPLOAD"):
            return
        removed = [action.path for action in commit.actions if isinstance(action, RemovePart)]
        ended = [action.domain for action in commit.actions if isinstance(action, Domain) and action.removed]
        sources = [path for name in ended for path in json.loads(before.domains[name])["sources"]]
        if sorted(removed) != sorted(sources):
            return
        added = [action.part for action in commit.actions if isinstance(action, AddPart)]
        if any((part.sort_key_version or math.inf) < before.settings.sort_key_version for part in added):
            return
        was = measure_of(replace(before, parts={path: before.parts[path] for path in removed}))
        now = measure_of(replace(before, parts={part.path: part for part in added}))
        assert now < was, f"E1: {operation} {commit.version} makes of the measure {was} {now}"

    def _files_are_there(self, after: State) -> None:
        named = {*after.base, *after.tail, *_files_of(after.base.values())}
        detached: set[str] = set()
        for name, text in after.domains.items():
            if name.startswith(DETACHED):
                parts = json.loads(text)["parts"]
                detached |= {
                    *(part["path"] for part in parts),
                    *_files_of(part.get("deletionVector") for part in parts),
                }
        lost = (named | detached) - self.objects.data.keys()
        assert not lost, f"G1: version {after.version} names {sorted(lost)}, which are not in the store"
        self._names[after.version], self._detached_names = frozenset(named), frozenset(detached)
        self._named_last.update(dict.fromkeys(named, after.version))

    def _mark_moves_late(self, after: State) -> None:
        text = after.domains.get(MARK)
        if text == self.newest.domains.get(MARK) or text is None:
            return
        mark, earlier = int(json.loads(text)["before"]), self.mark()
        assert mark > earlier, f"G1: the mark moves from {earlier} back to {mark}"
        horizon_ms = (
            self.world.now - min(RETENTION_SECONDS, self.log_retention_seconds)
        ) * 1000  # by the store's clock
        within = max((version for version, at in self._times_ms.items() if at <= horizon_ms), default=0)
        within = max(within, self.purges.version)
        assert mark <= within, f"G1: the mark moves to {mark}, but version {within} is within retention"

    def _holds_are_of_what_is_there(self, after: State) -> None:
        for name in after.domains.keys() - self.newest.domains.keys():
            if name.startswith(HOLD_PREFIX):
                version = json.loads(after.domains[name])["version"]
                assert version >= self.mark(), f"G1: {name} holds {version}, which has expired"

    def _columns(self, after: State, info: dict[str, Any]) -> Columns:
        """The columns that users are to see after a commit, by what it says it changed."""
        if after.version == 0:
            return first_columns(after.schema)
        before = self.columns[after.version - 1]
        columns = before
        if info["operation"] == "ALTER TABLE":
            columns = before.after({kind: json.loads(text) for kind, text in info["operationParameters"].items()})
        said = {each["name"]: each["type"] for each in json.loads(after.schema)["fields"]}
        expected = {name: kind for name, (_, kind) in columns.lines.items()}
        assert said == expected, f"C1: {info['operation']} {after.version} gives {said}, not {expected}"
        return columns

    def visible(self, version: int, table: Table) -> Table:
        """What users see at a version of rows of the oracle."""
        alive = self.columns[version].alive
        return {key: shown_of(row, alive) for key, row in table.items()}

    def told(self, version: int, rows: Iterable[Row]) -> list[Row]:
        """Rows of files as the oracle has them, by the schema of a version."""
        reader, columns = reader_of(self.states.get(version, self.newest)), self.columns[version]
        return [reader.told(row, columns) for row in rows]

    def _shown(self, state: State) -> Table:
        """The rows that a reader sees: base, then the tail over it."""
        rows: dict[int, Row] = {}
        count = 0
        for path, vector in state.base.items():
            text = str(vector)
            if self._live.get(path, ("", {}))[0] != text:
                self._live[path] = text, self._live_rows(path, vector)
            live = self._live[path][1]
            rows.update(live)
            count += len(live)
        assert count == len(rows), f"B1: version {state.version} has a key twice"
        for path in sorted(state.tail, key=state.tail.__getitem__):
            rows.update((row.key, row) for row in decode(self._data[path]))
        reader, columns = reader_of(state), self.columns[state.version]
        return {key: reader.told(row, columns) for key, row in rows.items() if row.value is not None}

    def _live_rows(self, path: str, vector: Any) -> dict[int, Row]:
        rows = decode(self._data[path])
        if vector is None:
            return {row.key: row for row in rows}
        found = DeletionVector.from_json(vector)
        file = found.file_path()
        dead = unpack(found, self._data[file] if file else None)
        return {row.key: row for at, row in enumerate(rows) if at not in dead}

    def _expected(self, version: int, info: dict[str, Any], actions: list[dict[str, Any]], shown: Table) -> Table:
        """What the table is to show after the commit, by what it says it is; ``shown`` helps to tell when it took place."""
        before = self.tables[version - 1]
        said = info["operationParameters"]
        match info["operation"]:
            case "WRITE":
                return self._with(before, actions, version)
            case "DELETE" | "UPDATE":
                mutation, called = self.mutations[said["predicate"]]
                tables = [self._mutated(mutation, at, version, shown) for at in range(version - 1, called - 1, -1)]
                return next((table for table in tables if self.visible(version, table) == shown), tables[0])
            case "TRUNCATE":
                return {}
            case "DETACH PARTITION":
                self._detached[said["name"]], stays = _split(before, said)
                return stays
            case "ATTACH PARTITION":
                back = self._detached[said["name"]]
                entry = DETACHED + said["name"]
                assert entry in self.newest.domains, f"version {version} attaches {said['name']}, which is not detached"
                assert not back.keys() & before.keys(), f"B1: version {version} attaches keys that are live"
                return {**before, **back}
            case "RESTORE":
                return self._restored(version, int(said["version"]))
            case "EXPIRE ROWS":
                old = {key for key, row in before.items() if row.value is not None and row.value < int(said["before"])}
                gone = old - shown.keys()
                self._leaves_what_the_tail_changes(version)
                self.world.counts["rows expired"] += len(gone)
                return {key: row for key, row in before.items() if key not in gone}
            case "PURGE":
                for name in _entries_set(actions, DETACHED):
                    self._detached[name] = self.purges.without_purged(self._detached[name])
                return before
            case "REPLACE PARTITION":
                return self._with(_split(before, said)[1], actions, version)
            case _:
                return before

    def _leaves_what_the_tail_changes(self, version: int) -> None:
        """Other readers see the base alone: a row stays there until it is settled what the tail makes of it."""
        before, after = (
            {key for path, vector in state.base.items() for key in self._live_rows(path, vector)}
            for state in (self.newest, self._coming)
        )
        wanted = (before - after) & {row.key for path in self.newest.tail for row in decode(self._data[path])}
        assert not wanted, f"EXPIRE ROWS {version} shows no rows of {sorted(wanted)}, which the tail changes"

    def _restored(self, version: int, earlier: int) -> Table:
        """The rows of an earlier version. What is detached follows the rows, but for what was dropped since."""
        # A hold may end while the restore works. Its files stay until a cleanup has committed that, which conflicts.
        was_held = any(hold["version"] == earlier for hold in self._holds())
        assert earlier >= self.mark() or was_held, f"G1: {version} restores {earlier}, which has expired"
        dropped = {name for name, at in self._dropped.items() if at > earlier}
        detached = {name for name in self.states[earlier].domains if name.startswith(DETACHED)} - dropped
        found = {name for name in self._coming.domains if name.startswith(DETACHED)}
        assert found == detached, f"{version} restores {earlier} and leaves {found} detached, not {detached}"
        self.world.counts["detached partitions restored"] += len(detached - self.newest.domains.keys())
        return self.tables[earlier]

    def _with(self, before: Table, actions: list[dict[str, Any]], version: int) -> Table:
        """The rows of parts that a commit brings, over what was there."""
        rows = dict(before)
        added = [(0, action["add"]["path"]) for action in actions if "add" in action]
        for action in actions:
            if action.get("domainMetadata", {}).get("domain", "").startswith("lakebed.part."):
                value = json.loads(action["domainMetadata"]["configuration"])
                added.append((value["ordinal"], value["path"]))
        for _, path in sorted(added, key=lambda pair: pair[0]):
            meant, read = self.meant.get(path, (decode(self._data[path]), version))
            gone = self.columns[read].alive - self.columns[version].alive
            self.world.counts["passed a change of the columns"] += self.columns[read] != self.columns[version]
            assert not gone, f"C1: {path} was planned on version {read}, before {sorted(gone)} was dropped"
            rows.update((row.key, row) for row in meant)
        return {key: row for key, row in rows.items() if row.value is not None}

    def _mutated(self, mutation: Change, at: int, version: int, shown: Table) -> Table:
        """The table of a mutation that read the rows at a version: of each that matched, what came until its commit is changed.

        ``shown`` tells which of two right ways a row went: one that did not match for a while may be left as it is.
        """
        rows = dict(self.tables[version - 1])
        for key, row in self.tables[at].items():
            now = rows.get(key)
            if now is None or not (mutation.matches(row) and mutation.matches(now)):
                continue
            changed = mutation.changed(now)
            done = {} if changed is None else {key: changed}
            is_left = self.visible(version, {key: now}).get(key) == shown.get(key)
            if (
                is_left
                and self.visible(version, done).get(key) != shown.get(key)
                and self._rests(mutation, key, at, version)
            ):
                continue
            del rows[key]
            rows |= done
        return rows

    def _rests(self, mutation: Change, key: int, at: int, version: int) -> bool:
        """Whether there was a version from ``at`` on at which a key has no row that matches."""
        found = [self.tables[each].get(key) for each in range(at, version)]
        return any(row is None or not mutation.matches(row) for row in found)

    def left_over(self, mutation: Change, called: int, version: int) -> list[Row]:
        """The rows that match at each version since a mutation was called: it can't say that it has met none."""
        now = self.tables[version]
        return [
            row
            for key, row in now.items()
            if mutation.matches(row) and not self._rests(mutation, key, called, version + 1)
        ]

    def _checkpoint(self, version: int, data: bytes) -> None:
        found = state_of(decode_checkpoint(version, [data]))
        assert found == self.states[version], (
            f"M2: the checkpoint of {version} holds {found}, not {self.states[version]}"
        )
        self.checkpoints_kept.add(version)


def _entries_set(actions: list[dict[str, Any]], prefix: str) -> list[str]:
    """The entries of a kind that a commit sets, without the prefix."""
    domains = [action["domainMetadata"] for action in actions if "domainMetadata" in action]
    return [
        one["domain"].removeprefix(prefix) for one in domains if one["domain"].startswith(prefix) and not one["removed"]
    ]


def _split(table: Table, said: Mapping[str, str]) -> tuple[Table, Table]:
    """The rows of the partition that a commit speaks of, and the others."""
    [name] = json.loads(said["partition"]).values()
    return (
        {key: row for key, row in table.items() if row.partition == name},
        {key: row for key, row in table.items() if row.partition != name},
    )


def _difference(shown: Table, expected: Table) -> str:
    lost = sorted(set(expected.values()) - set(shown.values()))[:3]
    wrong = sorted(set(shown.values()) - set(expected.values()))[:3]
    return f"lacks {lost}, shows {wrong}"


def _files_of(vectors: Iterable[Any]) -> set[str]:
    """The files that deletion vectors lie in."""
    paths = (DeletionVector.from_json(vector).file_path() for vector in vectors if vector)
    return {path for path in paths if path}


def _vector_json(vector: DeletionVector | None) -> dict[str, Any] | None:
    return vector.to_json() if vector else None


def _counted(configuration: Mapping[str, str]) -> tuple[int, int]:
    """What goes up by one: with each change of the properties one of the two."""
    return int(configuration.get(COUNTED_PROPERTY, 0)), int(configuration.get(SORT_KEY_VERSION, 1))


def fold(before: State, version: int, actions: list[dict[str, Any]]) -> State:
    """The state after a commit."""
    base, tail = dict(before.base), dict(before.tail)
    transactions, domains = dict(before.transactions), dict(before.domains)
    configuration = before.configuration
    schema, partition_columns, features = before.schema, before.partition_columns, before.features
    is_restore = any(action.get("commitInfo", {}).get("operation") == "RESTORE" for action in actions)
    alters = any(action.get("domainMetadata", {}).get("domain", "").startswith(SCHEMA) for action in actions)
    for action in actions:
        if remove := action.get("remove"):
            assert remove["path"] in base, f"version {version} removes {remove['path']}, which is not there"
            del base[remove["path"]]
    for action in actions:
        if add := action.get("add"):
            assert add["path"] not in base, f"version {version} adds {add['path']}, which is there"
            base[add["path"]] = add.get("deletionVector")
        elif domain := action.get("domainMetadata"):
            name = domain["domain"]
            if name.startswith("lakebed.part."):
                if domain["removed"]:
                    path = next(
                        path for path in tail if path.endswith(f"/{name.removeprefix('lakebed.part.')}.parquet")
                    )
                    del tail[path]
                else:
                    value = json.loads(domain["configuration"])
                    is_again = value["path"] in tail and not is_restore
                    assert not is_again, f"version {version} adds {value['path']} to the tail again"
                    assert value["path"] not in base, f"version {version} adds {value['path']}, which was settled"
                    tail[value["path"]] = (value["version"], value["ordinal"])
            else:
                if name == COUNTED_DOMAIN:
                    counted = int(domains.get(name, 0)) + 1
                    assert int(domain["configuration"]) == counted, f"{version}: lost update of {name}"
                domains.pop(name, None)
                if not domain["removed"]:
                    domains[name] = domain["configuration"]
        elif transaction := action.get("txn"):
            last = transactions.get(transaction["appId"], -1)
            assert transaction["version"] == last + 1, f"M3: batch {transaction['version']} follows {last}"
            transactions[transaction["appId"]] = transaction["version"]
        elif metadata := action.get("metaData"):
            counts = [_counted(kept) for kept in (configuration, metadata["configuration"])]
            risen = counts[1][0] - counts[0][0], counts[1][1] - counts[0][1]
            allowed = ((0, 0),) if alters else ((1, 0), (0, 1))
            assert version == 0 or risen in allowed, f"{version}: lost update of the properties"
            configuration, schema = metadata["configuration"], metadata["schemaString"]
            partition_columns = tuple(metadata["partitionColumns"])
        elif protocol := action.get("protocol"):
            features = frozenset(protocol["readerFeatures"])
    return State(version, base, tail, transactions, domains, configuration, schema, partition_columns, features)


def reader_of(state: State) -> Reader:
    """How a reader of a version finds values."""
    return Reader.of(state.schema, state.configuration.get("delta.columnMapping.mode") == "name")
