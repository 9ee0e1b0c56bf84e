"""Changes of MariaDB and MySQL are in the order of the server's binary log: the file's number first, then the position in it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakebed
from lakebed.decode.debezium.events import DebeziumJson
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.source_order import binlog_position, binlog_positions
from lakebed.parts.changes import OP_COLUMN, SEQUENCE_COLUMN
from tests.decode.records import event, records
from tests.decode.test_fast_equals_slow import check
from tests.worlds import seeds

EVENTS = [json.loads(line) for line in Path(__file__).with_name("mariadb_events.jsonl").read_text().splitlines()]
"""What Debezium 3.5 sent of a table of MariaDB 10.11: rows of a snapshot, changes, another file of the binary log, rows that
were asked for again, changes, ``reset master to 1000``, rows of a new snapshot, a change."""

COLUMNS = pa.schema([pa.field("id", pa.int32(), False), ("note", pa.string()), ("amount", pa.decimal128(12, 2))])
SCHEMA = DecoderSchema(COLUMNS, ("id",), "source.pos")
IN_THE_END = {2: "after the reset", 4: "after the snapshot", 7: "x", 9: "last"}
"""Row 4 was deleted when nobody read the log; a new snapshot does not tell."""


def real_changes() -> pa.Table:
    table = records([event["value"] for event in EVENTS], [event["key"] for event in EVENTS])
    decoded = DebeziumJson(SCHEMA).decode(table)
    assert not decoded.quarantined.num_rows
    return decoded.changes


def mysql_event(file: Any, pos: Any, op: str = "u") -> dict[str, Any]:
    change = event(op, {"id": 1, "note": "x", "amount": None})
    change["source"] = {"connector": "mysql", "ts_ms": 5, "file": file, "pos": pos}
    return change


def test_real_events_have_positions_that_rise_as_the_changes_were_made() -> None:
    positions = real_changes()[SEQUENCE_COLUMN].to_numpy()
    assert (np.diff(positions) >= 0).all()
    files = [json.loads(event["value"])["source"]["file"] for event in EVENTS]
    assert sorted(set(files)) == ["binlog.000001", "binlog.000002", "binlog.001000"]
    assert len({position >> 40 for position in positions.tolist()}) == 3


@seeds(4)
def test_events_that_come_again_late_and_in_any_batches_change_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    changes = real_changes()
    changes = changes.rename_columns(
        ["source.pos" if name == SEQUENCE_COLUMN else name for name in changes.column_names]
    )
    changes = changes.select(["id", "note", "amount", "source.pos", OP_COLUMN])
    table = lakebed.create(tmp_path / "orders", COLUMNS, keys=["id"], sequence_by="source.pos")
    # Everything in order once, and before and after it what a connector sends again: a run of events in order.
    ends = sorted(chance.sample(range(1, len(changes)), 3))
    pieces = [changes.slice(start, end - start) for start, end in zip([0, *ends], [*ends, len(changes)], strict=True)]
    for number, piece in enumerate(pieces):
        table.apply(piece)
        again = pieces[chance.randrange(number + 1)]
        if chance.random() < 0.5:
            table.settle()
        table.apply(again)
    rows = table.to_arrow(["id", "note"]).to_pylist()
    assert {row["id"]: row["note"] for row in rows} == IN_THE_END


def test_a_file_with_a_higher_number_is_later_whatever_the_position_in_it() -> None:
    places = [
        ("binlog.000007", 4),
        ("binlog.000007", 2**40 - 1),
        ("binlog.000008", 4),
        ("binlog.999999", 9),
        ("binlog.1000000", 4),
        ("binlog.8388607", 2**40 - 1),
    ]
    positions = [binlog_position(pos, file) for file, pos in places]
    assert all(position is not None for position in positions)
    assert positions == sorted(positions, key=int)
    assert len(set(positions)) == len(positions)
    assert positions[-1] == 2**63 - 1


@pytest.mark.parametrize(
    ("file", "pos"),
    [(None, 4), ("", 4), ("binlog", 4), ("binlog.", 4), ("binlog.x7", 4), ("binlog.000007\n", 4), ("binlog.٧", 4),
     ("binlog.8388608", 4), ("binlog." + "9" * 40, 4), ("binlog.000007", None), ("binlog.000007", -1),
     ("binlog.000007", 2**40)],
)  # fmt: skip
def test_an_event_without_a_place_in_a_binary_log_is_quarantined(file: Any, pos: Any) -> None:
    assert binlog_position(pos, file) is None
    assert binlog_positions(pa.array([pos], pa.int64()), pa.array([file], pa.string())).to_pylist() == [None]
    decoded = DebeziumJson(SCHEMA).decode(records([mysql_event(file, pos), mysql_event("mysql-bin.000001", 4)]))
    assert decoded.changes[SEQUENCE_COLUMN].to_pylist() == [(1 << 40) + 4]
    [reason] = decoded.quarantined["reason"].to_pylist()
    assert reason.startswith("sequence_by 'source.pos' (with source.file, a file of a binary log) is null")


@seeds(12, quick=4)
def test_positions_are_read_the_same_by_columns_and_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    files = ["binlog.000001", "binlog.000002", "bin-changelog.012345", "", None, "binlog.8388608", 7, "a\ud800.1"]
    weights = [9, 9, 3, 1, 1, 1, 1, 1]
    values = [
        mysql_event(chance.choices(files, weights)[0], chance.choice([4, 4, 900, "17", None, -1, 2**40, 2**63 - 1]))
        for _ in range(chance.randrange(1, 12))
    ]
    check(DebeziumJson(SCHEMA), records([json.dumps(value) for value in values]))
