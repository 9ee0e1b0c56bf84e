"""Compares a table with the records of its topic: ``lakebed verify SHOP.yml --topics``. No database is asked.

1. The table is taken at one version, whose log says up to which offset of each partition it has read its topic.
2. All records up to there are read once more, from the beginning, into a table in a temporary folder of this host: as a pipeline
   does it, in this process.
3. The two tables are compared (``tables``). Both have read the same records, so nothing is waited for.

The topic must have at least the newest record of each key: all records, or it is compacted. What was changed in the table
by hand differs, and so does what a pipeline with other settings has made of the records.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from lakebed.discovery import TableName
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.ingest.table_batch import TableIngest, is_another, run_alone, run_here
from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.entries import ORDER_RESTARTS, Operation
from lakebed.log.snapshot import Snapshot
from lakebed.pipeline.database.introducer import Introduced, ingest_of
from lakebed.pipeline.file.settings import DatabasePipeline
from lakebed.pipeline.sources import kafka_settings
from lakebed.positions.positions import positions_of
from lakebed.settings import creatable
from lakebed.sources.kafka.cluster import cleanup_policy_of
from lakebed.sources.kafka.database_source import KafkaDatabaseReader
from lakebed.sources.kafka.settings import KafkaSettings
from lakebed.sources.source import Range
from lakebed.table import Table, create, internals_of
from lakebed.table import open as open_table
from lakebed.verify.databases import chosen_tables, left_out, never_equal, topic_of
from lakebed.verify.duck import TableRelation
from lakebed.verify.proof import Progress, no_progress
from lakebed.verify.report import TableReport
from lakebed.verify.tables import compared

BATCH_RECORDS = 500_000


def verified_by_topics(
    pipeline: DatabasePipeline,
    names: Sequence[str] = (),
    progress: Progress = no_progress,
    failed: Callable[[str, LakebedError], None] | None = None,
) -> Iterator[TableReport]:
    """Compare tables, by default all, with the records of their topics; each report comes as soon as it is known.

    ``failed``: is told of a table that can't be compared, and the others are; without it the error is raised.
    """
    for name, root in chosen_tables(pipeline, names).items():
        try:
            yield _verify(pipeline, name, root, progress)
        except LakebedError as error:
            if failed is None:
                raise
            failed(name, error)


def _verify(pipeline: DatabasePipeline, name: str, root: str, progress: Progress) -> TableReport:
    table = open_table(root)
    snapshot = internals_of(table).log.refresh()
    topic = topic_of(snapshot)
    if topic is None:
        return left_out(name, "it has not read one topic, so which records it has to have is not known")
    if snapshot.settings.ttl is not None:
        return left_out(name, never_equal(snapshot.settings) or "")
    if not snapshot.settings.keys:
        return left_out(name, "it has no keys, so its rows can't be told apart")
    began = time.monotonic()
    settings = replace(kafka_settings(pipeline.source), topics=(topic,), topic_pattern=None)
    ranges = _ranges(settings, topic, snapshot)
    with tempfile.TemporaryDirectory(prefix="lakebed-verify-") as folder:
        copied = _copy(f"{folder}/copy", snapshot)
        wishes = pipeline.database.wishes_for(name)
        introduced = Introduced(TableName(name), copied, wishes)
        ingest = ingest_of(pipeline, topic, introduced, KafkaDatabaseReader(settings))
        _read(ingest, ranges, progress)
        copy = internals_of(copied)
        newest = copy.log.refresh()
        relation = TableRelation(copy, newest)
        report = compared(name, internals_of(table), snapshot, relation, newest.logical_schema, progress=progress)
    return replace(report, source=f"the records of {topic}", seconds=time.monotonic() - began)


def _ranges(settings: KafkaSettings, topic: str, snapshot: Snapshot) -> list[Range]:
    """All records that the table has read. Raises InvalidInput if the topic does not have the newest one of each key."""
    position = positions_of(snapshot)[topic]
    places = [(topic, number) for number in position.offsets]
    bounds = KafkaDatabaseReader(settings).bounds(places)
    out = []
    for place in places:
        found, end = bounds.get(place), position.offsets[place[1]]
        if found is None or (found.end or 0) < end or is_another(position.topic_id, found.topic_id):
            raise InvalidInput(f"the topic {topic} is not the one any more that the table was read from")
        out.append(Range(*place, min(found.earliest, end), end, topic_id=found.topic_id, is_first=True))
    if any(one.start for one in out) and "compact" not in (policy := cleanup_policy_of(settings, topic)):
        raise InvalidInput(
            f"the oldest records of {topic} are gone, and it is not compacted (its cleanup.policy is {policy}): it does not have "
            "the newest record of each key"
        )
    return out


def _copy(path: str, snapshot: Snapshot) -> Table:
    """An empty table which makes of the same records the same rows.

    Columns that were renamed in the table are so in the copy, since records have their first names.
    """
    settings = snapshot.settings
    properties = creatable(snapshot.metadata.configuration)
    names = dict(zip(snapshot.schema.names, snapshot.logical_schema.names, strict=True))
    schema = pa.schema([field.with_name(first) for first, field in zip(names, snapshot.logical_schema, strict=True)])
    table = create(path, schema, settings.keys, sequence_by=settings.sequence_by, properties=properties)
    if renamed := {first: name for first, name in names.items() if first != name}:
        table.alter(rename=renamed)
    if (restarts := snapshot.domains.get(ORDER_RESTARTS)) is not None:
        entry = Domain(ORDER_RESTARTS, restarts)
        commit_loop(
            internals_of(table).log,
            Operation.RESTART_ORDER,
            lambda _: Proposal(actions=[entry], result=lambda _: None),
        )
    return table


def _read(ingest: TableIngest, ranges: Sequence[Range], progress: Progress) -> None:
    """Read all of the ranges, in batches. Raises Retry if the source gives no more."""
    whole = sum(one.size for one in ranges)
    left = whole
    while left:
        progress("offsets read", whole - left, whole)
        done = run_alone(ingest.batch(ranges, records_max=BATCH_RECORDS), run_here)
        if done.left >= left or done.gone:
            raise Retry(f"kafka gives no more records of {ranges[0].topic}")
        left = done.left
