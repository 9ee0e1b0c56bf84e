"""The sections of a pipeline file: where its records, their schemas and its table are, and what of a run is shown where."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from lakebed.decode.formats import KeyFormat, SchemaText
from lakebed.decode.json.values import BinaryText, DecimalText, TimestampUnit, UnknownFields
from lakebed.decode.metadata import DELETE_VALUES
from lakebed.decode.typed.registry import RegistrySettings
from lakebed.errors import InvalidInput
from lakebed.pipeline.document import Document, Node, PropertyText
from lakebed.schema.type_names import table_schema
from lakebed.schema.widening import widest_type
from lakebed.settings import check_creatable, property_value

_SCHEMA_BYTES_MAX = 4 << 20
FILES_MAX = 256
_IMPORT = re.compile(r'^\s*import\s+(?:public\s+|weak\s+)?"([^"\n]+)"\s*;', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrySection:
    """``registry``: where the schemas of records are."""

    url: str
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Settings of confluent-kafka's client, as they are."""
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        self.settings()

    def settings(self) -> RegistrySettings:
        """Raises InvalidInput."""
        return RegistrySettings(url=self.url, config=self.config, timeout_seconds=self.timeout_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ValuesFormat:
    """What all formats of Kafka's records say about values."""

    timestamp_unit: TimestampUnit = "auto"
    binary_text: BinaryText = "auto"
    unavailable_value: str = "__debezium_unavailable_value"
    unknown_fields: UnknownFields = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class _SchemaFiles(_ValuesFormat):
    """``schema_file`` is for topics without a registry, and ``key_schema_file`` for their keys. ``message``: of Protobuf."""

    schema_file: str | None = None
    message: str | None = None
    key_schema_file: str | None = None
    key_message: str | None = None
    key_format: KeyFormat = "same"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedEventsFormat(_SchemaFiles):
    """``format: {kind: debezium-avro}``, ``debezium-protobuf`` and ``debezium-json-schema``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedRowsFormat(_SchemaFiles):
    """``format: {kind: avro}``, ``protobuf`` and ``json-schema``."""

    operation_field: str | None = None
    delete_values: tuple[str, ...] = DELETE_VALUES
    upsert_values: tuple[str, ...] | None = None


TypedFormat = TypedEventsFormat | TypedRowsFormat


def options_of(section: TypedFormat, registry: RegistrySection | None) -> dict[str, Any]:
    """The options of the decoder; files of schemas are read. Raises InvalidInput naming the file."""
    options = {name: value for name, value in asdict(section).items() if value is not None}
    schema_file, key_schema_file = options.pop("schema_file", None), options.pop("key_schema_file", None)
    message, key_message = options.pop("message", None), options.pop("key_message", None)
    if registry is not None:
        options["registry"] = registry.settings()
    if schema_file is not None:
        options["schema"] = _read_schema(schema_file, message)
    if key_schema_file is not None:
        options["key_schema"] = _read_schema(key_schema_file, key_message)
    return options


def _without_effect(section: TypedFormat, registry: RegistrySection | None) -> Iterator[tuple[str, str]]:
    """The keys of a format section that do nothing, and why."""
    for name, needs in (
        ("message", "schema_file"),
        ("key_message", "key_schema_file"),
        ("key_schema_file", "schema_file"),
    ):
        if getattr(section, name) is not None and (getattr(section, needs) is None or registry is not None):
            yield name, f"it has no effect without {needs}; add that, or leave it out"


def _read_schema(file: str, message: str | None = None) -> SchemaText:
    """A file of a schema, and for ``.proto`` files those that it imports from beside it. Raises InvalidInput."""
    text = _text_of(Path(file), file)
    references: dict[str, str] = {}
    if file.endswith(".proto"):
        _import(text, Path(file).parent, references, ())
    return SchemaText(text=text, references=references, message=message)


def _import(text: str, folder: Path, found: dict[str, str], above: tuple[str, ...]) -> None:
    """Adds the files that a text imports, needed ones first. Those of Protobuf itself come with it."""
    for name in _IMPORT.findall(text):
        if name in found or name.startswith("google/protobuf/"):
            continue
        if name in above or len(found) >= FILES_MAX:
            raise InvalidInput(f"{name}: the imports of these files go in a circle, or are more than {FILES_MAX}")
        imported = _text_of(folder / name, name)
        _import(imported, folder, found, (*above, name))
        found[name] = imported


def _text_of(path: Path, shown: str) -> str:
    try:
        with path.open("rb") as opened:
            data = opened.read(_SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"the schema file {shown} can't be read: {error.strerror or error}") from None
    if len(data) > _SCHEMA_BYTES_MAX:
        raise InvalidInput(f"the schema file {shown} has more than {_SCHEMA_BYTES_MAX:,} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the schema file {shown} is not UTF-8 (byte {error.start})") from None


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
class DebeziumFormat(_ValuesFormat):
    """``format: {kind: debezium-json}``."""

    decimal_text: DecimalText = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonFormat(_ValuesFormat):
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
class MaintenanceSection:
    """What maintains the table in this process."""

    as_query: bool | None = None
    """Whether it is a streaming query; None: if Spark's master is a cluster."""
    trigger_seconds: float = 1.0
    """How often the query looks at the log."""


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


CHANGES = "changes"
"""The format of an upstream table: it needs no settings, so it is not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakebedSection:
    """``source: {kind: lakebed}``."""

    path: str
    starting_version: str = "snapshot"
    """``snapshot``: begin with all rows of the table as it is; a number: with the changes of that version; ``newest``: with those
    that are committed from now on."""
    on_data_loss: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        if self.starting_version not in ("snapshot", "newest") and not self.starting_version.isdecimal():
            raise InvalidInput(
                f"starting_version is {self.starting_version!r}; it must be snapshot, newest or a version"
            )

    @property
    def first_version(self) -> int | Literal["newest", "snapshot"]:
        """``starting_version``, a version as a number."""
        match self.starting_version:
            case "newest" | "snapshot" as word:
                return word
            case number:
                return int(number)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to: for a source with another identity, the offsets in it are meaningless."""
        return {"table": self.path}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSection:
    """``transform``: SQL between the records and the table; a text is short for ``{sql: …}``."""

    sql: str
    # of the records, name to type, where nothing else says them
    columns: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()  # columns that identify a row


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSection:
    """``bootstrap``: rows that fill the table before its source is followed. Spark reads them."""

    kind: Literal["parquet", "jdbc"]
    position: Mapping[str, Mapping[str, int]]  # topic to partition to the first offset that they do not have
    path: str | None = None  # for ``parquet``
    url: str | None = None  # for ``jdbc``, with ``table`` or ``query``
    table: str | None = None
    query: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of Spark's reader

    def __post_init__(self) -> None:
        _offsets_of(self.position)
        given = {name for name in ("path", "url", "table", "query") if getattr(self, name) is not None}
        if self.kind == "parquet" and given != {"path"}:
            raise InvalidInput("for parquet give path, and none of url, table and query")
        if self.kind == "jdbc" and given not in ({"url", "table"}, {"url", "query"}):
            raise InvalidInput("for jdbc give url, and either table or query; path is for parquet")

    @property
    def offsets(self) -> dict[str, dict[int, int]]:
        """``position`` with the partitions as numbers."""
        return _offsets_of(self.position)


def _offsets_of(position: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """A position with its partitions as numbers. Raises InvalidInput."""
    if not position or not all(position.values()):
        raise InvalidInput("position is empty; name each topic with its partitions: {orders: {0: 1200}}")
    for topic, partitions in position.items():
        for partition, offset in partitions.items():
            if not partition.isdecimal() or offset < 0:
                raise InvalidInput(
                    f"position of {topic!r} has {partition}: {offset}; use partitions and offsets, both from 0 on"
                )
    return {topic: {int(one): offset for one, offset in several.items()} for topic, several in position.items()}


@dataclass(frozen=True, slots=True)
class ChangesFormat:
    """What the changes of a table are: rows with the table's columns."""


# -- what is wrong with their values, each with its line ------------------------------------------------------------------


def wrong_in_table(document: Document, table: TableSection) -> Iterator[InvalidInput]:
    """What is wrong with a table."""
    yield from wrong_properties(document, table.properties, "table", "properties")
    for number, pattern in enumerate(table.sources):
        if why := no_pattern(pattern):
            yield document.error(document.at("table", "sources", number), why)
    wrong = False
    for name, kind in table.schema.items():
        try:
            table_schema({name: kind})
        except InvalidInput as error:
            wrong = True
            yield document.error(document.at("table", "schema", name), str(error))
    try:
        _ = None if wrong else table.columns
    except InvalidInput as error:
        yield document.error(document.at("table", "schema"), str(error))


def wrong_properties(document: Document, properties: Mapping[str, str], *place: str) -> Iterator[InvalidInput]:
    """What is wrong with properties of tables; ``place``: the keys that lead to them."""
    fine: dict[str, str] = {}
    for name, text in properties.items():
        try:
            property_value(name, text)
            fine[name] = text
        except InvalidInput as error:
            yield document.error(document.at(*place, name), str(error))
    try:
        check_creatable(fine)
    except InvalidInput as error:
        yield document.error(document.at(*place), str(error))


def no_pattern(pattern: str) -> str:
    """Why a text is no pattern of tables; empty if it is one."""
    try:
        re.compile(pattern)
    except re.error as error:
        return f"{pattern!r} is not a regular expression: {error}; it must match the whole name, as public\\..*"
    return ""


def wrong_schemas(
    document: Document,
    members: Mapping[str, Node],
    registry: RegistrySection | None,
    kind: str,
    section: Any,
) -> Iterator[InvalidInput]:
    """What is wrong with where the schemas of records are."""
    if not isinstance(section, TypedEventsFormat | TypedRowsFormat):
        if registry is not None:
            yield document.error(members["registry"], f"records of {kind} need no registry; leave it out")
        return
    if registry is None and section.schema_file is None and "registry" not in members:
        text = f"records of {kind} name their schemas: add registry with its url, or format.schema_file"
        yield document.error(document.at("format"), text)
    if registry is not None and section.schema_file is not None:
        yield document.error(
            document.at("format", "schema_file"), "the registry has the schemas; leave one of them out"
        )
    for name, why in _without_effect(section, registry):
        yield document.error(document.at("format", name), why)
