"""How far a Kafka query is behind, from what Spark reports of its last batch. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def lag_by_topic(progress: Mapping[str, Any]) -> dict[str, int]:
    """Records that the topics held when the last batch was planned and that it left: a StreamingQueryProgress as a mapping.

    Empty if the source does not report it. A partition that no batch has begun to read is left out.
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
    """The offsets by topic and partition of a document of ``kafka_source``; nothing for any other text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    topics = offset.get("topics") if isinstance(offset, Mapping) else None
    return topics if isinstance(topics, Mapping) else {}
