"""What is wrong with a table is said wherever the table is listed, and an error names the table and what to do."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.cli.commands import serve
from lakebed.errors import Corrupt, InvalidInput, VersionNotFound
from lakebed.health import sampler
from lakebed.health.finding import Finding
from lakebed.health.sampler import Glance
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import commit_name
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.positions.remarks import remark
from lakebed.remarks import KINDS, Remark
from lakebed.service.survey import Surveyed, TableState, state_of
from lakebed.storage.part_storage import PartStorage
from lakebed.ui.members import Members
from tests.internals import log_of
from tests.waiting import wait_until

SCHEMA = pa.schema([("id", pa.int64()), ("updated_at", pa.int64())])
ROW = [{"id": 1, "updated_at": 1}]


@pytest.fixture
def table(tmp_path: Path) -> lakebed.Table:
    """A table of a database, with a settled row."""
    table = lakebed.create(tmp_path / "shop/public/orders", SCHEMA, keys=["id"])
    table.apply(ROW)
    table.settle()
    return table


def listed_below(path: Path) -> list[dict[str, Any]]:
    """What the page of a database lists."""
    members = Members(str(path), 1.0)
    members.start()
    with closing(members):
        return wait_until(lambda: members.seen(time.monotonic() + 60)[0])


def lose_a_part(table: lakebed.Table) -> None:
    [part] = log_of(table).refresh().parts
    Path(table.path, part).unlink()


def say_that_rows_are_wrong(table: lakebed.Table) -> None:
    remark(log_of(table), {Remark.ORDER_BEGAN_AGAIN: {"source.lsn": 1}})


def quarantine_a_record(table: lakebed.Table) -> None:
    beside = lakebed.create(table.path + QUARANTINE_SUFFIX, pa.schema([("reason", pa.string())]))
    beside.apply([{"reason": "no JSON"}])


def make_a_gap(table: lakebed.Table) -> None:
    Path(table.path, commit_name(1)).unlink()


WRONG: dict[str, tuple[Callable[[lakebed.Table], None], str, str]] = {
    "a part is missing": (lose_a_part, "critical", "the file is missing"),
    "rows are wrong": (say_that_rows_are_wrong, "critical", "lower positions"),
    "records are in the quarantine": (quarantine_a_record, "warning", "1 records are in the quarantine"),
}


@pytest.mark.parametrize(("break_it", "severity", "what"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_with_a_table_is_in_every_list_of_tables(
    table: lakebed.Table, break_it: Callable[[lakebed.Table], None], severity: str, what: str
) -> None:
    break_it(table)
    snapshot, now_ms = log_of(table).refresh(), log_of(table).now_ms()
    [found] = Glance(table.path).look(snapshot, now_ms).findings
    assert (found.severity.value, what in found.what) == (severity, True)
    [row] = listed_below(Path(table.path).parents[1])
    assert row["severity"] == severity and what in row["findings"][0]["what"]
    listed = state_of(Surveyed(findings=(found,)), now_ms)
    assert listed is (TableState.CRITICAL if severity == "critical" else TableState.QUIET)


def test_files_are_listed_again_after_a_change_and_else_seldom(
    table: lakebed.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, listed = [0.0], list[int]()

    def look_at_files(snapshot: Snapshot, storage: PartStorage) -> list[Finding]:
        listed.append(snapshot.version)
        return []

    monkeypatch.setattr(sampler, "look_at_files", look_at_files)
    seen, log = Glance(table.path, clock=lambda: clock[0]), log_of(table)
    for clock[0] in (0.0, 61.0, 599.0, 700.0):
        seen.look(log.refresh(), log.now_ms())
    assert len(listed) == 2
    table.apply(ROW)
    for clock[0] in (701.0, 761.0):
        seen.look(log.refresh(), log.now_ms())
    assert listed == [2, 2, 3]


def test_an_error_of_a_damaged_log_names_the_table_and_what_to_do(table: lakebed.Table) -> None:
    make_a_gap(table)
    with pytest.raises(
        Corrupt, match=f"the log of {table.path} is damaged: .*gap.*; lakebed verify {table.path} --self"
    ) as raised:
        lakebed.open(table.path)
    assert raised.value.table == table.path


def test_a_table_that_cannot_be_read_is_a_table_of_the_page_and_has_a_status(
    table: lakebed.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    make_a_gap(table)
    database = str(Path(table.path).parents[1])
    assert not serve.is_folder(table.path) and serve.is_folder(database)
    assert main(["status", table.path]) == 1
    assert "critical  M5" in capsys.readouterr().out
    [row] = listed_below(Path(database))
    assert table.path in row["error"]


def test_a_negative_version_was_never_there(table: lakebed.Table) -> None:
    for ask in (lambda: table.to_arrow(version=-1), lambda: table.restore(-1)):
        with pytest.raises(VersionNotFound, match="there is no version -1"):
            ask()


def test_fresh_rows_are_not_said_to_be_none(table: lakebed.Table, capsys: pytest.CaptureFixture[str]) -> None:
    table.apply([{"id": 2, "updated_at": 1}, {"id": 3, "updated_at": 1}])
    main(["status", table.path])
    assert "1 settled rows and 2 changes" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["updatd_at", "updated_att", "updtaed_at", "Updated_At", "updated-at"])
def test_a_misspelled_sequence_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'updated_at'"):
        lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by=name)


@pytest.mark.parametrize("name", ["updated", "updated_at_ms", "source.updated_at", "ts_ms", "seq"])
def test_a_sequence_that_only_changes_have_is_no_misspelling(tmp_path: Path, name: str) -> None:
    lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by=name)


def test_the_table_of_checks_says_how_bad_each_kind_of_remark_is() -> None:
    documented = (Path(__file__).resolve().parents[2] / "docs" / "operations.md").read_text()
    said = dict(re.findall(r"^\| `(\w+)` \| (warning|critical) \|", documented, re.MULTILINE))
    found = {kind: meaning.is_critical for kind, meaning in KINDS.items() if meaning.is_finding}
    assert {kind: said.get(kind) for kind in found} == {
        kind: "critical" if is_critical else "warning" for kind, is_critical in found.items()
    }
