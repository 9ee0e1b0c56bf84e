"""How far a Kafka query is behind, computed from Spark's report on its last batch."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any


def lag_by_topic(progress: Mapping[str, Any]) -> dict[str, int]:
    """By topic, the records that existed when the last batch was planned and that no batch has read yet.

    ``progress`` is a StreamingQueryProgress as a mapping. The result is empty if the source reports no offsets. A
    partition that no batch has begun to read is left out. Of a database it has the topics with most of these records.
    """
    lag: dict[str, int] = {}
    for source in progress.get("sources", ()):
        latest, end = _document(source["latestOffset"]), _document(source["endOffset"])
        if "left" in latest:
            return dict(latest["left"])
        for topic, offsets in _topics(end).items():
            ends = _topics(latest).get(topic)
            if ends is None:
                continue
            behind = sum(max(0, ends.get(partition, offset) - offset) for partition, offset in offsets.items())
            lag[topic] = lag.get(topic, 0) + behind
    return lag


def lag_in_all(progress: Mapping[str, Any]) -> int:
    """The same for all topics together."""
    known = [_document(source["latestOffset"]).get("left_in_all") for source in progress.get("sources", ())]
    return sum(lag_by_topic(progress).values()) if not known or known[0] is None else int(known[0])


def lag_of_tables(
    progress: Mapping[str, Any], waiting: Mapping[str, int], before: Iterable[str] = ()
) -> tuple[dict[str, int], int]:
    """Of a database, by topic and in all, the records that are in no table yet, as far as this is known.

    ``waiting``: by topic, what batches planned for tables that can't be read now; ``before``: topics that had such records
    the last time. Those that have none any more are in the result with 0.
    """
    left, in_all = lag_by_topic(progress), lag_in_all(progress)
    is_whole = bool(progress) and sum(left.values()) == in_all
    topics = [*left, *waiting, *(before if is_whole else ())]
    found = {topic: left.get(topic, 0) + waiting.get(topic, 0) for topic in topics}
    return found, in_all + sum(waiting.values())


def _topics(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, int]]:
    topics = document.get("topics")
    return topics if isinstance(topics, Mapping) else {}


def _document(offset: Any) -> Mapping[str, Any]:
    """An offset document of ``kafka.source`` or ``kafka.database_source``; empty for any other text."""
    if isinstance(offset, str):
        try:
            offset = json.loads(offset)
        except ValueError:
            return {}
    return offset if isinstance(offset, Mapping) else {}
