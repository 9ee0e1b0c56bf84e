"""From PostgreSQL under pgbench through Debezium and Kafka into lakebed: does every reader then see the same rows?

1.  Capture the tables, start an ingest query for each and a maintenance query for those that change most (the others
    have a long tail until the last settle), start pgbench.
2.  In the middle of it truncate two tables; a little before its end stop maintaining, and change some rows after that, so that
    a tail is left.
3.  Wait until Debezium has sent everything and lakebed has ingested all that Kafka holds.
4.  Compare the view (tail and all) with PostgreSQL; settle; compare every foreign reader.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

import lakebed
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.kafka.source import KafkaSource
from lakebed.sources.source import RangeChanges
from lakebed.table import internals_of
from tests.end_to_end.progress import ingested_ends
from tests.end_to_end.source_database import ACCOUNTS, TABLES, Load, SourceDatabase, SourceTable
from tests.foreign.readers import comparable, delta_rs, delta_spark, foreign_duckdb
from tests.infra.connect import JSON_CONVERTER
from tests.infra.debezium import DebeziumServer
from tests.infra.foreign_duckdb import ForeignDuckDB
from tests.infra.kafka import KafkaServer, end_offsets, messages_before
from tests.infra.postgres import PostgresServer
from tests.waiting import started, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from lakebed.compaction.maintenance import Maintenance

TRUNCATE_AT, STOP_MAINTAINING_AT = 0.5, 0.9
INLINE_SCHEMAS = {
    f"{part}.converter{option}": value
    for part in ("key", "value")
    for option, value in (("", JSON_CONVERTER), (".schemas.enable", "true"))
}
UNAVAILABLE = b"__debezium_unavailable_value"


@dataclass
class Followed:
    """One table of the source and what follows it."""

    source: SourceTable
    topic: str
    table: lakebed.Table
    ingest: StreamingQuery
    maintain: Maintenance | None


@dataclass
class Outcome:
    """What happened, for whoever reads the output of a long run."""

    rows: dict[str, int] = field(default_factory=dict)
    events: dict[str, dict[str, int]] = field(default_factory=dict)
    versions: dict[str, int] = field(default_factory=dict)
    tail_parts: dict[str, int] = field(default_factory=dict)
    completed_rows: int = 0
    caught_up_seconds: float = 0.0
    pgbench: str = ""
    differences: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Servers:
    kafka: KafkaServer
    postgres: PostgresServer
    debezium: DebeziumServer
    spark: SparkSession
    duckdb: ForeignDuckDB


def load_and_compare(
    servers: Servers,
    folder: Path,
    seconds: int,
    transactions_per_second: int,
    *,
    inline_schemas: bool = False,
    accounts: int = ACCOUNTS,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Runs the whole; raises AssertionError naming the reader and the table that differ from PostgreSQL."""
    prefix = f"load{time.time_ns()}"
    database = SourceDatabase(servers.postgres, prefix, accounts)
    topics = {
        table.name: servers.kafka.create_topic(f"{prefix}.public.{table.name}", table.partitions) for table in TABLES
    }
    followed = [_follow(servers, table, topics[table.name], folder / table.name) for table in TABLES]
    outcome = Outcome()
    try:
        settings = {"skipped.operations": "none"} | (INLINE_SCHEMAS if inline_schemas else {})
        slot = servers.debezium.capture(prefix, [f"public.{table.name}" for table in TABLES], prefix, settings)
        say("captured; pgbench starts")
        with Load(servers.postgres, database, folder, seconds, transactions_per_second) as load:
            load.wait_until_share(TRUNCATE_AT)
            database.truncate_under_load()
            load.wait_until_share(STOP_MAINTAINING_AT)
            for one in followed:
                if one.maintain is not None:
                    one.maintain.stop()
        outcome.pgbench = load.report
        database.change_awkward_rows(20)
        ended = time.monotonic()
        servers.debezium.wait_until_sent(slot)
        for one in followed:
            _wait_until_ingested(servers.kafka, one)
        outcome.caught_up_seconds = time.monotonic() - ended
        say(f"caught up {outcome.caught_up_seconds:.1f} s after the end of pgbench")
    finally:
        for query in servers.spark.streams.active:
            query.stop()
    for one in followed:
        _compare(servers, database, one, outcome)
        outcome.events[one.source.name] = dict(events_of(servers.kafka, one))
        say(f"{one.source.name}: {outcome.rows[one.source.name]} rows, {outcome.events[one.source.name]}")
    servers.debezium.release(slot)
    assert not outcome.differences, "\n".join(outcome.differences)
    return outcome


def _follow(servers: Servers, source: SourceTable, topic: str, path: Path) -> Followed:
    table = lakebed.create(path, source.schema, keys=source.keys, sequence_by=source.sequence_by)
    kafka = KafkaSource(KafkaSettings(config={"bootstrap.servers": servers.kafka.bootstrap}, topics=(topic,)))
    decoder_schema = DecoderSchema(table.schema, source.keys, source.sequence_by)
    changes = RangeChanges(kafka.reader, decoder("debezium-json", decoder_schema, {"decimal_text": "precise"}))
    ingest = started(partial(internals_of(table).start_ingest, changes, kafka.stream(servers.spark)))
    as_query = source.name == "awkward"  # one by a streaming query, the others by threads
    maintain = table.maintain(servers.spark, as_query) if source.maintained else None
    return Followed(source, topic, table, ingest, maintain)


def _wait_until_ingested(kafka: KafkaServer, one: Followed) -> None:
    ends = {(one.topic, number): end for number, end in topic_ends(kafka, one).items()}

    def is_ingested() -> bool:
        failure = one.ingest.exception()
        assert failure is None, f"the ingest query of {one.source.name} failed: {failure}"
        return ingested_ends(one.table.path) == ends

    wait_until(
        is_ingested, f"{one.source.name} was not ingested up to {ends}", moving=lambda: ingested_ends(one.table.path)
    )


def _compare(servers: Servers, database: SourceDatabase, one: Followed, outcome: Outcome) -> None:
    table, name = one.table, one.source.name
    expected = comparable(database.rows(one.source), one.source.schema)
    outcome.rows[name] = len(expected)
    outcome.tail_parts[name] = table.inspect.detail()["tail_parts"][0].as_py()
    if Path(f"{table.path}_quarantine").exists():
        outcome.differences.append(f"{name}: records were quarantined, e.g. {_quarantined(table)}")

    def same(reader: str, rows: list[str]) -> None:
        missing, surplus = Counter(expected) - Counter(rows), Counter(rows) - Counter(expected)
        if missing or surplus:
            outcome.differences.append(
                f"{name}, {reader}: {missing.total()} rows of PostgreSQL are missing, e.g. {list(missing)[:1]}; "
                f"{surplus.total()} rows are not PostgreSQL's, e.g. {list(surplus)[:1]}"
            )

    def own(when: str) -> None:
        same(f"to_arrow {when}", comparable(table.to_arrow(), one.source.schema))
        same(f"Spark view {when}", comparable(table.read(servers.spark).toArrow(), one.source.schema))

    own("with a tail")
    table.settle()
    own("after the last settle")
    same("delta-rs", delta_rs(table))
    same("DuckDB's Delta extension", foreign_duckdb(table, servers.duckdb))
    same("delta-spark", delta_spark(table, servers.spark))
    outcome.versions[name] = table.version
    metrics = [dict(entry or ()) for entry in table.inspect.timeline(1_000_000)["metrics"].to_pylist()]
    outcome.completed_rows += int(sum(entry.get("completedRows", 0) for entry in metrics))


def _quarantined(table: lakebed.Table) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = lakebed.open(f"{table.path}_quarantine").to_arrow().slice(0, 3).to_pylist()
    return rows


def topic_ends(kafka: KafkaServer, one: Followed) -> dict[int, int]:
    """The end of every partition of the table's topic."""
    return end_offsets(kafka.bootstrap, one.topic, one.source.partitions)


def events_of(kafka: KafkaServer, one: Followed) -> Counter[str]:
    """How many events of each operation Kafka holds; ``unavailable`` are those that lack a value."""
    counts: Counter[str] = Counter()
    for message in messages_before(kafka.bootstrap, one.topic, topic_ends(kafka, one)):
        value = message.value()
        counts[operation_of(value)] += 1
        counts["unavailable"] += UNAVAILABLE in (value or b"")
        counts["moved"] += any(header == "__debezium.oldkey" for header, _ in message.headers() or ())
    return counts


def operation_of(value: bytes | None) -> str:
    if value is None:
        return "tombstone"
    event = orjson.loads(value)
    return str(event.get("payload", event)["op"])


def assert_everything_awkward_happened(outcome: Outcome) -> None:
    """A comparison proves little if what is hard about it did not occur."""
    awkward = outcome.events["awkward"]
    for what in ("r", "c", "u", "d", "tombstone", "unavailable", "moved"):
        assert awkward.get(what), f"the awkward table had no event of kind {what!r}: {awkward}"
    for name in ("prices", "pgbench_history"):
        assert outcome.events[name].get("t") == 1, f"{name} was not truncated once: {outcome.events[name]}"
    assert outcome.completed_rows, "no row was completed from the one before it"
    assert outcome.tail_parts["awkward"], "the awkward table had no tail when the view was compared"
