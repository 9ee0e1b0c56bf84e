"""The report of a fleet: what maintenance would gain, and what it cost and gained."""

from __future__ import annotations

from pathlib import Path

import pytest

import lakebed
from lakebed.cli.command_line import execute
from lakebed.coordination.failing import park_merge
from lakebed.fleet.membership import fleet_report
from tests.fleet.test_worker import changes, tables_in
from tests.internals import log_of


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "lake"


def deepen(table: lakebed.Table, batches: int) -> None:
    for batch in range(batches):
        table.apply(changes(*range(batch, 500, 50)))
        table.settle()


def test_tables_are_ranked_by_what_maintenance_would_gain_and_it_says_why(lake: Path) -> None:
    tidy, deep, deeper = tables_in(lake, 3, read_budget="2")
    deepen(tidy, 1)
    deepen(deep, 4)
    deepen(deeper, 7)
    rows = fleet_report([str(lake)]).to_pylist()
    assert [row["table"] for row in rows] == ["public/t2", "public/t1", "public/t0"]
    assert rows[0]["gain_bytes"] > rows[1]["gain_bytes"] > rows[2]["gain_bytes"] == 0
    assert rows[0]["depth"] == 7 and rows[0]["why"] and rows[0]["cost_bytes"] > 0 and rows[2]["why"]


def test_what_was_done_shows_what_it_cost_and_gained(lake: Path) -> None:
    [table] = tables_in(lake, 1, read_budget="2")
    deepen(table, 6)
    [before] = fleet_report([str(lake)]).to_pylist()
    table.maintenance.compact()
    [after] = fleet_report([str(lake)]).to_pylist()
    assert after["merges"] == 1 and after["gained_bytes"] == before["gain_bytes"] and after["gain_bytes"] == 0
    assert after["spent_bytes"] > before["cost_bytes"] and after["spent_seconds"] >= 0


def test_a_table_that_can_not_be_read_is_in_the_report_with_its_error_and_first(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, sick = tables_in(lake, 2)
    (Path(sick.path) / "_delta_log" / f"{1:020d}.json").write_text("rubbish")
    rows = fleet_report([str(lake)]).to_pylist()
    assert [row["path"] for row in rows] == [sick.path, fine.path] and rows[0]["error"]
    assert execute(["show", "maintenance", str(lake)]) == 1
    assert "public/t1" in capsys.readouterr().out


def test_parked_parts_are_counted_and_promise_nothing(lake: Path) -> None:
    [table] = tables_in(lake, 1, read_budget="2")
    deepen(table, 4)
    park_merge(log_of(table), list(log_of(table).refresh().parts), ValueError("it breaks"), 4)
    [row] = fleet_report([str(lake)]).to_pylist()
    assert row["parked_parts"] == 4 and row["gain_bytes"] == 0


@pytest.mark.parametrize("schema", ["", "public"])
def test_one_command_resumes_what_is_parked_in_all_tables_that_a_fleet_maintains(
    lake: Path, schema: str, capsys: pytest.CaptureFixture[str]
) -> None:
    [table] = tables_in(lake, 1)
    deepen(table, 2)
    park_merge(log_of(table), list(log_of(table).refresh().parts), ValueError("it breaks"), 4)
    folder = lake if schema else lake / "public"
    assert execute(["resume", str(folder)]) == 0
    name = ".".join(filter(None, (schema, "t0")))
    assert capsys.readouterr().out == f"{name}: 1 parked merge is planned again at once\n"


def test_a_table_is_maintained_alone_and_takes_no_options_of_folders(
    lake: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [table] = tables_in(lake, 1)
    for arguments, said in (
        ([table.path, str(lake)], "give it alone, or folders of tables"),
        ([str(lake / "publik")], f"there is no folder {lake}/publik"),
        ([table.path, "--poke-port", "0"], "--poke-port is for folders of tables"),
        ([table.path, "--share", "reports=1"], "--share is for folders of tables"),
    ):
        assert execute(["maintain", *arguments]) == 2 and said in capsys.readouterr().err


def test_wrong_arguments_are_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["show", "maintenance"], "required: PATH"),
        (["maintain", "x", "--memory", "8"], "'8' is not a size"),
        (["maintain", "x", "--share", "bulk"], "'bulk' is not a pool and its share"),
        (["maintain", "x", "--cores", "0"], "'0' is not a number of cores"),
    ):
        try:
            code = execute(arguments)
        except SystemExit as ended:
            code = int(str(ended.code))
        assert code == 2 and said in capsys.readouterr().err


def test_the_estimate_prints_what_a_day_of_looks_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["simulate", "--idle-tables", "10000"]) == 0
    out = capsys.readouterr().out
    assert "2,880,000 looks" in out and "$1.53" in out
