"""The floor: Spark's Kafka source and Delta's own streaming sink, which keeps every event and resolves nothing.

What it leaves behind is not the table. A trigger follows when the last batch is done, Spark's default.
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.kafka_peers.delta import DeltaStream
from benchmarks.kafka_peers.stream import changes, records


class Append(DeltaStream):
    resolves = False

    @property
    def settings(self) -> Mapping[str, str]:
        return {
            "write": "from_json, writeStream.format('delta')",
            "maxOffsetsPerTrigger": str(self._feed.batch_records),
        }

    def start(self, topic: str) -> None:
        events = changes(records(self._spark, self._feed, topic))
        query = (
            events.writeStream.format("delta")
            .option("checkpointLocation", self._checkpoint)
            .trigger(processingTime="0 seconds")
            .start(self._path)
        )
        self.queries = [query]
