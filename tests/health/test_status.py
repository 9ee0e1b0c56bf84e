"""The status: its figures, and what each finding takes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.compaction.merge import Merger
from lakebed.health.finding import Severity
from lakebed.health.status import Observer, Status
from lakebed.parts.quarantine import QUARANTINE_SCHEMA, QUARANTINE_SUFFIX
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.waiting import outcome

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.int64())])
DAY = 86_400


pytestmark = pytest.mark.usefixtures("own_cache")


def new_table(tmp_path: Path, batches: int = 3, **properties: str) -> lakebed.Table:
    """A batch of ten keys is a part of the base; all parts lie over the same keys but for one."""
    named = {f"lakebed.{name}": value for name, value in properties.items()}
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], properties=named)
    for batch in range(batches):
        add(table, batch)
        table.settle()
    return table


def add(table: lakebed.Table, batch: int) -> None:
    table.apply(pa.table({"id": range(batch, 10_000, 1000), "v": [batch] * 10}, SCHEMA))


def look(table: lakebed.Table, seconds_from_now: float = 0) -> Status:
    """The status as it is seen later, when nothing has happened."""
    return Observer(table.path, Path(table.path, "none"), lambda: time.time() + seconds_from_now).look()


def checks(status: Status) -> list[str]:
    return [finding.check for finding in status.findings]


def test_figures_are_those_of_the_newest_version(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.apply(pa.table({"id": [0, 5000], "v": [9, 9]}, SCHEMA))
    table.settle()
    add(table, 7)
    found = look(table)
    assert (found.version, found.rows, found.dead_rows, found.parts) == (table.version, 30, 2, 4)
    assert (found.parts_by_level, found.tail_parts, found.tail_rows) == ({0: 4}, 1, 10)
    assert (found.depth, found.read_budget, found.oldest_version, found.quarantined) == (4, 8, 0, 0)
    assert found.log_files == found.version + 1
    assert found.dead_row_ratio == pytest.approx(2 / 32)
    assert found.will_do[0].startswith("settle 1 parts: ")
    assert any("lakebed.read_budget" in why for why in found.waits)
    assert found.tail_age_seconds is not None and 0 <= found.tail_age_seconds < 60
    assert found.severity is Severity.OK


def test_a_tail_that_should_have_been_settled_is_reported(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    add(table, 7)
    assert checks(look(table)) == checks(look(table, 100)) == []
    assert checks(look(table, 300)) == ["tail"]
    table.settle()
    assert checks(look(table, 300)) == []


def test_a_tail_that_the_settings_let_wait_is_not_reported(tmp_path: Path) -> None:
    table = new_table(tmp_path, settle_after_age="1 hour")
    add(table, 7)
    assert checks(look(table, 3000)) == []
    assert checks(look(table, 3900)) == ["tail"]


def test_merges_that_nobody_does_are_reported_with_the_planners_reason(tmp_path: Path) -> None:
    table = new_table(tmp_path, batches=4, read_budget="2")
    assert checks(look(table)) == []
    [finding] = look(table, 300).findings
    assert (finding.check, finding.severity) == ("backlog", Severity.WARNING)
    assert "lakebed.read_budget is 2" in finding.what
    table.maintenance.compact()
    assert checks(look(table, 300)) == []


def test_merges_that_can_t_keep_up_are_reported(tmp_path: Path) -> None:
    table = new_table(tmp_path, batches=7, read_budget="2")
    merger = Merger(log_of(table), storage_of(table), deletion_vectors_of(table), "busy")
    claimed = merger.claim(table.inspect.parts()["path"].to_pylist()[:1], 1, volatile=True)
    assert isinstance(claimed, tuple)
    found = look(table)
    assert (found.claims_live, found.volatile_claims) == (1, 1)
    assert checks(found) == ["depth"]
    merger.abandon(claimed[0])


def test_ingest_that_gives_up_is_critical(tmp_path: Path) -> None:
    table = new_table(tmp_path, batches=26, read_budget="1")
    [finding] = look(table).findings
    assert (finding.check, finding.severity) == ("backpressure", Severity.CRITICAL)
    assert "level 0 parts" in finding.what


def test_a_quarantine_with_records_is_reported_with_a_command_that_shows_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = new_table(tmp_path)
    beside = lakebed.create(table.path + QUARANTINE_SUFFIX, QUARANTINE_SCHEMA)
    beside.apply(pa.Table.from_pylist([{"value": b"?", "reason": "no JSON"}], QUARANTINE_SCHEMA))
    [finding] = look(table).findings
    assert finding.check == "quarantine"
    query, truncate = finding.remedy.split("; when they are dealt with: ")
    assert query.startswith(f"lakebed quarantine show {table.path} ")
    assert main(query.split(" (")[0].split()[1:]) == 0
    assert "no JSON" in capsys.readouterr().out
    assert main([*truncate.split()[1:], "--yes"]) == 0
    assert look(table).findings == ()


def test_a_quarantine_that_can_t_be_read_is_reported_beside_the_figures(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    beside = lakebed.create(table.path + QUARANTINE_SUFFIX, QUARANTINE_SCHEMA)
    Path(beside.path, "_delta_log", f"{0:020}.json").write_bytes(b"{ not JSON")
    found = look(table)
    [finding] = found.findings
    assert (finding.check, finding.where, found.rows) == ("quarantine", beside.path, 30)


def test_what_a_reader_holds_of_the_log_is_not_called_neglect(tmp_path: Path) -> None:
    table = new_table(tmp_path, batches=5, checkpoint_interval="3")
    with table.maintenance.hold(1, 30 * DAY):
        table.maintenance.clean_log()
        assert checks(look(table, 15 * DAY)) == []


def test_merges_that_became_due_this_moment_are_not_called_late(tmp_path: Path) -> None:
    table = new_table(tmp_path, batches=5)
    before = table.version
    table.set_properties({"lakebed.read_budget": "2"})
    earlier = log_of(table).at_version(before)
    observer = Observer(table.path, Path(table.path, "none"), lambda: time.time() + 3600)
    assert checks(observer.look()) == ["backlog"]
    observer._at = lambda timestamp_ms: earlier  # type: ignore[method-assign]
    assert checks(observer.look()) == []


def test_a_log_without_checkpoints_and_one_that_nobody_cleans_are_reported(tmp_path: Path) -> None:
    table = new_table(tmp_path, batches=5, checkpoint_interval="3")
    assert checks(look(table)) == []
    for checkpoint in Path(table.path, "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    [finding] = look(table).findings
    assert "have no checkpoint" in finding.what
    table.maintenance.clean_log()
    assert checks(look(table, 13 * DAY)) == []
    [finding] = look(table, 15 * DAY).findings
    assert "past twice lakebed.log_retention" in finding.what


def test_parts_of_an_earlier_sort_key_are_counted_and_are_no_fault(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    table.set_sort_key(["v"])
    found = look(table)
    assert (found.parts, found.unsorted_parts, found.severity) == (3, 3, Severity.OK)


def test_an_observer_sees_new_versions_and_new_faults_without_listing_again(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    observer = Observer(table.path, tmp_path)
    version = observer.look().version
    add(table, 7)
    assert observer.look().version == version + 1
    merger = Merger(
        log_of(table), storage_of(table), deletion_vectors_of(table), "gone", clock=lambda: time.time() - 3600
    )
    merger.claim(table.inspect.parts()["path"].to_pylist()[:1], 1)
    assert checks(observer.look()) == ["claim"]


def test_the_command_prints_a_screen_or_an_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table(tmp_path)
    assert main(["status", table.path]) == 0
    screen = capsys.readouterr().out
    assert screen.splitlines()[0] == f"{table.path}: healthy"
    assert "level 0: 3" in screen
    assert main(["status", table.path, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["severity"], told["rows"], told["parts_by_level"], told["findings"]) == ("ok", 30, {"0": 3}, [])


@pytest.mark.slow
def test_a_watch_goes_on_until_ctrl_c(tmp_path: Path) -> None:
    table = new_table(tmp_path)
    program = "import sys; from lakebed.cli import main; sys.exit(main())"
    watching = subprocess.Popen(
        [sys.executable, "-c", program, "status", "--watch", table.path, "--format", "json"], stdout=subprocess.PIPE
    )
    assert watching.stdout is not None
    assert json.loads(watching.stdout.readline())["rows"] == 30
    add(table, 7)
    assert json.loads(watching.stdout.readline())["tail_rows"] == 10
    watching.send_signal(signal.SIGINT)
    outcome(watching)
    assert watching.returncode == 0
