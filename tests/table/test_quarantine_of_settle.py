"""Changes that lack a value they need: never a row, never lost, in the quarantine exactly once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import lakebed
from lakebed import events
from lakebed.errors import InvalidChanges, StoreUnavailable
from lakebed.log.stores import LogStore
from lakebed.log.table_log import LOG_FOLDER
from lakebed.monitoring.metrics import Metrics
from lakebed.parts.changes import OP_COLUMN, UNAVAILABLE_COLUMN
from tests.internals import log_of

SCHEMA = pa.schema(
    [
        ("id", pa.int64()), pa.field("text", pa.string(), nullable=False), ("other", pa.string()),
        ("until", pa.timestamp("us", "UTC")), ("seq", pa.int64()),
    ]
)  # fmt: skip
HIDDEN = [pa.field(OP_COLUMN, pa.string()), pa.field(UNAVAILABLE_COLUMN, pa.list_(pa.string()))]


pytestmark = pytest.mark.usefixtures("own_cache")


def change(id: int, other: str, text: str | None = None, seq: int = 1, op: str = "u") -> dict[str, Any]:
    """A change whose text was not sent, unless it is given."""
    missing = ["text"] if text is None and op == "u" else None
    return {
        "id": id,
        "text": text,
        "other": other,
        "until": None,
        "seq": seq,
        OP_COLUMN: op,
        UNAVAILABLE_COLUMN: missing,
    }


def batch(*changes: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(changes), pa.schema([*SCHEMA, *HIDDEN]))


def make_table(tmp_path: Path, **settings: Any) -> lakebed.Table:
    return lakebed.create(tmp_path / "t", SCHEMA, keys=["id"], **settings)


def set_aside(table: lakebed.Table) -> list[str]:
    """What ``other`` says in the records of the quarantine."""
    records = lakebed.open(table.path + "_quarantine").to_arrow()
    return sorted(json.loads(value)["other"] for value in records["value"].to_pylist())


def test_a_change_without_a_needed_value_is_set_aside_with_its_values_and_the_reason(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    infinity = pa.array([2**62], pa.int64()).cast(pa.timestamp("us", "UTC"))
    table.apply(batch(change(7, 'ü "x"')).set_column(3, SCHEMA.field("until"), infinity))
    assert table.to_arrow().num_rows == 0
    result = table.settle()
    assert (result.quarantined_rows, result.completed_rows) == (1, 0)
    assert table.to_arrow().num_rows == 0
    (record,) = lakebed.open(table.path + "_quarantine").to_arrow().to_pylist()
    value = json.loads(record["value"])
    assert {name: value[name] for name in ("id", "other", "seq")} == {"id": 7, "other": 'ü "x"', "seq": 1}
    assert "text" not in value
    assert value["until"].startswith("148108-")
    assert "'text' is NOT NULL" in record["reason"]
    assert "id = 7" in record["reason"]


def test_the_event_and_the_metric_count_what_settling_set_aside(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    seen: list[events.Event] = []
    metrics = Metrics()
    stops = [events.listen(seen.append), events.listen(metrics)]
    table.apply(batch(change(1, "a"), change(2, "b"), change(3, "c", text="whole")))
    table.settle()
    for stop in stops:
        stop()
    assert [event.quarantined for event in seen if isinstance(event, events.Settled)] == [2]
    labels = {"table": table.path}
    assert metrics.registry.get_sample_value("lakebed_quarantined_records_total", labels) == 2
    assert table.to_arrow()["id"].to_pylist() == [3]


def test_a_table_that_loses_nothing_has_no_quarantine(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.apply(batch(change(1, "a", text="whole")))
    table.apply(batch(change(1, "b")))
    assert table.settle().quarantined_rows == 0
    assert not Path(table.path + "_quarantine").exists()
    assert table.to_arrow(["text", "other"]).to_pylist() == [{"text": "whole", "other": "b"}]


def test_a_change_that_a_whole_one_replaced_is_not_missed(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.apply(batch(change(1, "a")))
    table.apply(batch(change(1, "b", text="whole")))
    table.apply(batch(change(1, "c")))
    assert table.settle().quarantined_rows == 0
    assert table.to_arrow(["text", "other"]).to_pylist() == [{"text": "whole", "other": "c"}]


def test_a_whole_change_with_an_older_sequence_does_not_replace_it(tmp_path: Path) -> None:
    table = make_table(tmp_path, sequence_by="seq")
    table.apply(batch(change(1, "a", seq=9)))
    table.apply(batch(change(1, "b", text="whole", seq=5)))
    table.settle()
    assert set_aside(table) == ["a"]
    assert table.to_arrow(["text", "other"]).to_pylist() == [{"text": "whole", "other": "b"}]


@pytest.mark.parametrize("later", [[], [change(1, "d", text="whole")], [change(1, "e")], [change(9, "f")]])
def test_a_crash_between_the_two_commits_sets_aside_once(
    later: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when more changes came before the settle is done again, whatever they say of the same keys."""
    table = make_table(tmp_path)
    table.apply(batch(change(1, "a"), change(2, "b")))
    table.apply(batch(change(2, "c"), change(3, "x", text="whole")))
    version = table.version

    def crash(*_: Any) -> bool:
        raise SystemExit

    with monkeypatch.context() as crashing:
        crashing.setattr(log_of(table).store, "put_if_absent", crash)
        with pytest.raises(SystemExit):
            table.settle()
    assert set_aside(table) == ["a", "b", "c"]
    again = lakebed.open(table.path)
    assert again.version == version
    if later:
        again.apply(batch(*later))
    again.settle()
    lost = [row["other"] for row in later if row["text"] is None]
    assert set_aside(again) == sorted(["a", "b", "c", *lost])
    assert again.settle().commits == 0


def test_a_settle_that_can_not_set_aside_does_not_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path)
    table.apply(batch(change(1, "a")))
    version = table.version

    def silent(*_: Any) -> None:
        raise StoreUnavailable("no answer")

    with monkeypatch.context() as failing:
        failing.setattr("lakebed.table.internals.set_aside", silent)
        with pytest.raises(StoreUnavailable):
            table.settle()
    assert table.version == version
    table.settle()
    assert set_aside(table) == ["a"]


class _BeatenOnce:
    """A store in which another settle of the same table commits first, once."""

    def __init__(self, store: LogStore, path: str) -> None:
        self._store = store
        self._other: lakebed.Table | None = lakebed.open(path)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        if self._other is not None and name.startswith(LOG_FOLDER):
            other, self._other = self._other, None
            other.settle()
        return self._store.put_if_absent(name, data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_two_settles_of_the_same_changes_set_them_aside_once(tmp_path: Path) -> None:
    table = make_table(tmp_path)
    table.apply(batch(change(1, "a"), change(2, "b", text="whole")))
    log_of(table).store = _BeatenOnce(log_of(table).store, table.path)
    result = table.settle()
    assert result.conflicts == 1
    assert set_aside(table) == ["a"]
    assert table.to_arrow()["id"].to_pylist() == [2]


def test_a_batch_that_can_not_be_whole_in_itself_is_refused(tmp_path: Path) -> None:
    """Deleted and then changed without its text: whatever the table holds, the text is gone."""
    table = make_table(tmp_path)
    with pytest.raises(InvalidChanges, match=r"'text' is NOT NULL.*id = 1"):
        table.apply(batch(change(1, "a", op="d"), change(1, "b")))
    table.apply(batch(change(1, "a", op="d"), change(1, "b"), change(1, "c", text="whole")))
    assert table.to_arrow()["other"].to_pylist() == ["c"]
