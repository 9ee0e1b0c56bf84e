"""Compares tables of a database's pipeline with the database, one after the other: ``lakebed verify SHOP.yml``.

The url says which database it is: ``mariadb://`` and ``mysql://`` are MariaDB's (``mariadb``), all others
PostgreSQL's (``postgres``).
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial

from lakebed.discovery import tables_below
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.health.sampler import quarantine_findings
from lakebed.log.snapshot import Snapshot
from lakebed.operations.references import hold
from lakebed.pipeline.database.resnapshot import Asking
from lakebed.pipeline.database_section import VerifySection
from lakebed.pipeline.settings import DatabasePipeline
from lakebed.pipeline.sources import kafka_settings
from lakebed.positions.positions import SEVERAL, positions_of, sources_of
from lakebed.positions.verified import Verified, note_verified
from lakebed.settings import TableSettings, suggest
from lakebed.table import internals_of
from lakebed.table import open as open_table
from lakebed.table.internals import Internals
from lakebed.verify.canonical import Column, LeftOut, Shape
from lakebed.verify.lake import LakeTable
from lakebed.verify.proof import Found, GoingOn, Progress, Proof, no_progress, written
from lakebed.verify.repair import Resending, repair
from lakebed.verify.report import Outcome, TableReport, position_text
from lakebed.verify.source import Connector, FrozenDatabase, Pace, SourceColumn, SourceDatabase

# -- Until the table has everything of its source up to a position ---------------------------------------------------------
#
# 1. The connector has confirmed the position: by its slot in PostgreSQL (``postgres.SlotConnector``), or by the offset that
#    Connect has stored (``stored_offsets``). So every event of a transaction that committed below the position is in a topic.
# 2. The ends of the table's topic are taken after that, so they are behind all of these events.
# 3. The table has read up to these ends, by the positions in its own log (invariant M6).
#
# None of these steps rests on a clock, on the order of arrival, or on what the pipeline says of itself. A quiet database writes
# nothing that the connector could confirm: after a moment it is nudged, if there is a way that changes nothing and is not
# refused.


PAUSE_SECONDS, QUIET_SECONDS = 0.25, 2.0


@dataclass(slots=True, kw_only=True)
class Reaching:
    """Waits for one table."""

    table: str
    topic: str
    connector: Connector
    ends: Callable[[], Mapping[int, int]]  # the next offset of each partition of the topic
    newest: Callable[[], Snapshot]  # the table's newest version
    wait_seconds: float
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def reach(self, position: int) -> Snapshot:
        """A version that has everything up to a position. Raises Retry after ``wait_seconds`` without one."""
        self._confirm(position)
        ends = self.ends()
        until = self.clock() + self.wait_seconds
        while True:
            snapshot = self.newest()
            found = positions_of(snapshot).get(self.topic)
            offsets = found.offsets if found else {}
            behind = {number: end for number, end in ends.items() if offsets.get(number, 0) < end}
            if not behind:
                return snapshot
            if self.clock() >= until:
                number, end = next(iter(behind.items()))
                raise Retry(
                    f"{self.table} has read partition {number} of {self.topic} up to offset {offsets.get(number, 0):,}, "
                    f"and {end:,} is needed: does its pipeline run, and is the table not parked (lakebed status)?"
                )
            self.sleep(PAUSE_SECONDS)

    def _confirm(self, position: int) -> None:
        begun = said = self.clock()
        while why := self.connector.missing(position):
            now = self.clock()
            if now - begun >= self.wait_seconds:
                raise Retry(why)
            if now - said >= QUIET_SECONDS:
                said = now
                with suppress(InvalidInput):
                    self.connector.nudge()
            self.sleep(PAUSE_SECONDS)


_NAME = re.compile(r'"(?P<quoted>(?:[^"]|"(?!\.|$))*)"(?=\.|$)|(?P<plain>[^.]+)')


class Databases:
    """The tables of one pipeline and their database."""

    def __init__(
        self,
        pipeline: DatabasePipeline,
        progress: Progress = no_progress,
        *,
        repairs: bool = False,
        sleep: Callable[[float], None] = time.sleep,
        closed_seconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """``repairs``: whether what differs is mended; ``closed_seconds``: how long the database may not be read from now on.

        Raises InvalidInput if the file does not say where the database is, or to repair, how its connector is asked;
        MissingPrerequisite, Retry.
        """
        self._pipeline = pipeline
        self._section = section = require_section(pipeline)
        self._progress = progress
        self._kafka = kafka_settings(pipeline.source)
        self._asking = _asking(pipeline) if repairs else None
        self._sleep = sleep
        self._pace = Pace(section.rows_per_second or math.inf, sleep=sleep, closed_seconds=closed_seconds)
        self._database, self._connector = (self._of_mariadb if _is_of_mariadb(section.url) else self._of_postgres)()
        self._frozen: FrozenDatabase | None = None
        self._versions: dict[str, Snapshot | LakebedError] = {}  # the ones that are compared with it
        self._holds = ExitStack()

    def close(self) -> None:
        """Let go of the database."""
        self._holds.close()
        self._connector.close()
        self._database.close()

    def freeze(self, tables: Mapping[str, str]) -> None:
        """Compare these tables, by their names and roots, at one position: that of now.

        Of each the first version is kept that is found to have everything up to it. Raises Retry, InvalidInput.
        """
        seconds = self._section.snapshot_minutes * 60
        self._progress("waiting for a snapshot of the database", None, None)
        self._frozen = frozen = self._database.frozen(seconds)
        self._holds.callback(frozen.close)
        for name, root in tables.items():
            try:
                internals = internals_of(open_table(root))
                newest = internals.log.refresh()
                if (topic := topic_of(newest)) is None or not newest.settings.keys:
                    continue  # it will not be compared
                self._progress(f"waiting for {name}", None, None)
                snapshot = self._reaching(name, topic, internals).reach(frozen.position())
                self._versions[name] = snapshot
                written(root, partial(self._hold, internals, snapshot.version, seconds))
            except LakebedError as error:
                self._versions[name] = error

    def _hold(self, internals: Internals, version: int, seconds: float) -> None:
        self._holds.enter_context(hold(internals.log, version, seconds))

    def _reaching(self, name: str, topic: str, internals: Internals) -> Reaching:
        return Reaching(
            table=name,
            topic=topic,
            connector=self._connector,
            ends=_ends(self._kafka, topic),
            newest=internals.log.refresh,
            wait_seconds=self._section.wait_seconds,
            sleep=self._sleep,
        )

    def verify(self, name: str, root: str) -> TableReport:
        """Compare one table, and write what that has shown into its log. Raises Retry, InvalidInput, Corrupt, Contention."""
        internals = internals_of(open_table(root))
        snapshot = internals.log.refresh()
        topic = topic_of(snapshot)
        if topic is None:
            return left_out(name, "it has not read one topic, so what it has to have is not known")
        names = source_of(snapshot, topic, name)
        shape = shape_of(self._database.columns(*names), snapshot)
        if isinstance(shape, LeftOut):
            return left_out(name, shape.reason)
        reach = self._reaching(name, topic, internals).reach
        source = self._database.table(*names, shape)
        frozen = self._frozen
        going_on = GoingOn(internals.log, shape, repr((self._database.name(), *names)), is_on=frozen is None)
        with closing(LakeTable(internals, shape, self._at_once(name, reach))) as lake:
            proof = Proof(
                shape,
                source,
                lake,
                self._pace,
                scan=frozen.table(*names, shape) if frozen else None,
                progress=self._progress,
                checkpoint=going_on.take,
            )
            found = proof.run(*going_on.begin(snapshot))
            report = report_of(name, shape, found, lake.version, internals, going_on.seconds)
            report = replace(report, log_files=self._database.log_files, is_of_snapshot=frozen is not None)
            if self._asking is not None and found.differing:
                send = Resending(
                    asking=self._asking,
                    table=name,
                    log=internals.log,
                    condition=source.condition,
                    wait_seconds=self._section.wait_seconds,
                    tell=lambda text: self._progress(text, None, None),
                    sleep=self._sleep,
                )
                repaired = repair(list(found.differing), proof, internals, shape, internals.log.refresh, send)
                repaired.error = self._pipeline.document.redact(repaired.error)
                report = report.mended(repaired)
            written(internals.path, lambda: note_verified(internals.log, verified_by(report)))
            return report

    def _at_once(self, name: str, reach: Callable[[int], Snapshot]) -> Callable[[int], Snapshot]:
        """The same as ``reach``, but for the position at which the database is frozen."""
        frozen, known = self._frozen, self._versions.get(name)

        def wait(position: int) -> Snapshot:
            if frozen is None or position != frozen.position() or known is None:
                return reach(position)
            if isinstance(known, LakebedError):
                raise known
            return known

        return wait

    def _of_postgres(self) -> tuple[SourceDatabase, Connector]:
        from lakebed.verify.postgres import Database, SlotConnector

        for name in ("offsets_topic", "connector"):
            if getattr(self._section, name) is not None:
                raise self._wrong(f"{name} is for MariaDB and MySQL; PostgreSQL has slot")
        database = Database(self._section.url)
        with _closed_on_error(database):
            return database, SlotConnector(database, self._chosen_slot(database.slots()))

    def _chosen_slot(self, slots: Mapping[str, int]) -> str:
        if self._section.slot is not None:
            if self._section.slot not in slots:
                raise self._wrong(
                    f"slot: the database has no slot {self._section.slot}{suggest(self._section.slot, slots)}"
                )
            return self._section.slot
        if len(slots) != 1:
            what = f"the slots {', '.join(sorted(slots))}" if slots else "no slot for logical decoding"
            raise self._wrong(f"the database has {what}; set slot to the connector's slot.name")
        return next(iter(slots))

    def _of_mariadb(self) -> tuple[SourceDatabase, Connector]:
        from lakebed.verify.mariadb import Database
        from lakebed.verify.stored_offsets import BinlogConnector, StoredOffsets

        topic, prefix = self._section.offsets_topic, self._pipeline.naming.prefix
        if self._section.slot is not None:
            raise self._wrong("slot is for PostgreSQL; MariaDB and MySQL have offsets_topic")
        if topic is None:
            raise self._wrong("offsets_topic is missing; set it to the offset.storage.topic of the connector's worker")
        if not prefix:
            raise self._wrong("the connector's topic.prefix is not known; set database.topic_prefix")
        stored = StoredOffsets(self._kafka, topic, prefix)
        database = Database(self._section.url)
        return database, BinlogConnector(
            log=database, stored=stored, topic=topic, prefix=prefix, name=self._section.connector
        )

    def _wrong(self, text: str) -> InvalidInput:
        document = self._pipeline.document
        return document.error(document.at("database", "verify"), text)


def _is_of_mariadb(url: str) -> bool:
    return url.partition(":")[0].lower() in ("mariadb", "mysql")


@contextmanager
def _closed_on_error(database: SourceDatabase) -> Iterator[None]:
    try:
        yield
    except BaseException:
        database.close()
        raise


def verified(
    pipeline: DatabasePipeline,
    names: Sequence[str] = (),
    progress: Progress = no_progress,
    failed: Callable[[str, LakebedError], None] | None = None,
    *,
    repairs: bool = False,
    at_once: bool = False,
) -> Iterator[TableReport]:
    """Compare tables, by default all; each report comes as soon as it is known.

    ``failed``: is told of a table that can't be compared, and the others are; without it the error is raised. ``repairs``:
    whether what differs is mended. ``at_once``: whether all are compared at one position.
    """
    tables = chosen_tables(pipeline, names)
    with closing(Databases(pipeline, progress, repairs=repairs)) as databases:
        if at_once:
            databases.freeze(tables)
        for name, root in tables.items():
            try:
                yield databases.verify(name, root)
            except LakebedError as error:
                if failed is None:
                    raise
                failed(name, error)


def require_section(pipeline: DatabasePipeline) -> VerifySection:
    """What the file says of its database. Raises InvalidInput if it says nothing."""
    if pipeline.database.verify is None:
        raise pipeline.document.error(
            pipeline.document.at("database"),
            "verify is missing; set verify: {url: …} to the address of the database",
        )
    return pipeline.database.verify


def chosen_tables(pipeline: DatabasePipeline, names: Sequence[str] = ()) -> dict[str, str]:
    """The roots of the tables that are meant, by name. Raises InvalidInput for one that is not there."""
    found = tables_below(pipeline.path)
    for name in names:
        if name not in found:
            raise InvalidInput(f"there is no table {name} below {pipeline.path}{suggest(name, found)}")
    return {name: root for name, root in found.items() if not names or name in names}


def report_of(name: str, shape: Shape, found: Found, version: int, internals: Internals, seconds: float) -> TableReport:
    """What a comparison has shown of a table."""
    outcome: Outcome = "differs" if found.differing_keys else "unsettled" if found.unsettled else "equal"
    aside, _ = quarantine_findings(internals.storage.root, internals.path)
    return TableReport(
        table=name,
        outcome=outcome,
        version=version,
        rows=found.rows.rows,
        buckets=found.buckets,
        differing_buckets=found.differing_buckets,
        keys=found.keys,
        rounds=found.rounds,
        differences=found.differing_keys,
        shown=tuple(found.differences),
        is_cut=found.is_cut,
        unsettled=len(found.unsettled),
        left_out=shape.left_out,
        quarantined=aside,
        first_position=found.first_position,
        last_position=found.last_position,
        time_ms=internals.log.now_ms(),
        seconds=seconds,
        digest=f"{found.rows.rows}-{found.rows.sum % (1 << 60):015x}",
    )


def shape_of(source: Sequence[SourceColumn], snapshot: Snapshot) -> Shape | LeftOut:
    """What of a table is compared with the source, or why nothing is. Pure."""
    if not snapshot.settings.keys:
        return LeftOut(reason="it has no keys, so its rows can't be told apart")
    if (reason := never_equal(snapshot.settings)) is not None:
        return LeftOut(reason=reason)
    aggregated = {one.column: one.function for one in snapshot.logical_settings.aggregates}
    exact, any_case = {each.name: each for each in source}, {each.name.lower(): each for each in source}
    columns: dict[str, Column] = {}
    left_out: dict[str, str] = {}
    for field in snapshot.logical_schema:
        found = exact.get(field.name) or any_case.get(field.name.lower())
        if found is None:
            left_out[field.name] = "the source does not have it"
            continue
        if found.is_generated:
            left_out[field.name] = "it is generated, and Debezium leaves such columns out of changes"
            continue
        if field.name in aggregated:
            left_out[field.name] = f"it is an aggregate ({aggregated[field.name]}) of all events of a row"
            continue
        rule = found.type.rule(field.type)
        if isinstance(rule, LeftOut):
            left_out[field.name] = rule.reason
        else:
            columns[field.name] = Column(name=field.name, source_name=found.name, kind=found.shown, rule=rule)
    have = {each.source_name for each in columns.values()} | {name.lower() for name in left_out}
    for each in source:
        if each.name not in have and each.name.lower() not in have and not each.is_generated:
            left_out[each.name] = "the table does not have it"
    for key in snapshot.logical_settings.keys:
        if key not in columns or columns[key].rule.of_key is None:
            why = left_out.get(key) or f"{columns[key].kind} can't be a key here"
            return LeftOut(reason=f"its key {key} can't be compared: {why}")
    keys = tuple(columns[key] for key in snapshot.logical_settings.keys)
    ordered = all(each.rule.of_key is not None and each.rule.of_key.order is not None for each in keys)
    return Shape(keys=keys, columns=tuple(columns.values()), left_out=left_out, is_ordered=ordered)


def never_equal(settings: TableSettings) -> str | None:
    """Why a table with these settings has other rows than its source, if it does. Pure."""
    if settings.ttl is not None:
        return f"its rows expire (lakebed.ttl is {settings.ttl}), so it need not have all of the source's"
    if settings.keep != "last":
        return f"it keeps the {settings.keep} row of a key (lakebed.keep), and the source has the last one"
    return None


def source_name(text: str) -> tuple[str, str]:
    """The schema and the table of a name as Debezium's events have it, parts in quotes where they have dots."""
    parts = [found["quoted"] if found["quoted"] is not None else found["plain"] for found in _NAME.finditer(text)]
    return ("public", parts[0]) if len(parts) == 1 else (parts[-2], parts[-1])


def verified_by(report: TableReport) -> Verified:
    """What a report says, for the table's log. Pure."""
    repaired = None if report.is_cut else report.repaired  # if it is cut, others may differ as those did
    position = report.position if repaired is None else repaired.last_position
    return Verified(
        time_ms=report.time_ms or 0,
        outcome="differs" if report.outcome == "differs" else "unsettled" if report.unsettled else "equal",
        position=position_text(position, report.log_files),
        version=report.version if report.version is not None else -1,
        rows=report.rows,
        differing=report.differences if repaired is None else repaired.left,
        unsettled=report.unsettled,
        left_out=len(report.left_out),
        seconds=report.seconds,
        digest=report.digest,
    )


def topic_of(snapshot: Snapshot) -> str | None:
    """The topic that a table is read from; None if there is not one."""
    topics = list(positions_of(snapshot))
    return topics[0] if len(topics) == 1 else None


def source_of(snapshot: Snapshot, topic: str, name: str) -> tuple[str, str]:
    """The schema and the table that a table of this name is made from; a topic's name may not have all of their characters."""
    said = sources_of(snapshot.settings, positions_of(snapshot)).get(topic)
    return source_name(said if said and said != SEVERAL else name)


def _ends(settings: object, topic: str) -> Callable[[], Mapping[int, int]]:
    from lakebed.sources.kafka.cluster import KafkaCluster
    from lakebed.sources.kafka.settings import KafkaSettings

    assert isinstance(settings, KafkaSettings)
    cluster = KafkaCluster(replace(settings, topics=(topic,), topic_pattern=None, starting_offsets="earliest"))

    def ends() -> Mapping[int, int]:
        partitions, _ = cluster.look()
        return {number: end for (_, number), end in cluster.latest(partitions).items()}

    return ends


def _asking(pipeline: DatabasePipeline) -> Asking:
    asking = Asking(pipeline)
    asking.check_waits()
    return asking


def left_out(name: str, reason: str) -> TableReport:
    """The report of a table that is not compared."""
    return TableReport(table=name, outcome="left out", reason=reason)
