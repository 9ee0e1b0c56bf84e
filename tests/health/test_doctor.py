"""Ten broken tables: the doctor and the status name the cause of each, and of a healthy table nothing."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

import lakebed
from lakebed.cli import main
from lakebed.compaction.merge import Merger
from lakebed.health.examination import Examination, examine
from lakebed.health.finding import Severity
from lakebed.health.status import Observer, Status
from lakebed.log.actions import Action, AddPart, CommitInfo, Domain, Part
from lakebed.log.commit_codec import encode_commit
from lakebed.log.conflicts import BLIND
from lakebed.log.holds import trim_log_before
from lakebed.log.table_log import Committed, commit_name
from lakebed.parts import deletion_vector_cache
from lakebed.parts.intact import checksum_of
from lakebed.version import ENGINE
from tests.internals import deletion_vectors_of, log_of, storage_of
from tests.table.test_every_version_equals_the_oracle import make_world, step
from tests.worlds import seeds

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("ratio", pa.float64()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)
TEN_DAYS = 10 * 86_400


def rows(ids: range, region: str) -> pa.Table:
    at = [1_700_000_000_000_000 + 1_000_000 * (id * 7919 % 1000) for id in ids]
    columns = [list(ids), [f"{region}{id % 3}" for id in ids], [None] * len(ids), [id / 3 for id in ids], at]
    return pa.table(columns, schema=SCHEMA)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> lakebed.Table:
    """Three parts of the base, one of them with dead rows in a file, a checkpoint, and a change part in the tail."""
    monkeypatch.setenv("LAKEBED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(deletion_vector_cache, "_INLINE_BYTES_MAX", 0)
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sort_key=["region", "at"])
    table.apply(rows(range(100), "a"))
    table.settle()
    table.maintenance.clean_log()
    table.apply(rows(range(90, 140), "b"))
    table.settle()
    table.apply(rows(range(140, 150), "c"))
    table.settle()
    table.apply(rows(range(150, 155), "d"))
    return table


def base(table: lakebed.Table, dirty: bool = False) -> Part:
    """The largest part that has dead rows, or that has none."""
    found = [part for part in log_of(table).refresh().parts.values() if bool(part.dead_rows) is dirty]
    return max(found, key=lambda part: part.rows)


def commit(table: lakebed.Table, *actions: Action) -> None:
    info = CommitInfo(operation="TEST", commit_id="", engine=ENGINE)
    assert isinstance(log_of(table).commit(log_of(table).refresh(), actions, info, BLIND), Committed)


def place(table: lakebed.Table, name: str) -> Path:
    return Path(table.path, name)


def new_path() -> str:
    return f"_lakebed/{uuid.uuid4()}.parquet"


# -- how each is broken; returns the file that is to be named --------------------------------------------------------------


def lose_an_object(table: lakebed.Table) -> str:
    path = base(table).path
    place(table, path).unlink()
    return path


def cut_off_the_log(table: lakebed.Table) -> str:
    name = commit_name(table.version)
    data = place(table, name).read_bytes()
    place(table, name).write_bytes(data[: len(data) // 2])
    return name


def put_a_key_in_twice(table: lakebed.Table) -> str:
    part, path = base(table), new_path()
    shutil.copyfile(place(table, part.path), place(table, path))
    commit(table, AddPart(replace(part, path=path)))
    return path


def leave_a_claim_behind(table: lakebed.Table) -> str:
    merger = Merger(
        log_of(table), storage_of(table), deletion_vectors_of(table), "gone", clock=lambda: time.time() - 3600
    )
    claimed = merger.claim([base(table).path], 1)
    assert isinstance(claimed, tuple)
    return claimed[0].domain


def claim_by_a_clock_that_is_ahead(table: lakebed.Table) -> str:
    merger = Merger(
        log_of(table), storage_of(table), deletion_vectors_of(table), "ahead", clock=lambda: time.time() + 20 * 3600
    )
    claimed = merger.claim([base(table).path], 1)
    assert isinstance(claimed, tuple)
    return claimed[0].domain


def damage_a_deletion_vector(table: lakebed.Table) -> str:
    vector = base(table, dirty=True).deletion_vector
    name = vector.file_path() if vector else None
    assert name is not None
    data = bytearray(place(table, name).read_bytes())
    data[-8] ^= 0xFF
    place(table, name).write_bytes(data)
    return name


def tell_wrong_statistics(table: lakebed.Table) -> str:
    part = base(table)
    stats = json.loads(part.stats or "")
    stats["maxValues"]["id"] -= 1
    commit(table, AddPart(replace(part, stats=orjson.dumps(stats).decode()), data_change=False))
    return part.path


def shuffle_a_part(table: lakebed.Table) -> str:
    part, path = base(table), new_path()
    stored = pq.read_table(place(table, part.path))
    pq.write_table(stored.take(pa.array([1, 0, *range(2, len(stored))])), place(table, path))
    size, checksum = place(table, path).stat().st_size, checksum_of(str(place(table, path)))
    shuffled = replace(part, path=path, bytes=size, checksum=checksum)
    commit(table, part.removed(int(time.time() * 1000), data_change=False), AddPart(shuffled, data_change=False))
    return path


def leave_an_orphan(table: lakebed.Table) -> str:
    path = new_path()
    shutil.copyfile(place(table, base(table).path), place(table, path))
    os.utime(place(table, path), (time.time() - TEN_DAYS, time.time() - TEN_DAYS))
    return path


def make_a_gap(table: lakebed.Table) -> str:
    name = commit_name(table.version - 1)
    place(table, name).unlink()
    return name


def commit_as_another_program(table: lakebed.Table) -> str:
    name = commit_name(table.version + 1)
    now_ms = int(time.time() * 1000)
    info = {"operation": "DELETE", "engineInfo": "Apache-Spark/3.5 Delta-Lake/3.2", "timestamp": now_ms}
    commit_info = {"commitInfo": info | {"inCommitTimestamp": now_ms, "operationMetrics": {}}}
    place(table, name).write_bytes(orjson.dumps(commit_info) + b"\n")
    return name


def empty_a_commit(table: lakebed.Table) -> str:
    name = commit_name(table.version)
    place(table, name).write_bytes(b"")
    return name


def lose_the_last_action(table: lakebed.Table) -> str:
    name = commit_name(table.version)
    *kept, _ = place(table, name).read_bytes().splitlines(keepends=True)
    place(table, name).write_bytes(b"".join(kept))
    return name


@dataclass(frozen=True)
class Broken:
    """A way to break a table, and what is said of it. ``rows_only``: only reading the rows shows it."""

    how: Callable[[lakebed.Table], str]
    check: str
    says: str
    rows_only: bool = False
    severity: Severity = Severity.CRITICAL


BROKEN = {
    "missing object": Broken(lose_an_object, "G1", "missing"),
    "truncated log": Broken(cut_off_the_log, "M1", "cut off"),
    "empty commit": Broken(empty_a_commit, "M1", "it is empty: 0 bytes"),
    "commit cut at a line's end": Broken(lose_the_last_action, "M1", "it is cut off or damaged"),
    "duplicate key": Broken(put_a_key_in_twice, "B1", "is live 2 times", rows_only=True),
    "stale claim": Broken(leave_a_claim_behind, "claim", "left behind", severity=Severity.WARNING),
    "claim of a clock that is ahead": Broken(
        claim_by_a_clock_that_is_ahead, "claim", "clock is ahead", severity=Severity.WARNING
    ),
    "bad deletion vector": Broken(damage_a_deletion_vector, "vector", "checksum", rows_only=True),
    "wrong statistics": Broken(tell_wrong_statistics, "S1", "statistics of 'id' are wrong", rows_only=True),
    "unsorted part": Broken(shuffle_a_part, "S1", "not in the order of (region, at)", rows_only=True),
    "orphan": Broken(leave_an_orphan, "orphan", "no version within retention needs", severity=Severity.WARNING),
    "gap in versions": Broken(make_a_gap, "M5", "has a gap"),
    "foreign commit": Broken(commit_as_another_program, "gate", "by Apache-Spark/3.5 Delta-Lake/3.2"),
}


def require_named(found: Examination | Status, broken: Broken, file: str) -> None:
    named = [finding for finding in found.findings if finding.check == broken.check]
    assert named, found.findings
    for finding in named:
        assert broken.says in finding.what
        assert finding.severity is broken.severity
        assert finding.remedy
    assert any(file in finding.where + finding.what for finding in named)
    assert {finding.check for finding in found.findings} == {broken.check}, found.findings


@pytest.mark.parametrize("name", BROKEN)
def test_the_doctor_and_the_status_name_the_cause_of_each_broken_table(table: lakebed.Table, name: str) -> None:
    broken = BROKEN[name]
    file = broken.how(table)
    require_named(examine(table.path, deep=True), broken, file)
    require_named(Observer(table.path).look(deep=True), broken, file)
    if not broken.rows_only:
        require_named(examine(table.path), broken, file)
    if not broken.rows_only and name != "orphan":
        require_named(Observer(table.path).look(), broken, file)
    assert main(["verify", "--self", "--deep", table.path]) == main(["status", "--deep", table.path]) == 1


def test_of_a_healthy_table_nothing_is_reported_and_the_exit_code_is_0(
    table: lakebed.Table, capsys: pytest.CaptureFixture[str]
) -> None:
    found = table.doctor(deep=True)
    assert (found.findings, found.severity, found.version) == ((), Severity.OK, table.version)
    assert (found.commits, found.checkpoints, found.parts, found.rows) == (table.version + 1, 1, 4, 165)
    assert table.status(deep=True).findings == ()
    assert main(["verify", "--self", table.path]) == main(["status", table.path]) == 0
    said = capsys.readouterr().out
    assert "4 parts without their rows, " in said and "nothing is wrong" in said


@seeds(2)
def test_of_tables_under_random_treatment_nothing_is_reported(tmp_path: Path, seed: int) -> None:
    world = make_world(seed, tmp_path)
    for _ in range(12):
        step(world, tmp_path)
    assert examine(world.table.path, deep=True).findings == ()


def test_without_a_cut_off_newest_commit_the_table_is_at_the_version_before(
    table: lakebed.Table, tmp_path: Path
) -> None:
    newest, before = table.version, table.to_arrow(version=table.version - 1)
    name = cut_off_the_log(table)
    [finding] = examine(table.path).findings
    assert "move the file out of the log" in finding.remedy
    place(table, name).rename(tmp_path / "commit")
    mended = lakebed.open(table.path)
    assert mended.version == newest - 1
    assert mended.doctor(deep=True).findings == ()
    assert mended.to_arrow().sort_by("id") == before.sort_by("id")


def test_a_log_that_lost_its_beginning_is_cut_off(table: lakebed.Table) -> None:
    for checkpoint in place(table, "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()
    place(table, commit_name(0)).unlink()
    [finding] = examine(table.path).findings
    assert (finding.check, finding.where) == ("M5", commit_name(1))
    assert "begins with version 1" in finding.what
    assert [each.what for each in Observer(table.path).look().findings] == [finding.what]


def test_a_log_that_lost_its_end_is_cut_off(table: lakebed.Table) -> None:
    newest = table.version
    table.maintenance.clean_log()
    place(table, commit_name(newest)).unlink()
    checks = {finding.check: finding.what for finding in examine(table.path).findings}
    assert f"there is a checkpoint of version {newest}, but the newest commit is {newest - 1}" in checks["M5"]


def test_a_gap_that_a_later_checkpoint_makes_up_for_is_a_warning(table: lakebed.Table) -> None:
    version = table.version
    table.maintenance.clean_log()
    place(table, commit_name(version - 1)).unlink()
    [finding] = examine(table.path, deep=True).findings
    assert (finding.check, finding.severity) == ("M5", Severity.WARNING)


def test_a_commit_that_came_too_late_and_was_left_behind_is_named_and_cleaned(table: lakebed.Table) -> None:
    late = place(table, commit_name(2)).read_bytes()
    rows = table.to_arrow().num_rows
    log = log_of(table)
    log.write_checkpoint(log.refresh())
    table.set_properties({"lakebed.read_budget": "5"})
    assert trim_log_before(log, log.refresh().version) > 0
    place(table, commit_name(2)).write_bytes(late)
    for findings in (examine(table.path, deep=True).findings, Observer(table.path).look().findings):
        [finding] = findings
        assert (finding.check, finding.severity, finding.where) == ("M4", Severity.WARNING, commit_name(2))
        assert "it is no version of the table" in finding.what
    assert lakebed.open(table.path).to_arrow().num_rows == rows
    log.write_checkpoint(log.refresh())
    table.set_properties({"lakebed.read_budget": "6"})
    trim_log_before(log, log.refresh().version)
    assert not place(table, commit_name(2)).exists()
    assert examine(table.path).findings == ()


def test_a_checkpoint_that_is_not_what_the_log_gives_is_named(table: lakebed.Table) -> None:
    log, part = log_of(table), base(table)
    snapshot = log.refresh()
    log.write_checkpoint(
        replace(snapshot, parts={path: each for path, each in snapshot.parts.items() if path != part.path})
    )
    [finding] = examine(table.path).findings
    assert finding.check == "M2"
    assert part.path in finding.what


def test_a_checkpoint_that_can_t_be_read_is_named(table: lakebed.Table) -> None:
    [checkpoint] = place(table, "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(b"PAR1")
    for findings in (examine(table.path).findings, Observer(table.path).look().findings):
        assert {finding.check for finding in findings} == {"M2"}
        assert checkpoint.name in findings[0].where


@pytest.mark.parametrize(
    ("entry", "text"), [("lakebed.detached.x", '{"parts": [{}]}'), ("lakebed.position.t", '{"offsets": 1}')]
)
def test_an_entry_of_the_log_that_can_t_be_read_is_named(table: lakebed.Table, entry: str, text: str) -> None:
    commit(table, Domain(entry, text))
    [finding] = examine(table.path, deep=True).findings
    assert finding.where == entry and f"the entry {entry} in the log can't be read" in finding.what


def test_an_adopted_table_with_a_struct_is_healthy(tmp_path: Path) -> None:
    inner = [{"a": number if number % 3 else None} for number in range(9)]
    write_deltalake(tmp_path / "adopted", pa.table({"id": range(9), "inner": inner}))  # counts the nulls of its leaves
    adopted = lakebed.convert(tmp_path / "adopted", keys=["id"])
    assert examine(adopted.path, deep=True).findings == ()


def test_a_table_that_needs_what_we_lack_gets_an_error_that_says_so_and_nothing_breaks(table: lakebed.Table) -> None:
    log, snapshot = log_of(table), log_of(table).refresh()
    beyond = replace(snapshot.protocol, reader_features=snapshot.protocol.reader_features | {"unheardOf"})
    data = encode_commit([CommitInfo(operation="UPGRADE", commit_id="x", engine="other"), beyond])
    assert log.store.put_if_absent(commit_name(snapshot.version + 1), data)
    for found in (examine(table.path), Observer(table.path).look()):
        assert any(finding.check == "gate" and "unheardOf" in finding.what for finding in found.findings)


def test_a_claim_that_another_program_garbled_is_reported_and_nothing_breaks(table: lakebed.Table) -> None:
    log, version = log_of(table), log_of(table).refresh().version + 1
    garbled = encode_commit(
        [CommitInfo(operation="SET", commit_id="x", engine="other"), Domain("lakebed.claim.x", "{ not JSON")]
    )
    assert log.store.put_if_absent(commit_name(version), garbled)
    for found in (examine(table.path), Observer(table.path).look()):
        assert ("entry", "lakebed.claim.x") in {(finding.check, finding.where) for finding in found.findings}


@pytest.mark.parametrize("name", ["no base 85 at all, ü", "x" * 19, "", "_lakebed"])
def test_a_deletion_vector_with_a_garbled_name_is_reported_with_its_part(table: lakebed.Table, name: str) -> None:
    part = base(table, dirty=True)
    assert part.deletion_vector is not None
    log, version = log_of(table), log_of(table).refresh().version + 1
    garbled = replace(part, deletion_vector=replace(part.deletion_vector, path_or_inline=name))
    data = encode_commit([CommitInfo(operation="SET", commit_id="x", engine="other"), AddPart(garbled)])
    assert log.store.put_if_absent(commit_name(version), data)
    for found in (examine(table.path), examine(table.path, deep=True), Observer(table.path).look()):
        assert ("vector", part.path) in {(finding.check, finding.where) for finding in found.findings}


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("more", [-1, 1])
def test_a_file_of_another_size_is_named_without_being_read(table: lakebed.Table, more: int, deep: bool) -> None:
    part = base(table)
    with place(table, part.path).open("r+b") as file:
        file.truncate(part.bytes + more)
    [finding] = examine(table.path, deep=deep).findings
    assert (finding.check, finding.where) == ("file", part.path)
    assert f"has {part.bytes + more:,} bytes" in finding.what


def test_a_part_with_fewer_rows_than_the_log_says_is_named(table: lakebed.Table) -> None:
    part, path = base(table), new_path()
    pq.write_table(pq.read_table(place(table, part.path)).slice(1), place(table, path))
    shorter = replace(part, path=path, bytes=place(table, path).stat().st_size, checksum=None)
    commit(table, part.removed(0, data_change=False), AddPart(shorter, data_change=False))
    [finding] = examine(table.path, deep=True).findings
    assert (finding.check, finding.where) == ("file", path)
    assert f"{part.rows - 1} rows and the log says {part.rows}" in finding.what


@pytest.mark.parametrize("member", ["minValues", "nullCount", "sortKeyBounds"])
def test_every_kind_of_statistics_is_held_against_the_live_rows(table: lakebed.Table, member: str) -> None:
    part = base(table)
    stats = json.loads(part.stats or "")
    if member == "minValues":
        stats[member]["at"] = "2030-01-01T00:00:00.000Z"
    elif member == "nullCount":
        stats[member]["amount"] = 0
    else:
        stats[member]["lower"][0] += "z"
    commit(table, AddPart(replace(part, stats=orjson.dumps(stats).decode()), data_change=False))
    findings = examine(table.path, deep=True).findings
    assert {finding.check for finding in findings} == {"S1"}
    assert {finding.where for finding in findings} == {part.path}


def test_deletes_outside_the_range_of_their_part_are_no_finding(table: lakebed.Table) -> None:
    deletes = rows(range(70, 90), "a").select(["id"]).append_column("op", pa.array(["d"] * 20))
    both = pa.concat_tables(
        [rows(range(200, 260), "e").append_column("op", pa.array(["u"] * 60)), deletes], promote_options="default"
    )
    table.apply(both, apply_as_deletes="op = 'd'")
    [part] = [part for part in log_of(table).refresh().tail.values() if part.deletes]
    assert json.loads(part.stats or "")["sortKeyBounds"]["lower"][0] is not None
    table.settle()
    assert examine(table.path, deep=True).findings == ()
    table.maintenance.recluster(final=True)
    assert examine(table.path, deep=True).findings == ()
    stats = [json.loads(part.stats or "") for part in log_of(table).refresh().parts.values()]
    assert all(each["sortKeyBounds"]["lower"][0] is not None for each in stats)


def test_a_delete_that_is_not_marked_dead_is_named(table: lakebed.Table) -> None:
    deletes = rows(range(3), "a").append_column("op", pa.array(["d"] * 3))
    table.apply(deletes, apply_as_deletes="op = 'd'")
    [change_part] = [part for part in log_of(table).refresh().tail.values() if part.deletes]
    copied = new_path()
    shutil.copyfile(place(table, change_part.path), place(table, copied))
    alive = replace(change_part.settled(None), path=copied, deletes=0)
    commit(table, AddPart(alive))
    # A key that is live twice is told of one of the two parts.
    told = [finding for finding in examine(table.path, deep=True).findings if copied in finding.where + finding.what]
    assert {finding.check for finding in told} == {"B1", "B5"}
    assert any("not marked dead" in finding.what for finding in told)


def test_a_duplicate_is_reported_with_its_key_and_every_place(table: lakebed.Table) -> None:
    original, copy = base(table).path, put_a_key_in_twice(table)
    findings = examine(table.path, deep=True).findings
    assert "and 30 more keys" in findings[-1].what
    assert all(original in finding.what and copy in finding.what for finding in findings)
    assert "the key id = 90 is live 2 times" in findings[0].what


def test_what_is_said_to_help_helps(table: lakebed.Table) -> None:
    tell_wrong_statistics(table)
    shuffle_a_part(table)
    remedies = {finding.remedy for finding in examine(table.path, deep=True).findings}
    [remedy] = remedies
    for command in remedy.split(" && "):
        assert main(shlex.split(command)[1:]) == 0
    assert examine(table.path, deep=True).findings == ()
    put_a_key_in_twice(table)
    table.apply(rows(range(155), "b"))
    table.settle()
    assert examine(table.path, deep=True).findings == ()
    assert pc.count_distinct(table.to_arrow(["id"])["id"]).as_py() == table.to_arrow().num_rows


def test_the_doctor_tells_programs_a_finding_a_line(table: lakebed.Table, capsys: pytest.CaptureFixture[str]) -> None:
    path = lose_an_object(table)
    assert main(["verify", "--self", table.path, "--format", "json"]) == 1
    [line] = capsys.readouterr().out.splitlines()
    told = json.loads(line)
    assert (told["severity"], told["check"], told["where"]) == ("critical", "G1", path)


def test_where_there_is_no_table_the_exit_code_is_that_of_wrong_input(tmp_path: Path) -> None:
    assert main(["verify", "--self", str(tmp_path / "none")]) == main(["status", str(tmp_path / "none")]) == 2
