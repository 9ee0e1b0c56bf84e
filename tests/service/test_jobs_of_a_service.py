"""Jobs are asked for through the service, and run by whoever lives."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.coordination import jobs
from lakebed.coordination.jobs import Job, JobState
from lakebed.errors import Cancelled, InvalidInput, StoreUnavailable, TableNotFound, Unexpected
from lakebed.jobs import ACTIONS, JobAction, JobRunner
from lakebed.log.stores import LocalLogStore
from lakebed.log.table_log import TableLog
from lakebed.operations import job_arguments
from lakebed.operations.purge import files as purge_files
from lakebed.operations.references import drop
from lakebed.service.catalog import Catalog
from lakebed.service.job_routes import JobLoop
from lakebed.table import Table
from tests.internals import log_of, storage_of
from tests.marker import holds
from tests.service.conftest import Serve, orders
from tests.waiting import wait_until
from tests.worlds import seeds


@pytest.fixture
def run_jobs() -> Iterator[Callable[..., JobLoop]]:
    """Runs the jobs below a root, or those of a service as it hears of them, until the test ends."""
    loops: list[JobLoop] = []

    def started(
        root: Path | Catalog, actions: Mapping[str, JobAction] = ACTIONS, lease_seconds: float = 120.0
    ) -> JobLoop:
        def runner(open_table: Callable[[str], Table]) -> JobRunner:
            return JobRunner(open_table, lease_seconds=lease_seconds, look_seconds=0.05, actions=actions)

        catalog = root if isinstance(root, Catalog) else Catalog([str(root)])
        loop = JobLoop(catalog, pass_seconds=0.1, runner=runner)
        loop.start()
        loops.append(loop)
        return loop

    yield started
    for loop in loops:
        loop.close()


def waiting_action(begun: threading.Event) -> JobAction:
    """A job that works until it is stopped."""

    def run(table: Table, arguments: Mapping[str, Any], report: Any, stop: Callable[[], bool]) -> Mapping[str, Any]:
        report({"rows": 1})
        begun.set()
        wait_until(stop)
        raise Cancelled("it was stopped")

    return JobAction(summary="wait", run=run)


def test_each_kind_of_job_does_what_the_library_does(
    lake: Path, serve: Serve, run_jobs: Callable[..., JobLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)  # no other process follows the log
    served, table = serve(lake), lakebed.open(lake / "orders")
    remote = served.client().table("orders")
    before = sorted(table.to_arrow().to_pylist(), key=repr)
    run_jobs(served.catalog)
    assert remote.settle()["change_parts"] > 0 and "tail" not in table.inspect.parts()["state"].to_pylist()
    assert remote.maintenance.compact().keys() >= {"version", "merges"}
    assert remote.maintenance.recluster(final=True)["finished"] is True
    assert remote.maintenance.vacuum().keys() == {"files", "bytes"}
    assert remote.maintenance.expire_snapshots(older_than="2 hours").keys() == {"files", "bytes"}
    assert remote.maintenance.remove_orphan_files().keys() == {"files", "bytes"}
    assert sorted(table.to_arrow().to_pylist(), key=repr) == before
    gone = remote.purge("id = 12")
    assert gone["files"] > 0 and gone["files_left"] == 0
    before = [row for row in before if row["id"] != 12]
    table, newest = lakebed.open(lake / "orders"), remote.version
    table.apply([{"id": 5_000, "day": "2026-03-01", "amount": 1}])
    assert newest < remote.restore(version=newest) < table.version  # a later commit ended the job
    assert sorted(table.to_arrow().to_pylist(), key=repr) == before
    assert {job["state"] for job in remote.jobs()} == {"succeeded"} and remote.jobs()[0]["by"] == "operator"


def test_a_job_that_fails_raises_the_error_of_the_library(
    lake: Path, serve: Serve, run_jobs: Callable[..., JobLoop]
) -> None:
    remote = serve(lake).client().table("orders")
    run_jobs(lake)
    with pytest.raises(InvalidInput, match="retention"):
        remote.maintenance.vacuum(retention="1 minute")
    for wrong in ({"retention": 7}, {"nonsense": True}):
        with pytest.raises(InvalidInput):
            remote.start("vacuum", **wrong)
    with pytest.raises(InvalidInput, match="no_such_column"):
        remote.start("recluster", where="no_such_column = 1")
    with pytest.raises(InvalidInput):
        remote.start("drop")


def test_tables_that_could_not_be_listed_are_looked_at_again(
    lake: Path, run_jobs: Callable[..., JobLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    tables, errors, again = Catalog.tables, [StoreUnavailable("no answer")], threading.Event()

    def listed(catalog: Catalog) -> Any:
        if errors:
            raise errors.pop()
        again.set()
        return tables(catalog)

    monkeypatch.setattr(Catalog, "tables", listed)
    run_jobs(lake)
    [follower] = [thread for thread in threading.enumerate() if thread.name == "lakebed-jobs"]
    wait_until(lambda: again.is_set() or not follower.is_alive())
    assert again.is_set()


def test_a_job_is_cancelled_while_it_waits_and_while_it_runs(
    lake: Path, serve: Serve, run_jobs: Callable[..., JobLoop]
) -> None:
    remote, begun = serve(lake).client().table("orders"), threading.Event()
    waits = remote.start("settle")
    waits.cancel()
    assert waits.state == "cancelled"
    job = remote.start("compact")
    run_jobs(lake, {"compact": waiting_action(begun)})
    wait_until(begun.is_set)
    job.cancel()
    with pytest.raises(Cancelled):
        job.wait()


def test_a_job_of_a_process_that_stops_is_given_back_and_done_by_another(
    lake: Path, serve: Serve, run_jobs: Callable[..., JobLoop]
) -> None:
    remote, begun = serve(lake).client().table("orders"), threading.Event()
    job = remote.start("compact")
    first = run_jobs(lake, {"compact": waiting_action(begun)})
    wait_until(begun.is_set)
    first.close()
    assert job.look()["state"] == "waiting" and job.look()["attempts"] == 0
    run_jobs(lake)
    job.wait()
    assert job.look()["attempts"] == 1


def test_a_job_whose_runner_was_killed_is_taken_over_but_for_one_that_must_not_run_twice(
    lake: Path, serve: Serve, run_jobs: Callable[..., JobLoop]
) -> None:
    remote, log = serve(lake).client().table("orders"), log_of(lakebed.open(lake / "orders"))
    for job_id, kind in (("again", "settle"), ("once", "vacuum")):
        jobs.ask(log, Job(id=job_id, kind=kind))
        assert jobs.take(log, job_id, "a process that was killed", lease_ms=300) is not None
    once = JobAction(summary="once", run=ACTIONS["vacuum"].run, is_repeatable=False)
    run_jobs(lake, {"settle": ACTIONS["settle"], "vacuum": once})
    table = {job["id"]: job for job in wait_until(lambda: ended(remote, 2))}
    assert table["again"]["state"] == "succeeded" and table["again"]["attempts"] == 2
    assert table["once"]["state"] == "failed" and "whether it was done is unknown" in table["once"]["error"]


def ended(remote: Any, count: int) -> list[dict[str, Any]] | None:
    found = remote.jobs()
    return found if sum(job["state"] in ("succeeded", "failed", "cancelled") for job in found) == count else None


def test_arguments_that_may_have_values_of_rows_are_not_in_the_log(
    lake: Path, serve: Serve, run_jobs: Callable[..., JobLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def run(table: Table, arguments: Mapping[str, Any], report: Any, stop: Any) -> Mapping[str, Any]:
        seen.append(dict(arguments))
        raise InvalidInput(f"something about {arguments}")

    private = JobAction(
        summary="private", run=run, arguments=ACTIONS["recluster"].arguments, required=("where",), is_private=True
    )
    monkeypatch.setitem(ACTIONS, "recluster", private)
    job = serve(lake).client().table("orders").start("recluster", where="day = 'a-secret-of-somebody'")
    assert job.look()["arguments"] == {}
    run_jobs(lake)
    with pytest.raises(InvalidInput, match="the log of the runner"):
        job.wait()
    assert seen == [{"where": "day = 'a-secret-of-somebody'"}]
    wait_until(lambda: not any((lake / "orders" / "_lakebed" / "jobs").iterdir()))
    files = [file for file in (lake / "orders").rglob("*") if file.is_file()]
    assert not [file for file in files if b"a-secret-of-somebody" in file.read_bytes()]


def secrets_in(folder: Path) -> list[Path]:
    files = [file for file in folder.rglob("*") if file.is_file()]
    return [file for file in files if holds(file.read_bytes(), str(file), "a-secret-of-")]


def test_arguments_are_gone_when_their_job_is_cancelled_or_asked_for_twice(lake: Path, serve: Serve) -> None:
    served = serve(lake)
    remote, folder = served.client().table("orders"), lake / "orders"
    cancelled = remote.start("purge", where="day = 'a-secret-of-one'", force=True)
    assert len(secrets_in(folder)) == 1
    cancelled.cancel()
    assert secrets_in(folder) == []
    body = {"id": "same", "kind": "purge", "arguments": {"where": "day = 'a-secret-of-two'", "force": True}}
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda _: served.json("/v1/tables/orders/jobs", "POST", body), range(6)))
    assert len(secrets_in(folder)) == 1
    served.json("/v1/tables/orders/jobs/same", "DELETE")
    assert secrets_in(folder) == []


@seeds(3)
def test_a_purge_leaves_no_arguments_whatever_became_of_earlier_jobs(
    seed: int, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)  # no other process follows the log
    rng, table = random.Random(seed), lakebed.open(lake / "orders")
    log, storage, asked = log_of(table), storage_of(table), list[str]()
    for number in range(12):
        match rng.choice(["ask", "ask", "killed before it asks", "cancel", "run", "killed while it runs", "fail"]):
            case "killed before it asks":
                job_arguments.keep(storage, {"where": f"day = 'a-secret-of-{number}'"})
            case "ask":
                file = job_arguments.keep(storage, {"where": f"day = 'a-secret-of-{number}'"})
                arguments = {"where": f"day = 'a-secret-of-{number}'"} if rng.random() < 0.3 else {}
                asked.append(jobs.ask(log, Job(id=f"j{number}", kind="x", arguments=arguments, arguments_file=file)).id)
            case "cancel" if asked:
                jobs.cancel(log, asked[-1])
            case what if asked and (mine := jobs.take(log, rng.choice(asked), "r", 0 if "killed" in what else 90_000)):
                if what != "killed while it runs":
                    jobs.end(log, mine, JobState.FAILED, error=f"no day 'a-secret-of-{number}'")
    for job_id in asked:
        jobs.cancel(log, job_id)
    for job in jobs.jobs_of(log.refresh()):
        assert job.has_ended or jobs.take(log, job.id, "r", 90_000) is None
    monkeypatch.setattr(job_arguments, "ASK_SECONDS", -60.0)  # an hour later
    table.purge("id = 12")
    assert secrets_in(lake / "orders") == []


def test_a_table_is_dropped_when_its_time_has_come_and_kept_if_the_job_is_cancelled(
    lake: Path, serve: Serve, run_jobs: Callable[..., JobLoop]
) -> None:
    client = serve(lake).client()
    kept = client.table("public.items")
    job = kept.drop()
    assert kept.describe()["drop_at"] is not None and kept.drop().id == job.id
    job.cancel()
    run_jobs(lake)
    gone = client.table("orders")
    gone.drop(delay_seconds=0)
    wait_until(lambda: not (lake / "orders").exists())
    wait_until(lambda: client.tables() == ("public.items",))
    assert kept.describe()["drop_at"] is None and len(kept.inspect.parts()) > 0
    orders(lake / "orders", settled=1)
    assert "orders" in client.tables()


class Killed(BaseException):
    """The process ends here."""


class KilledAfter(LocalLogStore):
    """Deletes one file of the log; at the next the process is killed."""

    deletions = 0

    def delete(self, name: str) -> None:
        if self.deletions:
            raise Killed
        self.deletions += 1
        super().delete(name)


def test_a_drop_that_was_cut_off_goes_on(tmp_path: Path) -> None:
    """After each deletion the log can still be read, and says that the table is being dropped; until it is gone."""
    root = tmp_path / "orders"
    orders(root, settled=1)
    jobs.ask(log_of(lakebed.open(root)), Job(id="d", kind="drop"))
    storage, kills = storage_of(lakebed.open(root)), 0
    while (root / "_delta_log").exists():
        [job] = jobs.jobs_of(log_of(lakebed.open(root)).refresh())
        assert job.state is JobState.WAITING
        with suppress(Killed, TableNotFound):
            drop(TableLog(KilledAfter(str(root))), storage)
        kills += 1
        assert kills < 100
    assert kills > 5 and not root.exists()


def test_who_drops_what_is_gone_gets_an_error(lake: Path, serve: Serve) -> None:
    client = serve(lake).client()
    with pytest.raises(TableNotFound):
        client.table("nothing").drop()
    with pytest.raises((InvalidInput, Unexpected), match="there is no job"):
        client.table("orders").ask("DELETE", "jobs", "nobody")
