"""The comparison from Kafka to a table: the same events for all, an oracle that knows the topic alone, freshness by offsets."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.kafka import SCHEMA, produce
from benchmarks.kafka_peers import __main__ as kafka_peers
from benchmarks.kafka_peers import measured
from benchmarks.kafka_peers.__main__ import main
from benchmarks.kafka_peers.events import events
from benchmarks.kafka_peers.measured import PARTITIONS, Phase, freshness, visible_at
from benchmarks.kafka_peers.oracle import difference, keep_topic, times
from benchmarks.kafka_peers.stream import Commit
from tests.infra.kafka import KafkaServer

SNAPSHOT, EVENTS = 100, 2_000


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    return [json.loads(value) for _, value in events(0, EVENTS, SNAPSHOT)]


def applied(made: list[dict[str, Any]]) -> pa.Table:
    """The rows after events that were applied one by one."""
    rows: dict[int, dict[str, Any]] = {}
    for event in made:
        if event["op"] == "d":
            del rows[event["before"]["id"]]
        else:
            rows[event["after"]["id"]] = event["after"]
    arrived = SCHEMA.set(SCHEMA.get_field_index("updated_at"), pa.field("updated_at", pa.int64()))
    return pa.Table.from_pylist(list(rows.values()), schema=arrived).cast(SCHEMA)


def keep(made: list[dict[str, Any]], file: Path) -> None:
    """As the records of a topic with one partition, an event a millisecond."""
    count = len(made)
    pq.write_table(
        pa.table(
            {
                "partition": pa.array([0] * count, pa.int32()), "offset": range(count), "ms": range(count),
                "value": [json.dumps(event) for event in made],
            }
        ),
        file,
    )  # fmt: skip


def write_rows(rows: pa.Table, folder: Path) -> Path:
    folder.mkdir()
    pq.write_table(rows, folder / "part.parquet")
    return folder


def test_events_change_and_delete_only_rows_that_are_there(made: list[dict[str, Any]]) -> None:
    live: set[int] = set()
    for event in made:
        row = (event["after"] or event["before"])["id"]
        assert (row in live) == (event["op"] in "ud")
        (live.discard if event["op"] == "d" else live.add)(row)


def test_of_ten_events_after_the_snapshot_seven_update_two_insert_one_deletes(made: list[dict[str, Any]]) -> None:
    kinds = [event["op"] for event in made]
    assert kinds[:SNAPSHOT] == ["r"] * SNAPSHOT
    assert {kind: kinds.count(kind) / (EVENTS - SNAPSHOT) for kind in "ucd"} == {"u": 0.7, "c": 0.2, "d": 0.1}


@pytest.mark.parametrize("end", [EVENTS, EVENTS // 2, SNAPSHOT - 1])
def test_the_oracle_is_what_applying_the_events_up_to_an_offset_gives(
    made: list[dict[str, Any]], tmp_path: Path, end: int
) -> None:
    keep(made, tmp_path / "records.parquet")
    rows = write_rows(applied(made[:end]), tmp_path / "rows")
    assert difference(tmp_path / "records.parquet", {"0": end}, rows, resolved=True) is None


@pytest.mark.parametrize("spoil", ["a row lost", "a row twice", "another value", "an event too few"])
def test_a_table_with_a_wrong_row_has_no_figures(made: list[dict[str, Any]], tmp_path: Path, spoil: str) -> None:
    keep(made, tmp_path / "records.parquet")
    rows = applied(made)
    changed = pc.add(rows["amount"], pa.array([0.01] + [0.0] * (len(rows) - 1)))
    spoilt = {
        "a row lost": rows.slice(1),
        "a row twice": pa.concat_tables([rows, rows.slice(0, 1)]),
        "another value": rows.set_column(SCHEMA.get_field_index("amount"), "amount", changed),
        "an event too few": applied(made[:-1]),
    }[spoil]
    wrong = difference(
        tmp_path / "records.parquet", {"0": EVENTS}, write_rows(spoilt, tmp_path / "rows"), resolved=True
    )
    assert wrong is not None and "must be" in wrong


def test_the_floor_must_have_every_event(made: list[dict[str, Any]], tmp_path: Path) -> None:
    keep(made, tmp_path / "records.parquet")
    rows = write_rows(applied(made), tmp_path / "rows")
    wrong = difference(tmp_path / "records.parquet", {"0": EVENTS}, rows, resolved=False)
    assert wrong is not None and f"must be {EVENTS:,}" in wrong


def test_an_event_is_as_fresh_as_the_first_commit_beyond_its_offset() -> None:
    came = {"0": np.arange(100.0), "1": np.arange(100.0)}
    commits = [Commit(60.0, {"0": 51}), Commit(110.0, {"0": 100, "1": 100})]
    seen = freshness(came, commits, Phase(1, 0.0, {"0": 0, "1": 0}, {"0": 100, "1": 0}, finished=True), 100.0)
    waits = sorted([60.0 - at for at in range(25, 51)] + [110.0 - at for at in range(51, 100)])
    assert seen.events == len(waits) == 75
    assert (seen.p50, seen.max) == (waits[37], waits[-1])
    assert visible_at(commits, {"0": 50, "1": 1}) == 110.0
    assert visible_at(commits, {"0": 101}) is None


@pytest.mark.parametrize(("delay", "kept_up"), [(0.0, True), (1.0, False)])
def test_who_falls_behind_more_and_more_did_not_keep_up(delay: float, kept_up: bool) -> None:
    came = {"0": np.arange(100.0)}
    commits = [Commit(end + 1 + delay * end, {"0": end}) for end in range(1, 101)]
    assert freshness(came, commits, Phase(1, 0.0, {"0": 0}, {"0": 100}, finished=True), 100.0).kept_up == kept_up


def test_an_event_that_never_became_visible_is_never_fresh() -> None:
    came = {"0": np.arange(100.0)}
    seen = freshness(came, [Commit(99.0, {"0": 90})], Phase(1, 0.0, {"0": 0}, {"0": 100}), 100.0)
    assert seen.p50 < float("inf") and seen.max == float("inf") and not seen.kept_up


@pytest.mark.long
def test_a_topic_is_kept_as_it_is_up_to_some_offsets(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.create_topic("kept-orders", PARTITIONS)
    produce(kafka.bootstrap, topic, events(0, EVENTS, SNAPSHOT))
    ends = {"0": 700, "1": 500}
    keep_topic(kafka.bootstrap, topic, ends, tmp_path / "records.parquet")
    kept = pq.read_table(tmp_path / "records.parquet")
    assert {name: len(of) for name, of in times(tmp_path / "records.parquet").items()} == ends
    for number, end in ends.items():
        assert kept.filter(pc.equal(kept["partition"], int(number)))["offset"].to_pylist() == list(range(end))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("java_that_starts_quickly")
def test_lakebed_and_the_floor_are_measured_side_by_side(
    tmp_path: Path, kafka: KafkaServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # A broker for each and a warm system are for the figures, which nobody reads here.
    monkeypatch.setattr(kafka_peers, "KafkaServer", lambda: nullcontext(kafka))
    monkeypatch.setattr(measured, "_WARM_ROUNDS", 1)
    sizes = "--events 20000 --snapshot 5000 --rates 1000 --seconds 2 --memory 1g --patience 1200"
    places = ["--folder", str(tmp_path), "--results", str(tmp_path / "results")]
    assert main([*sizes.split(), *places, "--systems", "append", "lakebed"]) == 0
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert [(run["system"], run["error"]) for run in results["runs"]] == [("append", None), ("lakebed", None)]
    for run in results["runs"]:
        drain, rate = run["phases"]
        assert drain["finished"] and drain["cpu_seconds"] > 0 and drain["written_bytes"] > 0
        assert sum(rate["ends"].values()) == 22_000
        for seen in run["freshness"][0].values():
            # On a busy machine a rate may end before its events were seen: those are "never".
            waited = [seen[name] for name in ("p50", "p99", "max") if seen[name] is not None]
            assert waited == sorted(waited) and all(seconds > 0 for seconds in waited)
    assert set(results["runs"][1]["drained"]) == {"own reader", "any Delta reader"}
    assert "| lakebed | any Delta reader |" in capsys.readouterr().out
