"""``lakebed source positions`` and ``lakebed source rewind``: what they print, move and refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed.cli import main
from lakebed.cli.exit_codes import OK, WRONG_INPUT
from lakebed.errors import InvalidInput
from lakebed.ingest.batch_writer import Written
from lakebed.ingest.table_batch import WriteWork
from tests.sources.memory_source import COLUMNS, MemorySource, Process, here, ids, row


def filled(tmp_path: Path, keys: list[str]) -> tuple[lakebed.Table, MemorySource]:
    columns = pa.schema([pa.field("id", pa.int64(), not keys), ("n", pa.int64())])
    table, source = lakebed.create(tmp_path / "t", columns if keys else COLUMNS, keys=keys), MemorySource()
    source.ids["orders"] = "abc"
    source.add("orders", 0, *map(row, range(5)))
    source.add("orders", 1, *map(row, range(5, 8)))
    Process(table.path, source).run()
    return table, source


def test_positions_are_listed_by_topic_and_partition(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, _ = filled(tmp_path, ["id"])
    assert main(["source", "positions", table.path, "--format", "json"]) == OK
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        {"topic": "orders", "partition": 0, "next_offset": 5, "topic_id": "abc"},
        {"topic": "orders", "partition": 1, "next_offset": 3, "topic_id": "abc"},
    ]
    assert main(["source", "positions", table.path]) == OK
    head, _, *lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in (head, *lines)] == [
        ["topic", "partition", "next_offset", "topic_id"],
        ["orders", "0", "5", "abc"],
        ["orders", "1", "3", "abc"],
    ]


def test_a_rewound_table_reads_the_records_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, source = filled(tmp_path, [])
    assert main(["source", "rewind", table.path, "orders", "--to", "4"]) == WRONG_INPUT
    assert "the table has no keys, so rows that are read again are in it twice; give --yes" in capsys.readouterr().err
    assert main(["source", "rewind", table.path, "orders", "--to", "4", "--yes"]) == OK
    assert main(["source", "rewind", table.path, "orders", "--to", "1", "--partition", "1", "--yes"]) == OK
    Process(table.path, source).run(source.planned(source.ends()))  # nothing is new
    assert ids(table) == [0, 1, 2, 3, 4, 4, 5, 6, 6, 7, 7]


def test_a_forgotten_topic_is_read_from_where_the_source_begins(tmp_path: Path) -> None:
    table, source = filled(tmp_path, ["id"])
    table.maintenance.rewind("orders")
    assert table.inspect.positions().num_rows == 0
    done = Process(table.path, source).run(source.planned(source.ends()))
    assert (done.rows, ids(table)) == (8, list(range(8)))


def test_a_pipeline_that_reads_meanwhile_goes_on_from_the_new_position(tmp_path: Path) -> None:
    table, source = filled(tmp_path, [])
    source.add("orders", 0, row(8))
    process, rewound = Process(table.path, source), []

    def run(work: WriteWork) -> Written:
        rows = here(work)
        if not rewound:
            rewound.append(table.maintenance.rewind("orders", {0: 3}))
        return rows

    process.run(run=run)
    assert ids(table) == [0, 1, 2, 3, 3, 4, 4, 5, 6, 7, 8]


def test_what_can_not_be_rewound_is_named(tmp_path: Path) -> None:
    table, _ = filled(tmp_path, ["id"])
    version = table.version
    for topic, to, said in (
        ("order", 0, "the table has read no topic 'order'; it has read orders"),
        ("orders", {7: 0}, "the table has not read partition 7 of topic 'orders'; it has read 0, 1"),
        ("orders", {1: 4}, "offset 4 is not between 0 and 3, up to where the table has read"),
        ("orders", -1, "offset -1 is below 0"),
    ):
        with pytest.raises(InvalidInput, match=said):
            table.maintenance.rewind(topic, to)  # type: ignore[arg-type]
    assert table.maintenance.rewind("orders", 99) == version  # no partition is so far
    assert table.version == version
