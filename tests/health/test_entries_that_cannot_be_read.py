"""Entries that are damaged, or that another version of lakebed wrote: they are read, or named; nothing else happens."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakebed
from lakebed.cli.command_line import execute
from lakebed.coordination.failing import parked_of
from lakebed.coordination.jobs import Job, due_jobs, jobs_of, take
from lakebed.coordination.jobs import ask as ask_job
from lakebed.errors import Corrupt, LakebedError
from lakebed.fleet.membership import Membership, Worker, fleet_log, fleet_report, listed_workers, worker_of
from lakebed.fleet.watched import work_of
from lakebed.health.file_checks import DECODERS, unreadable
from lakebed.health.finding import Severity
from lakebed.health.status import database_status
from lakebed.listeners.delivery import Deliverer
from lakebed.listeners.feed import At, Cursor, Feed
from lakebed.listeners.listener import Delivering, Listener, ListenerLog, listener_of
from lakebed.listeners.targets import Webhook
from lakebed.log import entries
from lakebed.log.actions import CommitInfo, Domain
from lakebed.log.commit_codec import encode_commit
from lakebed.log.entries import COORDINATION
from lakebed.log.entry_values import decoded
from lakebed.log.holds import trim_log
from lakebed.log.table_log import TableLog, commit_name
from lakebed.positions.point_log import Point, PointLog, TableAt, point_of, settled_of, table_at_of
from lakebed.service.catalog import describe
from lakebed.version import ENGINE
from tests.internals import log_of
from tests.waiting import wait_until
from tests.worlds import examples, worlds

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
NOW_MS = 1_800_000_000_000

PART = {"path": "a.parquet", "size": 10, "partitionValues": {}, "stats": '{"numRecords":1}', "modificationTime": NOW_MS}
WHOLE: dict[str, dict[str, Any]] = {
    entries.CLAIM + "c": {
        "replica": "r", "sources": ["a.parquet"], "level": 1, "lease_ms": NOW_MS, "since_ms": NOW_MS, "volatile": False,
    },
    entries.HOLD + "h": {"version": 2, "until_ms": NOW_MS, "onward": True, "reader": "somebody"},
    entries.EXPIRED: {"before": 0},
    entries.DETACHED + "d": {
        "partition": {"v": "1"}, "version": 1, "detached_ms": NOW_MS, "schema": '{"type":"struct","fields":[]}', "parts": [PART],
    },
    entries.DROPPED: {"at_ms": NOW_MS, "is_final": False},
    entries.PURGE + "p": {"force": False, "until_ms": NOW_MS, "rows": 0, "where": "id = 1", "columns": {"id": "id"}},
    entries.PURGED: {"version": 0, "parts": 1, "rows": 1, "id": "p"},
    entries.FENCE: {"number": 1},
    entries.ROWS_EXPIRED: {"column": "v", "before": "1", "looked_ms": NOW_MS},
    entries.SOURCE_TRUNCATES: {"truncates": [{"topic": "t", "partition": 0, "offset": 5, "lsn": 7}]},
    entries.SCHEMA + "000001": {"version": 1, "timestamp_ms": NOW_MS, "change": {"add": {"x": "integer"}}, "reason": "why"},
    entries.POSITION + "t": {
        "offsets": {"0": 5}, "id": "x", "transactions": {"cut": 1, "through": 1, "partial": {"7": {"0": [1, 2]}}, "doubt_ms": 5},
        "newest": {"0": [5, 7]},
    },
    entries.ORDER_RESTARTS: {"restarts": [{"topic": "t", "id": None, "offsets": {"0": 5}, "add": 7}]},
    entries.FILES + "1": {"digests": "AAAAAAAAAAA=", "states": "AAAAAA==", "newest_ns": 1, "arrived_ns": 1, "forgotten_ns": 1},
    entries.SOURCE_COLUMNS: {"added": ["x"], "topics": {"t": {"x": {"gone": [5, 7], "back": [6, 9]}}}},
    entries.CROWDED_KEYS: {"keys": {"0123456789abcdef": {"transaction": 7, "more": 1, "place": 100, "deletes": False}}},
    entries.QUARANTINED: {"next": 2, "parts": [[1, {"path": "q.parquet", "rows": 1}]]},
    entries.QUARANTINED + ".q": {"taken": 1},
    entries.FAILING + "f": {
        "sources": ["a.parquet"], "failures": 4, "error": "e", "kind": "Corrupt", "since_ms": NOW_MS, "not_before_ms": NOW_MS,
    },
    entries.LOST + "c": {"sources": ["a.parquet"], "replica": "r", "lost_ms": NOW_MS},
    entries.SETTLING: {"attempts": [{"process": "p", "version": 1, "since_ms": NOW_MS}]},
    entries.PARKED: {"error": "e", "kind": "Corrupt", "since_ms": NOW_MS, "failures": 1},
    entries.FORMER_COLUMNS: {"columns": {"a": {}, "s": {"x": {}}}},
    entries.TOPIC_GONE: {"topic": "t", "since_ms": NOW_MS},
    entries.RESNAPSHOT: {"id": "r", "topic": "t", "asked_ms": NOW_MS, "begin": {"0": 5}, "state": "asked", "ends": {}},
    entries.VERIFIED: {"time_ms": NOW_MS, "outcome": "equal", "version": 1, "rows": 5, "digest": "5-0"},
    entries.VERIFYING: {"time_ms": NOW_MS, "shape": "s", "after": ["5"], "rows": 5, "sum": "77", "buckets": 1},
    entries.JOB + "j": {
        "kind": "settle", "arguments": {}, "state": "waiting", "attempts": 0, "asked_ms": NOW_MS, "until_ms": 0, "progress": {},
    },
    entries.REPLAY + "q": {"a.parquet": {"block": 1, "rows": "AAAAAAAAAAA="}},
}  # fmt: skip
"""An entry of each kind in a table's log."""
OF_A_TABLE_THAT_IS_THERE = [name for name in WHOLE if name != entries.DROPPED]  # tests/operations/test_drop.py
OF_OTHER_LOGS: dict[str, tuple[Callable[[str, str], object], dict[str, Any]]] = {
    entries.WORKER + "w": (worker_of, {"host": "h", "cores": 2.0, "beat": 1, "since_ms": NOW_MS, "until_ms": NOW_MS}),
    entries.LISTENER + "l": (
        listener_of, {"kind": "webhook", "url": "https://localhost/", "secret": "", "tables": ["*"], "kinds": []},
    ),
    entries.LISTENER_CURSOR + "l.t": (partial(decoded, At), {"version": 3, "table_id": "x", "digest": "y"}),
    entries.DELIVERING + "l": (
        partial(decoded, Delivering), {"process": "p", "beat": 1, "error": "", "since_ms": 0, "behind_seconds": 1.5},
    ),
    entries.POINT_TABLE + "t": (table_at_of, {"version": 3, "table": "x", "position": "y"}),
}  # fmt: skip
ALL = {
    name: (next(each for prefix, each in DECODERS.items() if name.startswith(prefix)), whole)
    for name, whole in WHOLE.items()
}
ALL |= OF_OTHER_LOGS
NOT_JSON = [
    "",
    "{",
    "null",
    "3",
    '"text"',
    "[]",
    "\x00",
    "{'a': 1}",
    '{"a": NaN}',
    "[" * 5000,
    '{"a":' * 900 + "1" + "}" * 900,
]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.sampled_from([10**18, -1, 1e308, "x" * 100_000, "2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def spoiled(whole: dict[str, Any], rng: random.Random, value: object) -> dict[str, Any]:
    """The document with a member, maybe of something inside it, that is missing or something else."""
    out = orjson.loads(orjson.dumps(whole))
    place = out
    while True:
        key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if isinstance(place[key], dict | list) and place[key] and rng.random() < 0.7:
            place = place[key]
            continue
        if rng.random() < 0.2:
            del place[key]
        else:
            place[key] = value
        return out


def reads_or_names(name: str, text: str) -> bool:
    try:
        ALL[name][0](name, text)
        return True
    except Corrupt as error:
        assert name in str(error) and error.path == name and "docs/runbook.md" in str(error)
        return False


def test_each_kind_of_entry_has_a_decoder_here() -> None:
    named_batches = (entries.STREAM, entries.NAMED_BATCH, entries.APPLIED)  # in ``txn``
    points = (entries.POINT, entries.SETTLED, entries.SETTLED_TABLE)  # see below
    # Lists of names, or their presence is all that counts.
    plain = (
        entries.FRESH_TABLES,
        entries.TRUNCATED,
        entries.REPLACED,
        entries.RESTORED,
        entries.MERGED_INTO,
        entries.REMARKS,
    )
    kinds = {value for name, value in vars(entries).items() if name.isupper() and isinstance(value, str)}
    for kind in kinds:
        is_entry = kind.startswith("lakebed.")
        if is_entry and kind not in (*named_batches, *points, *plain, entries.PART):
            is_tag = any(value == kind for name, value in vars(entries).items() if name.endswith("_TAG"))
            is_member = any(value == kind for name, value in vars(entries).items() if name.startswith("CHECKPOINT_"))
            assert is_tag or is_member or any(name.startswith(kind) for name in ALL), kind


@pytest.mark.parametrize("name", ALL)
def test_what_this_version_writes_is_read_and_members_of_a_later_one_are_ignored(name: str) -> None:
    whole = ALL[name][1]
    assert reads_or_names(name, orjson.dumps(whole).decode())
    if not name.startswith(entries.REPLAY):  # a member is a part
        assert reads_or_names(name, orjson.dumps(whole | {"of_a_later_version": {"a": [1]}}).decode())
    for text in NOT_JSON:
        assert not reads_or_names(name, text)


@given(st.sampled_from(list(ALL)), st.randoms(use_true_random=False), VALUES)
@examples(60)
def test_a_text_is_an_entry_or_corrupt_with_the_name_of_the_entry(name: str, rng: random.Random, value: object) -> None:
    try:
        text = orjson.dumps(spoiled(ALL[name][1], rng, value)).decode()
    except orjson.JSONEncodeError:  # a lone surrogate
        return
    reads_or_names(name, text)


# -- everything that reads a table -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with parts of the base that a merge would take, and a tail; another one that is whole."""
    root = tmp_path_factory.mktemp("lake")
    for name in ("t", "other"):
        table = lakebed.create(root / name, SCHEMA, keys=["id"], properties={"lakebed.read_budget": "2"})
        for batch in range(4):
            table.apply(pa.table({"id": list(range(batch, 60, 7)), "v": [batch] * len(range(batch, 60, 7))}, SCHEMA))
            if batch < 3:
                table.settle()
    return root


@pytest.fixture
def fresh(lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Path]:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    copies = iter(range(1000))
    return lambda: Path(shutil.copytree(lake, tmp_path / f"lake{next(copies)}"))


def write(log: TableLog, *domains: Domain) -> None:
    """A commit that nothing checks, as another program, or another version, would write it."""
    version = log.refresh().version + 1
    info = CommitInfo(operation="TEST", commit_id="x", engine=ENGINE)
    assert log.store.put_if_absent(commit_name(version), encode_commit((info, *domains)))


def hostile_texts(name: str, whole: dict[str, Any]) -> list[str]:
    rng = random.Random(name)
    values = [None, -1, 10**18, 2**64 - 1, 1e308, "", "x", "x" * 100_000, True, [], {}, [[1]], {"a": None}]
    return [
        "{",
        orjson.dumps(whole | {"later": 1}).decode(),
        *(orjson.dumps(spoiled(whole, rng, rng.choice(values))).decode() for _ in worlds(1)),
    ]


def use(root: Path) -> list[str]:
    """Do everything with the table that reads entries; returns what was refused. Any error that is none of lakebed's escapes."""
    table, path, refused = lakebed.open(root / "t"), str(root / "t"), []
    log = log_of(table)
    change = pa.table({"id": [1000], "v": [1]}, SCHEMA)

    def work() -> None:
        work_of(log.refresh(), log.now_ms(), log.statistics)

    def jobs() -> None:
        for job in due_jobs(log.refresh(), log.now_ms()):
            take(log, job.id, "runner", 1000)
        ask_job(log, Job(id="mine", kind="settle"))
        assert any(job.id == "mine" for job in jobs_of(log.refresh()))

    steps: dict[str, Callable[[], object]] = {
        "status": lambda: str(table.status()), "doctor": lambda: str(table.doctor()), "plan": table.maintenance.plan,
        "status of all": lambda: database_status({"t": path}), "report": lambda: fleet_report([str(root)]),
        "look": work, "describe": lambda: orjson.dumps(describe("t", path, log.refresh())), "jobs": jobs,
        "detail": table.inspect.detail, "timeline": table.inspect.timeline, "schemas": table.inspect.schemas,
        "claims": table.inspect.claims, "positions": table.inspect.positions, "detached": table.inspect.detached,
        "deliver": lambda: Feed(str(root)).read(Cursor()), "read": table.to_arrow, "apply": lambda: table.apply(change),
        "settle": table.settle, "merge": table.maintenance.compact, "retention": table.maintenance.expire_snapshots,
        "vacuum": lambda: table.maintenance.vacuum(dry_run=False), "alter": lambda: table.alter(add={"w": "long"}),
        "look after": lambda: trim_log(log, 0.0), "delete": lambda: table.delete("id = 3"),
    }  # fmt: skip
    for step, run in steps.items():
        try:
            run()
        except LakebedError as error:
            refused.append(f"{step}: {error}")
    return refused


@pytest.mark.few(10)
@pytest.mark.slow
@pytest.mark.parametrize("name", OF_A_TABLE_THAT_IS_THERE)
def test_whatever_a_log_has_everything_works_or_names_the_entry(name: str, fresh: Callable[[], Path]) -> None:
    for text in hostile_texts(name, WHOLE[name]):
        root = fresh()
        log = log_of(lakebed.open(root / "t"))
        write(log, Domain(name, text))
        is_unreadable = name in unreadable(log.refresh())
        refused = use(root)
        shown = text[:200]
        for each in refused:
            if is_unreadable:
                assert name in each, (shown, each)
        if is_unreadable and name.startswith(COORDINATION):
            assert not refused, (shown, refused)


@pytest.mark.parametrize("name", OF_A_TABLE_THAT_IS_THERE)
def test_the_doctor_shows_the_entry_and_it_can_be_removed(
    name: str, fresh: Callable[[], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    table = lakebed.open(fresh() / "t")
    write(log_of(table), Domain(name, '{"since": '))
    [finding] = [each for each in table.status().findings if each.check == "entry"]
    only_coordinates = name.startswith(COORDINATION)
    assert finding.where == name and finding.severity is (Severity.WARNING if only_coordinates else Severity.CRITICAL)
    given = [] if only_coordinates else ["--remove-entry", name]
    assert execute(["resume", table.path]) == 0 and execute(["resume", table.path, *given]) == 0
    assert not [each for each in table.status().findings if each.check in ("entry", "parked")]
    assert name in capsys.readouterr().out or name == entries.PARKED
    assert execute(["resume", table.path, "--remove-entry", name]) != 0


def test_a_table_whose_reason_to_be_parked_cannot_be_read_is_parked(fresh: Callable[[], Path]) -> None:
    table = lakebed.open(fresh() / "t")
    write(log_of(table), Domain(entries.PARKED, "{"))
    found = parked_of(log_of(table).refresh())
    assert found is not None and found.kind == "Corrupt" and entries.PARKED in found.error


# -- other logs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [*NOT_JSON[:6], '{"host": 1, "cores": 2}', '{"host": "h", "cores": "x"}', '{"cores": -1e999}']
)
def test_a_worker_whose_entry_cannot_be_read_is_not_there_and_the_others_go_on(tmp_path: Path, text: str) -> None:
    log = fleet_log(str(tmp_path))
    one = Membership(log, Worker(id="one", host="h", cores=1.0))
    one.beat()
    write(log, Domain(entries.WORKER + "zwei", text), Domain(entries.FRESH_TABLES + "zwei", text))
    assert one.beat() == {"one": 1.0} and [each.id for each in listed_workers(str(tmp_path))] == ["one"]
    one.tidy()
    one.leave()


@pytest.mark.parametrize(
    "text", ["{", "null", '{"kind": 5}', '{"process": 4}', '{"version": "x"}', '{"kind":"webhook","url":"x"}']
)
def test_entries_of_one_listener_do_not_stop_another(tmp_path: Path, text: str) -> None:
    listeners = ListenerLog(str(tmp_path))
    for name in ("good", "bad"):
        listeners.put(Listener(name=name, target=Webhook(url="https://localhost/")), Cursor({"t": At(1)}))
    assert listeners.beat("p", {}) == {"good", "bad"}
    write(
        listeners.log,
        *(
            Domain(name, text)
            for name in (entries.LISTENER + "bad", entries.DELIVERING + "bad", entries.LISTENER_CURSOR + "bad.t")
        ),
    )
    there, delivering = listeners.state()
    assert set(there) == {"good"} and set(delivering) == {"good"}
    assert listeners.beat("p", {}) == {"good"} and listeners.cursor("good").tables == {"t": At(1)}
    with pytest.raises(Corrupt, match=r"lakebed\.cursor\.bad\.t"):
        listeners.cursor("bad")
    assert listeners.move("good", "p", {"t": At(2)}) and not listeners.move("bad", "p", {"t": At(2)})
    listeners.remove("bad")
    listeners.put(Listener(name="bad", target=Webhook(url="https://localhost/")), Cursor({"t": At(7)}))
    assert listeners.cursor("bad").tables == {"t": At(7)} and listeners.beat("p", {}) == {"good", "bad"}


def test_a_listener_whose_cursor_cannot_be_read_gets_nothing_and_the_others_do(tmp_path: Path) -> None:
    listeners = ListenerLog(str(tmp_path))
    for name in ("bad", "good"):
        listeners.put(Listener(name=name, target=Webhook(url="https://localhost/")), Cursor({"t": At(1)}))
    write(listeners.log, Domain(entries.LISTENER_CURSOR + "bad.t", "{}"))
    deliverer = Deliverer(str(tmp_path))
    deliverer.start()
    try:
        wait_until(lambda: deliverer.running() == ("good",))
    finally:
        deliverer.close()


@pytest.mark.parametrize(
    "entry", [entries.POINT, entries.POINT_TABLE + "t", entries.SETTLED, entries.SETTLED_TABLE + "t"]
)
@pytest.mark.parametrize(
    "text", ["{", "null", "{}", '{"point": "x", "version": 1e99}', '{"point": null, "version": null}']
)
def test_points_that_cannot_be_read_are_named(tmp_path: Path, entry: str, text: str) -> None:
    points = PointLog.of(str(tmp_path))
    points.create()
    at = {"t": TableAt(version=1, table_id="x")}
    points.take(Point(number=1, time_ms=NOW_MS, transaction="1", tables=at))
    write(points.log, Domain(entries.SETTLED, '{"point": 1}'), Domain(entries.SETTLED_TABLE + "t", '{"version": 1}'))
    assert points.newest() is not None and settled_of(points.log.refresh()) is not None
    write(points.log, Domain(entry, text))
    with pytest.raises(Corrupt) as raised:
        point_of(points.log.refresh()), settled_of(points.log.refresh())
    assert raised.value.path == entry and entry in str(raised.value)
    assert math.isfinite(len(Feed(str(tmp_path)).read(Cursor()).events))
