"""What a host merges and keeps on its disk, another host builds for its own readers: same rows, no commit, nothing left over."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.compaction.compaction import LocalKernel
from lakebed.compaction.maintenance import Maintenance
from lakebed.compaction.merge import Merger
from lakebed.compaction.merge_values import MergeOutcome, Progress
from lakebed.compaction.replicate import FAILURES_MAX, Replication
from lakebed.compaction.volatile import VolatileMerger
from lakebed.errors import Cancelled, StoreUnavailable
from lakebed.log.claims import Claim, claims_of
from lakebed.merge.kernel import MergedPart, MergeSource
from lakebed.merge.materialized import REPLICATED, LocalParts, Materialized, MaterializedFolder
from lakebed.operations.purge import files as purge_files
from lakebed.parts.changes import WriteSpec
from lakebed.planning.settling import UploadRules
from lakebed.storage.local_folders import lock_folder
from lakebed.storage.part_storage import PartStorage
from lakebed.table import internals_of
from lakebed.view.merge_on_read import TableView
from tests.internals import compaction_of, deletion_vectors_of, log_of, storage_of
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.string())])
ALL = UploadRules(age_seconds=0, local_bytes_max=0)


@dataclass(frozen=True)
class Kernel:
    """The real one, with what happens before and after it."""

    inner: LocalKernel
    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        self.before()
        merged = self.inner.merge(sources, spec, output, progress)
        self.after()
        return merged


class Host:
    """A host with a disk of its own, on which the table is open."""

    def __init__(self, path: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = cache
        with monkeypatch.context() as patch:
            patch.setenv("LAKEBED_CACHE_DIR", str(cache))
            self.table = lakebed.open(path)
        self.log = log_of(self.table)
        self.merger: VolatileMerger | None = None

    @property
    def base(self) -> Path:
        return compaction_of(self.table).volatile_base

    def kernel(self, before: Callable[[], object] = lambda: None, after: Callable[[], object] = lambda: None) -> Kernel:
        return Kernel(LocalKernel(storage_of(self.table), self.log.refresh), before, after)

    def replication(self) -> Replication:
        """That of another process of this host."""
        return Replication(self.log, storage_of(self.table), deletion_vectors_of(self.table), LocalParts(self.base))

    def look(self, kernel: Kernel | None = None) -> events.PartReplicated | None:
        self.log.refresh()
        return compaction_of(self.table).replication.look(kernel or self.kernel())

    def merge(self, paths: Sequence[str], level: int = 1) -> Materialized:
        """On this host's disk; ``paths`` may be those of its own materialized parts."""
        if self.merger is None:
            self.merger = VolatileMerger(self.log, storage_of(self.table), deletion_vectors_of(self.table), self.base)
        known = {one.claim.id for one in self.merger.held()}
        assert self.merger.run(paths, level, self.kernel()).outcome is MergeOutcome.COMPLETED
        [new] = [one for one in self.merger.held() if one.claim.id not in known]
        return new

    def held(self) -> list[Materialized]:
        """What was replicated here."""
        return [one for one in LocalParts(self.base).load() if Path(one.folder).parent.name == REPLICATED]

    def files(self) -> set[str]:
        """All files of parts on this host, used or not."""
        return {path.name for path in self.base.rglob("*.parquet")}

    def reads(self) -> list[str]:
        """The files that a read of the newest version opens here."""
        return [file.path for file in internals_of(self.table).view.pin(self.log.refresh()).files]

    def content(self) -> dict[int, str]:
        return {row["id"]: row["value"] for row in self.table.to_arrow().to_pylist()}


@dataclass
class Hosts:
    a: Host
    b: Host

    def upsert(self, ids: Sequence[int], value: str = "first") -> None:
        self.a.table.apply(pa.table({"id": list(ids), "value": [value] * len(ids)}, SCHEMA))
        self.a.table.settle()

    def delete(self, ids: Sequence[int]) -> None:
        rows = pa.table({"id": pa.array(ids, pa.int64()), "value": pa.nulls(len(ids), pa.string())})
        self.a.table.apply(rows, apply_as_deletes="true")
        self.a.table.settle()

    def paths(self) -> list[str]:
        return sorted(self.a.log.refresh().parts)

    def end(self, claim: Claim) -> None:
        Merger(self.a.log, storage_of(self.a.table), deletion_vectors_of(self.a.table), claim.replica).abandon(claim)


@pytest.fixture(autouse=True)
def nobody_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A purge waits a minute for those who follow."""
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Two hosts and a table of three base parts: ids 0 to 9, 10 to 19, 20 to 29."""
    path = str(tmp_path / "table")
    properties = {"lakebed.read_budget": "1", "lakebed.volatile": "on", "lakebed.replicate_local": "on"}
    lakebed.create(path, SCHEMA, keys=["id"], properties=properties)
    hosts = Hosts(Host(path, tmp_path / "a", monkeypatch), Host(path, tmp_path / "b", monkeypatch))
    for start in (0, 10, 20):
        hosts.upsert(range(start, start + 10))
    return hosts


def test_another_host_builds_what_a_replica_merges_and_reads_it_without_a_commit(hosts: Hosts) -> None:
    before = hosts.paths()
    hosts.a.merge(before)
    assert len(hosts.b.reads()) == 3
    version = hosts.b.log.refresh().version
    built = hosts.b.look()
    assert built is not None and (built.parts_in, built.parts_out, built.rows) == (3, 1, 30)
    assert hosts.b.log.refresh().version == version, "nothing is committed"
    [read] = hosts.b.reads()
    assert read.startswith(f"file://{hosts.b.base}/{REPLICATED}/"), "also at a version that was read before"
    assert hosts.b.content() == hosts.a.content() == dict.fromkeys(range(30), "first")
    assert hosts.b.look() is None, "there is nothing more to build"


def test_rows_that_die_while_it_is_built_and_later_are_dead_in_it(hosts: Hosts) -> None:
    hosts.delete([1])
    hosts.a.merge(hosts.paths())
    hosts.delete([2])
    assert hosts.b.look(hosts.b.kernel(before=lambda: hosts.delete([3]), after=lambda: hosts.delete([4])))
    hosts.delete([5, 15])
    hosts.upsert([6], "second")
    hosts.a.table.apply(pa.table({"id": [7], "value": ["in the tail"]}, SCHEMA))
    assert len(hosts.b.reads()) == 3, "the part, the one of the second value, and the tail"
    expected = {id: "first" for id in range(30) if id not in (1, 2, 3, 4, 5, 15)} | {6: "second", 7: "in the tail"}
    assert hosts.b.content() == hosts.a.content() == expected


def test_versions_from_before_it_was_built_are_read_from_the_sources(hosts: Hosts) -> None:
    old = hosts.b.log.refresh().version
    hosts.delete([1, 11])
    hosts.a.merge(hosts.paths())
    assert hosts.b.look()
    assert len(hosts.b.reads()) == 1
    at_old = hosts.b.table.to_arrow(version=old)
    assert sorted(at_old["id"].to_pylist()) == list(range(30))


@pytest.mark.parametrize("name", ["a", "b"])
def test_versions_from_before_a_column_was_dropped_have_its_values_on_both_hosts(name: str, hosts: Hosts) -> None:
    old = hosts.a.log.refresh().version
    hosts.a.table.alter(drop=["value"])
    hosts.a.merge(hosts.paths())
    assert hosts.b.look()
    host = getattr(hosts, name)
    assert len(host.reads()) == 1
    rows = host.table.to_arrow(version=old).to_pylist()
    assert {row["id"]: row["value"] for row in rows} == dict.fromkeys(range(30), "first")


def test_a_further_merge_is_built_from_what_is_here_and_takes_its_place(hosts: Hosts) -> None:
    a, b, c = hosts.paths()
    first = hosts.a.merge([a, b])
    assert hosts.b.look()
    hosts.delete([1])
    hosts.a.merge([first.url(first.parts[0]), c], 2)
    [held] = hosts.b.held()
    assert held.claim.id == first.claim.id and len(hosts.b.reads()) == 2, (
        "until the new one is built, the old one serves"
    )
    built = hosts.b.look()
    assert built is not None and built.parts_in == 2, "the part that was here, and one of the store"
    hosts.delete([2, 22])
    [held] = hosts.b.held()
    assert sorted(held.claim.sources) == sorted([a, b, c]) and len(hosts.b.reads()) == 1
    assert hosts.b.content() == {id: "first" for id in range(30) if id not in (1, 2, 22)}


@pytest.mark.parametrize("how", ["uploaded", "given up", "taken over", "replaced", "turned off"])
def test_it_goes_when_its_claim_goes(how: str, hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    one = hosts.a.merge(hosts.paths()[:2])
    assert hosts.b.look()
    if how == "uploaded":
        assert hosts.a.merger is not None
        [result] = hosts.a.merger.upload_due(ALL)
        assert result.outcome is MergeOutcome.COMPLETED
    elif how == "given up":
        hosts.end(one.claim)
    elif how == "taken over":
        late = Merger(
            hosts.a.log,
            storage_of(hosts.a.table),
            deletion_vectors_of(hosts.a.table),
            "late",
            clock=lambda: one.claim.lease_ms / 1000 + 1,
        )
        assert late.run(hosts.paths(), 1, hosts.a.kernel()).outcome is MergeOutcome.COMPLETED
    elif how == "replaced":
        hosts.a.table.truncate()
        hosts.upsert(range(30))
    else:
        hosts.a.table.set_properties({"lakebed.replicate_local": "off"})
    assert hosts.b.content() == dict.fromkeys(range(30), "first"), "right also before it is dropped"
    assert hosts.b.look() is None
    assert not hosts.b.held() and all(not path.startswith("file://") for path in hosts.b.reads())
    assert hosts.b.files(), "readers that have begun may go on"
    for place in (hosts.b.base / REPLICATED).iterdir():
        os.utime(place, (1, 1))
    hosts.b.look()
    assert not hosts.b.files()
    if how == "turned off":
        hosts.b.look()
        assert not (hosts.b.base / REPLICATED).exists()
    assert hosts.b.content() == dict.fromkeys(range(30), "first")


def test_what_is_uploaded_at_once_is_not_built(hosts: Hosts) -> None:
    merger = VolatileMerger(hosts.a.log, storage_of(hosts.a.table), deletion_vectors_of(hosts.a.table), hosts.a.base)
    seen: list[object] = []

    def look() -> None:
        [claim] = claims_of(hosts.b.log.refresh().domains).values()
        seen.append((claim.volatile, claim.uploads, hosts.b.look()))

    merger.run_and_upload(hosts.paths(), 1, hosts.a.kernel(before=look))
    assert seen == [(True, True, None)]


def test_claims_of_this_host_and_claims_that_are_not_live_are_left_alone(hosts: Hosts) -> None:
    one = hosts.a.merge(hosts.paths())
    hosts.a.log.refresh()
    assert compaction_of(hosts.a.table).replication.look(hosts.a.kernel()) is None, "its own"
    late = Replication(
        hosts.b.log,
        storage_of(hosts.b.table),
        deletion_vectors_of(hosts.b.table),
        LocalParts(hosts.b.base),
        clock=lambda: one.claim.lease_ms / 1000 + 1,
    )
    hosts.b.log.refresh()
    assert late.look(hosts.b.kernel()) is None, "its lease has ended"
    assert not hosts.b.held()


def test_a_claim_that_ends_while_it_is_built_leaves_nothing(hosts: Hosts) -> None:
    one = hosts.a.merge(hosts.paths())
    assert hosts.b.look(hosts.b.kernel(after=lambda: hosts.end(one.claim))) is None
    assert not hosts.b.held() and not hosts.b.files()


def test_a_purge_on_another_host_takes_the_rows_from_this_disk_while_it_waits_for_others(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 60.0)
    hosts.a.merge(hosts.paths())
    assert hosts.b.look() and hosts.b.files()
    left: list[set[str]] = []

    def a_minute(seconds: float) -> None:
        assert hosts.b.look() is None
        left.append(hosts.b.files())

    hosts.a.log.sleep = a_minute
    hosts.a.table.purge("id = 7", dry_run=False)
    assert left == [set()], "no grace for readers"
    assert hosts.b.content() == {id: "first" for id in range(30) if id != 7}


def test_a_purge_on_this_host_takes_them_at_once(hosts: Hosts) -> None:
    hosts.a.merge(hosts.paths())
    assert hosts.b.look() and hosts.b.files()
    report = hosts.b.table.purge("id = 7", dry_run=False).to_pylist()
    assert not hosts.b.files()
    assert [row["where"] for row in report if "/replicated/" in row["path"]], "and says so"


def test_a_damaged_file_is_avoided_and_built_again(hosts: Hosts, caplog: pytest.LogCaptureFixture) -> None:
    hosts.a.merge(hosts.paths())
    assert hosts.b.look()
    [one] = hosts.b.held()
    place = Path(one.local_path(one.parts[0]))
    place.write_bytes(b"PAR1 rubbish")
    assert hosts.b.content() == dict.fromkeys(range(30), "first")
    assert str(place) in caplog.text and not hosts.b.held(), "no other reader meets it"
    assert hosts.b.look() and len(hosts.b.reads()) == 1
    assert hosts.b.content() == dict.fromkeys(range(30), "first")


def test_a_process_that_starts_again_goes_on_with_what_is_whole(hosts: Hosts) -> None:
    a, b, c = hosts.paths()
    hosts.upsert([100])
    [d] = set(hosts.paths()) - {a, b, c}
    hosts.a.merge([a, b])
    hosts.a.merge([c, d])
    assert hosts.b.look() and hosts.b.look() and len(hosts.b.held()) == 2
    damaged = hosts.b.held()[0]
    Path(damaged.local_path(damaged.parts[0])).write_bytes(b"PAR1 rubbish")
    compaction_of(hosts.b.table).replication.close()
    again = hosts.b.replication()
    built = again.look(hosts.b.kernel())
    assert built is not None and built.claim == damaged.claim.id and len(hosts.b.held()) == 2
    assert hosts.b.content() == dict.fromkeys([*range(30), 100], "first")
    again.close()


def test_only_one_process_of_a_host_builds(hosts: Hosts) -> None:
    hosts.a.merge(hosts.paths())
    other, seen = hosts.b.replication(), []
    assert hosts.b.look(hosts.b.kernel(before=lambda: seen.append(other.look(hosts.b.kernel()))))
    assert seen == [None]
    assert other.look(hosts.b.kernel()) is None and len(hosts.b.held()) == 1
    other.close()


def test_what_killed_its_process_is_not_built_again_and_leaves_no_file(hosts: Hosts) -> None:
    one = hosts.a.merge(hosts.paths())
    if (child := os.fork()) == 0:
        hosts.b.look(hosts.b.kernel(after=lambda: os._exit(9)))
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    assert (hosts.b.base / REPLICATED / one.claim.id).exists()
    assert hosts.b.look() is None
    assert not hosts.b.files() and not hosts.b.held()
    assert hosts.b.content() == dict.fromkeys(range(30), "first")
    compaction_of(hosts.b.table).replication.close()
    again = hosts.b.replication()
    assert again.look(hosts.b.kernel()) is None, "nor by the process after the next"
    again.close()
    hosts.a.merge([one.url(one.parts[0])], 2)
    assert hosts.b.look(), "the next claim on these parts is another one"
    assert [place.name for place in (hosts.b.base / REPLICATED).iterdir() if place.is_dir()] != [one.claim.id]


def test_a_build_that_fails_is_tried_a_few_times(hosts: Hosts) -> None:
    hosts.a.merge(hosts.paths())
    tries = []

    def fail() -> None:
        tries.append(1)
        raise StoreUnavailable("no answer")

    for _ in range(FAILURES_MAX + 3):
        assert hosts.b.look(hosts.b.kernel(before=fail)) is None
    assert len(tries) == FAILURES_MAX and not hosts.b.files()
    assert hosts.b.content() == dict.fromkeys(range(30), "first")


def test_a_build_that_is_cancelled_leaves_nothing_and_begins_anew(hosts: Hosts) -> None:
    hosts.a.merge(hosts.paths())

    def stop() -> None:
        raise Cancelled("stop")

    with pytest.raises(Cancelled):
        hosts.b.look(hosts.b.kernel(after=stop))
    assert not hosts.b.files()
    assert hosts.b.look()


def test_on_a_full_disk_what_is_worth_least_goes_and_nothing_more_is_built_than_fits(hosts: Hosts) -> None:
    a, b, c = hosts.paths()
    hosts.upsert(range(100, 103))
    hosts.upsert(range(200, 203))
    d, e = sorted(set(hosts.paths()) - {a, b, c})
    hosts.a.merge([a, b])
    assert hosts.b.look()
    [worth_less] = hosts.b.held()
    assert sorted(worth_less.claim.sources) == sorted([a, b])
    sizes = hosts.b.log.refresh().parts
    room = sum(sizes[path].bytes for path in (c, d, e))
    hosts.a.table.set_properties({"lakebed.volatile_bytes_max": str(room)})
    more = hosts.a.merge([c, d, e])
    assert hosts.b.look() is None and not hosts.b.held(), "it makes room for what saves more parts for its bytes"
    assert hosts.b.look() is None, "its files are kept for readers, so there is no room yet"
    for place in (hosts.b.base / REPLICATED).iterdir():
        os.utime(place, (1, 1))
    assert hosts.b.look()
    [one] = hosts.b.held()
    assert one.claim.id == more.claim.id
    assert hosts.b.look() is None and len(hosts.b.held()) == 1, "the other one has no room now"
    assert hosts.b.content() == hosts.a.content()


def test_a_view_of_spark_is_made_anew_when_a_part_comes_or_goes(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    inside, made = internals_of(hosts.b.table), []
    monkeypatch.setattr(TableView, "dataframe", lambda self, spark, snapshot: Frame(made, hosts.b.reads()))
    inside.view.register(None, "orders")  # type: ignore[arg-type]
    hosts.b.log.refresh()
    inside.view.refresh(hosts.b.log.refresh())
    one = hosts.a.merge(hosts.paths())
    inside.view.refresh(hosts.b.log.refresh())
    inside.replicate()
    inside.replicate()
    assert made == [3, 3, 1], "of the same version, once"
    hosts.end(one.claim)
    inside.view.refresh(hosts.b.log.refresh())
    inside.replicate()
    assert made == [3, 3, 1, 1, 3], "nothing reads a part that was dropped"


@dataclass
class Frame:
    """In place of Spark's: of how many files each view was made."""

    made: list[int]
    files: list[str]

    def createOrReplaceTempView(self, name: str) -> None:
        self.made.append(len(self.files))


def test_maintenance_builds_it_while_the_property_is_on(hosts: Hosts) -> None:
    hosts.a.table.set_properties({"lakebed.merge": "off"})
    with ended(internals_of(hosts.b.table).maintain()):
        hosts.a.merge(hosts.paths())
        wait_until(lambda: len(hosts.b.held()) == 1, "it was not built")
        hosts.a.table.set_properties({"lakebed.replicate_local": "off"})
        wait_until(lambda: not hosts.b.held(), "it was not dropped")
    lock = lock_folder(hosts.b.base / REPLICATED)
    assert lock is not None, "another process may build now"
    os.close(lock)


@contextmanager
def ended(maintenance: Maintenance) -> Iterator[None]:
    try:
        yield
    finally:
        maintenance.stop()


def test_what_is_on_the_disk_counts_with_all_its_files(hosts: Hosts) -> None:
    one = hosts.a.merge(hosts.paths())
    [data] = (path for path in hosts.a.base.rglob("*.parquet"))
    assert data.stat().st_size == one.bytes
    folder = MaterializedFolder(Path(one.folder).parent)
    assert not folder.has_room(one.bytes, 0)
    assert folder.has_room(10 * one.bytes, 0)
