"""The mean size of a topic's records, from a sample, so that a limit of bytes becomes a limit of records."""

from __future__ import annotations

import time

from lakebed.sources.kafka.range import consume_range
from lakebed.sources.kafka.settings import KafkaSettings

SAMPLE_SECONDS = 10.0
SAMPLE_RECORDS = 500
UNKNOWN_BYTES = 1024.0


class RecordBytes:
    """Samples now and then."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._mean: float | None = None
        self._sampled_at = float("-inf")

    def mean(self, topic: str, partition: int, start: int, end: int) -> float:
        """Of records like those of this range."""
        if self._mean is None or time.monotonic() - self._sampled_at >= SAMPLE_SECONDS:
            records = size = 0
            sample = min(end, start + SAMPLE_RECORDS)
            for table in consume_range(self._settings, topic, partition, start, sample, lambda lost: None):
                records += table.num_rows
                size += table.column("key").nbytes + table.column("value").nbytes
            if records:
                self._mean = max(1.0, size / records)
            self._sampled_at = time.monotonic()
        return self._mean or UNKNOWN_BYTES
