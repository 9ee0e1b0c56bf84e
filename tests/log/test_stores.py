"""The log stores: what each must do alike, and what each must survive."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import uuid
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from lakebed.errors import InvalidInput, MissingPrerequisite, StoreUnavailable, Unsupported
from lakebed.log.stores import LocalLogStore, LogStore, MemoryLogStore, open_store
from lakebed.storage.counters import OperationCount, StoreCounters
from lakebed.storage.roots import LocalRoot, S3Root, parse_root
from lakebed.storage.s3_client import s3_client
from tests.infra.fault_proxy import Fault, FaultProxy, FaultRates
from tests.infra.s3 import S3Server, aws_environment
from tests.log.unsafe_s3 import Behaviour, UnsafeS3

S3 = pytest.param("s3", marks=pytest.mark.slow)


@pytest.fixture(params=["memory", "local", S3])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> LogStore:
    """One store of each kind, empty."""
    if request.param == "memory":
        return MemoryLogStore()
    if request.param == "local":
        return open_store(tmp_path / "a table")
    server: S3Server = request.getfixturevalue("s3")
    return open_store(f"s3://{server.create_bucket()}/some folder/täble")


@pytest.fixture(params=["local", S3])
def shared_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A root that several processes can open."""
    if request.param == "local":
        return str(tmp_path)
    server: S3Server = request.getfixturevalue("s3")
    return f"s3://{server.create_bucket()}/t"


class Held:
    """Something that can be large, such as a batch."""


def name_of(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


# -- what every store does ---------------------------------------------------------------------------------------------


def test_a_taken_name_is_refused_and_keeps_its_first_bytes(store: LogStore) -> None:
    assert store.put_if_absent(name_of(0), b"first")
    assert not store.put_if_absent(name_of(0), b"second")
    assert store.read(name_of(0)) == b"first"


def test_put_replaces_what_is_there(store: LogStore) -> None:
    store.put("_delta_log/_last_checkpoint", b"1")
    store.put("_delta_log/_last_checkpoint", b"22")
    assert store.read("_delta_log/_last_checkpoint") == b"22"


def test_a_deleted_name_is_free_again_and_deleting_it_twice_is_no_error(store: LogStore) -> None:
    store.put_if_absent("_delta_log/x", b"1")
    store.delete("_delta_log/x")
    store.delete("_delta_log/x")
    assert store.put_if_absent("_delta_log/x", b"2")


def test_reading_a_missing_name_is_file_not_found(store: LogStore) -> None:
    with pytest.raises(FileNotFoundError):
        store.read(name_of(7))


def test_a_missing_name_does_not_keep_alive_what_its_reader_has_in_hand(store: LogStore) -> None:
    def read() -> weakref.ref[Held]:
        held = Held()
        with suppress(FileNotFoundError):
            store.read(name_of(7))
        return weakref.ref(held)

    read()  # what is imported and connected the first time is another matter
    gc.collect()
    gc.disable()
    try:
        assert read()() is None, "an error and a frame hold each other until the collector comes by"
    finally:
        gc.enable()


def test_listing_begins_at_the_name_asked_for_and_is_in_byte_order(store: LogStore) -> None:
    for name in ("b", "a", "a.json", "ab", "ä", "Z", "_last", "c d%20", "sub/inner"):
        store.put_if_absent(f"_delta_log/{name}", b"")
    assert store.list_from("_delta_log", "") == ["Z", "_last", "a", "a.json", "ab", "b", "c d%20", "ä"]
    assert store.list_from("_delta_log", "a.json") == ["a.json", "ab", "b", "c d%20", "ä"]
    assert store.list_from("_delta_log", "aa") == ["ab", "b", "c d%20", "ä"]
    assert store.list_from("_delta_log", "zz") == ["ä"]


def test_listing_a_folder_that_is_not_there_is_empty(store: LogStore) -> None:
    assert store.list_from("_delta_log", f"{0:020d}") == []


def test_a_listing_longer_than_a_page_is_whole(store: LogStore) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: store.put_if_absent(name_of(n), b"x"), range(1010)))
    listed = store.list_from("_delta_log", f"{5:020d}.json")
    assert listed == [f"{n:020d}.json" for n in range(5, 1010)]


def test_an_empty_object_is_an_object(store: LogStore) -> None:
    assert store.put_if_absent("_delta_log/e", b"")
    assert store.read("_delta_log/e") == b""
    assert not store.put_if_absent("_delta_log/e", b"x")


def test_of_many_threads_that_put_one_name_exactly_one_wins(store: LogStore) -> None:
    for round_ in range(5):
        name = name_of(round_)
        start = threading.Barrier(8)

        def run(number: int, name: str = name, start: threading.Barrier = start) -> bool:
            start.wait()
            return store.put_if_absent(name, b"%d" % number * 5000)

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(run, range(8)))
        assert sum(won) == 1
        assert store.read(name) == b"%d" % won.index(True) * 5000


def test_operations_are_counted(store: LogStore) -> None:
    before = store.counters()  # type: ignore[attr-defined]
    store.put_if_absent("f/a", b"12345")
    store.put_if_absent("f/a", b"12345")
    store.read("f/a")
    spent = store.counters() - before  # type: ignore[attr-defined]
    assert spent.operations["put_if_absent"].requests == 2
    assert spent.operations["read"] == OperationCount(requests=1, bytes_read=5)
    assert pickle.loads(pickle.dumps(spent)) == spent
    assert (spent + spent).total.requests == 6
    assert (spent - spent) == StoreCounters({})


# -- several processes -------------------------------------------------------------------------------------------------


def _commit_versions(root: str, writer: int, versions: int) -> list[int]:
    store = open_store(root)
    return [version for version in range(versions) if store.put_if_absent(name_of(version), b"%d" % writer)]


@pytest.mark.slow
def test_processes_that_race_for_versions_share_them_without_gap_or_overlap(shared_root: str) -> None:
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        won = pool.starmap(_commit_versions, [(shared_root, writer, 60) for writer in range(3)])
    assert sorted(version for versions in won for version in versions) == list(range(60))
    store = open_store(shared_root)
    for writer, versions in enumerate(won):
        for version in versions:
            assert store.read(name_of(version)) == b"%d" % writer


def test_a_store_travels_to_another_process_by_pickle(shared_root: str) -> None:
    store = open_store(shared_root)
    store.put_if_absent("x", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.read("x") == b"1"
    assert copy.counters().total.requests == 1


def test_a_forked_child_reads_with_connections_of_its_own(shared_root: str) -> None:
    store = open_store(shared_root)
    store.put_if_absent("x", b"1")
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            os._exit(0 if all(store.read("x") == b"1" for _ in range(20)) else 1)
        children.append(child)
    for _ in range(20):
        assert store.read("x") == b"1"
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]


# -- local disk --------------------------------------------------------------------------------------------------------


def test_what_a_crashed_writer_leaves_is_never_listed_and_blocks_nobody(tmp_path: Path) -> None:
    crash = (
        "import os, sys\n"
        "from lakebed.log.stores import LocalLogStore\n"
        "os.link = lambda *a, **k: os._exit(9)\n"
        "LocalLogStore(sys.argv[1]).put_if_absent('_delta_log/00000000000000000000.json', b'lost')\n"
    )
    assert subprocess.run([sys.executable, "-c", crash, str(tmp_path)], check=False).returncode == 9
    assert len(os.listdir(tmp_path / "_delta_log")) == 1
    store = LocalLogStore(str(tmp_path))
    assert store.list_from("_delta_log", "") == []
    assert store.put_if_absent(name_of(0), b"kept")
    assert store.list_from("_delta_log", "") == [f"{0:020d}.json"]


def test_no_temporary_file_stays_after_a_put_that_won_or_lost(tmp_path: Path) -> None:
    store = LocalLogStore(str(tmp_path))
    store.put_if_absent("f/a", b"1")
    store.put_if_absent("f/a", b"2")
    store.put("f/b", b"3")
    assert sorted(os.listdir(tmp_path / "f")) == ["a", "b"]


def test_a_file_system_without_hard_links_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(Unsupported, match=r"_delta_log.*hard links"):
        LocalLogStore(str(tmp_path)).put_if_absent(name_of(0), b"1")
    assert os.listdir(tmp_path / "_delta_log") == []


def test_a_link_that_was_made_but_answered_late_is_a_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = os.link

    def link_twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)  # what a network file system does when the first answer is lost: EEXIST

    monkeypatch.setattr(os, "link", link_twice)
    store = LocalLogStore(str(tmp_path))
    assert store.put_if_absent(name_of(0), b"1")
    assert not store.put_if_absent(name_of(0), b"2")


def test_a_file_where_the_table_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("not a folder")
    with pytest.raises(InvalidInput, match="/t"):
        LocalLogStore(str(tmp_path / "t")).put_if_absent(name_of(0), b"1")


@pytest.mark.parametrize(
    ("root", "place"),
    [
        ("/a/b/", LocalRoot("/a/b")),
        ("/a b/ü%20", LocalRoot("/a b/ü%20")),
        ("file:///a/b", LocalRoot("/a/b")),
        ("file:/a/b%20", LocalRoot("/a/b%20")),
        ("file://localhost/a", LocalRoot("/a")),
        ("s3://bucket", S3Root("bucket", "")),
        ("s3a://bucket/a//b/", S3Root("bucket", "a/b")),
        ("s3n://bucket/ü x", S3Root("bucket", "ü x")),
    ],
)
def test_a_root_is_normalised(root: str, place: LocalRoot | S3Root) -> None:
    assert parse_root(root) == place
    assert parse_root(str(place)) == place


def test_a_relative_root_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_root("./lake/orders") == LocalRoot(str(tmp_path / "lake/orders"))
    assert parse_root("12:30") == LocalRoot(str(tmp_path / "12:30"))


@pytest.mark.parametrize(
    ("root", "error"),
    [
        ("", InvalidInput), ("s3://", InvalidInput), ("s3:bucket/x", InvalidInput), ("s3://b", InvalidInput),
        ("s3://bucket/../x", InvalidInput), ("file:x", InvalidInput), ("file://host/x", InvalidInput),
        ("gs://bucket/x", Unsupported), ("hdfs://host/x", Unsupported),
    ],
)  # fmt: skip
def test_a_root_that_means_nothing_is_refused_by_name(root: str, error: type[Exception]) -> None:
    with pytest.raises(error, match="table path"):
        open_store(root)


# -- S3 ----------------------------------------------------------------------------------------------------------------


def test_a_put_whose_answer_was_lost_is_unknown_and_reading_back_tells(s3: S3Server, flaky_s3: FaultProxy) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/t")
    store.list_from("_delta_log", "")
    flaky_s3.fail_next(Fault.AFTER, method="PUT")
    with pytest.raises(StoreUnavailable, match="read it back"):
        store.put_if_absent(name_of(0), b"mine")
    assert store.read(name_of(0)) == b"mine"


def test_a_put_that_never_arrived_is_tried_again(s3: S3Server, flaky_s3: FaultProxy) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/t")
    flaky_s3.fail_next(Fault.BEFORE, method="PUT", count=2)
    flaky_s3.fail_next(Fault.RESET, method="PUT")
    assert store.put_if_absent(name_of(0), b"mine")
    assert store.counters().operations["put_if_absent"].requests == 4  # type: ignore[attr-defined]


def test_after_an_uncertain_attempt_another_ones_object_is_not_called_taken(s3: S3Server, flaky_s3: FaultProxy) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/t")
    assert store.put_if_absent(name_of(0), b"others")
    flaky_s3.fail_next(Fault.RESET, method="PUT")
    with pytest.raises(StoreUnavailable):
        store.put_if_absent(name_of(0), b"mine")
    assert store.read(name_of(0)) == b"others"


def test_a_conflict_in_flight_is_tried_again_and_leaves_no_doubt() -> None:
    with UnsafeS3(Behaviour.CONFLICTS_ONCE) as server, aws_environment(server.endpoint):
        store = open_store("s3://bucket/t")
        assert store.put_if_absent(name_of(0), b"mine")
        server.conflicted.clear()
        assert not store.put_if_absent(name_of(0), b"second")


def test_reads_and_listings_survive_failing_requests(s3: S3Server, flaky_s3: FaultProxy) -> None:
    store = open_store(f"s3://{s3.create_bucket()}/t")
    store.put_if_absent(name_of(0), b"x" * 100_000)
    for fault in Fault:
        flaky_s3.fail_next(fault, method="GET", count=2)
        assert store.read(name_of(0)) == b"x" * 100_000
        flaky_s3.fail_next(fault, method="GET", count=2)
        assert store.list_from("_delta_log", "0") == [f"{0:020d}.json"]
        flaky_s3.fail_next(fault, method="DELETE", count=2)
        store.delete("_delta_log/none")


def test_with_failing_requests_no_acknowledged_version_is_lost_or_doubled(s3: S3Server, flaky_s3: FaultProxy) -> None:
    root = f"s3://{s3.create_bucket()}/t"
    flaky_s3.set_rates(FaultRates(before=0.01, reset=0.01, after=0.02), seed=7)

    def write(writer: int) -> list[str]:
        store, version = open_store(root), 0
        substitutes: list[str] = []
        while len(substitutes) < 60:
            mine = f"{writer}-{len(substitutes)}"
            try:
                landed = store.put_if_absent(name_of(version), mine.encode())
            except StoreUnavailable:
                try:
                    landed = store.read(name_of(version)).decode() == mine
                except FileNotFoundError:
                    continue
            if landed:
                substitutes.append(mine)
            version += 1
        return substitutes

    with ThreadPoolExecutor(3) as pool:
        acknowledged = [mine for substitutes in pool.map(write, range(3)) for mine in substitutes]
    assert sum(flaky_s3.traffic().faults.values()) > 0
    flaky_s3.set_rates(FaultRates())
    store = open_store(root)
    names = store.list_from("_delta_log", "")
    assert names == [f"{version:020d}.json" for version in range(180)]
    assert sorted(store.read(f"_delta_log/{name}").decode() for name in names) == sorted(acknowledged)


@pytest.mark.slow
def test_a_killed_server_is_unavailable_and_all_that_was_acknowledged_is_there_after_it_is_back() -> None:
    with S3Server() as server, aws_environment(server.endpoint):
        store = open_store(f"s3://{server.create_bucket()}/t")
        substitutes: list[int] = []
        killed = threading.Event()

        def write() -> None:
            for version in range(100_000):
                try:
                    if store.put_if_absent(name_of(version), b"%d" % version):
                        substitutes.append(version)
                except StoreUnavailable:
                    killed.set()
                    return

        thread = threading.Thread(target=write)
        thread.start()
        while len(substitutes) < 50:
            killed.wait(0.01)
        server.kill()
        assert killed.wait(60)
        thread.join()
        with pytest.raises(StoreUnavailable, match="failed 8 times"):
            store.read(name_of(0))
        server.restart()
        assert [store.read(name_of(version)) for version in substitutes] == [b"%d" % version for version in substitutes]


def test_a_missing_bucket_is_named(s3: S3Server) -> None:
    store = open_store(f"s3://nobody-made-{uuid.uuid4().hex[:8]}/t")
    for act in (
        lambda: store.read("x"),
        lambda: store.put("x", b""),
        lambda: store.put_if_absent("x", b""),
        lambda: store.list_from("f", "0"),
    ):
        with pytest.raises(InvalidInput, match=r"bucket 'nobody-made-\w+' does not exist.*create it"):
            act()


def test_wrong_credentials_are_said_to_be_denied(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3.create_bucket()
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(InvalidInput, match=f"denied by bucket '{bucket}'.*check the credentials"):
        open_store(f"s3://{bucket}/t").put_if_absent("x", b"")


def test_missing_credentials_say_what_to_set(s3: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bucket = s3.create_bucket()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(MissingPrerequisite, match=rf"{bucket}.*AWS_ACCESS_KEY_ID"):
        open_store(f"s3://{bucket}/t").read("x")


def test_an_unknown_profile_says_what_to_set(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidInput, match=r"nobody.*AWS_PROFILE"):
        open_store("s3://bucket/t").read("x")


def test_one_client_serves_all_stores_of_a_process(s3: S3Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        clients = set(map(id, pool.map(lambda _: s3_client(), range(32))))
    assert len(clients) == 1
