"""The owner of a checkpoint: a folder that records how far one source was read must not be used for another source.

1. Beside Spark's own files is ``lakebed_source.json``, with the kind of the source, and its folder or topics.
2. When a pipeline starts, this file is compared with the pipeline file. As long as Spark has written no batch into the
   folder, nothing was read, so any source may take it.
3. Topics may be added and removed: one topic in common is enough. Two patterns always count as matching, since their
   common topics can't be computed. Brokers, limits and other settings are not compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from lakebed.errors import InvalidInput, LakebedError, Unsupported
from lakebed.log.stores import LogStore, open_store
from lakebed.pipeline.file.settings import Pipeline
from lakebed.storage.roots import parse_root

SOURCE_FILE = "lakebed_source.json"


def take_checkpoint(pipeline: Pipeline, place: str) -> None:
    """Record the pipeline's source in its checkpoint folder. Raises InvalidInput if another source was read with it."""
    try:
        store = open_store(place)
    except Unsupported:  # a folder that only Spark can reach
        return
    before, now = check_checkpoint(pipeline, place), _source_of(pipeline)
    if before != now:
        store.put(SOURCE_FILE, json.dumps(now).encode())


def has_batches(place: str) -> bool:
    """Whether a pipeline has read something with the checkpoint folder."""
    try:
        return _has_batches(open_store(place))
    except Unsupported:
        return False


def check_checkpoint(pipeline: Pipeline, place: str) -> dict[str, Any] | None:
    """The source that the checkpoint folder records, if any. Raises InvalidInput if it was read with it and is another one."""
    try:
        store = open_store(place)
    except Unsupported:
        return None
    now = _source_of(pipeline)
    before = _remembered(store)
    if before is not None and not _goes_on(before, now) and _has_batches(store):
        raise InvalidInput(
            f"{pipeline.document.file}: the checkpoint {place} records how far {_described(before)} was read, but this file "
            f"reads {_described(now)}. Give each pipeline of a table a folder of its own with the setting 'checkpoint'; "
            "with a new folder, a pipeline begins at the beginning of its source"
        )
    return before


def _source_of(pipeline: Pipeline) -> dict[str, Any]:
    return {"kind": pipeline.source_kind} | pipeline.source.identity


def _remembered(store: LogStore) -> dict[str, Any] | None:
    try:
        found = json.loads(store.read(SOURCE_FILE))
    except (FileNotFoundError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _has_batches(store: LogStore) -> bool:
    return any(name.isdigit() for name in store.list_from("offsets", ""))


def _goes_on(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a pipeline that reads ``now`` may continue where one that read ``before`` stopped."""
    if before.get("kind") != now["kind"]:
        return False
    if now["kind"] == "files":
        return _folder(before.get("folder", "")) == _folder(now["folder"])
    if now["kind"] == "lakebed":
        return _folder(before.get("table", "")) == _folder(now["table"])
    if now["kind"] == "kafka":
        return _have_topics_in_common(before, now)
    return True


def _folder(text: str) -> str:
    try:
        return str(parse_root(text))
    except LakebedError:
        return text


def _have_topics_in_common(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if "topics" in one and "topics" in other:
        return not set(one["topics"]).isdisjoint(other["topics"])
    listed, matching = (one, other) if "topics" in one else (other, one)
    if "topics" not in listed:
        return True
    pattern = re.compile(matching["topic_pattern"])
    return any(pattern.fullmatch(topic) for topic in listed["topics"])


def _described(source: Mapping[str, Any]) -> str:
    if "topics" in source:
        return f"Kafka's {', '.join(source['topics'])}"
    if "topic_pattern" in source:
        return f"Kafka's topics that match {source['topic_pattern']}"
    if "table" in source:
        return f"the table {source['table']}"
    return f"the folder {source['folder']}" if "folder" in source else f"the source {source.get('kind')}"
