"""Makes the dashboards' JSON, with Grafana's SDK: all tables, one table, operations.

    python -m tools.dashboards

writes it to ``lakebed/monitoring/dashboards``. Three rules keep every panel right for any sources of the metrics:

1. Several processes may report the state of a table (a pipeline, an exporter): ``now`` takes the greatest.
2. Each process reports its own work: ``rate`` and ``added`` sum over processes.
3. An event that has not happened yet has no series; where that means none, ``or_none`` shows 0.

Bounds at which a figure changes its colour are those of the alerts (``alerts.yaml``). Legends show the last and the greatest
value, and the tooltip is shared by all panels of a dashboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from grafana_foundation_sdk.builders import common, stat, table, timeseries
from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
    TextBoxVariable,
    ThresholdsConfig,
)
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    GraphDrawStyle,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    DataSourceRef,
    DataTransformerConfig,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
    VariableOption,
    VariableRefresh,
    VariableSort,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from lakebed.monitoring.dashboards import DASHBOARDS

FOLDER = Path(__file__).parents[1] / "lakebed" / "monitoring" / "dashboards"
SOURCE = DataSourceRef("prometheus", "${datasource}")
WIDTH, HEIGHT = 8, 8
GOOD, DOUBTFUL, BAD, PLAIN = "green", "orange", "red", "text"
Bounds = Sequence[tuple[float | None, str]]
"""Values, ascending, each with the colour from it on; the first may be None: from the least."""
SECONDS, BYTES, RATIO, COUNT, ROWS_A_SECOND, BYTES_A_SECOND = "s", "decbytes", "percentunit", "short", "rowsps", "Bps"
# Requests by their price; deletes are free.
_WRITES = 'operation=~"put.*|create_upload|upload_part|complete_upload|list.*"'
_READS = 'operation=~"read|get.*|head"'
_NORMAL = 'state="normal"'
_DAYS_A_MONTH = 30
_HOURS_OF_RATE = 6


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL, and the name of each series in the legend."""

    expression: str
    legend: str


@dataclass(frozen=True, slots=True)
class Tables:
    """Makes PromQL over some tables; ``selector`` chooses them, such as ``table="$table"``."""

    selector: str = ""

    def of(self, metric: str, where: str = "") -> str:
        matchers = ",".join(part for part in (self.selector, where) if part)
        return f"{metric}{{{matchers}}}" if matchers else metric

    def now(self, metric: str, *by: str, where: str = "") -> str:
        return f"max by ({_labels(by)}) ({self.of(metric, where)})"

    def running(self, metric: str) -> str:
        """A gauge of which each process has its own part."""
        return f"sum by (table) ({self.of(metric)})"

    def rate(self, metric: str, *by: str, where: str = "") -> str:
        return f"sum by ({_labels(by)}) (rate({self.of(metric, where)}[$__rate_interval]))"

    def added(self, metric: str, *by: str, where: str = "") -> str:
        """How many within the last hour."""
        return f"sum by ({_labels(by)}) (increase({self.of(metric, where)}[1h]))"

    def quantile(self, quantile: float, metric: str, *by: str, where: str = "") -> str:
        return f"histogram_quantile({quantile}, {self.rate(f'{metric}_bucket', *by, 'le', where=where)})"

    def or_none(self, expression: str) -> str:
        """The expression, and 0 for tables without a value yet."""
        return f"{expression} or on (table) 0 * {self.now('lakebed_version')}"


def dashboards() -> dict[str, str]:
    """The JSON of every dashboard, by the name of its file."""
    return {
        name: JSONEncoder(sort_keys=True, indent=1).encode(_numbered(made)) + "\n"
        for name, made in zip(DASHBOARDS, (_of_all_tables(), _of_one_table(), _of_operations()), strict=True)
    }


# -- all tables ----------------------------------------------------------------------------------------------------------


def _of_all_tables() -> Dashboard:
    every = Tables()
    p95 = every.quantile(0.95, "lakebed_freshness_seconds", where='stage="visible"')
    board = _board(
        "lakebed-tables", "lakebed: all tables", "Is every table fresh, well merged and cheap? Which one is not?"
    )
    board.with_row(Row("Now"))
    firing = 'count(ALERTS{alertname=~"Lakebed.*",alertstate="firing"}) or vector(0)'
    for title, expression, text, bad in (
        ("Tables", "count(max by (table) (lakebed_version))", "Tables that some process reports.", ()),
        (
            "Unreadable",
            "count(max by (table) (lakebed_table_up) == 0) or vector(0)",
            "Tables that could not be read the last time.",
            ((1, BAD),),
        ),
        (
            "Alerts",
            firing,
            "Alerts of lakebed that fire now. `lakebed docs runbook` says what to do.",
            ((1, DOUBTFUL), (5, BAD)),
        ),
    ):
        board.with_panel(_figure(title, COUNT, expression, text, bad))
    board.with_panel(_all_tables_now(every, p95))
    board.with_row(Row("Coming in"))
    _add(board, (
        _graph("Rows", ROWS_A_SECOND, "Changes that were committed. Of each key in a batch only the newest counts.",
               Query(every.rate("lakebed_ingested_rows_total"), "{{table}}")),
        _graph("Bytes", BYTES_A_SECOND, "Bytes of the change parts that ingest wrote.",
               Query(every.rate("lakebed_ingested_bytes_total"), "{{table}}")),
        _graph("Since rows came in", SECONDS, "Time since rows last came in. It stops at one hour.",
               Query(f"time() - {every.now('lakebed_ingest_timestamp_seconds')}", "{{table}}")),
    ))  # fmt: skip
    board.with_row(Row("Fresh"))
    _add(board, (
        _graph("Age of changes when every reader sees them, p95", SECONDS,
               "From the event until the change is settled: then every Delta reader sees it.",
               Query(p95, "{{table}}")),
        _graph("Age of the tail", SECONDS, "Time since the oldest change part of the tail was written.",
               Query(every.now("lakebed_tail_age_seconds"), "{{table}}")),
        _graph("Ingest slowed down", COUNT,
               "Above 1, ingest slows down: batches wait and get smaller, because maintenance can't keep up.",
               Query(every.now("lakebed_backpressure_factor"), "{{table}}")),
    ))  # fmt: skip
    board.with_row(Row("Compact"))
    _add(board, (
        _graph("Depth, share of the read budget", RATIO,
               "Runs of parts over the deepest point of the sort key ÷ lakebed.read_budget.",
               Query(f"{every.now('lakebed_depth_max')} / {every.now('lakebed_read_budget')}", "{{table}}")),
        _graph("Dead rows", RATIO, "Share of dead rows among all rows of the base.",
               Query(every.now("lakebed_dead_row_ratio"), "{{table}}")),
        _graph("Backlog", BYTES, "Bytes that the planner would still read to settle and merge.",
               Query(every.now("lakebed_backlog_bytes"), "{{table}}")),
        _graph("Compaction lag", SECONDS, "Age of the oldest level-0 part that no merge has claimed.",
               Query(every.now("lakebed_compaction_lag_seconds"), "{{table}}")),
        _graph("Write amplification ÷ reference", COUNT,
               f"Average of {_HOURS_OF_RATE} hours. 1 is what the best plan of merges writes for equal batches.",
               Query(_over_hours(every, "lakebed_write_amplification_ratio"), "{{table}}")),
        _graph("Space amplification", COUNT, "Bytes of all parts ÷ the bytes that live rows take.",
               Query(every.now("lakebed_space_amplification"), "{{table}}")),
    ))  # fmt: skip
    return board


def _all_tables_now(every: Tables, p95: str) -> table.Panel:
    columns: Sequence[tuple[str, str, str, Bounds]] = (
        ("up", COUNT, every.now("lakebed_table_up"), ((None, BAD), (1, GOOD))),
        ("findings", COUNT, f"sum by (table) ({every.now('lakebed_findings', 'check')})", ((None, GOOD), (1, DOUBTFUL))),
        ("rows", COUNT, every.now("lakebed_table_rows"), ()),
        ("bytes", BYTES, every.now("lakebed_table_bytes"), ()),
        ("parts", COUNT, f"sum by (table) ({every.now('lakebed_parts', 'level', where=_NORMAL)})", ()),
        ("tail age", SECONDS, every.now("lakebed_tail_age_seconds"), ((None, GOOD), (120, DOUBTFUL))),
        ("visible after, p95", SECONDS, p95, ((None, GOOD), (60, DOUBTFUL))),
        ("depth ÷ budget", RATIO, f"{every.now('lakebed_depth_max')} / {every.now('lakebed_read_budget')}",
         ((None, GOOD), (2, DOUBTFUL))),
        ("dead rows", RATIO, every.now("lakebed_dead_row_ratio"), ()),
        ("backlog", BYTES, every.now("lakebed_backlog_bytes"), ()),
        ("quarantined", COUNT, every.now("lakebed_quarantine_rows"), ((None, GOOD), (1, DOUBTFUL))),
    )  # fmt: skip
    panel = table.Panel().title("Tables").description("One row for each table. Its name links to its own dashboard.")
    panel.datasource(SOURCE).span(3 * WIDTH).height(HEIGHT)
    for position, (name, unit, expression, bounds) in enumerate(columns):
        reference = chr(ord("A") + position)
        panel.with_target(
            Dataquery().expr(expression).ref_id(reference).instant().format(PromQueryFormat.TABLE).datasource(SOURCE)
        )
        settings = [DynamicConfigValue("unit", unit)]
        if bounds:
            steps = [{"value": value, "color": colour} for value, colour in bounds]
            settings.append(DynamicConfigValue("thresholds", {"mode": "absolute", "steps": steps}))
            settings.append(DynamicConfigValue("custom.cellOptions", {"type": "color-text"}))
        panel.override_by_name(name, settings)
    to_table = {"title": "this table", "url": "/d/lakebed-table?var-table=${__value.raw}&${datasource:queryparam}"}
    panel.override_by_name("table", [DynamicConfigValue("links", [to_table])])
    names = {f"Value #{chr(ord('A') + position)}": name for position, (name, *_) in enumerate(columns)}
    panel.with_transformation(DataTransformerConfig("merge", options={}))
    hidden = {"excludeByName": {"Time": True}, "renameByName": names}
    panel.with_transformation(DataTransformerConfig("organize", options=hidden))
    return panel


# -- one table -------------------------------------------------------------------------------------------------------------


def _of_one_table() -> Dashboard:
    one = Tables('table="$table"')
    board = _board("lakebed-table", "lakebed: one table", "One table, from its changes to its merges.")
    board.with_variable(_table_variable())
    for add_row in (_freshness, _ingest, _tail, _parts, _amplification, _merges, _conflicts):
        add_row(board, one)
    return board


def _freshness(board: Dashboard, one: Tables) -> None:
    board.with_row(Row("Freshness"))
    stages = [
        Query(one.quantile(quantile, "lakebed_freshness_seconds", "stage"), f"{{{{stage}}}} p{round(100 * quantile)}")
        for quantile in (0.5, 0.95)
    ]
    _add(board, (
        _graph("Age of changes", SECONDS,
               "Age of changes when they are committed, when every Delta reader sees them (visible), and when "
               "a view shows them (viewed).",
               *stages),
        _graph("Newest event", SECONDS, "Time since the newest event of the last batch happened.",
               Query(f"time() - {one.now('lakebed_newest_event_timestamp_seconds')}", "age")),
        _graph("Slowed down", COUNT,
               "The factor is above 1 while ingest slows down. Waited: seconds for each second, by reason.",
               Query(one.now("lakebed_backpressure_factor"), "factor"),
               Query(one.or_none(one.rate("lakebed_ingest_delay_seconds_total", "reason")), "waited {{reason}}")),
    ))  # fmt: skip


def _ingest(board: Dashboard, one: Tables) -> None:
    board.with_row(Row("Ingest"))
    _add(board, (
        _graph("Rows", ROWS_A_SECOND,
               "Changes that were committed and settled, changes that were superseded or late, and records "
               "that became no row.",
               Query(one.rate("lakebed_ingested_rows_total"), "ingested"),
               Query(one.rate("lakebed_settled_rows_total"), "settled"),
               Query(one.or_none(one.rate("lakebed_superseded_rows_total")), "superseded"),
               Query(one.or_none(one.rate("lakebed_late_rows_total")), "late"),
               Query(one.or_none(one.rate("lakebed_ignored_records_total")), "ignored"),
               Query(one.or_none(one.rate("lakebed_truncated_records_total")), "truncated"),
               Query(one.or_none(one.rate("lakebed_quarantined_records_total")), "quarantined")),
        _graph("Seconds of a batch and of settling", SECONDS,
               "Time from the start of a batch to its commit, its commit alone, and a settle.",
               Query(one.quantile(0.95, "lakebed_batch_seconds"), "batch p95"),
               Query(one.quantile(0.95, "lakebed_commit_seconds"), "its commit p95"),
               Query(one.quantile(0.95, "lakebed_settle_seconds"), "settle p95")),
        _graph("Rows of the table", COUNT,
               "Live rows of the base, dead rows that still take space, and records in the quarantine.",
               Query(one.now("lakebed_table_rows"), "live"),
               Query(one.now("lakebed_table_dead_rows"), "dead, still taking space"),
               Query(one.now("lakebed_quarantine_rows"), "in the quarantine")),
        _graph("Records to look at", COUNT,
               "Records a second with a remark, such as a field that no column takes, by its kind and name.",
               Query(one.or_none(one.rate("lakebed_remarks_total", "kind", "name")), "{{kind}} {{name}}")),
    ))  # fmt: skip


def _tail(board: Dashboard, one: Tables) -> None:
    board.with_row(Row("Tail"))
    _add(board, (
        _graph("Rows", COUNT,
               "Rows of the change parts that are not settled.",
               Query(one.now("lakebed_tail_rows"), "rows")),
        _graph("Parts", COUNT, "Change parts that are not settled.", Query(one.now("lakebed_tail_parts"), "parts")),
        _graph("Age", SECONDS,
               "Time since the oldest of them was written.",
               Query(one.now("lakebed_tail_age_seconds"), "age")),
    ))  # fmt: skip


def _parts(board: Dashboard, one: Tables) -> None:
    board.with_row(Row("Parts"))
    _add(board, (
        _stack("Parts by level", COUNT,
               "normal: parts of the base. materialized: on a local disk. volatile: merges whose output will "
               "stay on a local disk.",
               Query(one.now("lakebed_parts", "level", "state"), "{{level}} {{state}}")),
        _stack("Bytes by level", BYTES,
               "Bytes of the parts of each level.",
               Query(one.now("lakebed_part_bytes", "level", "state"), "{{level}} {{state}}")),
        _graph("Depth", COUNT,
               "Runs of parts over the deepest point, and the read budget. The averages count parts, over all "
               "parts of the base.",
               Query(one.now("lakebed_depth_max"), "deepest point"),
               Query(one.now("lakebed_read_budget"), "read budget"),
               Query(one.now("lakebed_depth_average"), "average depth"),
               Query(one.now("lakebed_overlaps_average"), "average overlaps")),
        _graph("Dead rows", RATIO,
               "Share of dead rows among all rows of the base.",
               Query(one.now("lakebed_dead_row_ratio"), "dead")),
        _graph("Unsorted parts", COUNT, "Parts that are not known to be sorted by the table's sort key.",
               Query(one.now("lakebed_unsorted_parts"), "parts")),
        _graph("Held versions", COUNT, "Versions that readers hold. A cleanup leaves their files alone.",
               Query(one.now("lakebed_held_versions"), "versions")),
    ))  # fmt: skip


def _amplification(board: Dashboard, one: Tables) -> None:
    board.with_row(Row("Amplification"))
    _add(board, (
        _graph("Write amplification", COUNT,
               "Bytes written ÷ bytes ingested in the last hour. The reference is what the best plan of "
               "merges writes for equal batches.",
               Query(one.now("lakebed_write_amplification"), "bytes written ÷ ingested"),
               Query(one.now("lakebed_write_amplification_reference"), "reference"),
               Query(_over_hours(one, "lakebed_write_amplification_ratio"), f"ratio, {_HOURS_OF_RATE} h")),
        _stack("Written within the last hour", BYTES,
               "Bytes that commits of the last hour brought, by what wrote them.",
               Query(one.now("lakebed_log_written_bytes", "writer"), "{{writer}}")),
        _graph("Read and space amplification", COUNT,
               "Read: parts that a read of one point opens. Space: bytes of all parts ÷ the bytes that live rows take.",
               Query(one.now("lakebed_read_amplification"), "read"),
               Query(one.now("lakebed_space_amplification"), "space")),
    ))  # fmt: skip


def _merges(board: Dashboard, one: Tables) -> None:
    board.with_row(Row("Merges"))
    _add(board, (
        _stack("Merges within an hour", COUNT,
               "How merges ended. claimed, replaced and overtaken: another replica was faster.",
               Query(one.or_none(one.added("lakebed_merges_total", "kind", "outcome")), "{{kind}} {{outcome}}"),
               Query(one.or_none(one.added("lakebed_merge_failures_total", "kind")), "{{kind}} failed")),
        _graph("Seconds of a merge", SECONDS, "From the claim to the commit.",
               Query(one.quantile(0.5, "lakebed_merge_seconds"), "p50"),
               Query(one.quantile(0.95, "lakebed_merge_seconds"), "p95")),
        _graph("Bytes", BYTES_A_SECOND, "Bytes that merges read, wrote to the store, and wrote to a local disk.",
               Query(one.or_none(one.rate("lakebed_merge_read_bytes_total")), "read"),
               Query(one.or_none(one.rate("lakebed_written_bytes_total", where='writer=~"merge|upload"')), "written"),
               Query(one.or_none(one.rate("lakebed_merge_local_bytes_total")), "local")),
        _stack("Planned now", COUNT, "Plans that the planner would run now, by kind.",
               Query(one.or_none(one.now("lakebed_backlog_plans", "kind")), "{{kind}}")),
        _graph("Left alone", COUNT, "What the planner leaves alone, by cause. `lakebed show plan` says more.",
               Query(one.or_none(one.now("lakebed_refused", "cause")), "{{cause}}")),
        _graph("Lag and claims", SECONDS,
               "Age of the oldest level-0 part that no merge has claimed, and of the oldest claim.",
               Query(one.now("lakebed_compaction_lag_seconds"), "compaction lag"),
               Query(one.now("lakebed_claim_age_seconds"), "oldest claim")),
    ))  # fmt: skip


def _conflicts(board: Dashboard, one: Tables) -> None:
    board.with_row(Row("Conflicts"))
    _add(board, (
        _stack("Conflicts within an hour", COUNT,
               "Commits that another commit came before: what they were for, and what of the other commit was "
               "in conflict.",
               Query(one.or_none(one.added("lakebed_conflicts_total", "operation", "kind")), "{{operation}}: {{kind}}")),
        _graph("Attempts a commit", COUNT, "Attempts for each commit. Above 1, others commit at the same time.",
               Query(f"{one.rate('lakebed_log_commit_attempts_total', 'operation')} / "
                     f"{one.rate('lakebed_log_commits_total', 'operation')}", "{{operation}}")),
        _stack("Claims within an hour", COUNT,
               "Claims that were taken, taken over, given back, or removed after they had expired.",
               Query(one.or_none(one.added("lakebed_claim_changes_total", "result")), "{{result}}")),
    ))  # fmt: skip


# -- operations and cost -----------------------------------------------------------------------------------------------


def _of_operations() -> Dashboard:
    some = Tables('table=~"$table"')
    board = _board(
        "lakebed-operations",
        "lakebed: operations and cost",
        "Processes, commits, sources, and what the object store costs.",
    )
    board.with_variable(_table_variable().multi(True).include_all(True).all_value(".*"))
    for name, label, price in (
        ("price_writes", "1,000 writes or lists", "0.005"),
        ("price_reads", "1,000 reads", "0.0004"),
        ("price_storage", "a GB and month", "0.023"),
    ):
        board.with_variable(
            TextBoxVariable(name).label(f"price of {label}").default_value(price).current(_chosen(price))
        )
    for add_row in (_processes, _fleet, _listeners, _commits_and_sources, _object_store, _cost):
        add_row(board, some)
    return board


def _processes(board: Dashboard, some: Tables) -> None:
    board.with_row(Row("Processes"))
    _add(board, (
        _graph("Versions of lakebed", COUNT, "Number of processes by the version of lakebed that they run.",
               Query("count by (version) (lakebed_info)", "{{version}}")),
        _graph("Age of the figures", SECONDS, "Time since the figures of a table were taken, and how long that took.",
               Query(f"time() - {some.now('lakebed_observed_timestamp_seconds')}", "{{table}}"),
               Query(some.now("lakebed_observation_seconds"), "{{table}}: taking them")),
        _stack("Errors within an hour", COUNT, "Errors that stopped or restarted a query, by class.",
               Query(some.or_none(some.added("lakebed_errors_total", "error")), "{{table}} {{error}}")),
        _graph("Merges and mutations under way", COUNT, "Merges, deletes and updates that run now.",
               Query(some.or_none(some.running("lakebed_merges_running")), "{{table}}: merges"),
               Query(some.or_none(some.running("lakebed_mutations_running")), "{{table}}: mutations")),
        _graph("Claims", COUNT, "Claims in the log. An expired claim belongs to a replica that is gone.",
               Query(some.or_none(some.now("lakebed_claims", "state")), "{{table}} {{state}}")),
        _graph("Parked parts", COUNT,
               "Parts that are left alone for now, because merges of them failed several times, or 1 for a tail.",
               Query(some.or_none(some.running("lakebed_parked_parts")), "{{table}}"),
               Query(some.or_none(some.running("lakebed_settle_parked")), "{{table}} settle")),
    ))  # fmt: skip
    _add(board, (
        _graph("Memory of tasks, p95", BYTES, "The most memory that the process of a task ever had.",
               Query(some.quantile(0.95, "lakebed_task_memory_bytes", "kind"), "{{table}} {{kind}}")),
        _graph("Spilled, p95", BYTES, "The most bytes that the process of a task had spilled to disk at once.",
               Query(some.quantile(0.95, "lakebed_task_spilled_bytes", "kind"), "{{table}} {{kind}}")),
        _graph("Orphans", BYTES,
               "Files that no version refers to, and that maintenance would have deleted by now. Listed once an hour.",
               Query(some.or_none(some.now("lakebed_orphan_bytes")), "{{table}}")),
    ))  # fmt: skip


def _fleet(board: Dashboard, some: Tables) -> None:
    board.with_row(Row("Fleet"))
    _add(board, (
        _graph("Workers", COUNT, "Workers that are alive, as each of them sees it; the table is the fleet's first root.",
               Query(some.now("lakebed_fleet_workers"), "{{table}}")),
        _graph("Tables of the fleet", COUNT,
               "Tables that the workers own, that are active in them, wait for room, or can't be maintained.",
               Query(f"sum by (table, state) ({some.of('lakebed_fleet_tables')})", "{{table}} {{state}}")),
        _graph("Longest wait for room", SECONDS, "The longest wait of a table that has work. Too many others are active.",
               Query(some.now("lakebed_fleet_waiting_seconds"), "{{table}}")),
        _graph("Looks a second", "reqps", "Requests that only ask for a new version of a table.",
               Query(some.rate("lakebed_fleet_looks_total"), "{{table}}")),
    ))  # fmt: skip


def _listeners(board: Dashboard, some: Tables) -> None:
    board.with_row(Row("Listeners"))
    _add(board, (
        _graph("Behind", SECONDS, "Age of the oldest event that a listener has not acknowledged; the table is the folder's.",
               Query(some.now("lakebed_listener_behind_seconds", "listener"), "{{table}} {{listener}}")),
        _graph("Events a second", "eps", "Events of tables that listeners acknowledged.",
               Query(some.rate("lakebed_listener_events_total", "listener"), "{{table}} {{listener}}")),
        _graph("Failures within an hour", COUNT, "Deliveries that a listener did not acknowledge. They are tried again.",
               Query(some.added("lakebed_listener_failures_total", "listener"), "{{table}} {{listener}}")),
        _graph("Processes that deliver", COUNT, "At 0 no process delivers to the listener, and its events wait in the logs.",
               Query(f"sum by (table, listener) ({some.of('lakebed_listener_delivering')})", "{{table}} {{listener}}")),
    ))  # fmt: skip


def _commits_and_sources(board: Dashboard, some: Tables) -> None:
    board.with_row(Row("Commits and sources"))
    _add(board, (
        _stack("Commits a second", COUNT, "Commits to the log, by what they were for and how they ended.",
               Query(some.rate("lakebed_log_commits_total", "operation", "result"), "{{table}} {{operation}} {{result}}")),
        _graph("Seconds of a commit, p95", SECONDS, "Duration of a commit, with all its attempts.",
               Query(some.quantile(0.95, "lakebed_log_commit_seconds", "operation"), "{{table}} {{operation}}")),
        _graph("Kafka lag", COUNT, "Records that no committed batch has read yet.",
               Query(some.now("lakebed_kafka_lag_records", "topic"), "{{topic}} -> {{table}}")),
        _graph("Batches that came again", COUNT,
               "Batches of the last hour that came again after a restart. They were skipped.",
               Query(some.or_none(some.added("lakebed_batches_replayed_total")), "{{table}}")),
        _graph("Records lost at the source", COUNT,
               "Records of the last hour that the topic no longer had. on_data_loss: skip goes on without them.",
               Query(some.or_none(some.added("lakebed_lost_records_total")), "{{table}}")),
        _stack("Records to look at", COUNT,
               "Records of the last hour with a remark, such as a field that no column takes.",
               Query(some.or_none(some.added("lakebed_remarks_total", "kind", "name")), "{{table}} {{kind}} {{name}}")),
        _graph("Rows in the quarantine", COUNT, "Records that could not become rows.",
               Query(some.now("lakebed_quarantine_rows"), "{{table}}")),
    ))  # fmt: skip


def _object_store(board: Dashboard, some: Tables) -> None:
    board.with_row(Row("Object store"))
    bad = some.rate("lakebed_store_requests_total", "result", where='result=~"throttled|denied|failed|no_answer"')
    _add(board, (
        _stack("Requests a second", "reqps",
               "Requests to the object store. Each attempt counts. Tables on a local disk send none.",
               Query(some.rate("lakebed_store_requests_total", "operation"), "{{table}} {{operation}}")),
        _stack("Requests that failed", "reqps", "Requests that were throttled, denied, failed or got no answer.",
               Query(some.or_none(bad), "{{table}} {{result}}")),
        _graph("Bytes", BYTES_A_SECOND, "Bytes that were read from the object store and written to it.",
               Query(some.rate("lakebed_store_read_bytes_total"), "{{table}} read"),
               Query(some.rate("lakebed_store_written_bytes_total"), "{{table}} written")),
    ))  # fmt: skip


def _cost(board: Dashboard, some: Tables) -> None:
    board.with_row(Row("Cost, estimated from the last hour and the prices above"))
    seconds = _DAYS_A_MONTH * 86400
    _add(board, (
        _stack("Requests, a month", "currencyUSD", "What requests cost in a month at the rate of the last hour.",
               Query(_billed(some, _WRITES, seconds, "$price_writes"), "{{table}} writes and lists"),
               Query(_billed(some, _READS, seconds, "$price_reads"), "{{table}} reads")),
        _graph("Storage, a month", "currencyUSD",
               "What all files cost in a month, and what the parts of base and tail alone cost. Files are "
               "listed once an hour.",
               Query(f"({some.or_none(some.now('lakebed_stored_bytes'))}) / 1e9 * $price_storage", "{{table}}"),
               Query(f"{some.now('lakebed_table_bytes')} / 1e9 * $price_storage", "{{table}}: parts that are needed")),
        _stack("Written a day", BYTES, "Bytes written in a day at the rate of the last hour, by what wrote them.",
               Query(f"{some.now('lakebed_log_written_bytes', 'writer')} / on (table) group_left () "
                     f"{some.now('lakebed_log_window_seconds')} * 86400", "{{table}} {{writer}}")),
    ))  # fmt: skip


def _billed(some: Tables, which: str, seconds: int, price: str) -> str:
    requests = some.of("lakebed_store_requests_total", which)
    return f"sum by (table) (rate({requests}[1h])) * {seconds} / 1000 * {price}"


# -- pieces ------------------------------------------------------------------------------------------------------------


def _labels(by: Sequence[str]) -> str:
    return ", ".join(("table", *by))


def _over_hours(tables: Tables, metric: str) -> str:
    return f"max by (table) (avg_over_time({tables.of(metric)}[{_HOURS_OF_RATE}h]))"


def _board(uid: str, title: str, text: str) -> Dashboard:
    others = DashboardLink("lakebed").type(DashboardLinkType.DASHBOARDS).tags(["lakebed"]).keep_time(True)
    return (
        Dashboard(title)
        .uid(uid)
        .description(text)
        .tags(["lakebed"])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .tooltip(DashboardCursorSync.TOOLTIP)
        .link(others.as_dropdown(True).include_vars(True))
        .with_variable(DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )


def _numbered(board: Dashboard) -> object:
    """The dashboard with a number for each panel, by which others may link to it."""
    built = board.build()
    for number, panel in enumerate(built.panels, 1):
        panel.id_val = number
    return built


def _table_variable() -> QueryVariable:
    return (
        QueryVariable("table")
        .label("table")
        .datasource(SOURCE)
        .query("label_values(lakebed_version, table)")
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.ALPHABETICAL_ASC)
    )


def _chosen(value: str) -> VariableOption:
    return VariableOption(True, value, value)


def _add(board: Dashboard, panels: Sequence[timeseries.Panel]) -> None:
    for panel in panels:
        board.with_panel(panel)


def _figure(title: str, unit: str, expression: str, text: str, bad: Bounds) -> stat.Panel:
    """``bad``: from which value on the figure has which colour; it is green below the first, and plain without any."""
    panel = stat.Panel().title(title).description(text).unit(unit).datasource(SOURCE).span(WIDTH).height(HEIGHT // 2)
    steps = [Threshold(None, GOOD if bad else PLAIN), *(Threshold(value, colour) for value, colour in bad)]
    panel.thresholds(ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
    panel.color_mode(BigValueColorMode.BACKGROUND if bad else BigValueColorMode.NONE)
    return panel.with_target(Dataquery().expr(expression).ref_id("A").instant().datasource(SOURCE))


def _graph(title: str, unit: str, text: str, *queries: Query) -> timeseries.Panel:
    panel = timeseries.Panel().title(title).unit(unit).min(0).datasource(SOURCE).span(WIDTH).height(HEIGHT)
    if text:
        panel.description(text)
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.TABLE).placement(LegendPlacement.BOTTOM)
    panel.legend(legend.show_legend(True).calcs(["lastNotNull", "max"]).sort_by("Last *").sort_desc(True))
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    panel.draw_style(GraphDrawStyle.LINE).fill_opacity(8)
    for position, query in enumerate(queries):
        target = Dataquery().expr(query.expression).legend_format(query.legend).ref_id(chr(ord("A") + position))
        panel.with_target(target.range().datasource(SOURCE))
    return panel


def _stack(title: str, unit: str, text: str, *queries: Query) -> timeseries.Panel:
    panel = _graph(title, unit, text, *queries)
    return panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)


def main() -> None:
    for name, text in dashboards().items():
        path = FOLDER / name
        path.write_text(text, encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
