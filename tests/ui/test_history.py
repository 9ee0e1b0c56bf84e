"""Curves say of each version what a reader of that version would have seen."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.sortkey.ranges import clustering
from lakebed.ui import history as module
from lakebed.ui.history import History
from lakebed.view.clustering import placed
from tests.clock import Clock
from tests.ui.tables import claim, lived_in


def test_every_point_of_a_curve_is_what_that_version_was(tmp_path: Path) -> None:
    table = lived_in(tmp_path / "t", Clock(1e9), batches=9, part_rows=500)
    log = TableLog(open_store(table.path))
    newest = log.refresh()
    history = History(log)
    assert history.look(newest, 60) and history.is_whole
    curves = history.document(newest)["curves"]
    assert curves["version"] == list(range(newest.version + 1))
    for place, version in enumerate(curves["version"]):
        snapshot = log.at_version(version)
        assert (curves["parts"][place], curves["tail_parts"][place]) == (len(snapshot.parts), len(snapshot.tail))
        assert curves["depth"][place] == clustering(placed(snapshot)).max_depth


def test_what_is_new_is_read_and_what_is_too_old_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COMMITS_MAX", 10)
    clock = Clock(1e9)
    table = lived_in(tmp_path / "t", clock, batches=8)
    log = TableLog(open_store(table.path))
    history = History(log)
    history.look(log.refresh(), 60)
    version = table.delete("amount < 50000").version
    snapshot = log.refresh()
    assert history.look(snapshot, 60)
    assert not history.look(snapshot, 60), "there was nothing more to learn"
    curves = history.document(snapshot)["curves"]
    assert curves["version"] == list(range(snapshot.version - 9, snapshot.version + 1))
    assert version is None or snapshot.version >= version
    for place, version in enumerate(curves["version"]):
        assert curves["depth"][place] == clustering(placed(log.at_version(version))).max_depth


def test_write_amplification_is_that_of_the_hour_before(tmp_path: Path) -> None:
    table = lived_in(tmp_path / "t", Clock(1e9), batches=8, seconds=1200)
    log = TableLog(open_store(table.path))
    snapshot, history = log.refresh(), History(log)
    history.look(snapshot, 60)
    document = history.document(snapshot)
    curves, commits = document["curves"], document["commits"][::-1]
    for place, at in enumerate(curves["at_ms"]):
        hour = [commit for commit in commits[: place + 1] if commit["at_ms"] >= at - 3_600_000]
        came = sum(commit["written_bytes"] for commit in hour if commit["operation"] == "APPLY")
        wanted = sum(commit["written_bytes"] for commit in hour) / came if came else None
        assert curves["write_amplification"][place] == (wanted and pytest.approx(wanted, abs=1e-4))


def test_rows_a_second_are_those_of_the_minute_before(tmp_path: Path) -> None:
    table = lived_in(tmp_path / "t", Clock(1e9), batches=8, seconds=13)
    log = TableLog(open_store(table.path))
    snapshot, history = log.refresh(), History(log)
    history.look(snapshot, 60)
    document = history.document(snapshot)
    curves, commits = document["curves"], document["commits"][::-1]
    for place, at in enumerate(curves["at_ms"]):
        minute = [commit for commit in commits[: place + 1] if commit["at_ms"] >= at - 60_000]
        seconds = min(60, max(10, (at - curves["at_ms"][0]) / 1000))
        rows = sum(commit["ingested_rows"] for commit in minute)
        assert curves["rows_per_second"][place] == pytest.approx(rows / seconds, abs=0.01)


def test_claims_do_not_push_other_commits_out_of_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LISTED_MAX", 3)
    clock = Clock(1e9)
    table = lived_in(tmp_path / "t", clock, batches=3)
    for number in range(5):
        claim(table, clock, 1, number)
        clock.now += 200
    log = TableLog(open_store(table.path))
    snapshot, history = log.refresh(), History(log)
    history.look(snapshot, 60)
    listed = history.document(snapshot)["commits"]
    assert [commit["version"] for commit in listed] == sorted((commit["version"] for commit in listed), reverse=True)
    assert sum(commit["is_claim"] for commit in listed) == 3
    others = [commit for commit in listed if not commit["is_claim"]]
    assert [commit["version"] for commit in others] == [snapshot.version - 5 - back for back in range(3)]


def test_commits_are_read_backward_a_little_at_a_time(tmp_path: Path) -> None:
    table = lived_in(tmp_path / "t", Clock(1e9), batches=6)
    log = TableLog(open_store(table.path))
    snapshot, history = log.refresh(), History(log)
    history.look(snapshot, 0)
    first = history.document(snapshot)
    assert [commit["version"] for commit in first["commits"]] == [snapshot.version]
    assert first["curves"]["depth"] is None, "nothing can be said of depth before the oldest version is known"
    looks = 0
    while not history.is_whole:
        history.look(snapshot, 0.001)
        looks += 1
        assert looks < 500
    assert len(history.document(snapshot)["commits"]) == snapshot.version + 1


def test_merges_tell_how_fast_they_were(tmp_path: Path) -> None:
    table = lived_in(tmp_path / "t", Clock(1e9), batches=12)
    log = TableLog(open_store(table.path))
    history = History(log)
    assert history.merge_rate() is None
    history.look(log.refresh(), 60)
    done = [row for row in table.inspect.compactions().to_pylist() if row["seconds"]]
    assert history.merge_rate() == (
        pytest.approx(sum(row["bytes_in"] for row in done) / sum(row["seconds"] for row in done)),
        len(done),
    )
