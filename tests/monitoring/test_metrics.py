"""Events become metrics and figures."""

from __future__ import annotations

import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from prometheus_client import CollectorRegistry, generate_latest

from lakebed import create, events
from lakebed.coordination.table_figures import figures_of
from lakebed.errors import MissingPrerequisite
from lakebed.events import (
    BatchCommitted,
    BatchReplayed,
    ClaimChanged,
    CommitEnded,
    CommitGivenUp,
    EventsDelivered,
    HintsReceived,
    IcebergMetadataDamaged,
    IngestDelayed,
    InvariantViolated,
    KeyIndexRebuilt,
    ListenerLeft,
    ListenerSeen,
    MergeBegan,
    MergeEnded,
    MergeFailed,
    MutationBegan,
    MutationEnded,
    MutationFailed,
    OffsetsLost,
    PartReplicated,
    PointTaken,
    QueryChanged,
    RemarkMade,
    SchemaChanged,
    Settled,
    SourceLagged,
    StoreRequested,
    TableParked,
    TableResumed,
    TaskMeasured,
    Uploaded,
    ViewRefreshed,
    WorkerObserved,
)
from lakebed.monitoring.metrics import Metrics
from lakebed.monitoring.progress import POINTS, FreshnessMeter, Progress
from lakebed.monitoring.table_gauges import TableGauges
from lakebed.monitoring.table_state import Clustered, Planned, Recent, Stored, TableState
from lakebed.positions.verified import Verified
from lakebed.ui.documents import Live
from tests.clock import Clock
from tests.internals import log_of

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
STATE = TableState(
    version=5,
    rows=100,
    dead_rows=3,
    bytes=4096,
    tail_parts=2,
    tail_rows=20,
    parts_by_level={0: 4, 1: 1},
    bytes_by_level={0: 2048, 1: 2048},
    parts_by_state={(1, "volatile"): 1},
    bytes_by_state={(1, "materialized"): 7},
    planned=Planned(backlog_bytes=9, depth_max=3, plans={"merge": 2}, refused={"claimed": 4}),
    clustered=Clustered(1.5, 0.5),
    recent=Recent(
        seconds=60.0,
        batches=2,
        ingested_rows=20,
        ingested_bytes=200,
        written_bytes={"ingest": 200, "merge": 400},
        commits={"apply": 2},
        write_amplification=3.0,
        write_amplification_reference=1.5,
        ingested_at=990.0,
    ),
    stored=Stored(9000, 1, 70),
    quarantine_rows=1,
    parked_parts=0,
    verified=Verified(time_ms=980_000, outcome="differs", version=4, rows=99, differing=2),
    is_settle_parked=False,
)


def batch(version: int, newest: float | None = None, rows: int = 10) -> BatchCommitted:
    return BatchCommitted(
        table="t",
        version=version,
        rows=rows,
        bytes=1000,
        parts=2,
        quarantined=1,
        seconds=0.2,
        commit_seconds=0.001,
        attempts=1,
        newest_event_seconds=newest,
    )


def settled(version: int) -> Settled:
    return Settled(
        table="t",
        version=version,
        change_parts=2,
        rows=10,
        rows_marked_dead=4,
        conflicts=1,
        seconds=0.05,
        bytes_written=100,
    )


EVENTS = (
    batch(1, 999.0),
    settled(2),
    BatchReplayed(table="t", query="q", batch_id=1),
    OffsetsLost(table="t", source="k", records=7),
    RemarkMade(table="t", kind="unknown_field", name="colour", records=2),
    RemarkMade(table="t", kind="unknown_operation", name="DELTE", records=1),
    IcebergMetadataDamaged(table="t", file="_lakebed/iceberg/metadata/v7.metadata.json", number=8),
    KeyIndexRebuilt(table="t", parts=8, parts_left=3, rows=80, rows_left=30, seconds=0.1),
    ViewRefreshed(table="t", view="v", version=2, seconds=0.1),
    MergeBegan(table="t", kind="merge", level=1, parts=8, bytes=800),
    MergeEnded(
        table="t",
        kind="merge",
        level=1,
        outcome="completed",
        version=4,
        parts_in=8,
        parts_out=1,
        rows=70,
        bytes_in=800,
        bytes_out=500,
        carried_rows=3,
        conflicts=1,
        seconds=2.5,
    ),
    MergeBegan(table="t", kind="merge", level=1, parts=8, bytes=800),
    MergeFailed(table="t", kind="merge", level=1, parts=8, parked=True, error="no disk"),
    IngestDelayed(table="t", reason="tail_parts", factor=2.0, seconds=1.5),
    Uploaded(
        table="t",
        outcome="completed",
        version=5,
        parts_replaced=8,
        parts=1,
        rows=70,
        bytes=600,
        carried_rows=0,
        seconds=0.5,
    ),
    PartReplicated(
        table="t",
        claim="c",
        replica="a",
        version=5,
        parts_in=8,
        parts_out=1,
        rows=70,
        bytes_in=800,
        bytes_out=400,
        seconds=1.5,
    ),
    MutationBegan(table="t", operation="delete", where="id = 1"),
    MutationEnded(
        table="t",
        operation="delete",
        version=6,
        rows=30,
        parts_read=4,
        parts_marked=3,
        parts_added=1,
        bytes_written=50,
        conflicts=1,
        seconds=0.5,
    ),
    MutationBegan(table="t", operation="update", where="oops"),
    MutationFailed(table="t", operation="update", error="oops is no column"),
    CommitEnded(table="t", operation="STREAMING UPDATE", result="committed", version=7, attempts=2, seconds=0.01),
    CommitEnded(
        table="t", operation="SETTLE", result="conflicted", version=7, attempts=1, seconds=0.01, conflict="new rows"
    ),
    CommitEnded(table="t", operation="SOMEBODY'S OWN", result="committed", version=8, attempts=1, seconds=0.01),
    EventsDelivered(table="t", listener="shop", events=7, failures=1),
    ListenerSeen(table="t", listener="shop", behind_seconds=12.5, is_failing=True),
    ListenerLeft(table="t", listener="gone"),
    PointTaken(table="t", number=57, time_ms=1_795_254_750_108, tables=3, left_out=1),
    SchemaChanged(table="t", version=9, change='{"add":{"a":"long"},"drop":["b"]}', reason=""),
    CommitGivenUp(table="t", operation="SETTLE", attempts=50, seconds=9.5),
    ClaimChanged(table="t", result="taken_over"),
    StoreRequested(table="t", operation="put", result="ok", bytes_read=0, bytes_written=700),
    StoreRequested(table="t", operation="get_tail", result="throttled"),
    TaskMeasured(table="t", kind="merge", seconds=2.5, memory_bytes=300 << 20, spilled_bytes=7 << 20),
    SourceLagged(table="t", topic="orders", records=42),
    QueryChanged(table="t", role="maintain", state="running"),
    QueryChanged(table="t", role="ingest", state="failed", error="DataLoss", reason="gone"),
    TableResumed(table="t"),
    TableParked(table="t", error="DataLoss", reason="gone", failures=1),
    InvariantViolated(table="t", invariant="P3", version=7, detail="2 rows are gone", when="write"),
    WorkerObserved(
        table="t", worker="a", workers=3, known=10_000, owned=3_333, active=7, waiting=2, waiting_seconds=4.5, troubled=1,
        looks=12,
    ),
    HintsReceived(table="t", worker="a", looks=2, known=1, malformed=1),
)  # fmt: skip


def fed() -> Metrics:
    metrics = Metrics(Clock())
    for event in EVENTS:
        metrics(event)
    metrics.observe("t", STATE)
    return metrics


def test_every_metric_is_documented_and_every_documented_one_exists() -> None:
    names = set()
    for family in fed().registry.collect():
        names.add(family.name + {"counter": "_total", "info": "_info"}.get(family.type, ""))
    documented = set(re.findall(r"^\| `(lakebed_\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert names == documented


def code_of(document: Path, containing: str) -> str:
    blocks = re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL)
    [found] = [block for block in blocks if containing in block]
    return str(found)


def test_the_listener_of_the_documentation_hears_what_happens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names: dict[str, object] = {}
    exec(code_of(DOCUMENT, "print(event.table"), names)
    table = create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1, 2, 3]}))
    stop = names["stop"]
    assert callable(stop)
    stop()
    table.settle()
    heard = capsys.readouterr().out
    assert f"{table.path} BatchCommitted(" in heard
    assert "CommitEnded(" in heard and "Settled(" not in heard


def test_the_metrics_of_the_documentation_are_served(tmp_path: Path) -> None:
    names: dict[str, Any] = {}
    exec(code_of(DOCUMENT, "Metrics()").replace("9464", "0"), names)
    table = create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1, 2, 3]}))
    body = urllib.request.urlopen(names["server"].url).read().decode()
    names["stop"]()
    names["server"].close()
    assert f'lakebed_ingested_rows_total{{table="{table.path}"}} 3.0' in body


def test_every_event_there_is_becomes_a_metric() -> None:
    assert {type(event) for event in EVENTS} == {
        one for one in events.Event.__subclasses__() if getattr(events, one.__name__) is one
    }
    for event in EVENTS:
        metrics = Metrics(Clock())
        before = generate_latest(metrics.registry)
        metrics(event)
        assert generate_latest(metrics.registry) != before, event


def test_every_metric_but_the_version_says_of_which_table() -> None:
    for family in fed().registry.collect():
        for sample in family.samples:
            assert sample.name == "lakebed_info" or sample.labels["table"] == "t"


def test_events_are_counted() -> None:
    registry = fed().registry
    table = {"table": "t"}
    assert registry.get_sample_value("lakebed_ingested_rows_total", table) == 10
    assert registry.get_sample_value("lakebed_quarantined_records_total", table) == 1
    assert registry.get_sample_value("lakebed_lost_records_total", table) == 7
    assert registry.get_sample_value("lakebed_written_bytes_total", table | {"writer": "ingest"}) == 1000
    assert registry.get_sample_value("lakebed_written_bytes_total", table | {"writer": "settle"}) == 100
    assert registry.get_sample_value("lakebed_written_bytes_total", table | {"writer": "merge"}) == 500
    assert registry.get_sample_value("lakebed_written_bytes_total", table | {"writer": "upload"}) == 600
    assert registry.get_sample_value("lakebed_written_bytes_total", table | {"writer": "mutation"}) == 50
    assert registry.get_sample_value("lakebed_replicated_bytes_total", table) == 400
    assert registry.get_sample_value("lakebed_mutated_rows_total", table | {"operation": "delete"}) == 30
    assert registry.get_sample_value("lakebed_mutation_parts_total", table | {"action": "read"}) == 4
    failed = table | {"operation": "update", "outcome": "failed"}
    assert registry.get_sample_value("lakebed_mutations_total", failed) == 1
    assert registry.get_sample_value("lakebed_mutations_running", table) == 0
    assert registry.get_sample_value("lakebed_merges_running", table) == 0
    assert registry.get_sample_value("lakebed_merge_failures_total", table | {"kind": "merge", "parked": "yes"}) == 1
    assert registry.get_sample_value("lakebed_freshness_seconds_sum", table | {"stage": "visible"}) == 1.0
    assert registry.get_sample_value("lakebed_errors_total", table | {"error": "DataLoss"}) == 1
    violations = table | {"invariant": "P3", "when": "write"}
    assert registry.get_sample_value("lakebed_invariant_violations_total", violations) == 1
    up = [registry.get_sample_value("lakebed_query_up", table | {"role": role}) for role in ("ingest", "maintain")]
    assert up == [0, 1]


def test_a_level_that_is_empty_again_shows_no_parts() -> None:
    metrics = fed()
    metrics.observe(
        "t",
        TableState(version=6, rows=100, dead_rows=3, bytes=4096, tail_parts=0, tail_rows=0, parts_by_level={1: 2}),
    )
    normal = {"table": "t", "state": "normal"}
    assert metrics.registry.get_sample_value("lakebed_parts", normal | {"level": "0"}) == 0
    assert metrics.registry.get_sample_value("lakebed_parts", normal | {"level": "1"}) == 2


def test_a_figure_that_is_not_known_any_more_is_absent() -> None:
    metrics = fed()
    assert metrics.registry.get_sample_value("lakebed_write_amplification_ratio", {"table": "t"}) == 2
    metrics.observe(
        "t",
        TableState(
            version=6,
            rows=100,
            dead_rows=3,
            bytes=4096,
            tail_parts=0,
            tail_rows=0,
            parts_by_level={1: 2},
            recent=Recent(seconds=3600.0),
        ),
    )
    assert metrics.registry.get_sample_value("lakebed_write_amplification_ratio", {"table": "t"}) is None
    assert metrics.registry.get_sample_value("lakebed_log_window_seconds", {"table": "t"}) == 3600


def test_a_table_that_can_not_be_looked_at_is_down_and_has_no_figures_until_it_can() -> None:
    metrics = fed()
    metrics.down("t")
    assert metrics.registry.get_sample_value("lakebed_table_up", {"table": "t"}) == 0
    assert shown_of_table(metrics) == {"lakebed_table_up", "lakebed_observed_timestamp_seconds"}
    metrics.found("t", {("store", "critical"): 1})
    assert metrics.registry.get_sample_value("lakebed_findings", OF_STORE) == 1, "what is known otherwise is shown"
    metrics.observe("t", STATE)
    assert metrics.registry.get_sample_value("lakebed_table_up", {"table": "t"}) == 1
    assert metrics.registry.get_sample_value("lakebed_table_rows", {"table": "t"}) == 100
    assert metrics.registry.get_sample_value("lakebed_findings", OF_STORE) == 0


OF_STORE = {"table": "t", "check": "store", "severity": "critical"}


def shown_of_table(metrics: Metrics) -> set[str]:
    """The gauges of ``TableGauges`` that have a figure of the table now."""
    registry = CollectorRegistry()
    TableGauges(registry)
    ours = {one.name for one in registry.collect()}
    return {one.name for one in metrics.registry.collect() if one.name in ours and one.samples}


def test_commits_are_counted_by_what_they_were_for_and_who_lost() -> None:
    registry = fed().registry
    table = {"table": "t"}
    commits = "lakebed_log_commits_total"
    assert registry.get_sample_value(commits, table | {"operation": "settle", "result": "conflicted"}) == 1
    assert registry.get_sample_value(commits, table | {"operation": "other", "result": "committed"}) == 1
    assert (
        registry.get_sample_value("lakebed_conflicts_total", table | {"operation": "settle", "kind": "new_rows"}) == 1
    )
    assert (
        registry.get_sample_value("lakebed_log_commit_attempts_total", table | {"operation": "streaming_update"}) == 2
    )


def test_metrics_are_served_until_closed() -> None:
    server = fed().serve("127.0.0.1", 0)
    body = urllib.request.urlopen(server.url).read().decode()
    assert 'lakebed_tail_rows{table="t"} 20.0' in body
    server.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(server.url, timeout=2)


def test_a_port_that_is_taken_is_named_with_what_to_set() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(MissingPrerequisite, match=rf"127\.0\.0\.1:{port} .*--metrics-port"):
            Metrics().serve("127.0.0.1", port)


def test_events_of_a_batch_are_spread_from_the_newest_of_the_batch_before() -> None:
    meter = FreshnessMeter()
    first = meter.committed(batch(1, 100.0), 101.0)
    assert first is not None
    assert first.ages_seconds == (1.0,)
    second = meter.committed(batch(2, 104.0), 105.0)
    assert second is not None
    assert len(second.ages_seconds) == POINTS
    assert second.ages_seconds[0] == 1.0
    assert 4.0 < second.ages_seconds[-1] < 5.0


def test_a_batch_is_visible_when_a_later_version_settled_it() -> None:
    meter = FreshnessMeter()
    meter.committed(batch(1, 100.0), 101.0)
    meter.committed(batch(3, 100.0), 101.5)
    assert [aged.ages_seconds for aged in meter.settled(settled(2), 102.0)] == [(2.0,)]
    assert [aged.ages_seconds for aged in meter.settled(settled(4), 103.0)] == [(3.0,)]
    assert meter.settled(settled(5), 104.0) == []


def test_a_batch_is_viewed_when_the_first_view_shows_it_settled_or_not() -> None:
    meter = FreshnessMeter()
    meter.committed(batch(1, 100.0), 101.0)
    meter.committed(batch(3, 100.0), 101.5)
    assert [
        aged.ages_seconds for aged in meter.viewed(ViewRefreshed(table="t", view="v", version=2, seconds=0.1), 102.0)
    ] == [(2.0,)]
    assert meter.viewed(ViewRefreshed(table="t", view="w", version=2, seconds=0.1), 102.5) == []
    assert [
        aged.ages_seconds for aged in meter.viewed(ViewRefreshed(table="t", view="v", version=3, seconds=0.1), 103.0)
    ] == [(3.0,)]
    assert len(meter.settled(settled(4), 104.0)) == 2, "settling is another matter"


def test_a_batch_that_does_not_tell_its_time_has_no_age() -> None:
    assert FreshnessMeter().committed(batch(1), 5.0) is None


def test_terminal_and_page_show_one_age_and_count_from_the_event() -> None:
    clock = Clock()
    progress, live = Progress("t", clock), Live(clock)
    for version, waited in enumerate((1, 9, 2), 1):
        for event in (batch(version, clock.now - 0.5), settled(version + 1)):
            for listener in (progress, live):
                listener(event)
            clock.now += waited
    told = live.of("t")
    assert told is not None
    figures = progress.figures()
    assert (told["committed_seconds"], told["visible_seconds"]) == (figures.committed.recent, figures.visible.recent)
    assert figures.committed.recent is not None and figures.visible.recent is not None
    assert figures.committed.recent < figures.visible.recent, "an event is visible later than it is committed"


def test_the_figures_of_a_run_add_up() -> None:
    clock = Clock()
    progress = Progress("t", clock)
    progress(batch(1, 999.5, rows=100))
    clock.now += 2
    progress(settled(2))
    progress(
        BatchCommitted(
            table="another",
            version=9,
            rows=5,
            bytes=5,
            parts=1,
            quarantined=0,
            seconds=0.1,
            commit_seconds=0.1,
            attempts=1,
        )
    )
    figures = progress.figures()
    assert (figures.rows, figures.batches, figures.version) == (100, 1, 2)
    assert figures.rows_per_second == 50
    assert figures.committed.p50 == 0.5
    assert figures.visible.recent == 2.5
    assert figures.write_amplification == pytest.approx(1.1)
    clock.now += 60
    assert progress.figures().rows_per_second == 0


def test_the_state_of_a_table_is_counted_by_level(tmp_path: Path) -> None:
    table = create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    table.apply(pa.table({"id": [1, 2, 3]}))
    state = figures_of(log_of(table).refresh())
    assert (state.tail_parts, state.tail_rows, state.parts_by_level, state.rows) == (1, 3, {}, 0)
    table.settle()
    state = figures_of(log_of(table).refresh())
    assert (state.tail_parts, state.parts_by_level, state.rows) == (0, {0: 1}, 3)


def test_real_changes_reach_the_figures(tmp_path: Path) -> None:
    table = create(tmp_path / "t", pa.schema([("id", pa.int64())]), keys=["id"])
    progress = Progress(table.path)
    stop = events.listen(progress)
    table.apply(pa.table({"id": [1, 2, 3]}))
    table.settle()
    stop()
    table.apply(pa.table({"id": [4]}))
    figures = progress.figures()
    assert (figures.rows, figures.version) == (3, 2)
