"""What a run says of itself beside its database, and what ``lakebed status`` of another process makes of it."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple, cast

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite, Retry, StoreUnavailable
from lakebed.health import run_report
from lakebed.health.finding import counted
from lakebed.health.run_report import Down, Reporter, RunReport, Waiting, reports_of, run_findings, said_by, waiting_of
from lakebed.health.sampler import Glance, Sampler
from lakebed.health.status import Observer
from lakebed.log.stores import MemoryLogStore, open_store
from lakebed.log.table_log import TableLog
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.progress import Progress
from lakebed.monitoring.table_state import TableState
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.pipeline import run as pipeline_run
from lakebed.pipeline.driver import SparkStart
from lakebed.pipeline.settings import parse_any
from lakebed.ui.members import Members
from lakebed.ui.watch import Watched
from tests.clock import Clock
from tests.waiting import STILL_SECONDS_MAX

KAFKA = "kafka at broker:9092 did not answer: timed out"
SICK = Waiting(name="shop.public.sick", state="new", error="no column can be made of it")


class CountingStore(MemoryLogStore):
    """A store that counts what is put, or has no room for it."""

    puts = 0
    is_full = False

    def put(self, name: str, data: bytes) -> None:
        if self.is_full:
            raise StoreUnavailable("no space left on device")
        self.puts += 1
        super().put(name, data)


class World(NamedTuple):
    """A store, and the time there."""

    store: CountingStore
    clock: Clock

    def reporter(self, host: str, *roles: str) -> Reporter:
        return Reporter(self.store, RunReport(host=host, pid=1, roles=roles or ("ingest", "maintain")), self.clock)

    def told(self) -> list[str]:
        reports, now_ms = reports_of(self.store).reports, int(self.clock() * 1000)
        return [finding.what for finding in run_findings(reports, "lake", now_ms)]


@pytest.fixture
def world() -> World:
    return World(CountingStore(), Clock(1_000_000.0))


def test_a_state_is_written_when_it_changes_and_else_once_a_minute(world: World) -> None:
    run = world.reporter("a")
    for _ in range(130):
        run.say("running", [])
        world.clock.now += 1
    assert world.store.puts == 3
    run.say("trying again", [KAFKA])
    assert world.store.puts == 4
    [told] = world.told()
    assert KAFKA in told and "the pipeline on a (process 1) has not been able to go on since 1970-01-12" in told
    world.clock.now += 2
    run.say("running", [], [SICK])
    assert world.told() == [] and waiting_of(reports_of(world.store).reports, int(world.clock() * 1000)) == {
        SICK.name: SICK
    }
    run.remove()
    assert reports_of(world.store).reports == []


def test_a_run_that_was_killed_or_has_no_room_is_silent_until_another_does_its_work(world: World) -> None:
    world.reporter("a").say("running", [], [SICK])
    world.store.is_full = True
    world.clock.now += run_report.SILENT_SECONDS + 1
    world.reporter("b").say("running", [])
    [told] = world.told()
    assert "the pipeline on a (process 1) has said nothing since" in told
    assert waiting_of(reports_of(world.store).reports, int(world.clock() * 1000)) == {}, "nobody knows that now"
    world.store.is_full = False
    world.reporter("c", "maintain").say("running", [])
    assert len(world.told()) == 1, "it does not ingest"
    world.reporter("d").say("running", [])
    assert world.told() == [] and {one.host for one in reports_of(world.store).reports} == {"c", "d"}


class HangingStore(MemoryLogStore):
    """A store whose puts hang until it goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def put(self, name: str, data: bytes) -> None:
        self.is_asked.set()
        self.goes_on.wait(STILL_SECONDS_MAX)
        super().put(name, data)


def test_a_put_that_hangs_at_the_stop_brings_no_report_back_and_is_not_waited_for_without_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(run_report, "ENDING_SECONDS", 0.0)
    store = HangingStore()
    run = Reporter(store, RunReport(host="a", pid=1, roles=("ingest",)))
    putting = threading.Thread(target=run.say, args=("running", []))
    putting.start()
    assert store.is_asked.wait(STILL_SECONDS_MAX)
    run.remove()
    assert "its report _lakebed/streams/runs/a-1.json is left, because its store has not answered" in caplog.text
    store.goes_on.set()
    for thread in (putting, *(one for one in threading.enumerate() if one.name == "lakebed-report")):
        thread.join(STILL_SECONDS_MAX)
    assert reports_of(store).reports == []


def test_a_report_that_can_not_be_removed_is_told_with_the_error(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(name: str) -> None:
        raise StoreUnavailable("AccessDenied")

    run = world.reporter("a")
    run.say("running", [])
    monkeypatch.setattr(world.store, "delete", refused)
    run.remove()
    [said] = caplog.messages
    assert "is left, because AccessDenied" in said


def test_a_run_that_failed_says_why_until_the_next_one(world: World) -> None:
    run = world.reporter("a")
    run.say("running", [])
    run.say("failed", ["records are lost"])
    [told] = world.told()
    assert "failed at" in told and "records are lost" in told
    world.reporter("a").say("running", [])
    assert world.told() == []


def test_what_is_down_is_named_though_the_run_goes_on_and_what_it_can_do_nothing_without_is_named_once(
    world: World,
) -> None:
    run, down = world.reporter("a"), Down("kafka", KAFKA, 999_000_000)
    run.say("running", [], down=[Down("registry", "no answer", 999_900_000)])
    [told] = world.told()
    assert "needs what is down: registry since 1970-01-12 13:45:00 UTC: no answer" in told
    world.clock.now += 2
    run.say("trying again", [KAFKA], down=[down])
    assert [KAFKA in told for told in world.told()] == [True]
    assert [one.down for one in reports_of(world.store).reports] == [(down,)]
    world.clock.now += 2
    run.say("running", [], stuck=["lakebed-table_1 has waited for 31 s for put of s3://lake/a"])
    [told] = world.told()
    assert "makes no progress: lakebed-table_1 has waited for 31 s" in told


def test_a_report_may_name_hosts_and_files_of_any_name(world: World) -> None:
    run = world.reporter("a/../b\udcff")
    run.say("failed", ["the file in/\udcff.csv can't be read"])
    assert world.store.list_from(run_report.RUNS_FOLDER, "") == ["a%2F..%2Fb%3F-1.json"]
    [told] = world.told()
    assert "the file in/?.csv can't be read" in told
    run.remove()
    assert reports_of(world.store).reports == []


@pytest.mark.parametrize("wrong", [{"at_ms": "now"}, {"tables": [7]}, {"down": [{"name": "kafka"}]}, {"host": "../a"}])
def test_a_file_that_is_no_report_of_its_name_is_left_out_and_left_alone(
    world: World, wrong: dict[str, object]
) -> None:
    name, kept = f"{run_report.RUNS_FOLDER}/a-1.json", json.loads(world.reporter("a").report.to_json())
    world.store.put(name, json.dumps(kept | wrong).encode())
    assert reports_of(world.store).reports == []
    world.reporter("b").say("running", [])
    assert [one.host for one in reports_of(world.store).reports] == ["b"] and world.store.read(name)


def test_a_clock_that_is_set_back_does_not_silence_a_run(world: World) -> None:
    run = world.reporter("a")
    run.say("running", [])
    world.clock.now -= 3_600
    run.say("trying again", [KAFKA])
    assert KAFKA in world.told()[0]


def test_a_report_of_another_version_is_read(world: World) -> None:
    kept = json.loads(world.reporter("a").report.to_json())
    world.store.put(
        f"{run_report.RUNS_FOLDER}/a-1.json",
        json.dumps({k: v for k, v in kept.items() if k not in ("down", "stuck")} | {"later": 1}).encode(),
    )
    assert [one.host for one in reports_of(world.store).reports] == ["a"]


def test_what_is_no_report_is_left_alone(world: World) -> None:
    for name, data in (("x.json", b"{"), ("y.json", b"[]"), ("z.json", b'{"tables": [], "later": 1}')):
        world.store.put(f"{run_report.RUNS_FOLDER}/{name}", data)
    assert reports_of(world.store).reports == []


# -- lakebed status ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Path]:
    """A database with two tables."""
    for name in ("orders", "items"):
        table = lakebed.create(tmp_path / "public" / name, pa.schema([("id", pa.int64())]))
        table.set_properties({"lakebed.source_topic": f"shop.public.{name}"})
    yield tmp_path


def status(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[dict[str, object]], str]:
    """The exit code, the lines for programs, and the text for people."""
    code = main(["status", str(path), "--format", "json"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert main(["status", str(path)]) == code
    return code, found, capsys.readouterr().out


def test_status_of_a_database_shows_what_its_pipeline_waits_for(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status(shop, capsys)[0] == 0
    run = Reporter(open_store(shop), RunReport(host="a", pid=1, roles=("ingest",)))
    late = Waiting(name="public.items", state="waiting", error="a bad table")
    run.say("trying again", [KAFKA], [SICK, late])
    code, found, text = status(shop, capsys)
    assert code == 1 and KAFKA in text and SICK.error in text
    assert [(one["table"], one["state"], one["error"]) for one in found if "table" in one] == [
        ("public.items", "waiting", "a bad table"),
        (SICK.name, "new", SICK.error),
        ("public.orders", "live", None),
    ]
    assert KAFKA in str(found[-1]["what"]) and found[-1]["severity"] == "critical"
    run.remove()
    assert status(shop, capsys)[0] == 0


def test_status_of_a_database_shows_quarantines_and_its_exit_code_says_so(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    beside = lakebed.create(f"{shop}/public/orders{QUARANTINE_SUFFIX}", pa.schema([("reason", pa.string())]))
    beside.apply([{"reason": "no JSON"}] * 18)
    code, [worst, other], text = status(shop, capsys)
    assert (code, worst["table"], worst["state"], worst["quarantined"]) == (1, "public.orders", "warning", 18)
    assert other["quarantined"] == 0 and "18 records are in the quarantine" in text


@pytest.mark.parametrize("place", [".", "public/orders"])
def test_status_shows_a_full_disk(
    shop: Path, place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(shop)._replace(free=0)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert main(["status", str(shop / place)]) == 1
    assert "is full: 0 MB are free" in capsys.readouterr().out


def test_a_table_whose_store_hangs_has_no_figures_and_its_run_says_what_is_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline_run, "SLOW_SECONDS", -1.0)
    path, is_told, has_ended = str(tmp_path), threading.Event(), threading.Event()
    metrics, empty = Metrics(), dict.fromkeys(("version", "rows", "dead_rows", "bytes", "tail_parts", "tail_rows"), 0)
    metrics.observe(path, TableState(**empty, parts_by_level={}))

    def value(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(name, {"table": path, **labels})

    def found(table: str, findings: Mapping[tuple[str, str], int]) -> None:
        shown.append((value("lakebed_table_up"), value("lakebed_tail_rows"), findings.get(("store", "critical"))))
        is_told.set()

    shown: list[tuple[float | None, ...]] = []
    work = SimpleNamespace(
        path=path,
        progress=Progress(path),
        table="a table",
        end_ingest=has_ended.set,
        watches=[SimpleNamespace(down=Down("store", "it does not answer", 1_000))],
        observe=lambda: is_told.wait(STILL_SECONDS_MAX),
        end_maintenance=lambda waiting: is_told.wait(STILL_SECONDS_MAX),
    )
    monkeypatch.setattr(metrics, "found", found)
    monkeypatch.setattr(pipeline_run, "Metrics", lambda: metrics)
    monkeypatch.setattr(pipeline_run, "_work", lambda *arguments: work)
    text = f"table: {{path: {path}, keys: [id], schema: {{id: long not null}}}}\nsource: {{kind: generator}}\n"
    pipeline = parse_any(text + "metrics: {port: null}", "t.yml", {})
    start, stop = SimpleNamespace(wait=lambda abandoned: SimpleNamespace(spark=None)), threading.Event()
    stop.set()
    pipeline_run.run(pipeline, cast("SparkStart", start), stop, lambda look: None)
    assert shown[0] == (0, None, 1) and has_ended.is_set()


# -- everywhere --------------------------------------------------------------------------------------------------------------

LATE = Waiting(name="public.orders", state="waiting", error="a bad table")


def says(place: Path, state: str, errors: list[str], *waiting: Waiting) -> Reporter:
    run = Reporter(open_store(place), RunReport(host="a", pid=1, roles=("ingest",)))
    run.say(state, errors, waiting)
    return run


def shown_of(table: Path) -> dict[str, set[str]]:
    """What each place says of a table by itself: the checks of the findings."""
    path, log = str(table), TableLog(open_store(table))
    snapshot, now_ms = log.refresh(), log.now_ms()
    page = Watched(path, path, 60.0)
    page.start()
    seen = page.seen(time.monotonic() + STILL_SECONDS_MAX)[0]
    page.close()
    assert seen is not None
    sampled = Sampler(path, log, table / "local").sample()
    return {
        "status": {one.check for one in Observer(path).look().findings},
        "list of tables": {one.check for one in Glance(path).look(snapshot, now_ms).findings},
        "page": {one["check"] for one in seen.summary["findings"]},
        "metrics": {check for (check, _), count in sampled.findings.items() if count},
    }


def all_say(table: Path, *checks: str) -> None:
    assert {place: found for place, found in shown_of(table).items() if found != set(checks)} == {}


def test_prometheus_has_a_figure_for_what_a_pipeline_says_also_while_it_says_nothing_wrong(shop: Path) -> None:
    table, metrics = shop / "public/orders", Metrics()
    seen = []
    for state in ("running", "trying again", "running"):
        run = says(shop, state, [KAFKA] if state != "running" else [])
        metrics.observe(str(table), Sampler(str(table), TableLog(open_store(table)), table / "local").sample())
        labels = {"table": str(table), "check": "run", "severity": "critical"}
        seen.append(metrics.registry.get_sample_value("lakebed_findings", labels))
        run.remove()
    assert seen == [0, 1, 0]


@pytest.mark.parametrize("place", [".", "public/orders"])
def test_every_place_shows_what_the_pipeline_of_a_table_or_of_its_database_waits_for(shop: Path, place: str) -> None:
    table = shop / "public/orders"
    all_say(table)
    run = says(shop / place, "trying again", [KAFKA])
    all_say(table, "run")
    run.remove()
    all_say(table)


def test_a_table_that_its_database_waits_with_says_so_everywhere_and_the_others_do_not(shop: Path) -> None:
    says(shop, "running", [], LATE, SICK)
    all_say(shop / "public/orders", "waiting")
    all_say(shop / "public/items")


def test_a_table_that_is_no_topics_is_not_concerned_by_the_pipeline_around_it(shop: Path) -> None:
    lakebed.create(shop / "public" / "own", pa.schema([("id", pa.int64())]))
    says(shop, "trying again", [KAFKA])
    all_say(shop / "public/own")


def test_the_page_of_a_database_shows_its_pipeline_once_and_topics_that_are_no_tables(shop: Path) -> None:
    run = says(shop, "trying again", [KAFKA], LATE, SICK)
    members = Members(str(shop), 60.0)
    members.start()
    rows, whole = members.seen(time.monotonic() + STILL_SECONDS_MAX)
    members.close()
    assert [(one["check"], one["where"]) for one in whole["findings"]] == [("run", "a"), ("waiting", SICK.name)]
    assert [one["runbook"] for one in whole["findings"]] == ["LakebedRunDown", "LakebedTopicsWaiting"]
    found = {one["name"]: [(each["check"], each["what"]) for each in one["findings"]] for one in rows}
    assert found == {"public.items": [], "public.orders": [("waiting", "its pipeline waits with it: a bad table")]}
    told = counted(said_by(run.report, str(shop)))
    assert told == {("run", "critical"): 1, ("waiting", "warning"): 2}, "and so do the metrics of the run"


def test_lists_of_tables_read_the_reports_of_a_database_once_in_ten_seconds(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, read = Clock(1_000_000.0), list[str]()

    def reports(store: SimpleNamespace) -> run_report.Reports:
        read.append(store.root)
        return run_report.Reports()

    monkeypatch.setattr(run_report, "reports_of", reports)
    monkeypatch.setattr(run_report, "open_store", lambda folder: SimpleNamespace(root=folder))
    seen = run_report.Runs(clock)
    for _ in range(60):
        for name in ("orders", "items"):
            assert list(seen.of_table(f"{shop}/public/{name}", is_fed=True, alone=False)) == []
        clock.now += 1
    assert Counter(read) == {str(shop): 6, f"{shop}/public/orders": 1, f"{shop}/public/items": 1}


def test_a_store_that_refuses_writes_is_found_also_by_a_look_in_which_a_run_falls_silent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.reporter("a").say("running", [])
    monkeypatch.setattr(run_report, "open_store", lambda path: world.store)
    monkeypatch.setattr(run_report, "look_at_disk", lambda path: iter(()))
    monkeypatch.setattr(
        run_report, "open_objects", lambda place: SimpleNamespace(refused_write=lambda name: f"{name}: 507")
    )
    seen = run_report.Runs(world.clock)
    world.clock.now += run_report.SILENT_SECONDS
    assert not seen.of_database("s3://lake/shop").findings
    world.clock.now += 1
    assert [one.what for one in seen.refused_writes("s3://lake/shop")] != []


def test_a_fleet_tells_once_what_is_wrong_with_pipelines_in_the_words_of_status(
    shop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = open_store(str(shop))
    Reporter(store, RunReport(host="a", pid=1, roles=("ingest",))).say(
        "trying again", [KAFKA], [SICK, Waiting(name="public.orders", state="waiting", error="a bad table")]
    )
    found = {(one.check, one.where): one.what for one in run_report.Runs().of_database(str(shop)).findings}
    main(["show", "maintenance", str(shop)])
    said = capsys.readouterr().out
    for (check, where), what in found.items():
        assert said.count(f"{check} {shop} {where}: {what}") == 1
    for what in (
        f"waiting {shop} {SICK.name}: its pipeline waits with it: {SICK.error}",
        "its pipeline waits with it: a bad table",
    ):
        assert said.count(what) == 1


def test_reports_that_are_too_many_to_be_read_are_counted(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "REPORTS_MAX", 2)
    for host in "abcde":
        world.store.put(RunReport(host=host, pid=1, roles=()).name, RunReport(host=host, pid=1, roles=()).to_json())
    read = run_report.reports_of(world.store)
    assert (len(read.reports), read.left_out) == (2, 3)
    [finding] = run_report.left_out_findings(read, "lake")
    assert "3 reports of pipelines are not read" in finding.what


def test_an_empty_file_that_a_look_left_behind_is_no_report_and_the_next_run_deletes_it(world: World) -> None:
    left = RunReport(host="b", pid=1, roles=()).name
    world.store.put(left, b"")
    assert world.told() == []
    world.reporter("a").say("running", [])
    assert world.store.list_from(run_report.RUNS_FOLDER, "") == ["a-1.json"]


# -- before Spark runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        Retry("kafka did not answer; its password is hunter2"),
        MissingPrerequisite("Spark did not start"),
        InvalidInput("no table public.oders"),
    ],
)
@pytest.mark.parametrize("place", ["shop", "nowhere"])
def test_a_run_that_fails_before_spark_runs_leaves_a_report(
    shop: Path, place: str, error: LakebedError, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = shop if place == "shop" else shop / "nowhere"
    text = f"""
database: {{path: {path}}}
source: {{kind: kafka, topic_pattern: "shop\\\\..*", config: {{bootstrap.servers: "x:1", sasl.password: "${{PASSWORD}}"}}}}
format: debezium-json
metrics: {{port: null}}
"""

    def work(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(pipeline_run, "_work", work)
    pipeline = parse_any(text, "shop.yml", {"PASSWORD": "hunter2"})
    with pytest.raises(type(error)):
        pipeline_run.run(pipeline, cast("SparkStart", None), threading.Event(), lambda look: None)
    told = [finding.what for finding in run_report.Runs().of_database(str(path)).findings]
    if place == "nowhere" and isinstance(error, InvalidInput):
        assert told == [] and not path.exists(), "a wrong path leaves nothing behind"
    else:
        assert len(told) == 1 and str(error).replace("hunter2", "***") in told[0] and "hunter2" not in told[0]
