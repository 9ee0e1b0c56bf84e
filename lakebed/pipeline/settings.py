"""The settings in a pipeline file, as frozen values; docs/pipeline.md explains every key.

``load`` parses and checks a file. It reads nothing else but environment variables.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from lakebed.decode.formats import EVENTS, TYPED_FORMATS
from lakebed.discovery import Naming, prefix_of
from lakebed.errors import InvalidInput
from lakebed.pipeline.database_section import DatabaseSection, TableWishes, wrong_in
from lakebed.pipeline.document import (
    BYTES_MAX,
    Document,
    Node,
    bind,
    convert,
    leaves,
    mapping_of,
    parse,
)
from lakebed.pipeline.sections import (
    CHANGES,
    BootstrapSection,
    ChangesFormat,
    DebeziumFormat,
    FilesSection,
    GeneratorSection,
    JsonFormat,
    KafkaSection,
    LakebedSection,
    MaintenanceSection,
    MetricsSection,
    PageSection,
    RegistrySection,
    RowsFormat,
    SparkSection,
    TableSection,
    TransformSection,
    TypedEventsFormat,
    TypedFormat,
    TypedRowsFormat,
    options_of,
    wrong_in_table,
    wrong_schemas,
)
from lakebed.schema.fitting import Evolution, EvolvePolicy, OnMismatch
from lakebed.settings import suggest

_FORMATS_WITH_SCHEMA = ("debezium-json", *TYPED_FORMATS, CHANGES)
"""Those whose records may carry their schema."""
_EVOLVE_BY_DEFAULT: tuple[Evolution, ...] = ("add", "relax")
QUERY_NAME = "ingest"
FORMATS = ("debezium-json", "json", *TYPED_FORMATS, "csv", "parquet")


_SourceSection = KafkaSection | FilesSection | LakebedSection | GeneratorSection
_SOURCE_SECTIONS: dict[str, type[Any]] = {
    "kafka": KafkaSection,
    "files": FilesSection,
    "lakebed": LakebedSection,
    "generator": GeneratorSection,
}
_ONLY_FORMATS = {"generator": "debezium-json", "lakebed": CHANGES}
"""Sources whose records are of one format, which need not be written."""


_FormatSection = DebeziumFormat | JsonFormat | TypedFormat | RowsFormat | ChangesFormat
_FORMAT_SECTIONS: dict[str, type[Any]] = {
    "debezium-json": DebeziumFormat, "json": JsonFormat, "csv": RowsFormat, "parquet": RowsFormat,
    CHANGES: ChangesFormat,
} | {name: TypedEventsFormat if name.startswith(EVENTS) else TypedRowsFormat for name in TYPED_FORMATS}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class _TopLevel:
    """The top-level keys of every file except ``source`` and ``format``, which have a ``kind``."""

    trigger_seconds: float = 0.0
    quarantine: Literal["table", "fail"] = "table"
    evolve: tuple[Evolution, ...] | None = None
    """What may be done to a table's schema where records need it. Of a pipeline it is never None."""
    on_mismatch: OnMismatch = "quarantine"
    registry: RegistrySection | None = None
    """Where the schemas of records are; None for formats that need none, and for schemas in files."""
    maintain: bool = True
    checkpoint: str | None = None
    metrics: MetricsSection = field(default_factory=MetricsSection)
    page: PageSection = field(default_factory=PageSection)
    spark: SparkSection = field(default_factory=SparkSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfTable(_TopLevel):
    """The keys of a file with ``table``."""

    table: TableSection
    columns: tuple[str, ...] = ()
    """The columns of the table that records fill, beside keys and ``sequence_by``; empty: all."""
    renamed_columns: Mapping[str, str] = field(default_factory=dict)
    """New name of a field of the source to the name that it had before."""
    transform: TransformSection | str | None = None
    """SQL between the records and the table. Of a pipeline it is never a text."""
    bootstrap: BootstrapSection | None = None
    """What fills the table before its source is followed."""
    maintenance: MaintenanceSection = field(default_factory=MaintenanceSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class _OfDatabase(_TopLevel):
    """The keys of a file with ``database``."""

    database: DatabaseSection


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(_OfTable):
    """A pipeline into one table. ``document`` masks its secrets in texts."""

    transform: TransformSection | None = None

    source_kind: str
    source: _SourceSection
    format_kind: str
    format: _FormatSection
    document: Document = field(repr=False)

    @property
    def path(self) -> str:
        """Where the table is."""
        return self.table.path

    @property
    def query_name(self) -> str:
        """The name of its streaming query. Streams that fill columns of one table have one each, and so a checkpoint each."""
        if not self.columns:
            return QUERY_NAME
        digest = hashlib.sha256("\0".join(sorted(self.columns)).encode()).hexdigest()
        return f"{QUERY_NAME}-{digest[:8]}"

    @property
    def policy(self) -> EvolvePolicy:
        """What happens where records and table differ. Raises InvalidInput."""
        return replace(_policy(self, self.renamed_columns), fills=self.columns)

    @property
    def computes_in_spark(self) -> bool:
        """Whether Spark has a part in making rows of what is read: it parses CSV, or evaluates what a user wrote."""
        deletes = isinstance(self.format, RowsFormat) and self.format.apply_as_deletes is not None
        return self.transform is not None or self.format_kind == "csv" or deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabasePipeline(_OfDatabase):
    """A pipeline into all tables of a database."""

    source_kind: str
    source: KafkaSection
    format_kind: str
    format: DebeziumFormat | TypedFormat
    document: Document = field(repr=False)

    @property
    def path(self) -> str:
        """Where the database is: its tables are below."""
        return self.database.path

    @property
    def query_name(self) -> str:
        """The name of its streaming query."""
        return QUERY_NAME

    @property
    def naming(self) -> Naming:
        """Which topic is which table. Raises InvalidInput if it is not known what the names of topics begin with."""
        section, events = self.database, self.format_kind.startswith(EVENTS)
        prefix = section.topic_prefix
        if prefix is None:
            prefix = prefix_of(self.source.topics, self.source.topic_pattern) if events else ""
        return Naming(
            prefix=prefix,
            include=section.include,
            exclude=section.exclude,
            events=events,
            transaction_topic=section.points.transaction_topic if section.points else None,
            signal_topic=section.signal_topic,
            notification_topic=section.notification_topic,
        )

    def policy_of(self, wishes: TableWishes) -> EvolvePolicy:
        """What happens where the records and the table of these wishes differ. Raises InvalidInput."""
        return _policy(self, wishes.renamed_columns)


AnyPipeline = Pipeline | DatabasePipeline


def _policy(pipeline: AnyPipeline, renamed: Mapping[str, str]) -> EvolvePolicy:
    return EvolvePolicy(
        allowed=frozenset(pipeline.evolve or ()),
        on_mismatch=pipeline.on_mismatch,
        renamed=renamed,
        by_schema=pipeline.format_kind in _FORMATS_WITH_SCHEMA,
    )


_CHOICES = ("source", "format")


def load(file: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> AnyPipeline:
    """Read a pipeline file. Raises InvalidInput with the file, the line and the key."""
    name = os.fspath(file)
    try:
        with Path(file).open("rb") as opened:
            data = opened.read(BYTES_MAX + 1)
        if len(data) > BYTES_MAX:
            raise InvalidInput(f"{name} is not a pipeline file: it has more than {BYTES_MAX:,} bytes")
        text = data.decode("utf-8-sig")
    except FileNotFoundError:
        raise InvalidInput(f"there is no pipeline file {name}") from None
    except OSError as error:
        raise InvalidInput(f"the pipeline file {name} can't be read: {error}") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(f"the pipeline file {name} is not UTF-8 (byte {error.start}); save it as UTF-8") from None
    return parse_any(text, name, environment)


def load_table(file: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> Pipeline:
    """Like ``load``, for a file that describes one table. Raises InvalidInput for one of a database."""
    return _of_one_table(load(file, environment))


def maintenance_of(path: str) -> Pipeline:
    """A pipeline for the maintenance of a table that others write to; its source is never read."""
    quoted = "".join(f"\\U{ord(character):08x}" for character in path.replace("${", "$${"))
    return parse_pipeline(f'table: {{path: "{quoted}"}}\nsource: {{kind: generator}}\n', path, {})


def parse_pipeline(text: str, file: str, environment: Mapping[str, str] | None = None) -> Pipeline:
    """Like ``load_table``, for a text."""
    return _of_one_table(parse_any(text, file, environment))


def parse_any(text: str, file: str, environment: Mapping[str, str] | None = None) -> AnyPipeline:
    """Like ``load``, for a text. Raises InvalidInput that lists all that is wrong, each with its line."""
    document = parse(text, file, environment)
    root = document.root
    members = mapping_of(document, root)
    is_database = "database" in members
    section: type[_OfTable] | type[_OfDatabase] = _OfDatabase if is_database else _OfTable
    keys = [*(item.name for item in fields(section)), *_CHOICES]
    errors = list(_wrong_keys(document, members, keys, is_database))
    top, source, chosen = None, None, None
    try:
        top = bind(document, root, section, left_out=(*_CHOICES, *(key for key in members if key not in keys)))
    except (InvalidInput, ExceptionGroup) as error:
        errors += leaves(error)
    try:
        sources = {"kafka": KafkaSection} if is_database else _SOURCE_SECTIONS
        source = _choice(document, root, "source", sources, None)
    except (InvalidInput, ExceptionGroup) as error:
        errors += leaves(error)
    try:
        if "format" in members or source is not None:
            chosen = _choice(
                document, root, "format", _FORMAT_SECTIONS, _ONLY_FORMATS.get(source[0]) if source else None
            )
    except (InvalidInput, ExceptionGroup) as error:
        errors += leaves(error)
    if isinstance(top, _OfTable) and isinstance(top.transform, str):
        top = replace(top, transform=TransformSection(sql=top.transform))
    if top is not None:
        errors += _wrong_values(document, members, top)
    if isinstance(top, _OfTable) and top.bootstrap is not None and source is not None:
        errors += _wrong_bootstrap(document, top.bootstrap, source[1])
    if source is not None and chosen is not None:
        errors += _wrong_format(document, members, source[0], chosen[0])
    if top is not None and chosen is not None:
        errors += _wrong_evolution(document, top, *chosen)
        errors += wrong_schemas(document, members, top.registry, *chosen)
    if source is not None and chosen is not None and isinstance(top, _OfDatabase):
        errors += _wrong_in_database(document, top.database, source, chosen)
    if errors or top is None or source is None or chosen is None:
        raise document.all_of(errors)
    kind = DatabasePipeline if isinstance(top, _OfDatabase) else Pipeline
    return kind(
        source_kind=source[0],
        source=source[1],
        format_kind=chosen[0],
        format=chosen[1],
        document=document,
        **{item.name: getattr(top, item.name) for item in fields(top) if item.name != "evolve"},
        evolve=_evolve_by_default(top, source[0], *chosen) if top.evolve is None else top.evolve,
    )


def _of_one_table(pipeline: AnyPipeline) -> Pipeline:
    if isinstance(pipeline, Pipeline):
        return pipeline
    document = pipeline.document
    raise document.error(
        document.at("database"), "this needs a file of one table; give the path of a table of the database instead"
    )


def _wrong_keys(
    document: Document, members: Mapping[str, Node], keys: Sequence[str], is_database: bool
) -> Iterator[InvalidInput]:
    for key, node in members.items():
        if key in keys:
            continue
        if is_database and key == "table":
            text = "the file has database too, where each table is made from its topic; leave one of them out"
        elif is_database and key == "maintenance":
            text = "the tables of a database share the threads that maintain them, and no query does; leave it out"
        elif is_database and key == "renamed_columns":
            text = "these are names of one table; set renamed_columns below database.tables"
        else:
            text = f"there is no such key{suggest(key, keys) or '; the keys are ' + ', '.join(keys)}"
        yield document.error(node, text)


def _wrong_in_database(
    document: Document, section: DatabaseSection, source: tuple[str, Any], chosen: tuple[str, Any]
) -> Iterator[InvalidInput]:
    """What of source and format can't be a database's."""
    if section.topic_prefix is None and chosen[0].startswith(EVENTS):
        try:
            prefix_of(source[1].topics, source[1].topic_pattern)
        except InvalidInput as error:
            yield document.error(document.at("source"), str(error))
    if chosen[0] not in _FORMATS_WITH_SCHEMA:
        listed = ", ".join(_FORMATS_WITH_SCHEMA)
        yield document.error(
            document.at("format", "kind"),
            f"records of {chosen[0]} carry no schema, so no table can be made from them; use one of {listed}",
        )
    if section.points is not None and not chosen[0].startswith(EVENTS):
        text = "points need Debezium's events, whose transactions they keep whole; use a format of Debezium's, or leave it out"
        yield document.error(document.at("database", "points"), text)
    for name in ("schema_file", "key_schema_file"):
        if getattr(chosen[1], name, None) is not None:
            text = "one schema can't fit every table; leave it out, and give a registry"
            yield document.error(document.at("format", name), text)


def decoder_options(pipeline: AnyPipeline) -> dict[str, Any]:
    """The options of the format's decoder. Files of schemas are read. Raises InvalidInput."""
    if isinstance(pipeline.format, TypedEventsFormat | TypedRowsFormat):
        return options_of(pipeline.format, pipeline.registry)
    return {name: value for name, value in asdict(pipeline.format).items() if value is not None}


def _evolve_by_default(
    top: _OfTable | _OfDatabase, source: str, format_kind: str, section: _FormatSection
) -> tuple[Evolution, ...]:
    """What may be done to the table where the file does not say so: what its records' schemas need, without a rewrite."""
    if isinstance(top, _OfTable) and top.transform is not None:
        return ()
    if format_kind not in _FORMATS_WITH_SCHEMA or source == "generator":  # its events carry none
        return ()
    adds = getattr(section, "unknown_fields", "warn") == "warn" and not (isinstance(top, _OfTable) and top.columns)
    return tuple(one for one in _EVOLVE_BY_DEFAULT if adds or one != "add")


def _wrong_evolution(
    document: Document, top: _OfTable | _OfDatabase, kind: str, section: _FormatSection
) -> Iterator[InvalidInput]:
    if isinstance(top, _OfTable) and top.transform is not None:
        yield from _wrong_with_transform(document, top)
    if isinstance(section, RowsFormat):
        for name in ("evolve", "on_mismatch", "columns", "renamed_columns"):
            if name in mapping_of(document, document.root):
                text = f"files of {kind} are read by the columns of the table, so it has no effect; leave it out"
                yield document.error(document.at(name), text)
        return
    if isinstance(top, _OfTable) and top.columns:
        yield from _wrong_columns(document, top, section)
    if top.evolve and kind not in _FORMATS_WITH_SCHEMA:
        yield document.error(
            document.at("evolve"),
            f"records of {kind} carry no schema, and no type is made up from their values; leave it out (on_mismatch: rescue "
            "keeps what no column takes)",
        )
    unknown_fields = getattr(section, "unknown_fields", "warn")
    if "add" in (top.evolve or ()) and unknown_fields != "warn":
        text = f"format.unknown_fields is {unknown_fields}, so no column is added; leave one of them out"
        yield document.error(document.at("evolve"), text)
    named: dict[tuple[str, ...], Mapping[str, str]]
    if isinstance(top, _OfTable):
        named = {("renamed_columns",): top.renamed_columns}
    else:
        named = {
            ("database", "tables", one, "renamed_columns"): rules.renamed_columns
            for one, rules in top.database.tables.items()
        }
    for place, renamed in named.items():
        try:
            EvolvePolicy(renamed=renamed)
        except InvalidInput as error:
            yield document.error(document.at(*place), str(error))


def _wrong_columns(document: Document, top: _OfTable, section: _FormatSection) -> Iterator[InvalidInput]:
    if isinstance(section, ChangesFormat):
        text = "changes of a table are whole rows; leave it out, or send them through apply(columns=[…])"
        yield document.error(document.at("columns"), text)
    if "add" in (top.evolve or ()):
        text = "columns names the columns that are filled, so no other one is added; leave add out"
        yield document.error(document.at("evolve"), text)
    if top.bootstrap is not None:
        text = "the rows that a table begins with are whole; leave columns out, or let a pipeline without it fill the table"
        yield document.error(document.at("bootstrap"), text)


def _wrong_bootstrap(document: Document, section: BootstrapSection, source: _SourceSection) -> Iterator[InvalidInput]:
    if not isinstance(source, KafkaSection):
        text = "a table that is filled at a position follows Kafka from there; this source has no such positions"
        yield document.error(document.at("bootstrap"), text)
        return
    for topic in section.position:
        if source.topics and topic not in source.topics:
            text = f"{topic!r} is none of source.topics{suggest(topic, source.topics)}"
            yield document.error(document.at("bootstrap", "position", topic), text)
    for topic in source.topics:
        if topic not in section.position:
            text = f"it lacks the topic {topic!r}, so that would be read from its beginning"
            yield document.error(document.at("bootstrap", "position"), text)


def _wrong_with_transform(document: Document, top: _OfTable) -> Iterator[InvalidInput]:
    text = "the columns of the table are those that the SQL of transform gives, so it has no effect; leave it out"
    for name in ("evolve", "columns", "renamed_columns"):
        if getattr(top, name):
            yield document.error(document.at(name), text)
    if top.on_mismatch == "rescue":
        yield document.error(document.at("on_mismatch"), "with transform it can be quarantine or fail")


def _wrong_values(
    document: Document, members: Mapping[str, Node], top: _OfTable | _OfDatabase
) -> Iterator[InvalidInput]:
    if top.trigger_seconds < 0:
        yield document.error(members["trigger_seconds"], "it must be at least 0, for as soon as there is something new")
    if top.metrics.port is not None and not 0 <= top.metrics.port <= 65535:
        yield document.error(members["metrics"], "the port must be between 0 and 65535, or null for no metrics")
    if top.page.port is not None and not 0 <= top.page.port <= 65535:
        yield document.error(members["page"], "the port must be between 0 and 65535, or null for no page")
    if not top.page.host:
        yield document.error(members["page"], "the host must not be empty; 0.0.0.0 is every address of this machine")
    if isinstance(top, _OfTable):
        if top.maintenance.trigger_seconds < 0:
            yield document.error(document.at("maintenance", "trigger_seconds"), "it must be at least 0")
        if "maintenance" in members and not top.maintain:
            yield document.error(
                members["maintenance"], "maintain is false, so it has no effect; leave one of them out"
            )
        yield from wrong_in_table(document, top.table)
    else:
        yield from wrong_in(document, top.database)


def _wrong_format(document: Document, members: Mapping[str, Node], source: str, chosen: str) -> Iterator[InvalidInput]:
    only = _ONLY_FORMATS.get(source)
    if only is not None and chosen != only:
        yield document.error(members["format"], f"the source {source} makes {only}, so leave the format out")
    if chosen == CHANGES and source != "lakebed":
        yield document.error(members["format"], "only a source of kind lakebed makes changes; use another format")
    if source == "files" and chosen in TYPED_FORMATS:
        yield document.error(
            members["format"], f"lines of files can't be {chosen}; use json, debezium-json, csv or parquet"
        )
    if source == "kafka" and chosen in ("csv", "parquet"):
        yield document.error(members["format"], f"records of Kafka can't be {chosen}; use debezium-json, json or avro")


def _choice(
    document: Document, root: Node, key: str, sections: Mapping[str, type[Any]], default: str | None
) -> tuple[str, Any]:
    """The kind and the settings of a section that has a ``kind``."""
    node = mapping_of(document, root).get(key)
    if node is None:
        if default is None:
            raise document.error(root, f"the key {key!r} is missing")
        return default, sections[default]()
    if isinstance(node.value, str):  # `format: json` is short for `format: {kind: json}`
        node = replace(node, value={"kind": replace(node, name=f"{key}.kind")})
    members = mapping_of(document, node)
    if "kind" not in members:
        raise document.error(node, f"the key 'kind' is missing: one of {', '.join(sections)}")
    kind = convert(document, members["kind"], Literal[tuple(sections)])
    return kind, bind(document, node, sections[kind], left_out=("kind",))
