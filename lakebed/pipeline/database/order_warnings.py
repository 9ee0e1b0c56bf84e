"""What ``validate`` says of a table whose source goes on at lower positions than before, or whose rows are wrong until they are
sent again.

A table that is there says so in its log (``positions.remarks``). What it has not read yet is looked at as well: the newest
records of its topics are decoded and compared with what it has (``lateness``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lakebed.decode.decoder import Decoder
from lakebed.errors import LakebedError
from lakebed.lateness import Lateness, lateness
from lakebed.log.snapshot import Snapshot
from lakebed.pipeline.file.settings import KafkaSection, Pipeline
from lakebed.pipeline.sources import kafka_settings, open_decoder
from lakebed.positions.remarks import wrong_rows
from lakebed.positions.truncates import cutoff_of
from lakebed.remarks import KINDS, Remark
from lakebed.sources.source import Place, Range, RangeReader
from lakebed.table import Table, internals_of

RECENT = 20
"""So many of the newest offsets of a partition are looked at: not all of them need have a record."""


def warnings_of(snapshot: Snapshot) -> Iterator[str]:
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
            for records in reader.read(Range(topic, partition, max(0, end - RECENT), end)):
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
    yield from warnings_of(snapshot)
    if connect and isinstance(pipeline.source, KafkaSection):
        from lakebed.sources.kafka.cluster import KafkaCluster
        from lakebed.sources.kafka.source import KafkaReader

        settings = kafka_settings(pipeline.source)
        cluster = KafkaCluster(settings)
        ends = cluster.latest(cluster.look()[0])
        yield from warnings_of_topics(snapshot, open_decoder(pipeline, table), KafkaReader(settings).impatient(), ends)
