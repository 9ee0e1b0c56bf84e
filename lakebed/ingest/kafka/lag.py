"""How far a Kafka query is behind, computed from Spark's report on its last batch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def lag_by_topic(progress: Mapping[str, Any]) -> dict[str, int]:
    """By topic, the records that existed when the last batch was planned and that no batch has read yet.

    ``progress`` is a StreamingQueryProgress as a mapping. The result is empty if the source reports no offsets. A
    partition that no batch has begun to read is left out.
    """
    lag: dict[str, int] = {}
    for source in progress.get("sources", ()):
        latest, end = _topics(source["latestOffset"]), _topics(source["endOffset"])
        for topic, offsets in end.items():
            ends = latest.get(topic)
            if ends is None:
                continue
            behind = sum(max(0, ends.get(partition, offset) - offset) for partition, offset in offsets.items())
            lag[topic] = lag.get(topic, 0) + behind
    return lag


def _topics(offset: Any) -> Mapping[str, Mapping[str, int]]:
    """The offsets by topic and partition in an offset document of ``kafka.source``; empty for any other text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    topics = offset.get("topics") if isinstance(offset, Mapping) else None
    return topics if isinstance(topics, Mapping) else {}
