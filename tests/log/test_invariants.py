"""Each invariant is written down once; one that a commit breaks is refused by writers and reported by readers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakebed import events
from lakebed.errors import Corrupt
from lakebed.events import InvariantViolated
from lakebed.log import table_log
from lakebed.log.actions import (
    Action,
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    CommitInfo,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.log.claims import Claim
from lakebed.log.conflicts import BLIND
from lakebed.log.deletion_vector import bitmap, inline
from lakebed.log.invariants import INVARIANTS, violations
from lakebed.log.log_reader import GATE_FEATURE
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import MemoryLogStore
from lakebed.log.table_log import Committed, TableLog
from lakebed.monitoring.metrics import Metrics
from lakebed.operations.create import create_log
from lakebed.schema.conversion import schema_to_json
from lakebed.settings import TableSettings

DOCUMENT = Path(__file__).parents[2] / "docs" / "invariants.md"
INFO = CommitInfo(operation="TEST", commit_id="")


def part(name: str, dead: int = 0, rows: int = 10) -> Part:
    stats = f'{{"numRecords":{rows}}}'
    found = Part(path=f"{name}.parquet", rows=rows, bytes=100, min_block=-1, max_block=-1, stats=stats)
    return found.marked(inline(bitmap(range(dead))) if dead else None)


def change_part(name: str, ordinal: int = 0, version: int = -1) -> AddChangePart:
    return AddChangePart(ChangePart(path=f"{name}.parquet", version=version, ordinal=ordinal, rows=10, bytes=100))


def claim(name: str, *sources: str) -> Action:
    return Claim(id=name, replica="r", sources=sources, level=1, lease_ms=9, since_ms=1, volatile=False).to_action()


@pytest.fixture
def log() -> TableLog:
    """Parts a (4 dead rows) and b, change parts c and d in this order, a claim on b, batch 7 of ``query``."""
    log = TableLog(MemoryLogStore(), sleep=lambda seconds: None)
    create_log(log, pa.schema([("id", pa.int64())]), TableSettings(keys=("id",)), (), {}, "test")
    for actions, batch in (
        ([AddPart(part("a", dead=4)), AddPart(part("b")), change_part("c")], Transaction("query", 7)),
        ([change_part("d"), claim("x", "b.parquet")], None),
    ):
        assert isinstance(log.commit(log.refresh(), actions, INFO, BLIND, batch), Committed)
    return log


def breaking(snapshot: Snapshot) -> dict[str, list[tuple[str, list[Action]]]]:
    """For each predicate what it says, and the actions of a commit that it says it of."""
    a, b = snapshot.parts["a.parquet"], snapshot.parts["b.parquet"]
    removed = a.removed(1)
    return {
        "M3": [("committed already", [Transaction("query", 7)]), ("committed already", [Transaction("query", 6)])],
        "B5": [
            ("is not in the base", [RemovePart(path="none.parquet", deleted_ms=1)]),
            ("another deletion vector", [replace(removed, deletion_vector=None)]),
            ("in the base already", [AddPart(b)]),
            ("the same dead rows", [b.removed(1), AddPart(b)]),
            ("10 rows but 11 dead ones", [AddPart(replace(part("n", dead=11), rows=10))]),
            ("live again", [removed, AddPart(a.marked(inline(bitmap([0]))))]),
            ("3 delete rows", [AddPart(replace(part("n"), deletes=3))]),
            ("block range", [AddPart(replace(part("n"), min_block=9, max_block=9))]),
        ],
        "T1": [
            ("is not in it", [RemoveChangePart("lakebed.part.none")]),
            ("before one of version", [RemoveChangePart("lakebed.part.d")]),
            ("joins the tail as version 1", [change_part("n", version=1)]),
            ("the same place", [change_part("n"), change_part("m")]),
        ],
        "C1": [
            (text, [replace(snapshot.metadata, schema_string=schema_to_json(pa.schema([field, *others])))])
            for text, field, *others in (
                ("'id' is int64, which can't be read as int32", pa.field("id", pa.int32(), False)),
                ("'id' is int64, which can't be read as string", pa.field("id", pa.string(), False)),
                ("'n' is missing, and it is NOT NULL", pa.field("id", pa.int64(), False), pa.field("n", pa.int64(), False)),
            )
        ],
        "P1": [("which is not in the base", [claim("y", "none.parquet")])],
        "P3": [
            ("16 live rows are replaced by 15", [a.removed(1, False), b.removed(1, False), AddPart(part("n", rows=15), False)])
        ],
        "P4": [("is claimed by x and by y", [claim("y", "b.parquet")])],
    }  # fmt: skip


def commit_of(snapshot: Snapshot, actions: list[Action]) -> Commit:
    version = snapshot.version + 1
    placed = [
        action
        if isinstance(action, AddChangePart) and action.part.version >= 0
        else table_log.at_version(action, version, len(snapshot.parts) + len(snapshot.tail))
        for action in actions
    ]
    return Commit(version, (INFO, *placed))


@pytest.fixture
def heard() -> Iterator[list[InvariantViolated]]:
    found: list[InvariantViolated] = []
    end = events.listen(lambda event: found.append(event) if isinstance(event, InvariantViolated) else None)
    yield found
    end()


def test_the_page_has_the_ids_and_texts_of_the_registry() -> None:
    rows = [line.strip("| ").split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    page = {row[0]: row[1] for row in rows if len(row) == 4 and row[0][1:].isdigit()}
    assert page == {one.id: one.text for one in INVARIANTS.values()}


def test_the_page_says_which_invariants_a_commit_is_held_against() -> None:
    checked = ", ".join(one.id for one in INVARIANTS.values() if one.check)
    text = " ".join(DOCUMENT.read_text().split())
    assert f"a predicate where a commit alone can show a violation ({checked})" in text


def test_each_predicate_names_its_own_invariant_and_no_other(log: TableLog) -> None:
    snapshot = log.refresh()
    cases = breaking(snapshot)
    assert {*cases, "M5"} == {one.id for one in INVARIANTS.values() if one.check}
    for invariant, broken in cases.items():
        for said, actions in broken:
            found = violations(snapshot, commit_of(snapshot, actions))
            assert {violation.invariant for violation in found} == {invariant}, (said, found)
            assert said in found[0].detail
    [late] = violations(snapshot, replace(commit_of(snapshot, []), version=snapshot.version + 2))
    assert late.invariant == "M5"


def test_a_sound_commit_breaks_nothing(log: TableLog) -> None:
    snapshot = log.refresh()
    a, b = snapshot.parts["a.parquet"], snapshot.parts["b.parquet"]
    for actions in (
        [change_part("n"), change_part("m", ordinal=1), Transaction("query", 8)],
        [RemoveChangePart("lakebed.part.c")],
        [a.removed(1), AddPart(a.marked(inline(bitmap(range(5)))))],
        [a.removed(1, False), b.removed(1, False), AddPart(part("n", rows=16), False)],
        [claim("y", "a.parquet")],
    ):
        assert violations(snapshot, commit_of(snapshot, actions)) == []


@pytest.mark.parametrize("invariant", ["B5", "T1", "P1", "P3", "P4"])
def test_a_writer_refuses_and_reports(log: TableLog, heard: list[InvariantViolated], invariant: str) -> None:
    snapshot = log.refresh()
    for said, actions in breaking(snapshot)[invariant]:
        if said.startswith("joins the tail"):
            continue  # TableLog.commit sets the version itself
        heard.clear()
        with pytest.raises(Corrupt, match=invariant) as raised:
            log.commit(snapshot, actions, INFO, BLIND)
        assert (raised.value.version, raised.value.invariants) == (snapshot.version + 1, (invariant,))
        assert {(event.invariant, event.version, event.when) for event in heard} == {
            (invariant, snapshot.version + 1, "write")
        }
        assert said in heard[0].detail
    assert log.refresh().version == snapshot.version


@pytest.mark.parametrize("invariant", ["P1", "P3", "P4"])
def test_a_reader_reports_what_another_wrote_and_reads_on(
    log: TableLog, heard: list[InvariantViolated], monkeypatch: pytest.MonkeyPatch, invariant: str
) -> None:
    reader, late = TableLog(log.store), TableLog(log.store)
    reader.refresh()
    snapshot = log.refresh()
    [(_, actions)] = breaking(snapshot)[invariant]
    with monkeypatch.context() as careless:
        careless.setattr(table_log, "require_sound", lambda before, commit, table: None)
        assert isinstance(log.commit(snapshot, actions, INFO, BLIND), Committed)
    for log_of_reader in (reader, late):
        heard.clear()
        metrics = Metrics()
        end = events.listen(metrics)
        assert log_of_reader.refresh().version == log_of_reader.refresh().version == snapshot.version + 1
        end()
        [event] = heard
        assert (event.invariant, event.version, event.when) == (invariant, snapshot.version + 1, "read")
        labels = {"table": event.table, "invariant": invariant, "when": "read"}
        assert metrics.registry.get_sample_value("lakebed_invariant_violations_total", labels) == 1


def test_a_writer_reports_what_the_winner_of_a_race_wrote(
    log: TableLog, heard: list[InvariantViolated], monkeypatch: pytest.MonkeyPatch
) -> None:
    loser = TableLog(log.store)
    read = loser.refresh()
    [(_, actions)] = breaking(read)["P1"]
    with monkeypatch.context() as careless:
        careless.setattr(table_log, "require_sound", lambda before, commit, table: None)
        log.commit(read, actions, INFO, BLIND)
    assert isinstance(loser.commit(read, [change_part("n")], replace(INFO, blind_append=True), BLIND), Committed)
    assert [(event.invariant, event.when) for event in heard] == [("P1", "read")]


def test_commits_of_a_table_that_others_write_too_are_not_held_against_our_invariants(
    log: TableLog, heard: list[InvariantViolated], monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = log.refresh()
    features = snapshot.protocol.writer_features - {GATE_FEATURE}
    monkeypatch.setattr(table_log, "require_sound", lambda before, commit, table: None)
    monkeypatch.setattr(table_log, "require_writable", lambda protocol: None)
    assert isinstance(
        log.commit(snapshot, [replace(snapshot.protocol, writer_features=features)], INFO, BLIND), Committed
    )
    assert isinstance(log.commit(log.refresh(), [claim("y", "none.parquet")], INFO, BLIND), Committed)
    TableLog(log.store).refresh()
    assert heard == []


class Counted(dict[str, Any]):
    """Raises when it is looked through; looking up a name is free."""

    def items(self) -> Any:
        raise AssertionError("looked through")

    values = __iter__ = items


def test_the_cost_of_checking_an_append_does_not_depend_on_the_table(log: TableLog) -> None:
    snapshot = log.refresh()
    large = replace(
        snapshot,
        **{name: Counted(getattr(snapshot, name)) for name in ("parts", "tail", "domains", "transactions")},
    )
    a = snapshot.parts["a.parquet"]
    for actions in (
        [change_part("n"), Transaction("query", 8)],
        [AddPart(part("n")), a.removed(1), AddPart(a.marked(inline(bitmap(range(5)))))],
    ):
        assert violations(large, commit_of(snapshot, actions)) == []
