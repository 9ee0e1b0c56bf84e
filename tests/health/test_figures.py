"""Late rows, prices, files without a name: figures that only some tables have."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.events import StoreRequested
from lakebed.health import sampler
from lakebed.monitoring.metrics import REQUEST_DOLLARS, Metrics
from lakebed.monitoring.table_state import Clustered, TableState
from lakebed.table import internals_of
from tests.monitoring.test_truth import Read, exported
from tests.waiting import wait_until

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("v", pa.string()), ("seq", pa.int64())])


def changes(*rows: tuple[int, str, int, str]) -> pa.Table:
    ids, values, sequences, ops = zip(*rows, strict=True)
    return pa.table({"id": list(ids), "v": list(values), "seq": list(sequences), "op": list(ops)})


def test_what_comes_late_is_reported_from_what_was_superseded(tmp_path: Path) -> None:
    table, metrics = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], sequence_by="seq"), Metrics()
    end = events.listen(metrics)

    def settle(*batches: pa.Table) -> tuple[float | None, float | None]:
        for each in batches:
            table.apply(each, apply_as_deletes="op = 'd'")
        table.settle()
        read = Read(metrics, table.path)
        return read("lakebed_late_rows_total"), read("lakebed_superseded_rows_total")

    assert settle(changes((1, "a", 10, "u"), (2, "a", 10, "u"), (3, "a", 10, "d"))) == (0, 0)
    assert settle(changes((1, "b", 5, "u"), (2, "b", 20, "u"))) == (1, 1), "1 had come with 10 before"
    assert settle(changes((3, "b", 5, "u"))) == (2, 2), "the delete at 10 is newer"
    assert settle(changes((1, "c", 30, "u")), changes((1, "d", 25, "u"))) == (3, 3), "it met the newer one in the tail"
    assert settle(changes((1, "e", 7, "d"))) == (4, 3), "a delete may come late too"
    end()


def test_requests_cost_what_the_documentation_says() -> None:
    metrics = Metrics()
    for operation in ("put", "get_tail", "delete"):
        metrics(StoreRequested(table="t", operation=operation, result="ok", requests=1000))
    read = Read(metrics, "t")
    assert read("lakebed_store_request_dollars_total", operation="put") == pytest.approx(0.005)
    assert read("lakebed_store_request_dollars_total", operation="get_tail") == pytest.approx(0.0004)
    assert read("lakebed_store_request_dollars_total", operation="delete") == 0
    document = Path(__file__).resolve().parents[2].joinpath("docs", "metrics.md").read_text()
    said = document[document.index("Prices of requests") :].split("\n\n")[0]
    for operation, dollars in REQUEST_DOLLARS.items():
        assert operation in said
        assert f"{dollars * 1000:g} for a thousand" in said


def test_a_read_of_a_point_opens_what_lies_over_it_and_the_tail() -> None:
    state = TableState(
        version=1,
        rows=10,
        dead_rows=0,
        bytes=100,
        tail_parts=3,
        tail_rows=30,
        parts_by_level={0: 4},
        clustered=Clustered(2.5, 1.0),
    )
    assert state.read_amplification == 5.5
    assert (
        TableState(
            version=1, rows=10, dead_rows=0, bytes=100, tail_parts=3, tail_rows=30, parts_by_level={0: 4}
        ).read_amplification
        is None
    )


def test_files_without_a_name_are_counted_once_an_hour(tmp_path: Path) -> None:
    table = lakebed.create(tmp_path / "t", SCHEMA, keys=["id"])
    table.apply(changes((1, "a", 10, "u")).drop_columns(["op"]))
    for name, days in (("old", 30), ("young", 1)):
        file = tmp_path / "t" / "_lakebed" / f"{name}.parquet"
        file.write_bytes(b"x" * 70)
        os.utime(file, (time.time() - days * 86_400,) * 2)
    with exported(table.path) as read:
        wait_until(lambda: read("lakebed_stored_bytes") is not None)
        assert (read("lakebed_orphan_files"), read("lakebed_orphan_bytes")) == (1, 70)
        lying = sum(file.stat().st_size for file in (tmp_path / "t").rglob("*") if file.is_file())
        assert read("lakebed_stored_bytes") == lying
    looking = internals_of(table).sampler()
    looking.sample()
    wait_until(lambda: looking.sample().stored is not None)
    (tmp_path / "t" / "_lakebed" / "old.parquet").unlink()
    assert looking.sample().stored.orphans == 1, "the next listing is an hour away"  # type: ignore[union-attr]
    assert looking._list_again >= time.monotonic() + sampler.LIST_SECONDS - 60
