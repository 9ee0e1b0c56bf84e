"""The sections of a pipeline file that say where its records and its table are, and what of a run is shown where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from lakebed.decode.json.values import DecimalText
from lakebed.decode.metadata import DELETE_VALUES
from lakebed.pipeline.file.document import PropertyText
from lakebed.pipeline.file.typed_sections import ValuesFormat
from lakebed.schema.type_names import table_schema
from lakebed.schema.widening import widest_type

_METRICS_PORT = 9464
_PAGE_PORT = 9466


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSection:
    """The table, which is created if it is missing, and otherwise compared with these settings."""

    path: str
    schema: Mapping[str, str] = field(default_factory=dict)
    """Column name to type, in order; may be left out for a table that exists."""
    keys: tuple[str, ...] = ()
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, PropertyText] = field(default_factory=dict)
    types: Literal["given", "wide"] = "given"
    """Whether columns have the types of ``schema``, or the widest ones for their values."""
    sources: tuple[str, ...] = ()
    """The tables of the source whose events a topic has, if it has several: their names, or regular expressions."""

    @property
    def columns(self) -> pa.Schema | None:
        """The schema as Arrow. Raises InvalidSchema."""
        if not self.schema:
            return None
        columns = table_schema(self.schema)
        if self.types == "wide":
            columns = pa.schema([one.with_type(widest_type(one.type)) for one in columns])
        return columns


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSection:
    """``source: {kind: kafka}``."""

    config: Mapping[str, str] = field(repr=False)
    """librdkafka's settings, as they are."""
    topics: tuple[str, ...] = ()
    topic_pattern: str | None = None
    starting_offsets: str | Mapping[str, int | Mapping[str, int]] = "earliest"
    max_records_per_batch: int | None = None
    max_bytes_per_batch: int | None = None
    on_data_loss: Literal["fail", "skip"] = "fail"
    timeout_seconds: float = 60.0

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to: for a source with another identity, the offsets in it are meaningless."""
        return {"topics": list(self.topics)} if self.topics else {"topic_pattern": self.topic_pattern}


@dataclass(frozen=True, slots=True)
class FilesSection:
    """``source: {kind: files}``."""

    folder: str
    files_per_batch_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of Spark's reader."""

    @property
    def identity(self) -> dict[str, Any]:
        """See ``KafkaSection``."""
        return {"folder": self.folder}


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSection:
    """``source: {kind: generator}``."""

    events_per_second: float = 1000.0
    seed: int = 1
    inserts: float = 0.25
    deletes: float = 0.05
    skew: float = 0.8
    late: float = 0.0
    late_events_max: int = 10_000
    events_max: int | None = None
    tasks: int = 2
    max_records_per_batch: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """See ``KafkaSection``."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumFormat(ValuesFormat):
    """``format: {kind: debezium-json}``."""

    decimal_text: DecimalText = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat(ValuesFormat):
    """``format: {kind: json}``."""

    operation_field: str | None = None
    delete_values: tuple[str, ...] = DELETE_VALUES
    upsert_values: tuple[str, ...] | None = None
    decimal_text: DecimalText = "auto"


@dataclass(frozen=True, slots=True)
class RowsFormat:
    """``format: {kind: csv}`` and ``parquet``: files have the table's columns and the ``extra_columns``."""

    extra_columns: Mapping[str, str] = field(default_factory=dict)
    apply_as_deletes: str | None = None
    except_columns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """Where Prometheus finds the metrics. Without a port there are no metrics; port 0 is any free port."""

    port: int | None = _METRICS_PORT
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class PageSection:
    """Where the web page of the table is. Without a port there is none; port 0, or a port that is taken: any free one."""

    port: int | None = _PAGE_PORT
    host: str = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class SparkSection:
    """The Spark session."""

    master: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
