"""The gauges of a table's state, whichever process did the work (docs/metrics.md, "What the table is").

Deliveries of this process to listeners have metrics, too, whose ``table`` is the root whose tables they listen to; and so has a
worker of a fleet, whose ``table`` is the first root of the fleet.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TypeAlias, assert_never

from prometheus_client import CollectorRegistry, Counter, Gauge

from lakebed.events import EventsDelivered, HintsReceived, ListenerLeft, ListenerSeen, WorkerObserved
from lakebed.monitoring.table_state import Recent, TableState

_HINT_RESULTS = ("looks", "known", "elsewhere", "new", "unrelated", "malformed")
_OfListeners: TypeAlias = EventsDelivered | ListenerSeen | ListenerLeft


class ListenerMetrics:
    """The metrics of listeners. Gauges are those of listeners that this process delivers to, and go with them."""

    def __init__(self, registry: CollectorRegistry) -> None:
        labels = ("table", "listener")
        self._delivered = Counter(
            "lakebed_listener_events", "Table events that a listener acknowledged.", labels, registry=registry
        )
        self._failures = Counter(
            "lakebed_listener_failures",
            "Deliveries that a listener did not acknowledge; they are tried again.",
            labels,
            registry=registry,
        )
        self._behind = Gauge(
            "lakebed_listener_behind_seconds",
            "Age of the oldest table event that a listener has not acknowledged; 0 if none is known.",
            labels,
            registry=registry,
        )
        self._failing = Gauge(
            "lakebed_listener_failing", "Whether deliveries to a listener fail.", labels, registry=registry
        )
        self._delivering = Gauge(
            "lakebed_listener_delivering", "Whether this process delivers to a listener.", labels, registry=registry
        )

    def __call__(self, event: _OfListeners) -> None:
        """Take in one event."""
        labels = (event.table, event.listener)
        match event:
            case EventsDelivered():
                self._delivered.labels(*labels).inc(event.events)
                self._failures.labels(*labels).inc(event.failures)
            case ListenerSeen():
                self._behind.labels(*labels).set(event.behind_seconds)
                self._failing.labels(*labels).set(event.is_failing)
                self._delivering.labels(*labels).set(1)
            case ListenerLeft():
                self._delivering.labels(*labels).set(0)
                for gauge in (self._behind, self._failing):
                    with suppress(KeyError):
                        gauge.remove(*labels)
            case _:
                assert_never(event)


class FleetMetrics:
    """What a worker of a fleet does; the table is the first root of the fleet."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ("table", *labels), registry=registry)

        self._workers = gauge("lakebed_fleet_workers", "Workers of the fleet that this one sees alive.")
        self._tables = gauge(
            "lakebed_fleet_tables",
            "Tables below the roots: known to this worker, owned by it, active in it, waiting for room, in trouble.",
            "state",
        )
        self._waiting = gauge(
            "lakebed_fleet_waiting_seconds", "The longest time that a table with work has waited for room."
        )
        self._looks = Counter(
            "lakebed_fleet_looks",
            "Requests that only asked for a new version of a table.",
            ["table"],
            registry=registry,
        )
        self._hints = Counter(
            "lakebed_fleet_hints",
            "Hints of tables that have changed, by what became of them.",
            ["table", "result"],
            registry=registry,
        )

    def __call__(self, event: WorkerObserved | HintsReceived) -> None:
        """Take in one event."""
        if isinstance(event, HintsReceived):
            for result in _HINT_RESULTS:
                self._hints.labels(event.table, result).inc(getattr(event, result))
            return
        self._workers.labels(event.table).set(event.workers)
        for state in ("known", "owned", "active", "waiting", "troubled"):
            self._tables.labels(event.table, state).set(getattr(event, state))
        self._waiting.labels(event.table).set(event.waiting_seconds)
        self._looks.labels(event.table).inc(event.looks)


_PLAIN: dict[str, str] = {
    "lakebed_commit_timestamp_seconds": "When the newest version was committed.",
    "lakebed_table_rows": "Live rows of the base.",
    "lakebed_table_dead_rows": "Dead rows that still take space in the base.",
    "lakebed_dead_row_ratio": "Dead rows among all rows of the base.",
    "lakebed_table_bytes": "Bytes of the parts of base and tail.",
    "lakebed_space_amplification": "Bytes of all parts, divided by the bytes that live rows take.",
    "lakebed_unsorted_parts": "Parts of the base that are not known to be sorted by the table's sort key.",
    "lakebed_tail_parts": "Change parts that are not settled.",
    "lakebed_tail_rows": "Rows of the change parts that are not settled.",
    "lakebed_tail_bytes": "Bytes of the change parts that are not settled.",
    "lakebed_tail_age_seconds": "Time since the oldest change part of the tail was written.",
    "lakebed_read_budget": "The table's property lakebed.read_budget.",
    "lakebed_compaction_lag_seconds": "Time since the oldest level-0 part that no merge has claimed was written.",
    "lakebed_claim_age_seconds": "Time since the oldest claim in the log was taken.",
    "lakebed_held_versions": "Versions that readers hold.",
    "lakebed_observation_seconds": "Time that it took to compute the figures of the table.",
}
_SOMETIMES: dict[str, str] = {
    "lakebed_parked_parts": "Parts that are left alone for now because merges of them failed, as the log of the table says.",
    "lakebed_settle_parked": "1 if settling is left alone for now, because it ended several processes; 0 if not.",
    "lakebed_verify_timestamp_seconds": "When the table was last compared with its source to the end.",
    "lakebed_verify_rows": "Rows of the source that were compared.",
    "lakebed_verify_differing_keys": "Keys whose rows were not those of the source.",
    "lakebed_ingest_timestamp_seconds": "When rows last came in; an hour ago if they came before that.",
    "lakebed_depth_max": "Runs of parts over the deepest point of the sort key.",
    "lakebed_depth_average": "Parts over the deepest point of a part's range, on average over parts.",
    "lakebed_read_amplification": "Parts that a read of one point of the sort key opens, on average over parts.",
    "lakebed_stored_bytes": "Bytes of all files below the table's root.",
    "lakebed_orphan_files": "Files that no version refers to, and that maintenance would have deleted by now.",
    "lakebed_orphan_bytes": "Bytes of these files.",
    "lakebed_overlaps_average": "Other parts that a part's range meets, on average over parts.",
    "lakebed_backlog_bytes": "Bytes that the planner would still read to settle and merge.",
    "lakebed_backpressure_factor": "How far tail or level 0 is beyond its bound. Above 1 ingest slows down.",
    "lakebed_quarantine_rows": "Rows in the quarantine beside the table.",
    "lakebed_log_window_seconds": "Seconds of the last hour of the log that the figures of the log cover.",
    "lakebed_log_ingested_rows": "Rows that came in within lakebed_log_window_seconds.",
    "lakebed_log_ingested_bytes": "Bytes of the parts that these rows came in.",
    "lakebed_write_amplification": "Bytes written, divided by bytes ingested, within lakebed_log_window_seconds.",
    "lakebed_write_amplification_reference": "Write amplification of the best plan of merges for equal batches of new rows.",
    "lakebed_write_amplification_ratio": "Write amplification ÷ its reference.",
}

_OF_RUNS: tuple[tuple[str, ...], ...] = (("run", "critical"), ("disk", "critical"), ("waiting", "warning"))
"""The findings of which there is always a figure, so that a query finds one while nothing is wrong."""


class TableGauges:
    """Sets the gauges. The gauge of a figure that is not known (any more) is absent: all are while
    the table can't be read. Not thread-safe: the caller locks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(name, text, ("table", *labels), registry=registry)

        self.up = gauge("lakebed_table_up", "1 if the table could be read the last time; 0 if not.")
        self.version = gauge("lakebed_version", "The newest version of the table.")
        self._observed = gauge("lakebed_observed_timestamp_seconds", "When the figures of the table were taken.")
        self._single = {name: gauge(name, text) for name, text in (_PLAIN | _SOMETIMES).items()}
        self._parts = gauge(
            "lakebed_parts", "Parts of the base (normal), materialized parts and volatile parts.", "level", "state"
        )
        self._part_bytes = gauge("lakebed_part_bytes", "Bytes of parts.", "level", "state")
        self._claims = gauge("lakebed_claims", "Claims in the log.", "state")
        self._plans = gauge("lakebed_backlog_plans", "Plans that the planner would run now.", "kind")
        self._refused = gauge("lakebed_refused", "What the planner leaves alone, by cause.", "cause")
        self._written = gauge(
            "lakebed_log_written_bytes", "Bytes that commits of the last hour wrote, by what wrote them.", "writer"
        )
        self._commits = gauge(
            "lakebed_log_recent_commits", "Commits of the last hour by what they were for.", "operation"
        )
        self._findings = gauge(
            "lakebed_findings",
            "Things that are wrong with a table or a database, as lakebed status finds them without looking at files.",
            "check",
            "severity",
        )
        self._labelled = (
            self._parts,
            self._part_bytes,
            self._claims,
            self._plans,
            self._refused,
            self._written,
            self._commits,
            self._findings,
        )
        self._seen: dict[tuple[Gauge, str], set[tuple[str, ...]]] = {}

    def set(self, table: str, state: TableState, now: float) -> None:
        """Set all gauges of a table to its state; ``now`` in epoch seconds."""
        for name, value in _singles(state).items():
            if value is not None:
                self._single[name].labels(table).set(value)
            elif name in _SOMETIMES:
                self._single[name].remove(table)
        normal = {(level, "normal"): count for level, count in state.parts_by_level.items()} | dict(
            state.parts_by_state
        )
        sizes = {(level, "normal"): size for level, size in state.bytes_by_level.items()} | dict(state.bytes_by_state)
        self._all(self._parts, table, {(str(level), kind): count for (level, kind), count in normal.items()})
        self._all(self._part_bytes, table, {(str(level), kind): size for (level, kind), size in sizes.items()})
        self._all(self._claims, table, {("live",): state.claims_live, ("expired",): state.claims_expired})
        self.found(table, state.findings)
        if state.planned:
            self._all(self._plans, table, {(kind,): count for kind, count in state.planned.plans.items()})
            self._all(self._refused, table, {(cause,): count for cause, count in state.planned.refused.items()})
        if state.recent:
            self._all(self._written, table, {(by,): size for by, size in state.recent.written_bytes.items()})
            self._all(self._commits, table, {(each,): count for each, count in state.recent.commits.items()})
        self.version.labels(table).set(state.version)
        self._observed.labels(table).set(now)
        self.up.labels(table).set(1)

    def down(self, table: str) -> None:
        """The table can't be read: say so, and remove its figures, which nobody can tell from those of now."""
        self.up.labels(table).set(0)
        for single in (self.version, *self._single.values()):
            single.remove(table)
        for gauge in self._labelled:
            for labels in self._seen.pop((gauge, table), ()):
                gauge.remove(table, *labels)

    def found(self, table: str, findings: Mapping[tuple[str, str], int]) -> None:
        """Set how many things are wrong with a table or a database, by check and severity."""
        counts = dict.fromkeys(_OF_RUNS, 0) | {
            (check, severity): count for (check, severity), count in findings.items()
        }
        self._all(self._findings, table, counts)

    def _all(self, gauge: Gauge, table: str, values: Mapping[tuple[str, ...], int]) -> None:
        """Set a gauge for all values of its other labels; a value that was there before and is gone becomes 0."""
        seen = self._seen.setdefault((gauge, table), set())
        seen.update(values)
        for labels in seen:
            gauge.labels(table, *labels).set(values.get(labels, 0))


def _singles(state: TableState) -> dict[str, float | None]:
    planned, clustered, recent = state.planned, state.clustered, state.recent or Recent()
    written, reference = recent.write_amplification, recent.write_amplification_reference
    has_recent, stored, compared = state.recent is not None, state.stored, state.verified
    return {
        "lakebed_commit_timestamp_seconds": state.committed_at,
        "lakebed_table_rows": state.rows,
        "lakebed_table_dead_rows": state.dead_rows,
        "lakebed_dead_row_ratio": state.dead_row_ratio,
        "lakebed_table_bytes": state.bytes,
        "lakebed_space_amplification": state.space_amplification,
        "lakebed_unsorted_parts": state.unsorted_parts,
        "lakebed_tail_parts": state.tail_parts,
        "lakebed_tail_rows": state.tail_rows,
        "lakebed_tail_bytes": state.tail_bytes,
        "lakebed_tail_age_seconds": state.tail_age_seconds or 0.0,
        "lakebed_read_budget": state.read_budget,
        "lakebed_compaction_lag_seconds": state.compaction_lag_seconds or 0.0,
        "lakebed_claim_age_seconds": state.claim_age_seconds or 0.0,
        "lakebed_held_versions": state.versions_held,
        "lakebed_parked_parts": state.parked_parts,
        "lakebed_settle_parked": state.is_settle_parked,
        "lakebed_verify_timestamp_seconds": compared.time_ms / 1000 if compared else None,
        "lakebed_verify_rows": compared.rows if compared else None,
        "lakebed_verify_differing_keys": compared.differing if compared else None,
        "lakebed_observation_seconds": state.seconds,
        "lakebed_ingest_timestamp_seconds": recent.ingested_at,
        "lakebed_depth_max": planned.depth_max if planned else None,
        "lakebed_depth_average": clustered.depth_average if clustered else None,
        "lakebed_read_amplification": state.read_amplification,
        "lakebed_stored_bytes": stored.bytes if stored else None,
        "lakebed_orphan_files": stored.orphans if stored else None,
        "lakebed_orphan_bytes": stored.orphan_bytes if stored else None,
        "lakebed_overlaps_average": clustered.overlaps_average if clustered else None,
        "lakebed_backlog_bytes": planned.backlog_bytes if planned else None,
        "lakebed_backpressure_factor": planned.backpressure_factor if planned else None,
        "lakebed_quarantine_rows": state.quarantine_rows,
        "lakebed_log_window_seconds": recent.seconds if has_recent else None,
        "lakebed_log_ingested_rows": recent.ingested_rows if has_recent else None,
        "lakebed_log_ingested_bytes": recent.ingested_bytes if has_recent else None,
        "lakebed_write_amplification": written,
        "lakebed_write_amplification_reference": reference,
        "lakebed_write_amplification_ratio": written / reference if written is not None and reference else None,
    }
