"""Three replicas and two writers share one table on a store that fails now and then, and are killed with -9 in turn.

1.  The S3 server is reached through a proxy that fails a share of the requests. Two of the replicas share a host, which is a
    cache folder here; the third has one of its own. Leases are short.
2.  Again and again one of the five is killed, often one that merges just now. It starts again at once, or only at the next
    kill: then its leases end, and others take its sources over.
    Where replicas read too, with `lakebed.replicate_local` on, they compare the rows that their hosts read with those that the
    store has, at the newest version and at an earlier one.
3.  The writers stop, then the replicas, by SIGTERM: in order, and soon. One more replica starts, without volatile parts; in the
    end the tail is empty, nothing is left to merge and no claim is left.
4.  The rows are those of the writers' batches, applied to a dictionary one after the other, also for a foreign reader. Every
    file that the newest version names is there, and after a cleanup no other. The log, replayed from its first version,
    breaks no invariant and gives the newest snapshot.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

import lakebed
from lakebed.health.run_report import RUNS_FOLDER
from lakebed.log.actions import Commit, Domain
from lakebed.log.claims import claims_of
from lakebed.log.entries import CLAIM
from lakebed.log.invariants import violations
from lakebed.log.snapshot import Snapshot, apply
from lakebed.operations.references import referenced_by
from tests.end_to_end.replica_process import (
    DIFFERS,
    READ_REPLICATED,
    READY,
    SCHEMA,
    TRY_AGAIN,
    changes_of,
    committed,
)
from tests.infra.downloads import REPOSITORY
from tests.infra.fault_proxy import FaultProxy, FaultRates
from tests.infra.s3 import S3Server
from tests.infra.server import Server
from tests.internals import compaction_of, log_of, storage_of
from tests.oracle import Oracle, in_order
from tests.waiting import wait_until

HALF_PERCENT = FaultRates(before=0.002, reset=0.0015, after=0.0015)
WRITERS = 2
END_SECONDS_MAX = 20.0  # from SIGTERM to the end of a process
MERGING_SHARE, MERGING_SECONDS_MAX = 0.5, 3.0
Volatile = Literal["on", "off", "changing"]


class Member(Server):
    """One of the processes: a replica or a writer."""

    ports_needed = 0

    def __init__(
        self, name: str, role: str, table: str, folder: Path, host: str, *, lease: float, writer: int = 0
    ) -> None:
        self.name = name
        super().__init__(folder)
        self.role = role
        self._arguments = [role, table, str(lease), str(writer)]
        self._cache = folder / host
        self._log_start = 0

    def prepare(self) -> None:
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0

    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.end_to_end.replica_process", *self._arguments]

    def environment(self) -> dict[str, str]:
        path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        return {"LAKEBED_CACHE_DIR": str(self._cache), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def is_ready(self) -> bool:
        return READY in self._log_since(self._log_start)

    def end(self) -> float:
        """SIGTERM; returns the seconds until the process ended. Raises AssertionError unless it ends in order and soon."""
        process = self._process
        assert process is not None
        started = time.monotonic()
        process.send_signal(signal.SIGTERM)
        wait_until(
            lambda: process.poll() is not None,
            lambda: f"{self.name} did not end:\n{self.log_tail()}",
            still_seconds_max=END_SECONDS_MAX,
        )
        assert process.returncode == 0, f"{self.name} ended with code {process.returncode}:\n{self.log_tail()}"
        seconds = time.monotonic() - started
        self.stop()
        return seconds

    def said(self, words: str) -> int:
        """How many lines of its log have the words."""
        return self.log_path.read_text(errors="replace").count(words)


@dataclass(frozen=True)
class Outcome:
    """What happened, for whoever reads the output of a long run."""

    seconds: float
    kills: dict[str, int]
    batches: list[int]
    batches_tried_again: int
    faults: int
    requests: int
    live_rows: int
    versions: int
    operations: dict[str, int]
    taken_over: int
    merges_that_failed: int
    files_cleaned: int
    reads_of_replicated_parts: int
    slowest_end_seconds: float


def fight(
    server: S3Server,
    proxy: FaultProxy,
    folder: Path,
    *,
    kills: int,
    kill_seconds: float,
    seed: int,
    volatile: Volatile,
    roles: Sequence[str] = ("replica",) * 3,
    lease_seconds: float = 6.0,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Runs the whole; the AWS variables point at the proxy. Raises AssertionError naming what went wrong.

    ``kills``: how many, about ``kill_seconds`` apart. The members go on until somebody has merged and, if a reader is among
    them, until one has read a part that it built itself: how soon that is depends on the machine.
    """
    chance = random.Random(seed)
    started = time.monotonic()
    path = f"s3://{server.create_bucket()}/table"
    properties = {
        "lakebed.read_budget": "3", "lakebed.volatile": "off" if volatile == "off" else "on",
        # A reader of a busy machine needs some time to come upon what its host built, before that is uploaded.
        "lakebed.upload_after": "20 seconds" if "reader" in roles else "5 seconds", "lakebed.checkpoint_interval": "50",
        "lakebed.replicate_local": "on" if "reader" in roles else "off",
    }  # fmt: skip
    table = lakebed.create(path, SCHEMA, keys=["writer", "id"], properties=properties)
    replicas = [
        Member(f"replica-{number}", role, path, folder, "own" if number == 2 else "shared", lease=lease_seconds)
        for number, role in enumerate(roles)
    ]
    writers = [
        Member(f"writer-{number}", "writer", path, folder, f"writer-{number}", lease=lease_seconds, writer=number)
        for number in range(WRITERS)
    ]
    last = Member("replica-last", "replica", path, folder, "last", lease=lease_seconds)
    members = [*replicas, *writers]
    killed: Counter[str] = Counter()
    proxy.set_rates(HALF_PERCENT, seed=seed)
    proxy.traffic(reset=True)
    with ended(*members, last):
        for member in members:
            member.start()
        away: Member | None = None
        for _ in range(kills):
            time.sleep(chance.uniform(0.5, 1.5) * kill_seconds)
            require_running(*(member for member in members if member is not away))
            running = [member for member in members if member is not away]
            victim = (chance.random() < MERGING_SHARE and merging(table, running)) or chance.choice(running)
            victim.kill()
            killed[victim.name] += 1
            if away is not None:
                away.start()
            away = victim if chance.random() < 0.5 else None
            if away is None:
                victim.start()
            if volatile == "changing":
                table.set_properties({"lakebed.volatile": chance.choice(("on", "off"))})
            state = log_of(table).refresh()
            say(
                f"{time.monotonic() - started:4.0f} s, kill {killed.total()}: {victim.name}{' for a while' * bool(away)}; "
                f"version {state.version}, {len(state.parts)} parts, {len(state.tail)} in the tail, "
                f"{len(claims_of(state.domains))} claims"
            )
        if away is not None:
            away.start()
        wait_until(lambda: not missing(table, replicas), lambda: f"{missing(table, replicas)}: waited for in vain")
        require_running(*members)
        ends = [member.end() for member in (*writers, *replicas)]
        table.set_properties({"lakebed.volatile": "off"})
        last.start()
        wait_until(
            lambda: at_rest(table) or not last.is_running,
            "the last replica found no rest",
            moving=lambda: table.version,
        )
        ends.append(last.end())
    traffic = proxy.traffic()
    proxy.set_rates(FaultRates())
    snapshot = log_of(table).refresh()
    batches = [committed(snapshot, writer) for writer in range(WRITERS)]
    live_rows = require_same(table, batches, server)
    operations, taken_over = require_sound_log(table)
    cleaned = require_no_other_file(table)
    require_same(lakebed.open(path), batches, server)
    for member in (*members, last):
        assert not member.said(DIFFERS), f"{member.name} read other rows:\n{member.log_path.read_text()[-4000:]}"
        assert not member.said("Traceback"), f"{member.name} was surprised:\n{member.log_path.read_text()[-4000:]}"
    return Outcome(
        seconds=time.monotonic() - started,
        kills=dict(sorted(killed.items())),
        batches=batches,
        batches_tried_again=sum(writer.said(TRY_AGAIN) for writer in writers),
        faults=traffic.faults.total(),
        requests=traffic.requests.total(),
        live_rows=live_rows,
        versions=snapshot.version,
        operations=dict(operations),
        taken_over=taken_over,
        merges_that_failed=sum(member.said("MergeFailed(") for member in (*replicas, last)),
        files_cleaned=cleaned,
        reads_of_replicated_parts=sum(map(reads_of_replicated_parts, replicas)),
        slowest_end_seconds=max(ends),
    )


@contextmanager
def ended(*members: Member) -> Iterator[None]:
    """None of them runs afterwards."""
    try:
        yield
    finally:
        for member in members:
            member.kill()


def merging(table: lakebed.Table, members: Sequence[Member]) -> Member | None:
    """The first that claims something for a merge that it has not finished, None if nobody does for some seconds."""
    deadline = time.monotonic() + MERGING_SECONDS_MAX
    while time.monotonic() < deadline:
        for claim in claims_of(log_of(table).refresh().domains).values():
            for member in members:
                if f"-{member.pid}-" in claim.replica:  # volatile parts carry another name: they live long anyway
                    return member
    return None


def missing(table: lakebed.Table, replicas: Sequence[Member]) -> str:
    """What has not happened yet and the comparisons would prove little without; nothing when all has."""
    if any(member.role == "reader" for member in replicas):
        return "" if any(map(reads_of_replicated_parts, replicas)) else "a read of what a host built from a claim"
    return "" if has_merged(table) else "a merge"


def has_merged(table: lakebed.Table) -> bool:
    operations = (commit.info.operation for commit in log_of(table).commits(1, table.version) if commit.info)
    return "CLAIM" in operations


def reads_of_replicated_parts(member: Member) -> int:
    return member.said(READ_REPLICATED)


def require_running(*members: Member) -> None:
    for member in members:
        assert member.is_running, f"{member.name} ended by itself:\n{member.log_tail()}"


def at_rest(table: lakebed.Table) -> bool:
    """Nothing is left to settle or to merge, and nobody claims anything."""
    snapshot = log_of(table).refresh()
    return not snapshot.tail and not claims_of(snapshot.domains) and not compaction_of(table).plan().plans


def require_same(table: lakebed.Table, batches: Sequence[int], server: S3Server) -> int:
    """Returns the number of rows, which are the oracle's for us and for a foreign reader."""
    oracle = Oracle(("writer", "id"), tuple(SCHEMA.names))
    for writer, count in enumerate(batches):
        for batch in range(count):
            oracle.apply(changes_of(writer, batch))
    expected = oracle.rows()
    assert in_order(table.to_arrow().to_pylist()) == expected, "the table differs from its batches"
    foreign = DeltaTable(table.path, storage_options={"AWS_ENDPOINT_URL": server.endpoint, "AWS_ALLOW_HTTP": "true"})
    rows = pa.table(QueryBuilder().register("t", foreign).execute("select * from t"))
    assert in_order(rows.to_pylist()) == expected, "delta-rs reads other rows"
    return len(expected)


def require_sound_log(table: lakebed.Table) -> tuple[Counter[str], int]:
    """Replays the log; returns how often each operation stands in it, and how many claims were taken over."""
    snapshot = log_of(table).at_version(0)
    newest = log_of(table).refresh()
    operations: Counter[str] = Counter()
    taken_over = 0
    for commit in log_of(table).commits(1, newest.version):
        assert not (found := violations(snapshot, commit)), f"version {commit.version}: {found}"
        assert commit.info is not None
        operations[commit.info.operation] += 1
        taken_over += took_over(snapshot, commit)
        snapshot = apply(snapshot, commit)
    assert (snapshot.parts, snapshot.tail, snapshot.domains) == (newest.parts, newest.tail, newest.domains)
    return operations, taken_over


def took_over(before: Snapshot, commit: Commit) -> int:
    """How many claims of others a claim takes the place of."""
    if commit.info is None or commit.info.operation != "CLAIM":
        return 0
    claims = {claim.domain: claim for claim in claims_of(before.domains).values()}
    domains = [action for action in commit.actions if isinstance(action, Domain)]
    [new] = claims_of({action.domain: action.configuration for action in domains if not action.removed}).values()
    # A claim may also end entries of claims that were lost, whose parts are gone.
    ended = [claims[action.domain] for action in domains if action.removed and action.domain.startswith(CLAIM)]
    return sum(claim.replica != new.replica for claim in ended)


def require_no_other_file(table: lakebed.Table) -> int:
    """Cleans up; afterwards the table's files are those that its newest version names. Returns how many went."""
    named = set(referenced_by(log_of(table).refresh()))
    assert named <= files_of(table), f"lost: {sorted(named - files_of(table))}"
    time.sleep(2)  # the store tells a file's age in whole seconds
    cleaned = table.maintenance.remove_orphan_files("0 seconds", dry_run=False, allow_short_retention=True).num_rows
    cleaned += table.maintenance.vacuum("0 seconds", dry_run=False, allow_short_retention=True).num_rows
    left = files_of(table) ^ set(referenced_by(log_of(table).refresh()))
    assert not left, f"files and newest version differ: {sorted(left)}"
    return cleaned


def files_of(table: lakebed.Table) -> set[str]:
    """But for what pipelines that were killed said of themselves."""
    paths = (path for path, _, _ in storage_of(table).list("_lakebed/"))
    return {path for path in paths if not path.startswith(RUNS_FOLDER)}
