"""Ask what a pipeline connects to, once and for a short time: the broker and its topics, the registry, and the stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed.decode.typed.registry import Registry
from lakebed.errors import InvalidInput, LakebedError, Retry, Unsupported
from lakebed.log.stores import open_store
from lakebed.pipeline.checkpoint import has_batches
from lakebed.pipeline.file.layer_sections import LakebedSection
from lakebed.pipeline.file.settings import AnyPipeline, FilesSection, KafkaSection, Pipeline
from lakebed.pipeline.findings import Findings
from lakebed.storage.roots import LocalRoot, parse_root

if TYPE_CHECKING:
    from lakebed.sources.kafka.settings import KafkaSettings

KAFKA_SECONDS = REGISTRY_SECONDS = 10.0
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
        seconds = min(REGISTRY_SECONDS, settings.timeout_seconds)
        once = replace(settings, config={**settings.config, "max.retries": "0"}, timeout_seconds=seconds)
        registry = Registry(once)
        if connect:
            registry.check()
