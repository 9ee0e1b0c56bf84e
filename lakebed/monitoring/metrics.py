"""Events and table states as Prometheus metrics, in a registry of their own. docs/metrics.md explains each metric.

    metrics = Metrics()
    stop = events.listen(metrics)
    server = metrics.serve("127.0.0.1", 9464)

A scrape reads what is in memory: it never touches a table.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info

from lakebed import events
from lakebed.monitoring.progress import Aged, FreshnessMeter
from lakebed.monitoring.table_gauges import FleetMetrics, ListenerMetrics, TableGauges
from lakebed.monitoring.table_state import TableState, operation_label
from lakebed.remarks import Names
from lakebed.version import __version__

if TYPE_CHECKING:
    from lakebed.http import MetricsServer

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_MERGE_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
_COMMIT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_TASK_BYTES = tuple(float(1 << power) for power in range(26, 36))  # 64 MB to 32 GB
_SPILLED_BYTES = (0.0, *_TASK_BYTES)
_FRESHNESS_SECONDS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0)

REQUEST_DOLLARS: dict[str, float] = {
    **dict.fromkeys(("put", "put_if_absent", "create_upload", "upload_part", "complete_upload"), 0.005 / 1000),
    **dict.fromkeys(("list", "list_from"), 0.005 / 1000),
    **dict.fromkeys(("read", "get_tail", "get_range", "head"), 0.0004 / 1000),
}
"""What a request costs, by operation: the list prices of Amazon S3 Standard in us-east-1; other operations are free."""


class Metrics:
    """Listens to events of all tables of this process."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._lock = threading.Lock()
        self._meters: dict[str, FreshnessMeter] = {}
        info = Info("lakebed", "The version of lakebed that runs.", registry=self.registry)
        info.info({"version": __version__})

        self._describe_ingest()
        self._describe_settles_and_merges()
        self._describe_mutations_and_queries()
        self._describe_log_and_store()
        self._table = TableGauges(self.registry)
        self._listeners = ListenerMetrics(self.registry)
        self._fleet = FleetMetrics(self.registry)

    def _describe_ingest(self) -> None:
        """What ingest does."""
        self._batches = self._counter("lakebed_batches", "Batches that were committed.")
        self._replayed = self._counter(
            "lakebed_batches_replayed", "Batches that came again after a restart and were skipped."
        )
        self._rows = self._counter(
            "lakebed_ingested_rows", "Changes that were committed. Of each key in a batch only the newest counts."
        )
        self._ingested_bytes = self._counter("lakebed_ingested_bytes", "Bytes of the change parts that ingest wrote.")
        self._quarantined = self._counter("lakebed_quarantined_records", "Records that went to the quarantine.")
        self._lost = self._counter("lakebed_lost_records", "Records that the source dropped before they were read.")
        self._ignored = self._counter(
            "lakebed_ignored_records",
            "Records that hold no change: Kafka's tombstones, heartbeats, truncates that were applied before.",
        )
        self._truncated = self._counter(
            "lakebed_truncated_records",
            "Changes that were left out because they are older than a truncate of the source.",
        )
        self._remarks = self._counter(
            "lakebed_remarks",
            "Records that need attention, such as those with an unknown field.",
            "kind",
            "name",
        )
        self._remark_names: dict[tuple[str, str], Names] = {}
        self._attempts = self._counter(
            "lakebed_commit_attempts",
            "Attempts to commit batches. If there are more attempts than batches, others commit at the same time.",
        )
        self._batch_seconds = self._histogram(
            "lakebed_batch_seconds", "Time from the start of a batch to its commit.", _SECONDS
        )
        self._commit_seconds = self._histogram(
            "lakebed_commit_seconds", "Duration of the commit of a batch.", _COMMIT_SECONDS
        )
        self._delayed = self._counter(
            "lakebed_ingest_delay_seconds", "Seconds that batches waited because maintenance can't keep up.", "reason"
        )
        self._lag = self._gauge("lakebed_kafka_lag_records", "Records that no committed batch has read yet.", "topic")
        self._newest_event = self._gauge(
            "lakebed_newest_event_timestamp_seconds", "When the newest event of the last batch happened."
        )
        self._freshness = self._histogram(
            "lakebed_freshness_seconds",
            "Age of changes when they are committed, when every Delta reader sees them, and when a view shows them.",
            _FRESHNESS_SECONDS,
            "stage",
        )

    def _describe_settles_and_merges(self) -> None:
        """What maintenance does."""
        self._settles = self._counter("lakebed_settles", "Settles that committed something.")
        self._settled_rows = self._counter("lakebed_settled_rows", "Rows of change parts that joined the base.")
        self._settled_parts = self._counter("lakebed_settled_parts", "Change parts that joined the base.")
        self._dead = self._counter("lakebed_marked_dead_rows", "Rows of the base that settles marked dead.")
        self._superseded = self._counter(
            "lakebed_superseded_rows",
            "Changes that were dead when they were settled, because there was a newer change of their key.",
        )
        self._late = self._counter(
            "lakebed_late_rows",
            "Changes and deletes that were older, by sequence_by, than the row or delete in the base.",
        )
        self._conflicts = self._counter(
            "lakebed_settle_conflicts", "Settles that started again because another commit came first."
        )
        self._settle_seconds = self._histogram("lakebed_settle_seconds", "Duration of a settle.", _SECONDS)
        self._merges = self._counter("lakebed_merges", "Merges by how they ended.", "kind", "outcome", "engine")
        self._merged_rows = self._counter("lakebed_merged_rows", "Rows that merges wrote.")
        self._merge_read = self._counter("lakebed_merge_read_bytes", "Bytes of the parts that merges read.")
        self._merge_local = self._counter(
            "lakebed_merge_local_bytes", "Bytes that merges wrote to the local disk of the replica."
        )
        self._carried = self._counter(
            "lakebed_carried_rows", "Rows that died while a merge ran and were marked dead in its output."
        )
        self._merge_seconds = self._histogram(
            "lakebed_merge_seconds", "Time of a merge from its claim to its commit.", _MERGE_SECONDS
        )
        self._index_parts_left = self._gauge(
            "lakebed_key_index_parts_left", "Parts that a key index still lacks while it is built again."
        )
        self._merging = self._gauge("lakebed_merges_running", "Merges that run in this process now.")
        self._failed_merges = self._counter(
            "lakebed_merge_failures",
            "Merges that failed. If parked is yes, their parts are left alone for an hour or longer.",
            "kind",
            "parked",
        )
        self._replications = self._counter(
            "lakebed_replications", "Parts built here from claims of other hosts (lakebed.replicate_local)."
        )
        self._replicated_bytes = self._counter(
            "lakebed_replicated_bytes", "Bytes of parts that were built here from claims of other hosts."
        )
        self._replication_seconds = self._counter(
            "lakebed_replication_seconds", "Time spent building parts here from claims of other hosts."
        )
        self._uploads = self._counter("lakebed_uploads", "Uploads of materialized parts by how they ended.", "outcome")

    def _describe_mutations_and_queries(self) -> None:
        """What users' mutations, views and queries do."""
        self._mutations = self._counter(
            "lakebed_mutations", "Deletes and updates by how they ended.", "operation", "outcome"
        )
        self._mutated_rows = self._counter(
            "lakebed_mutated_rows", "Rows that mutations deleted or updated.", "operation"
        )
        self._mutation_parts = self._counter(
            "lakebed_mutation_parts", "Parts that mutations read, marked rows dead in, or added.", "action"
        )
        self._mutation_conflicts = self._counter(
            "lakebed_mutation_conflicts", "Times that a mutation started again because another commit came first."
        )
        self._mutation_seconds = self._histogram(
            "lakebed_mutation_seconds", "Duration of a delete or update.", _MERGE_SECONDS
        )
        self._mutating = self._gauge("lakebed_mutations_running", "Deletes and updates that run in this process now.")
        self._refreshes = self._counter("lakebed_view_refreshes", "Refreshes of temporary views.", "view")
        self._refresh_seconds = self._histogram(
            "lakebed_view_refresh_seconds", "Duration of a refresh of a temporary view.", _SECONDS
        )
        self._errors = self._counter("lakebed_errors", "Errors that stopped or restarted a query.", "error")
        self._query_up = self._gauge(
            "lakebed_query_up", "1 while a query of this process runs; 0 if it failed, and waits or has ended.", "role"
        )
        self._parked = self._gauge(
            "lakebed_table_parked",
            "Whether the pipeline of a database leaves the table alone until it is resumed.",
        )

    def _describe_log_and_store(self) -> None:
        """What happens in the log, in the object store and in tasks."""
        self._commits = self._counter(
            "lakebed_log_commits", "Commits to the log by what they were for and how they ended.", "operation", "result"
        )
        self._tries = self._counter(
            "lakebed_log_commit_attempts", "Attempts to commit a version to the log.", "operation"
        )
        self._commit_took = self._histogram(
            "lakebed_log_commit_seconds", "Duration of a commit, with all its attempts.", _COMMIT_SECONDS, "operation"
        )
        self._schema_changes = self._counter(
            "lakebed_schema_changes",
            "Changes of the schema that this process made, by kind: add, widen, relax, rename, drop, comment.",
            "kind",
        )
        self._lost_commits = self._counter(
            "lakebed_conflicts",
            "Commits that another commit came before, by their operation and by what was in conflict.",
            "operation",
            "kind",
        )
        self._claims = self._counter(
            "lakebed_claim_changes",
            "Claims that were taken, taken over, given back, or removed after they had expired.",
            "result",
        )
        self._damaged_metadata = self._counter(
            "lakebed_iceberg_metadata_damaged",
            "Files of Iceberg's metadata that could not be read, and were passed over.",
        )
        self._violations = self._counter(
            "lakebed_invariant_violations",
            "Commits that break an invariant, by the invariant's id.",
            "invariant",
            "when",
        )
        self._written = self._counter(
            "lakebed_written_bytes",
            "Bytes of parts and deletion vectors that were written. The log is not counted.",
            "writer",
        )
        self._requests = self._counter(
            "lakebed_store_requests", "Requests to the object store by how they were answered.", "operation", "result"
        )
        self._store_read = self._counter(
            "lakebed_store_read_bytes", "Bytes that were read from the object store.", "operation"
        )
        self._store_written = self._counter(
            "lakebed_store_written_bytes", "Bytes that were written to the object store.", "operation"
        )
        self._dollars = self._counter(
            "lakebed_store_request_dollars", "Estimated cost of the requests at list prices.", "operation"
        )
        self._points = self._counter("lakebed_points", "Points of a database that were taken.")
        self._point_time = self._gauge(
            "lakebed_point_timestamp_seconds", "When the source committed the last transaction of the newest point."
        )
        self._point_left_out = self._gauge(
            "lakebed_point_tables_left_out", "Tables of the database that are not in the newest point."
        )
        self._task_memory = self._histogram(
            "lakebed_task_memory_bytes", "The most memory that the process of a task ever had.", _TASK_BYTES, "kind"
        )
        self._task_spilled = self._histogram(
            "lakebed_task_spilled_bytes",
            "The most bytes that the process of a task had spilled to disk at once.",
            _SPILLED_BYTES,
            "kind",
        )

    def __call__(self, event: events.Event) -> None:
        now = self._clock()
        with self._lock:
            match event:
                case events.BatchCommitted():
                    self._batch(event, now)
                case events.Settled():
                    self._settle(event, now)
                case events.IngestDelayed():
                    self._delayed.labels(event.table, event.reason).inc(event.seconds)
                case events.BatchReplayed():
                    self._replayed.labels(event.table).inc()
                case events.OffsetsLost():
                    self._lost.labels(event.table).inc(event.records)
                case events.RemarkMade():
                    names = self._remark_names.setdefault((event.table, event.kind), Names())  # bounds the labels
                    counted_as = names.add(event.name, event.records)
                    self._remarks.labels(event.table, event.kind, counted_as).inc(event.records)
                case events.KeyIndexRebuilt():
                    self._index_parts_left.labels(event.table).set(event.parts_left)
                case events.ViewRefreshed():
                    self._refreshes.labels(event.table, event.view).inc()
                    self._refresh_seconds.labels(event.table).observe(event.seconds)
                    for aged in self._meter(event.table).viewed(event, now):
                        self._age(event.table, "viewed", aged)
                case events.MergeBegan():
                    self._merging.labels(event.table).inc()
                case events.MergeEnded():
                    self._merge(event)
                case events.MergeFailed():
                    self._merging.labels(event.table).dec()
                    self._failed_merges.labels(event.table, event.kind, "yes" if event.parked else "no").inc()
                case events.Uploaded() | events.PartReplicated():
                    self._local_part(event)
                case events.MutationBegan():
                    self._mutating.labels(event.table).inc()
                case events.MutationEnded():
                    self._mutation(event)
                case events.MutationFailed():
                    self._mutating.labels(event.table).dec()
                    self._mutations.labels(event.table, event.operation, "failed").inc()
                case events.CommitEnded():
                    self._commit(event)
                case events.SchemaChanged():
                    for kind in json.loads(event.change):
                        self._schema_changes.labels(event.table, kind).inc()
                case events.CommitGivenUp():
                    self._commits.labels(event.table, operation_label(event.operation), "given_up").inc()
                case events.ClaimChanged():
                    self._claims.labels(event.table, event.result).inc()
                case events.StoreRequested():
                    self._request(event)
                case events.TaskMeasured():
                    self._task_memory.labels(event.table, event.kind).observe(event.memory_bytes)
                    self._task_spilled.labels(event.table, event.kind).observe(event.spilled_bytes)
                case events.SourceLagged():
                    self._lag.labels(event.table, event.topic).set(event.records)
                case events.QueryChanged():
                    self._query_changed(event)
                case events.PointTaken():
                    self._point(event)
                case events.TableParked() | events.TableResumed():
                    self._parked.labels(event.table).set(isinstance(event, events.TableParked))
                case events.WorkerObserved() | events.HintsReceived():
                    self._fleet(event)
                case events.EventsDelivered() | events.ListenerSeen() | events.ListenerLeft():
                    self._listeners(event)
                case events.InvariantViolated() | events.IcebergMetadataDamaged():
                    self._damage(event)

    def _damage(self, event: events.InvariantViolated | events.IcebergMetadataDamaged) -> None:
        if isinstance(event, events.InvariantViolated):
            self._violations.labels(event.table, event.invariant, event.when).inc()
        else:
            self._damaged_metadata.labels(event.table).inc()

    def _local_part(self, event: events.Uploaded | events.PartReplicated) -> None:
        if isinstance(event, events.Uploaded):
            self._uploads.labels(event.table, event.outcome).inc()
            self._written.labels(event.table, "upload").inc(event.bytes)
        else:
            self._replications.labels(event.table).inc()
            self._replicated_bytes.labels(event.table).inc(event.bytes_out)
            self._replication_seconds.labels(event.table).inc(event.seconds)

    def observe(self, table: str, state: TableState) -> None:
        """Set the gauges of a table."""
        with self._lock:
            self._table.set(table, state, self._clock())

    def found(self, table: str, findings: Mapping[tuple[str, str], int]) -> None:
        """Set how many things are wrong with a database that is run, by check and severity."""
        with self._lock:
            self._table.found(table, findings)

    def down(self, table: str) -> None:
        """A look at the table failed: its figures are absent until one succeeds."""
        with self._lock:
            self._table.down(table)

    def serve(
        self, host: str, port: int, option: str = "metrics.port of the pipeline file, or --metrics-port,"
    ) -> MetricsServer:
        """Answer scrapes on a port (0: any free one) until closed. Raises MissingPrerequisite if it is taken.

        ``option``: where the user sets the port.
        """
        # A web server takes a while to import, and few commands have one.
        from lakebed.http import Listening, MetricsServer

        server = MetricsServer(self.registry, Listening(host=host, port=port, what="the metrics", option=option))
        server.start()
        return server

    def _batch(self, event: events.BatchCommitted, now: float) -> None:
        table = event.table
        self._batches.labels(table).inc()
        self._rows.labels(table).inc(event.rows)
        self._ingested_bytes.labels(table).inc(event.bytes)
        self._written.labels(table, "ingest").inc(event.bytes)
        self._quarantined.labels(table).inc(event.quarantined)
        self._ignored.labels(table).inc(event.ignored)
        self._truncated.labels(table).inc(event.truncated)
        self._attempts.labels(table).inc(event.attempts)
        self._batch_seconds.labels(table).observe(event.seconds)
        self._commit_seconds.labels(table).observe(event.commit_seconds)
        self._table.version.labels(table).set(event.version)
        if event.newest_event_seconds is not None:
            self._newest_event.labels(table).set(event.newest_event_seconds)
        if aged := self._meter(table).committed(event, now):
            self._age(table, "committed", aged)

    def _settle(self, event: events.Settled, now: float) -> None:
        table = event.table
        self._settles.labels(table).inc()
        self._settled_rows.labels(table).inc(event.rows)
        self._settled_parts.labels(table).inc(event.change_parts)
        self._dead.labels(table).inc(event.rows_marked_dead)
        self._superseded.labels(table).inc(event.superseded)
        self._late.labels(table).inc(event.late)
        self._quarantined.labels(table).inc(event.quarantined)
        self._conflicts.labels(table).inc(event.conflicts)
        self._settle_seconds.labels(table).observe(event.seconds)
        self._written.labels(table, "settle").inc(event.bytes_written)
        self._table.version.labels(table).set(event.version)
        for aged in self._meter(table).settled(event, now):
            self._age(table, "visible", aged)

    def _merge(self, event: events.MergeEnded) -> None:
        table = event.table
        self._merging.labels(table).dec()
        self._merges.labels(table, event.kind, event.outcome, event.engine).inc()
        self._merged_rows.labels(table).inc(event.rows)
        self._merge_read.labels(table).inc(event.bytes_in)
        self._carried.labels(table).inc(event.carried_rows)
        self._merge_seconds.labels(table).observe(event.seconds)
        if event.local:
            self._merge_local.labels(table).inc(event.bytes_out)
        else:
            self._written.labels(table, "merge").inc(event.bytes_out)

    def _mutation(self, event: events.MutationEnded) -> None:
        table = event.table
        self._mutating.labels(table).dec()
        self._mutations.labels(table, event.operation, "completed").inc()
        self._mutated_rows.labels(table, event.operation).inc(event.rows)
        self._mutation_parts.labels(table, "read").inc(event.parts_read)
        self._mutation_parts.labels(table, "marked").inc(event.parts_marked)
        self._mutation_parts.labels(table, "added").inc(event.parts_added)
        self._mutation_conflicts.labels(table).inc(event.conflicts)
        self._mutation_seconds.labels(table).observe(event.seconds)
        self._written.labels(table, "mutation").inc(event.bytes_written)

    def _commit(self, event: events.CommitEnded) -> None:
        table, operation = event.table, operation_label(event.operation)
        self._commits.labels(table, operation, event.result).inc()
        self._tries.labels(table, operation).inc(event.attempts)
        self._commit_took.labels(table, operation).observe(event.seconds)
        if event.conflict:
            self._lost_commits.labels(table, operation, event.conflict.replace(" ", "_")).inc()

    def _query_changed(self, event: events.QueryChanged) -> None:
        if event.error:
            self._errors.labels(event.table, event.error).inc()
        if event.state == "stopped":
            with suppress(KeyError):  # it never ran
                self._query_up.remove(event.table, event.role)
        else:
            self._query_up.labels(event.table, event.role).set(event.state == "running")

    def _point(self, event: events.PointTaken) -> None:
        self._points.labels(event.table).inc()
        self._point_time.labels(event.table).set(event.time_ms / 1000)
        self._point_left_out.labels(event.table).set(event.left_out)

    def _request(self, event: events.StoreRequested) -> None:
        table, operation = event.table, event.operation
        self._requests.labels(table, operation, event.result).inc(event.requests)
        self._dollars.labels(table, operation).inc(event.requests * REQUEST_DOLLARS.get(operation, 0.0))
        self._store_read.labels(table, operation).inc(event.bytes_read)
        self._store_written.labels(table, operation).inc(event.bytes_written)

    def _age(self, table: str, stage: str, aged: Aged) -> None:
        for age in aged.ages_seconds:
            self._freshness.labels(table, stage).observe(age)

    def _meter(self, table: str) -> FreshnessMeter:
        return self._meters.setdefault(table, FreshnessMeter())

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("table", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(name, text, ("table", *labels), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(name, text, ("table", *labels), buckets=buckets, registry=self.registry)
