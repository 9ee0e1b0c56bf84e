"""``lakebed run`` of a whole database as a process, and how far its tables are.

1.  Start clients, capture a database of many tables, start ``lakebed run``.
2.  Alter tables at random. Kill the pipeline with -9, now and then Debezium too, and start them again.
3.  Give one column of one table a type that its column can't become: the table is parked, and the others go on. Put a column of
    that type in its place, and resume the table.
4.  If the database has a table for signals: delete rows of a table of lakebed's, and have the connector send them again.
5.  End the clients, wait until all has arrived, and compare every table with the database. If there are points, compare the sums
    of the bank at each of them.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from confluent_kafka import TopicPartition
from confluent_kafka.admin import OffsetSpec
from deltalake import DeltaTable, QueryBuilder

import lakebed
from lakebed.cli import main as command
from lakebed.coordination.failing import Parked, parked_of
from lakebed.discovery import tables_below
from lakebed.errors import TableNotFound
from lakebed.log.table_log import TableLog
from lakebed.positions.positions import positions_of
from tests.end_to_end.many_tables import ACCOUNTS, BALANCE, BANK, SIGNALS, ManyTables
from tests.end_to_end.run_process import RunProcess
from tests.end_to_end.schema_changes import INLINE_SCHEMAS
from tests.foreign.readers import comparable
from tests.infra.connect import avro_converters
from tests.infra.kafka import REQUEST_SECONDS_MAX, KafkaServer
from tests.infra.registry import RegistryServer
from tests.internals import log_of
from tests.waiting import length_of, wait_until

IMPOSSIBLE = "hot_0"
PROBES = 5


@dataclass
class Outcome:
    """What happened, for whoever reads the output of a long run."""

    tables: int = 0
    rows: int = 0
    records: int = 0
    versions: int = 0
    kills: int = 0
    altered: Counter[str] = field(default_factory=Counter)
    proved: int = 0  # tables that were compared with the database while all went on
    points: int = 0
    torn_without_points: int = 0
    parked: str = ""
    freshness_seconds: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0


class DatabaseProcess(RunProcess):
    """``lakebed run`` of a database. ``root``: where its tables are, a folder or in an object store."""

    def __init__(
        self,
        kafka: KafkaServer,
        database: ManyTables,
        folder: Path,
        *,
        root: str,
        registry: RegistryServer | None,
        max_age_seconds: float,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.root = root
        self._kafka, self._schema, self._prefix = kafka, database.schema, f"{database.name}.{database.schema}."
        self._logs: dict[str, TableLog] = {}
        section: dict[str, Any] = {"format": {"kind": "debezium-json"}}
        if registry is not None:
            section = {"format": {"kind": "debezium-avro"}, "registry": {"url": registry.url}}
        super().__init__(
            "shop",
            folder,
            {
                "database": {
                    "path": root,
                    "include": [rf"{database.schema}\..*"],
                    "exclude": [rf"{database.schema}\.{SIGNALS}"],
                    "max_age_seconds": max_age_seconds,
                    **(more or {}),
                },
                "source": {
                    "kind": "kafka",
                    "config": {"bootstrap.servers": kafka.bootstrap},
                    "topic_pattern": rf"{database.name}\..*",
                },
                **section,
                "evolve": ["add", "widen", "relax"],
                "on_mismatch": "fail",
                "metrics": {"port": None},
                "page": {"port": None},
                "spark": {"master": "local[2]"},
            },
        )

    def version(self) -> int:
        names = [name.partition(".")[2] for name in tables_below(self.root)]
        return sum(log.refresh().version for log in map(self._log, names) if log is not None)

    def path(self, table: str) -> str:
        return f"{self.root}/{self._schema}/{table}"

    def ends(self) -> dict[str, int]:
        """The end of each table's topic, which has one partition."""
        admin = self._kafka.admin()
        known = admin.list_topics(timeout=REQUEST_SECONDS_MAX).topics
        topics = [name for name in known if name.startswith(self._prefix) and not name.endswith(SIGNALS)]
        places = {TopicPartition(name, 0): OffsetSpec.latest() for name in topics}
        found = admin.list_offsets(places) if places else {}
        return {place.topic.removeprefix(self._prefix): each.result().offset for place, each in found.items()}

    def behind(self, ends: Mapping[str, int] | None = None) -> dict[str, int]:
        """How many records each table has not read, up to ``ends`` or of all; tables that have read them are left out."""
        wanted = self.ends() if ends is None else ends
        return {table: end - at for table, end in wanted.items() if (at := self._position(table)) < end}

    def parked(self, table: str) -> Parked | None:
        log = self._log(table)
        return None if log is None else parked_of(log.refresh())

    def wait_until_ingested(self, ends: Mapping[str, int] | None = None) -> None:
        """Returns when every table has read all, or up to ``ends``. Raises AssertionError if the pipeline ends before."""
        wait_until(
            lambda: not self.is_running or not self.behind(ends),
            lambda: f"tables that did not catch up: {self.behind(ends)}\n{self.log_tail()}",
            moving=lambda: (length_of(self.log_path)(), sum(self.behind(ends).values())),
        )
        assert self.is_running, f"the pipeline ended by itself:\n{self.log_tail()}"

    def wait_for_points(self, count: int) -> None:
        """Returns when there are so many points, of which a busy machine has fewer in the same time."""
        wait_until(
            lambda: not self.is_running or len(self.points(count)) >= count,
            lambda: f"there are {len(self.points(count))} points in place of {count}\n{self.log_tail()}",
            moving=lambda: self.points(1),
        )
        assert self.is_running, f"the pipeline ended by itself:\n{self.log_tail()}"

    def points(self, limit: int = 1_000_000) -> list[int]:
        """The numbers of the newest points that were taken."""
        return list(lakebed.warehouse(self.root).points(limit)["point"].to_pylist())

    def _position(self, table: str) -> int:
        log = self._log(table)
        positions = {} if log is None else positions_of(log.refresh())
        position = positions.get(self._prefix + table)
        return position.offsets.get(0, 0) if position else 0

    def _log(self, table: str) -> TableLog | None:
        if table not in self._logs:
            try:
                self._logs[table] = log_of(lakebed.open(self.path(table)))
            except TableNotFound:
                return None
        return self._logs[table]


def run_and_compare(
    kafka: KafkaServer,
    database: ManyTables,
    folder: Path,
    *,
    registry: RegistryServer | None,
    kills: int,
    seed: int,
    per_second: int,
    points: bool,
    points_compared_max: int = 1_000_000,
    root: str | None = None,
    max_age_seconds: float = 2.0,
    points_min: int = 0,
    probes: int = PROBES,
    proofs: int = 0,
    say: Callable[[str], None] = print,
) -> Outcome:
    """Runs the whole; raises AssertionError naming the table and what differs.

    ``points_min``: clients go on until there are so many points. ``probes``: how many quiet tables get a row whose way is
    timed, before a table is parked and while it is. ``proofs``: how many tables are compared with the database after each kill,
    while clients go on.
    """
    chance, started, outcome = random.Random(seed), time.monotonic(), Outcome(kills=kills)
    proofs = proofs if database.url else 0
    more: dict[str, Any] = {}
    if points:
        more = {"points": {"transaction_topic": f"{database.name}.transaction", "settle_seconds": 1.0}}
    if proofs:
        more["verify"] = {"url": database.url, "wait_seconds": 120}

    def tell(text: str) -> None:
        say(f"{time.monotonic() - started:3.0f} s: {text}")

    signals, topics = _signals(kafka, database)
    process = DatabaseProcess(
        kafka,
        database,
        folder,
        root=root or str(folder / "shop"),
        registry=registry,
        max_age_seconds=max_age_seconds,
        more={**more, **topics},
    )
    try:
        # Clients write while the connector takes its snapshot, and while its rows are read.
        with database.load(folder, per_second):
            database.capture({**(INLINE_SCHEMAS if registry is None else avro_converters(registry)), **signals})
            tell("captured")
            process.start()
            process.wait_until_ingested(process.ends())
            tell("all tables are there")
            _alter_and_kill(process, database, chance, outcome, proofs, tell)
            _give_an_impossible_type(process, database, outcome, probes, say)
            if database.has_signals:
                _have_rows_sent_again(process, database)
            process.wait_for_points(points_min)
        database.wait_until_idle()
        database.wait_until_sent()
        process.wait_until_ingested()
        outcome.records = sum(process.ends().values())
    finally:
        process.kill()
    _compare(process, database, outcome)
    if points:
        _compare_points(process, database.schema, points_compared_max, outcome)
    database.release()
    outcome.seconds = time.monotonic() - started
    return outcome


def _alter_and_kill(
    process: DatabaseProcess,
    database: ManyTables,
    chance: random.Random,
    outcome: Outcome,
    proofs: int,
    tell: Callable[[str], None],
) -> None:
    """The schema moves, and the pipeline is killed in the midst of it, again and again."""
    for number in range(outcome.kills):
        for _ in range(chance.randint(1, 3)):
            done = database.alter_something(chance)
            outcome.altered[done.split(": ")[-1].split()[0]] += 1
            tell(done)
            time.sleep(chance.uniform(0, 1.5))
        _kill(process, database, chance)
        tell(f"killed and started again ({number + 1})")
        if proofs:
            _prove(process, chance, proofs, outcome, tell)


def _kill(process: DatabaseProcess, database: ManyTables, chance: random.Random) -> None:
    if chance.random() < 0.3:
        process.kill_alone()
        process.wait_for_orphans()
    else:
        process.kill()
    if chance.random() < 0.2:
        database.kill_debezium()
    # Mostly some moments after its first commit, since what can go wrong goes wrong between commits.
    process.ready_after_seconds = chance.uniform(0, 8) if chance.random() < 0.25 else None
    process.start()
    time.sleep(chance.uniform(0, 3))


def _prove(
    process: DatabaseProcess, chance: random.Random, proofs: int, outcome: Outcome, tell: Callable[[str], None]
) -> None:
    """Some tables are equal to the database, wherever it is just now."""
    time.sleep(chance.uniform(0, 2))
    names = chance.sample(sorted(tables_below(process.root)), proofs)
    code = command(["verify", str(process.file), *names])
    assert code == 0, f"lakebed verify of {', '.join(names)} ended with {code}\n{process.log_tail()}"
    outcome.proved += proofs
    tell(f"equal to the database: {', '.join(names)}")


def _give_an_impossible_type(
    process: DatabaseProcess, database: ManyTables, outcome: Outcome, probes: int, say: Callable[[str], None]
) -> None:
    """A number becomes text: its column can't, so the table is parked until somebody puts another in its place."""
    outcome.freshness_seconds["before"] = freshness(process, database, probes)
    database.make_impossible(IMPOSSIBLE)
    wait_until(
        lambda: process.parked(IMPOSSIBLE) is not None or not process.is_running,
        f"{IMPOSSIBLE} was not parked",
        moving=length_of(process.log_path),
    )
    assert process.is_running, process.log_tail()
    parked = process.parked(IMPOSSIBLE)
    assert parked is not None
    outcome.parked = f"{parked.kind}: {parked.error}"
    say(f"parked: {outcome.parked}")
    outcome.freshness_seconds["while one is parked"] = freshness(process, database, probes)
    lakebed.open(process.path(IMPOSSIBLE)).alter(drop=["qty"], add={"qty": "string"})
    assert command(["resume", process.root, f"{database.schema}.{IMPOSSIBLE}"]) == 0
    database.change_all(IMPOSSIBLE)


def _signals(kafka: KafkaServer, database: ManyTables) -> tuple[dict[str, object], dict[str, str]]:
    """The settings of the connector, and of the pipeline's section, with which rows can be sent again over Kafka."""
    if not database.has_signals:
        return {}, {}
    topics = {f"{use}_topic": kafka.create_topic(f"{database.name}-{use}") for use in ("signal", "notification")}
    connector = {
        "signal.enabled.channels": "source,kafka",
        "signal.poll.interval.ms": 200,
        "signal.kafka.topic": topics["signal_topic"],
        "signal.kafka.bootstrap.servers": kafka.bootstrap,
        "notification.enabled.channels": "sink",
        "notification.sink.topic.name": topics["notification_topic"],
    }
    return connector, topics


def _have_rows_sent_again(process: DatabaseProcess, database: ManyTables) -> None:
    """Rows that lakebed has lost come back, also those of a table that clients change meanwhile."""
    for table in ("quiet_0", "hot_1"):
        lakebed.open(process.path(table)).delete("id <= 7")
    names = [f"{database.schema}.{table}" for table in ("quiet_0", "hot_1")]
    assert command(["source", "resnapshot", str(process.file), *names, "--wait"]) == 0


def freshness(process: DatabaseProcess, database: ManyTables, probes: int) -> float:
    """The median time in seconds from a row's insert to when a reader sees it, in quiet tables."""
    quiet = [table for table in database.tables if table.startswith("quiet_")][:probes]
    seconds = []
    for table in quiet:
        [[key]] = database.sql(f"insert into {table} (id) select max(id) + 1 from {table} returning id")[:1]
        began = time.monotonic()
        wait_until(
            partial(_is_there, process.path(table), int(key)),
            f"row {key} of {table} did not arrive",
            moving=length_of(process.log_path),
        )
        seconds.append(time.monotonic() - began)
    return statistics.median(seconds)


def _is_there(path: str, key: int) -> bool:
    return lakebed.open(path).lookup([{"id": key}]).num_rows == 1


def _compare(process: DatabaseProcess, database: ManyTables, outcome: Outcome) -> None:
    differences = []
    for name in [*database.tables, *BANK]:
        table = lakebed.open(process.path(name))
        with suppress(TableNotFound):
            aside = lakebed.open(f"{table.path}_quarantine").to_arrow()
            raise AssertionError(f"records of {name} are in the quarantine: {aside.slice(0, 3).to_pylist()}")
        here = set(database.columns(name))
        schema = pa.schema([column for column in table.schema if column.name in here])
        assert here == set(schema.names), f"{name} lacks {here - set(schema.names)}"
        expected = comparable(database.rows(name, schema), schema)
        for when in ("with a tail", "settled"):
            rows = comparable(table.to_arrow(schema.names), schema)
            missing, surplus = Counter(expected) - Counter(rows), Counter(rows) - Counter(expected)
            if missing or surplus:
                differences.append(
                    f"{name}, {when}: {missing.total()} rows are missing, e.g. {sorted(missing)[:1]}; {surplus.total()} are "
                    f"not the database's, e.g. {sorted(surplus)[:1]}"
                )
            table.settle()
        outcome.tables += 1
        outcome.rows += len(expected)
        outcome.versions += table.version
    assert not differences, "\n".join(differences)


def _compare_points(process: DatabaseProcess, schema: str, compared_max: int, outcome: Outcome) -> None:
    """At every point the bank's sums are what they must be; at versions that are chosen without points they need not be."""
    warehouse = lakebed.warehouse(process.root)
    numbers = process.points()
    for point in numbers[:: 1 + len(numbers) // compared_max]:
        with warehouse.at(point) as at:
            debits, credits, moved = (at.to_arrow(f"{schema}.{name}") for name in BANK)
            assert _is_whole(debits, credits, moved), f"point {point}: {_sums(debits, credits, moved)}"
        outcome.points += 1
    settled = warehouse.at(settled=True).settled_versions
    read = [_by_delta_rs(process.path(name), settled[f"{schema}.{name}"]) for name in BANK]
    assert _is_whole(*read), f"for delta-rs, at {settled}: {_sums(*read)}"
    tables = [lakebed.open(process.path(name)) for name in BANK]
    steps = min(30, *(table.version for table in tables))
    for step in range(1, steps + 1):  # each table as far as it was, measured by its versions
        read = [table.to_arrow(version=table.version * step // steps) for table in tables]
        outcome.torn_without_points += not _is_whole(*read)
        if step >= compared_max and outcome.torn_without_points:
            break


def _by_delta_rs(path: str, version: int) -> pa.Table:
    options = {"AWS_ALLOW_HTTP": "true"} if path.startswith("s3:") else None
    table = DeltaTable(path, version=version, storage_options=options)
    return pa.table(QueryBuilder().register("t", table).execute("select * from t"))


def _sums(debits: pa.Table, credits: pa.Table, transfers: pa.Table) -> tuple[int, int, int]:
    columns = (debits["balance"], credits["balance"], transfers["amount"])
    debited, credited, moved = (sum(column.to_pylist()) for column in columns)
    return debited, credited, moved


def _is_whole(debits: pa.Table, credits: pa.Table, transfers: pa.Table) -> bool:
    debited, credited, moved = _sums(debits, credits, transfers)
    return debited + moved == ACCOUNTS * BALANCE == credited - moved
