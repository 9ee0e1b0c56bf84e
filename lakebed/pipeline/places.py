"""Whether what a pipeline file names is there and answers: its folders, its broker and topics, the registry, the stores.

``check_places`` looks only at local folders, ``check_stores`` at those in a store. Nothing is made.

**The owner of a checkpoint**: a folder that records how far one source was read must not be used for another source.

1. Beside Spark's own files is ``lakebed_source.json``, with the kind of the source, and its folder or topics.
2. When a pipeline starts, this file is compared with the pipeline file. As long as Spark has written no batch into the
   folder, nothing was read, so any source may take it.
3. Topics may be added and removed: one topic in common is enough. Two patterns always count as matching, since their
   common topics can't be computed. Brokers, limits and other settings are not compared.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from lakebed.decode.typed.registry import Registry
from lakebed.errors import InvalidInput, LakebedError, Retry, Unsupported
from lakebed.log.stores import LogStore, open_store
from lakebed.pipeline.document import Findings
from lakebed.pipeline.sections import FilesSection, KafkaSection, LakebedSection
from lakebed.pipeline.settings import AnyPipeline, Pipeline
from lakebed.storage.roots import LocalRoot, parse_root
from lakebed.table.internals import STREAMS_FOLDER

if TYPE_CHECKING:
    from lakebed.sources.kafka.settings import KafkaSettings

SOURCE_FILE = "lakebed_source.json"


_GLOB = frozenset("*?[{")


def checkpoint_of(pipeline: AnyPipeline) -> str:
    """The folder of a pipeline's checkpoint."""
    return pipeline.checkpoint or f"{pipeline.path.rstrip('/')}/{STREAMS_FOLDER}/{pipeline.query_name}"


def check_places(pipeline: AnyPipeline, findings: Findings) -> None:
    """Look at the folders of the table or the database, the checkpoint and the source."""
    kind = "table" if isinstance(pipeline, Pipeline) else "database"
    target = _local(pipeline.path, findings, kind, "path")
    checkpoint = _local(pipeline.checkpoint, findings, "checkpoint") if pipeline.checkpoint else None
    places: tuple[tuple[str | None, tuple[str, ...]], ...] = ((target, (kind, "path")), (checkpoint, ("checkpoint",)))
    for folder, place in places:
        if folder is not None and (why := _not_writable(folder)):
            findings.wrong(why, *place)
    if target and checkpoint and _is_exposed(checkpoint, target):
        findings.wrong(
            f"{pipeline.checkpoint} lies in the {kind}'s folder, where maintenance deletes files that it does not know; leave "
            "the setting out, or choose a folder elsewhere",
            "checkpoint",
        )
    if isinstance(pipeline, Pipeline) and isinstance(pipeline.source, FilesSection):
        _check_source(pipeline.source, bool(pipeline.table.partition_by), target, checkpoint, findings)
    elif isinstance(pipeline.source, LakebedSection):
        upstream = _local(pipeline.source.path, findings, "source", "path")
        if upstream is not None and upstream in (target, checkpoint):
            findings.wrong("a pipeline can't read the table that it writes; use another path", "source", "path")


def _check_source(
    source: FilesSection, is_partitioned: bool, table: str | None, checkpoint: str | None, findings: Findings
) -> None:
    place = ("source", "folder")
    folder = _local(source.folder, findings, *place)
    if folder is None or _GLOB & set(folder):
        return
    if not os.path.exists(folder):
        findings.wrong(f"there is no folder {source.folder}; make it, or fix the path", *place)
        return
    if not os.access(folder, os.R_OK | os.X_OK if os.path.isdir(folder) else os.R_OK):
        findings.wrong(f"{source.folder} can't be read; give this user the permission to list and read it", *place)
    # Spark reads folders below only if it is told to, or if they are named like partitions.
    reads_below = is_partitioned or any(
        name.lower() == "recursivefilelookup" and value.lower() == "true" for name, value in source.options.items()
    )
    for other, what in ((table, "the table"), (checkpoint, "the checkpoint")):
        if other is None:
            continue
        if other == folder or (reads_below and _is_exposed(other, folder)):
            findings.wrong(
                f"{what} ({other}) lies in {source.folder}, so its own files would be read; use folders apart", *place
            )
        elif _is_exposed(folder, other):
            findings.wrong(f"{source.folder} lies in the folder of {what}; use folders apart", *place)


def is_local(path: str) -> bool:
    """Whether a path is on a local disk. Raises InvalidInput for one that can't be; a place that only Spark can reach is not."""
    try:
        return isinstance(parse_root(path), LocalRoot)
    except Unsupported:
        return False


def _local(path: str, findings: Findings, *place: str) -> str | None:
    """The absolute path of a local folder; None for a place in a store, one that only Spark can reach, or one that can't be."""
    try:
        root = parse_root(path)
    except Unsupported as error:
        if place[-1] == "path":
            findings.add(error, *place)
        return None
    except LakebedError as error:
        findings.add(error, *place)
        return None
    return os.path.realpath(root.path) if isinstance(root, LocalRoot) else None


def _is_exposed(inner: str, outer: str) -> bool:
    """Whether a folder is another one or lies in it, with no hidden folder (``.x``, ``_x``) between."""
    if inner == outer:
        return True
    between = os.path.relpath(inner, outer).split(os.sep)
    return between[0] != os.pardir and not any(name.startswith((".", "_")) for name in between)


def _not_writable(folder: str) -> str | None:
    """Why a folder can't be made or written to; None if it can."""
    there = folder
    while not os.path.lexists(there):
        there = os.path.dirname(there)
    if not os.path.isdir(there):
        return f"{there} is no folder, so {folder} can't be one; choose another path"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} can't be written to; give this user the permission, or choose another path"
    return None


# -- Ask what a pipeline connects to ---------------------------------------------------------------------------------------


KAFKA_SECONDS = _REGISTRY_SECONDS = 10.0
"""How long a broker, and a registry, have to answer."""


def check_stores(pipeline: AnyPipeline, findings: Findings) -> None:
    """List a little in each store. Folders on a local disk are not looked at."""
    target = ("table" if isinstance(pipeline, Pipeline) else "database", "path")
    places: dict[tuple[str, ...], str] = {target: pipeline.path, ("checkpoint",): pipeline.checkpoint or ""}
    if isinstance(pipeline.source, FilesSection):
        places["source", "folder"] = pipeline.source.folder
    elif isinstance(pipeline.source, LakebedSection):
        places["source", "path"] = pipeline.source.path
    for place, path in places.items():
        try:
            if path and not findings.has(*place) and not isinstance(parse_root(path), LocalRoot):
                open_store(path).list_from("_delta_log", "~")
        except Unsupported:
            continue  # a place that only Spark can reach; as that of a table it was refused before
        except LakebedError as error:
            text = f"{path} can't be reached: {error}; check its name, the credentials and the endpoint (AWS_…)"
            findings.add(error.with_text(text), *place)


def check_kafka(section: KafkaSection, settings: KafkaSettings, checkpoint: str, findings: Findings) -> None:
    """Ask the broker for the topics, and for the offsets that the file names if nothing was read yet."""
    from lakebed.sources.kafka.cluster import KafkaCluster

    seconds = min(KAFKA_SECONDS, settings.timeout_seconds)
    cluster = KafkaCluster(replace(settings, timeout_seconds=seconds))
    brokers = settings.config["bootstrap.servers"]
    topics = ("topics",) if section.topics else ("topic_pattern",)
    try:
        cluster.answers()
    except Retry as error:
        findings.add(
            Retry(
                f"{error} (asked for {seconds:g} s). Is the broker running, and is {brokers} its address, with the right "
                "security.protocol? This machine must also reach the addresses that the broker gives for itself "
                "(advertised.listeners)"
            ),
            "source",
            "config",
            "bootstrap.servers",
        )
        return
    except InvalidInput as error:
        findings.add(error.with_text(f"{error} (the broker is {brokers})"), "source", "config")
        return
    try:
        partitions, _ = cluster.look()
    except LakebedError as error:
        findings.add(error.with_text(f"{error} (the broker is {brokers})"), "source", *topics)
        return
    if not partitions:
        findings.note(f"no topic at {brokers} matches {section.topic_pattern} now; a run waits until there is one")
    starting = settings.starting_offsets
    if isinstance(starting, Mapping) and not has_batches(checkpoint):
        with findings.at("source", "starting_offsets"):
            cluster.starting(partitions)


def check_registry(pipeline: AnyPipeline, findings: Findings, connect: bool) -> None:
    """Its settings; with ``connect``, ask the registry for a little."""
    if pipeline.registry is None:
        return
    with findings.within("registry", pipeline.registry):
        settings = pipeline.registry.settings()
        seconds = min(_REGISTRY_SECONDS, settings.timeout_seconds)
        once = replace(settings, config={**settings.config, "max.retries": "0"}, timeout_seconds=seconds)
        registry = Registry(once)
        if connect:
            registry.check()


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
    return any(name.isdecimal() for name in store.list_from("offsets", ""))


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
