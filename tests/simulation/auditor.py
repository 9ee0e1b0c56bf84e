"""Sees every object at the moment it really lands, folds the log by itself, and holds everybody to it.

The fold here shares no code with ``lakebed.manifest``: it reads the JSON lines. After every version:
- M1: the version follows the last one, and was never written before, also not before a cleanup.
- M3 and nothing lost: base and tail hold each batch that the transactions claim exactly once, and no other.
- No update is lost: counters in a property and in a domain go up by one.
- B1, S2: each row is live once at most; a commit that only rearranges rows leaves the same ones; none comes to life again.
- P1, P4: what a claim names is in the base, and is named by no other claim.
- The numbered invariants of ``lakebed.manifest.invariants`` hold for the commit.
After every checkpoint, M2: what it decodes to is the state that was folded for its version.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lakebed.manifest.actions import decode_commit
from lakebed.manifest.checkpoint import decode_checkpoint
from lakebed.manifest.deletion_vector import DeletionVector, unpack
from lakebed.manifest.invariants import violations
from lakebed.manifest.snapshot import Snapshot, apply

Batch = tuple[str, int]
Row = tuple[str, int]
ROWS = 100
CLAIM_PREFIX = "lakebed.claim."
COUNTED_DOMAIN = "lakebed.counted"
COUNTED_PROPERTY = "counted"


@dataclass(frozen=True)
class State:
    """The table at one version, as plain values."""

    version: int = -1
    base: Mapping[str, int] = field(default_factory=dict)  # path → dead rows
    tail: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # path → (version, ordinal)
    transactions: Mapping[str, int] = field(default_factory=dict)
    domains: Mapping[str, str] = field(default_factory=dict)
    configuration: Mapping[str, str] = field(default_factory=dict)


def state_of(snapshot: Snapshot) -> State:
    """A snapshot of lakebed's as plain values."""
    return State(
        version=snapshot.version,
        base={path: part.dead_rows for path, part in snapshot.parts.items()},
        tail={part.path: (part.version, part.ordinal) for part in snapshot.tail.values()},
        transactions={app: transaction.version for app, transaction in snapshot.transactions.items()},
        domains=dict(snapshot.domains),
        configuration=dict(snapshot.metadata.configuration),
    )


class Auditor:
    """What the log really holds, version by version."""

    def __init__(self) -> None:
        self.states: dict[int, State] = {}
        self.contents: dict[str, tuple[Batch, ...]] = {}  # path → the batches whose rows it holds
        self.rows: dict[str, tuple[Row, ...]] = {}  # path → which rows it holds, for what merges wrote
        self.vectors: dict[str, bytes] = {}  # path → deletion vectors
        self._live: dict[str, frozenset[Row]] = {}
        self._known: set[Row] = set()  # all rows that were ever live
        self.commits_kept: set[int] = set()
        self.checkpoints_kept: set[int] = set()
        self.newest = State()
        self._snapshot: Snapshot | None = None

    def landed(self, name: str, data: bytes) -> None:
        """An object was written."""
        head, _, rest = name.removeprefix("_delta_log/").partition(".")
        if rest == "json":
            self._commit(int(head), data)
        elif rest == "checkpoint.parquet":
            self._checkpoint(int(head), data)

    def gone(self, name: str) -> None:
        """An object was deleted."""
        head, _, rest = name.removeprefix("_delta_log/").partition(".")
        if rest == "json":
            self.commits_kept.discard(int(head))
        elif rest == "checkpoint.parquet":
            self.checkpoints_kept.discard(int(head))
        assert self.oldest_readable() <= self.newest.version, f"after {name} was deleted no version can be read"

    def oldest_readable(self) -> int:
        """The oldest version that the files in the store still give."""
        starts = sorted(self.checkpoints_kept | ({0} & self.commits_kept))
        for start in starts:
            if all(version in self.commits_kept for version in range(start + 1, self.newest.version + 1)):
                return start
        return self.newest.version + 1

    def require(self, snapshot: Snapshot, what: str) -> None:
        """A snapshot that somebody got must be the state of its version."""
        expected = self.states.get(snapshot.version)
        assert expected is not None, f"{what}: got version {snapshot.version}, which was never written"
        found = state_of(snapshot)
        assert found == expected, f"{what}: version {snapshot.version} reads as\n{found}\nbut is\n{expected}"

    def holds(self, batch: Batch) -> bool:
        """Is a batch in the newest version?"""
        return self.newest.transactions.get(batch[0], -1) >= batch[1]

    def _commit(self, version: int, data: bytes) -> None:
        assert version not in self.states, f"M1: version {version} was written twice"
        assert version == self.newest.version + 1, f"M1: version {version} follows {self.newest.version}"
        after = _fold(self.newest, version, data)
        held = Counter(batch for path in (*after.base, *after.tail) for batch in self.contents[path])
        claimed = Counter({(app, number): 1 for app, last in after.transactions.items() for number in range(last + 1)})
        assert held == claimed, f"version {version}: lost {claimed - held}, twice {held - claimed}"
        self._rows_stay(version, data)
        _claims_are_apart(after, self.newest)
        commit = decode_commit(version, data)
        if self._snapshot is not None:
            broken = violations(self._snapshot, commit)
            assert not broken, f"version {version} breaks {broken}"
        self._snapshot = apply(self._snapshot, commit)
        assert state_of(self._snapshot) == after, (
            f"version {version} is applied as {state_of(self._snapshot)}, not {after}"
        )
        self.states[version] = self.newest = after
        self.commits_kept.add(version)

    def rows_of(self, path: str) -> tuple[Row, ...]:
        """The rows of a part, in order; those of a change part are its own."""
        return self.rows.get(path) or tuple((path, row) for row in range(ROWS))

    def _rows_stay(self, version: int, data: bytes) -> None:
        live = dict(self._live)
        actions = [json.loads(line) for line in data.decode().splitlines()]
        moved = [action["remove"] for action in actions if "remove" in action]
        added = [action["add"] for action in actions if "add" in action]
        for remove in moved:
            del live[remove["path"]]
        new: set[Row] = set()
        for add in added:
            path, vector = add["path"], add.get("deletionVector")
            rows = self.rows_of(path)
            live[path] = frozenset(rows)
            if vector:
                found = DeletionVector.from_json(vector)
                file = found.file_path()
                dead = unpack(found, self.vectors[file] if file else None)
                live[path] = frozenset(row for at, row in enumerate(rows) if at not in dead)
            if add["dataChange"]:
                new |= set(rows)
        before, after = Counter(_all(self._live)), Counter(_all(live))
        assert not after or max(after.values()) == 1, f"B1: version {version} has a row twice"
        come_back = after.keys() - before.keys() - (new - self._known)
        assert not come_back, f"B1: version {version} brings rows back to life: {sorted(come_back)[:3]}"
        if added and moved and not any(action["dataChange"] for action in (*added, *moved)):
            assert before == after, f"S2: version {version} loses {sorted(before - after)[:3]}"
        self._live = live
        self._known |= new

    def _checkpoint(self, version: int, data: bytes) -> None:
        found = state_of(decode_checkpoint(version, [data]))
        assert found == self.states[version], (
            f"M2: the checkpoint of {version} holds {found}, not {self.states[version]}"
        )
        self.checkpoints_kept.add(version)


def _all(live: Mapping[str, frozenset[Row]]) -> Iterator[Row]:
    for rows in live.values():
        yield from rows


def _claims_are_apart(after: State, before: State) -> None:
    named: dict[str, str] = {}
    for name, text in after.domains.items():
        if name.startswith(CLAIM_PREFIX):
            for path in json.loads(text)["sources"]:
                assert path not in named, f"P4: {path} is claimed by {named[path]} and {name}"
                assert name in before.domains or path in after.base, f"P1: {name} claims {path}, which is not there"
                named[path] = name


def _fold(before: State, version: int, data: bytes) -> State:
    base, tail = dict(before.base), dict(before.tail)
    transactions, domains = dict(before.transactions), dict(before.domains)
    configuration = before.configuration
    actions = [json.loads(line) for line in data.decode().splitlines()]
    for action in actions:
        if remove := action.get("remove"):
            assert remove["path"] in base, f"version {version} removes {remove['path']}, which is not there"
            del base[remove["path"]]
    for action in actions:
        if add := action.get("add"):
            assert add["path"] not in base, f"version {version} adds {add['path']}, which is there"
            base[add["path"]] = (add.get("deletionVector") or {"cardinality": 0})["cardinality"]
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
                    assert value["path"] not in tail, f"version {version} adds {value['path']} to the tail again"
                    assert value["path"] not in base, f"version {version} adds {value['path']}, which was settled"
                    tail[value["path"]] = (value["version"], value["ordinal"])
            elif name.startswith(CLAIM_PREFIX):
                domains.pop(name, None)
                if not domain["removed"]:
                    domains[name] = domain["configuration"]
            else:
                assert int(domain["configuration"]) == int(domains.get(name, 0)) + 1, (
                    f"{version}: lost update of {name}"
                )
                domains[name] = domain["configuration"]
        elif transaction := action.get("txn"):
            last = transactions.get(transaction["appId"], -1)
            assert transaction["version"] == last + 1, f"M3: batch {transaction['version']} follows {last}"
            transactions[transaction["appId"]] = transaction["version"]
        elif metadata := action.get("metaData"):
            counted = [int(kept.get(COUNTED_PROPERTY, 0)) for kept in (configuration, metadata["configuration"])]
            assert version == 0 or counted[1] == counted[0] + 1, f"{version}: lost update of the properties"
            configuration = metadata["configuration"]
    return State(version, base, tail, transactions, domains, configuration)
