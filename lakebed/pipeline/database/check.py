"""The check of a pipeline file of a database: its settings, places, source and order, what its topics become, and its cost.

A run refuses what is wrong with the file or with what all tables need. What is wrong with one table stops that table alone, so
``validate`` says it, and a run goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.compaction.maintenance import LOOK_SECONDS
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.discovery import NoTable, TableName
from lakebed.errors import InvalidInput, LakebedError, MissingPrerequisite
from lakebed.lateness import Lateness, lateness
from lakebed.log.snapshot import Snapshot
from lakebed.pipeline.database.introducer import Expected, Introduced, Introducer, NotYet, decoder_of
from lakebed.pipeline.document import Findings
from lakebed.pipeline.places import check_kafka, check_places, check_registry, check_stores, checkpoint_of
from lakebed.pipeline.sections import KafkaSection
from lakebed.pipeline.settings import DatabasePipeline, Pipeline, decoder_options
from lakebed.pipeline.sources import kafka_settings, open_decoder
from lakebed.positions.remarks import wrong_rows
from lakebed.positions.truncates import cutoff_of
from lakebed.remarks import KINDS, Remark
from lakebed.settings import read_settings
from lakebed.sources.source import BATCH_SECONDS, HOT_RECORDS, Place, Range, RangeReader
from lakebed.table import Table, internals_of

if TYPE_CHECKING:
    from lakebed.sources.kafka.settings import KafkaSettings


# -- What the requests to a store cost that keep a database fresh ----------------------------------------------------------
#
# 1.  A table's next batch begins when its oldest unread record is ``max_age_seconds`` old, or when so many are unread that a
#    batch
#     is worth its cost (``HOT_RECORDS``), but never sooner than the pace of batches. So the time from one batch to the next
#     follows from how many records come.
# 2.  A batch is a commit, and mostly a settle follows it. Both together take the requests that docs/guides/s3.md counts. Merges
#     come on top: they depend on the bytes, not on the number of tables, and most of them stay on the local disk.
# 3.  A table into which nothing comes is looked at after the longest of ``LOOK_SECONDS``, as another process may write to it.


_DAY_SECONDS = 86_400.0
PUTS_PER_BATCH = 3
"""A part, the version of the commit, and that of the settle."""
GETS_PER_BATCH = 4
"""One before and one after each of them."""
PUTS_PER_PUBLICATION = 10
"""Of Iceberg's metadata: the mean, rounded up, of a table of 10,000 parts into which changes come (``benchmarks.iceberg``)."""


@dataclass(frozen=True, slots=True)
class Bill:
    """Of a day. ``dollars``: for the requests alone, neither storage nor traffic."""

    commits: float
    puts: float
    gets: float
    dollars: float
    iceberg_dollars: float = 0.0
    """Of them for Iceberg's metadata."""


def batches_a_day(records: float, max_age_seconds: float, batch_seconds: float) -> float:
    """The batches of a table that gets ``records`` a day at an even rate."""
    if records <= 0:
        return 0.0
    between = _DAY_SECONDS / records
    oldest = max_age_seconds + between
    return _DAY_SECONDS / max(batch_seconds, between, min(oldest, HOT_RECORDS * between))


def publications_a_day(batches: float, properties: Mapping[str, str]) -> float:
    """How often Iceberg's metadata is written of a table with these properties and so many batches a day; 0 if it is off."""
    settings = read_settings(properties)
    return min(batches, _DAY_SECONDS / max(1, settings.iceberg_seconds)) if settings.iceberg else 0.0


def bill(batches: Iterable[float], puts_price: float, gets_price: float, publications: float = 0.0) -> Bill:
    """``batches``: of each table a day; prices: of 1,000 requests; ``publications`` of all tables together a day."""
    each = list(batches)
    total = sum(each)
    looks = sum(max(0.0, _DAY_SECONDS / max(LOOK_SECONDS) - one) for one in each)
    of_iceberg = publications * PUTS_PER_PUBLICATION
    puts, gets = total * PUTS_PER_BATCH + of_iceberg, total * GETS_PER_BATCH + looks
    dollars = puts / 1000 * puts_price + gets / 1000 * gets_price
    return Bill(2 * total, puts, gets, dollars, of_iceberg / 1000 * puts_price)


# -- What ``validate`` says of a table whose source goes on at lower positions, or whose rows wait to be sent again --------
#
# A table that is there says so in its log (``positions.remarks``). What it has not read yet is looked at as well: the newest
# records of its topics are decoded and compared with what it has (``lateness``).


_RECENT = 20  # how many of the newest offsets of a partition are looked at; not all of them need have a record


def _warnings_of(snapshot: Snapshot) -> Iterator[str]:
    """What the log of a table says of rows that are wrong until they are sent again."""
    for kind, what in wrong_rows(snapshot).items():
        yield f"{what}. What to do: {KINDS[kind].remedy}"


def warnings_of_topics(
    snapshot: Snapshot, decoder: Decoder, reader: RangeReader, ends: Mapping[Place, int]
) -> Iterator[str]:
    """What the newest records of topics say. ``ends``: the next offset of each partition. What can't be read says nothing."""
    cutoff = cutoff_of(snapshot)
    for (topic, partition), end in ends.items():
        if (topic, partition) not in cutoff.newest:
            continue
        try:
            for records in reader.read(Range(topic, partition, max(0, end - _RECENT), end)):
                decoded = decoder.decode(records, cutoff)
                is_lower = lateness(decoded.newest, cutoff.newest) is Lateness.LOWER
                if is_lower or Remark.ORDER_BEGAN_AGAIN in decoded.remarks:
                    meaning = KINDS[Remark.ORDER_BEGAN_AGAIN]
                    yield f"the newest records of {topic}: {meaning.what}. What to do: {meaning.remedy}"
                    return
        except LakebedError:
            continue


def warnings_of_pipeline(pipeline: Pipeline, table: Table, *, connect: bool) -> Iterator[str]:
    """For the table of a pipeline. ``connect``: ask brokers for the newest records. Raises LakebedError if they do not answer."""
    snapshot = internals_of(table).log.refresh()
    yield from _warnings_of(snapshot)
    if connect and isinstance(pipeline.source, KafkaSection):
        from lakebed.sources.kafka.cluster import KafkaCluster
        from lakebed.sources.kafka.source import KafkaReader

        settings = kafka_settings(pipeline.source)
        cluster = KafkaCluster(settings)
        ends = cluster.latest(cluster.look()[0])
        yield from warnings_of_topics(snapshot, open_decoder(pipeline, table), KafkaReader(settings).impatient(), ends)


# -- The check -------------------------------------------------------------------------------------------------------------


_FIRST_RECORDS = 200  # how many records of a partition are read to know what its topic becomes
_READERS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSeen:
    """What a topic is or becomes. ``records``: of the last 24 hours; ``warnings``: what is wrong with its rows, or will be."""

    topic: str
    records: int
    found: Introduced | Expected | NoTable | NotYet | LakebedError
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDatabase:
    """``topics``: those that the source has; empty without ``topics``."""

    notes: tuple[str, ...]
    topics: tuple[TopicSeen, ...] = ()


def check_database(pipeline: DatabasePipeline, *, connect: bool = False, topics: bool = False) -> CheckedDatabase:
    """Raises one error that lists all that is wrong: InvalidInput, if any of it is; else what the first one is.

    ``connect``: ask brokers, registry and stores. ``topics``: also ask what each topic becomes. Nothing is written.
    """
    findings = Findings(pipeline.document)
    check_places(pipeline, findings)
    if connect:
        check_stores(pipeline, findings)
    with findings.within("format", pipeline.format):
        decoder(pipeline.format_kind, DecoderSchema(pa.schema([])), decoder_options(pipeline))
    settings = None
    with findings.within("source", pipeline.source):
        settings = _kafka_settings(pipeline, findings)
    if connect and settings is not None and not findings.errors:
        check_kafka(pipeline.source, settings, checkpoint_of(pipeline), findings)
        if not findings.errors:
            _check_transactions(pipeline, settings, findings)
    check_registry(pipeline, findings, connect)
    findings.raise_if_any()
    seen: tuple[TopicSeen, ...] = ()
    if connect and topics and settings is not None:
        seen = _topics(pipeline, settings)
    return CheckedDatabase(notes=tuple(findings.notes), topics=seen)


def bill_of(pipeline: DatabasePipeline, topics: tuple[TopicSeen, ...]) -> tuple[Bill, dict[TableName, float]]:
    """What a day like the last one costs, and how often each table commits a batch."""
    batches = {
        one.found.name: batches_a_day(
            one.records, _pace_of(pipeline, one.found.name), pipeline.trigger_seconds or BATCH_SECONDS
        )
        for one in topics
        if isinstance(one.found, Introduced | Expected)
    }
    section = pipeline.database
    publications = sum(
        publications_a_day(often, section.wishes_for(str(name)).properties) for name, often in batches.items()
    )
    return bill(batches.values(), section.prices.puts, section.prices.gets, publications), batches


def _pace_of(pipeline: DatabasePipeline, name: TableName) -> float:
    """How long a record waits for others of its table, in seconds."""
    section = pipeline.database
    pace = section.wishes_for(str(name)).max_age_seconds
    return min(pace, section.points.interval_seconds) if section.points else pace


def _kafka_settings(pipeline: DatabasePipeline, findings: Findings) -> KafkaSettings:
    try:
        from lakebed.sources.kafka.settings import KafkaSettings, refused_settings
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise MissingPrerequisite("the source kafka needs confluent-kafka: pip install 'lakebed[kafka]'") from None
    section = pipeline.source
    settings = KafkaSettings(**{name: getattr(section, name) for name in type(section).__slots__})
    for name, why in refused_settings(settings).items():
        findings.wrong(why, "source", "config", name)
    return settings


# -- topics ------------------------------------------------------------------------------------------------------------


def _topics(pipeline: DatabasePipeline, settings: KafkaSettings) -> tuple[TopicSeen, ...]:
    from lakebed.sources.kafka.cluster import KafkaCluster
    from lakebed.sources.kafka.source import KafkaReader

    cluster = KafkaCluster(settings)
    partitions, _ = cluster.look()
    first, last = cluster.earliest(partitions), cluster.latest(partitions)
    records = _records_of_a_day(settings, partitions, last)
    ranges: dict[str, list[Range]] = {}
    for topic, partition in partitions:
        start, end = first[topic, partition], last[topic, partition]
        ranges.setdefault(topic, []).append(Range(topic, partition, start, min(end, start + _FIRST_RECORDS)))
    reader = KafkaReader(settings)
    introducer = Introducer(pipeline, reader)

    def look(topic: str) -> TopicSeen:
        found: Introduced | Expected | NoTable | NotYet | LakebedError
        warnings: tuple[str, ...] = ()
        try:
            found = introducer.expected(topic, ranges[topic])
            if isinstance(found, Introduced):
                ends = {place: end for place, end in last.items() if place[0] == topic}
                warnings = _warnings_of_table(pipeline, found, reader.impatient(), ends)
        except LakebedError as error:
            found = error
        return TopicSeen(topic=topic, records=records[topic], found=found, warnings=warnings)

    with ThreadPoolExecutor(_READERS) as pool:
        return tuple(pool.map(look, sorted(ranges)))


def _warnings_of_table(
    pipeline: DatabasePipeline, found: Introduced, reader: RangeReader, ends: Mapping[Place, int]
) -> tuple[str, ...]:
    """What is wrong with the rows of a table that is there, or will be when it has read its topic to these ends."""
    snapshot = internals_of(found.table).log.refresh()
    decoder = decoder_of(pipeline, found.table)
    return (*_warnings_of(snapshot), *warnings_of_topics(snapshot, decoder, reader, ends))


def _records_of_a_day(
    settings: KafkaSettings, partitions: list[tuple[str, int]], last: Mapping[tuple[str, int], int]
) -> Counter[str]:
    """By topic: the offsets of the last 24 hours."""
    from lakebed.sources.kafka.cluster import KafkaCluster

    since = {"timestamp": int((time.time() - _DAY_SECONDS) * 1000)}
    before = KafkaCluster(replace(settings, starting_offsets=since)).starting(partitions)
    records = Counter[str]()
    for topic, partition in partitions:
        records[topic] += last[topic, partition] - before[topic, partition]
    return records


def _check_transactions(pipeline: DatabasePipeline, settings: KafkaSettings, findings: Findings) -> None:
    """The topic of transactions is there, in one partition."""
    from lakebed.sources.kafka.cluster import KafkaCluster

    points = pipeline.database.points
    if points is None:
        return
    topic = points.transaction_topic
    try:
        partitions, _ = KafkaCluster(replace(settings, topics=(topic,), topic_pattern=None)).look()
    except InvalidInput:
        findings.note(
            f"there is no topic {topic} yet, so there are no points; the connector makes it with provide.transaction.metadata"
        )
        return
    if len(partitions) > 1:
        findings.wrong(
            f"the topic {topic} has {len(partitions)} partitions, so its transactions have no order; create it again with one",
            "database",
            "points",
            "transaction_topic",
        )
