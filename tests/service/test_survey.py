"""All tables at a glance: how each is, the jobs of all, what runs, what waits and why, what is parked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.client import RemoteWarehouse
from lakebed.coordination import jobs
from lakebed.coordination.failing import Parked, park, park_merge
from lakebed.coordination.jobs import Job
from lakebed.errors import Corrupt, TableNotFound
from lakebed.fleet.membership import Membership, Worker, fleet_log
from lakebed.log.actions import CommitInfo
from lakebed.log.claims import Claim
from lakebed.log.conflicts import BLIND
from lakebed.log.table_log import TableLog
from lakebed.service import survey
from lakebed.service.catalog import Catalog
from lakebed.service.survey import Surveyed, Surveyor, TableState, state_of
from tests.internals import log_of
from tests.service.conftest import SCHEMA, Serve
from tests.waiting import wait_until

ROW = [{"id": 1, "day": "2026-01-01", "amount": 1}]


@pytest.fixture(autouse=True)
def _passes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "PASS_SECONDS", 0.05)
    monkeypatch.setattr(survey, "LIST_SECONDS", 0.0)


def made(lake: Path, *names: str, **properties: str) -> list[lakebed.Table]:
    """Tables, each with a settled row."""
    tables = [lakebed.create(lake / name, SCHEMA, keys=["id"], properties=properties) for name in names]
    for table in tables:
        table.apply(ROW)
        table.settle()
    return tables


def put_claim(table: lakebed.Table, replica: str, volatile: bool = False, sources: tuple[str, ...] = ()) -> Claim:
    log = log_of(table)
    snapshot, now_ms = log.refresh(), log.now_ms()
    claim = Claim(
        id=f"c-{replica}",
        replica=replica,
        sources=sources or tuple(snapshot.parts)[:1],
        level=1,
        lease_ms=now_ms + 90_000,
        since_ms=now_ms - 5_000,
        volatile=volatile,
        kind="recluster",
    )
    info = CommitInfo(operation="CLAIM", commit_id="", metrics={}, engine="test")
    log.commit(snapshot, [claim.to_action()], info, BLIND)
    return claim


def by_name(rows: list[dict[str, Any]], member: str = "name") -> dict[str, dict[str, Any]]:
    return {row[member]: row for row in rows}


def states(client: RemoteWarehouse) -> dict[str, str]:
    return {row["name"]: row["state"] for row in client.survey()}


def test_each_table_says_how_it_is_and_why_the_worst_first(tmp_path: Path, serve: Serve) -> None:
    quiet, works, ingest, merge, broken = made(tmp_path, "quiet", "works", "ingest", "merge", "broken")
    [late] = made(tmp_path, "late", **{"lakebed.freshness": "1 second"})
    late.apply([{"id": 2, "day": "2026-01-02", "amount": 2}])
    put_claim(works, "vm-1-aa")
    park(log_of(ingest), Parked(error="no such column", kind="InvalidSchema", since_ms=1_790_000_000_000))
    park_merge(log_of(merge), list(log_of(merge).refresh().parts), Corrupt("part 7 is damaged"), 4)
    Path(broken.path, "_delta_log", f"{broken.version:020}.json").write_text("no commit")
    client = serve(tmp_path).client()
    wait_until(lambda: states(client).get("late") == "late")
    found = client.survey()
    assert [row["state"] for row in found] == ["unreadable", "parked", "failing", "late", "running", "quiet"]
    rows = by_name(found)
    assert rows["ingest"]["why"] == "no such column" and rows["merge"]["why"] == "part 7 is damaged"
    assert rows["late"]["why"] and rows["late"]["late_seconds"] >= 1
    assert (rows["quiet"]["rows"], rows["quiet"]["parts"], rows["quiet"]["version"]) == (1, 1, quiet.version)
    assert rows["broken"]["version"] is None and "json" in rows["broken"]["why"]
    ingest.maintenance.resume()
    wait_until(lambda: states(client)["ingest"] == "quiet")


def test_tables_are_searched_sorted_and_paged(tmp_path: Path, serve: Serve) -> None:
    tables = made(tmp_path, *(f"t{number:02}" for number in range(12)))
    tables[5].apply([{"id": id_, "day": "", "amount": 0} for id_ in range(20)])
    tables[5].settle()
    served = serve(tmp_path)
    wait_until(lambda: len(served.client().survey()) == 12)
    assert [row["name"] for row in served.client().survey("T1")] == ["t10", "t11"]
    assert served.client().survey(sort="rows")[0]["name"] == "t05"
    seen, after = [], 0
    while after is not None:
        page = served.json(f"/v1/survey?sort=name&limit=5&after={after}")
        assert (page["found"], page["survey"]["tables"], page["survey"]["unseen"]) == (12, 12, 0)
        seen += [row["name"] for row in page["rows"]]
        after = page["next"]
    assert seen == sorted(seen) and len(seen) == 12
    assert served.json("/v1/survey?state=parked")["states"] == {"quiet": 12}


def test_jobs_of_all_tables_are_listed_newest_first_and_by_pages(
    tmp_path: Path, serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(survey, "pause_seconds", lambda idle_seconds: 3_600.0)
    monkeypatch.setattr(survey, "LOOK_SECONDS_MAX", 3_600.0)
    made(tmp_path, "a", "b", "c")
    served = serve(tmp_path)
    client = served.client()
    wait_until(lambda: len(client.survey()) == 3)
    asked = [client.table(name).start(kind).id for kind in ("settle", "vacuum") for name in ("a", "b", "c")]
    found = client.jobs()
    assert {job["id"] for job in found} == set(asked), "what was asked for here is seen at once"
    assert [job["asked"] for job in found] == sorted((job["asked"] for job in found), reverse=True)
    assert {job["table"] for job in client.jobs(kind="vacuum")} == {"a", "b", "c"}
    assert [job["kind"] for job in client.jobs(table="b")] == ["vacuum", "settle"]
    pages, after = [], None
    while True:
        page = served.json("/v1/jobs?limit=4" + ("" if after is None else f"&after={after}"))
        pages.append([job["id"] for job in page["jobs"]])
        if (after := page["next"]) is None:
            break
    assert [len(page) for page in pages] == [4, 2] and [job_id for page in pages for job_id in page] == [
        job["id"] for job in found
    ]
    client.table("a").ask("DELETE", "jobs", asked[0])
    assert [job["id"] for job in client.jobs(state="cancelled")] == [asked[0]]
    assert "the next of an earlier answer" in served.problem("GET", "/v1/jobs?after=nonsense")["detail"]
    with pytest.raises(TableNotFound):
        client.jobs(table="nothing")


def test_the_queue_says_what_runs_who_has_it_what_waits_and_why_and_what_is_parked(
    tmp_path: Path, serve: Serve
) -> None:
    merging, parked, jobbed, disk = made(tmp_path, "merging", "parked", "jobbed", "disk")
    [late] = made(tmp_path, "late", **{"lakebed.freshness": "1 second", "lakebed.tier": "p0"})
    [waits] = made(tmp_path, "waits", **{"lakebed.settle_after_changes": "1"})
    for table in (late, waits):
        table.apply([{"id": 9, "day": "", "amount": 0}])
    worker, *others = (
        Membership(fleet_log(str(tmp_path)), Worker(id=f"vm-{number}-aa", host="vm", cores=cores))
        for number, cores in ((7, 1e6), (8, 1.0), (9, 1e-6), (10, 1e-12))
    )
    for each in (worker, *others):
        each.beat()
    put_claim(merging, "vm-7-bb")
    put_claim(disk, "vm-8-cc", volatile=True)
    park_merge(log_of(parked), list(log_of(parked).refresh().parts), Corrupt("part 7 is damaged"), 4)
    log = log_of(jobbed)
    for id_, kind in (("one", "vacuum"), ("two", "vacuum"), ("three", "settle"), ("drop", "drop")):
        jobs.ask(log, Job(id=id_, kind=kind, not_before_ms=log.now_ms() + 10**9 if kind == "drop" else 0))
    jobs.take(log, "one", "vm-7-dd", lease_ms=90_000)
    jobs.extend(log, jobs.job_of(log.refresh(), "one"), {"files": 3}, 90_000)  # type: ignore[arg-type]
    client = serve(tmp_path).client()
    wait_until(lambda: states(client).get("late") == "late")
    tasks = client.queue()
    assert [(task["state"], task["table"], task["what"]) for task in tasks if task["state"] != "waiting"] == [
        ("running", "merging", "recluster"), ("running", "jobbed", "vacuum"), ("parked", "parked", "merge"),
        ("held", "disk", "recluster"),
    ]  # fmt: skip
    running = by_name(client.queue(state="running"), "table")
    assert running["jobbed"]["progress"] == {"files": 3} and running["jobbed"]["who"] == "vm-7-dd"
    assert (running["merging"]["parts"], running["merging"]["who"]) == (1, "vm-7-bb")
    waiting = client.queue(state="waiting")
    assert waiting[0]["table"] == "late", "the first tier comes first"
    why = {task["job"] or task["table"]: task for task in waiting}
    assert why["two"]["why"] == "another vacuum of this table runs"
    assert why["drop"]["why"] == "its time has not come" and why["drop"]["until"] is not None
    assert "runner with a free thread" in why["three"]["why"]
    assert "lakebed.settle_after_changes is 1" in why["waits"]["why"] and why["waits"]["owner"] == "vm-7-aa"
    assert why["waits"]["standbys"] == [], "it has no freshness"
    assert why["late"]["owner"] == "vm-7-aa" and why["late"]["standbys"] == ["vm-8-aa", "vm-9-aa"]
    assert client.queue(state="parked")[0]["why"] == "Corrupt: part 7 is damaged"
    member = by_name(client.workers(), "id")["vm-7-aa"]
    assert (member["id"], member["is_alive"], member["running"], member["waiting"]) == ("vm-7-aa", True, 2, 2)
    for each in (worker, *others):
        each.leave()
    wait_until(lambda: client.workers() == [])
    assert {task["owner"] for task in client.queue(state="waiting")} == {None}


def test_two_services_say_the_same_of_the_same_tables(tmp_path: Path, serve: Serve) -> None:
    one, _ = made(tmp_path, "one", "two")
    put_claim(one, "vm-1-aa")
    first, second = serve(tmp_path).client(), serve(tmp_path).client()
    first.table("two").start("settle")
    wait_until(lambda: len(second.jobs()) == 1)

    def still(tasks: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{name: value for name, value in task.items() if name != "late_seconds"} for task in tasks]

    assert still(first.queue()) == still(second.queue()) and first.jobs() == second.jobs()


def test_tables_come_and_go(tmp_path: Path, serve: Serve) -> None:
    made(tmp_path, "one", "two")
    client = serve(tmp_path).client()
    assert sorted(states(client)) == ["one", "two"]
    client.create("three", SCHEMA, keys=["id"])
    wait_until(lambda: sorted(states(client)) == ["one", "three", "two"])
    shutil.rmtree(tmp_path / "one")
    wait_until(lambda: sorted(states(client)) == ["three", "two"])


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Surveyor, list[str]]]:
    made(tmp_path, *(f"t{number}" for number in range(5)))
    monkeypatch.setattr(survey, "LIST_SECONDS", 3_600.0)
    monkeypatch.setattr(survey, "pause_seconds", lambda idle_seconds: 3_600.0)
    monkeypatch.setattr(survey, "LOOK_SECONDS_MAX", 3_600.0)
    looks: list[str] = []
    refresh = TableLog.refresh

    def counting(log: TableLog) -> Any:
        if Path(log.root).is_relative_to(tmp_path):
            looks.append(log.root)
        return refresh(log)

    monkeypatch.setattr(TableLog, "refresh", counting)
    surveyor = Surveyor(Catalog([str(tmp_path)]))
    surveyor.start()
    yield surveyor, looks
    surveyor.close()


def test_a_request_costs_no_look_and_a_table_to_which_nothing_comes_is_looked_at_seldom(
    counted: tuple[Surveyor, list[str]],
) -> None:
    surveyor, looks = counted
    wait_until(lambda: len(surveyor.survey().tables) == 5)
    wait_until(lambda: surveyor.survey().unseen == 0)

    def passes() -> int:
        surveyor.survey()
        return sum(root.endswith("_lakebed/fleet") for root in looks)

    def of_tables() -> list[str]:
        return [root for root in looks if not root.endswith("_lakebed/fleet")]

    wait_until(lambda: passes() > 0)
    tables, before = of_tables(), passes()
    wait_until(lambda: passes() > before + 3)
    assert of_tables() == tables, "none is due"
    surveyor.hint(tables[0])
    surveyor.survey()
    assert of_tables() == [*tables, tables[0]], "the one with a hint, at once"


def test_the_worst_that_is_true_of_a_table_is_its_state() -> None:
    table = Surveyed(version=1, why="there is something to do")
    assert state_of(table, 1_000) is TableState.WAITING
    table = replace(table, jobs=(Job(id="a", kind="settle", state=jobs.JobState.RUNNING, until_ms=2_000),))
    assert state_of(table, 1_000) is TableState.RUNNING and state_of(table, 3_000) is TableState.WAITING
    table = replace(table, late_from_ms=900)
    assert state_of(table, 800) is TableState.RUNNING and state_of(table, 1_000) is TableState.LATE
    table = replace(table, parked=Parked(error="e", kind="Corrupt", since_ms=1))
    assert state_of(table, 1_000) is TableState.PARKED
    assert state_of(replace(table, error="gone"), 1_000) is TableState.UNREADABLE
