"""The check of a pipeline file before anything is made or started: ``validate`` and ``run`` use the same one.

1. The table: each column that a setting names is there, and can be used so. Of a table that exists: what differs from the file.
2. The format and the source: what their own classes refuse, and the columns that expressions and lists name.
3. The folders (``places``). 4. With ``connect``: brokers and stores, asked once and for a short time.

All findings are reported at once, each with its line. Nothing is written, and Spark is not needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import pyarrow as pa

from lakebed import table as tables
from lakebed.column_groups import GROUPS, ColumnGroup
from lakebed.decode.decoder import DecoderSchema
from lakebed.decode.formats import EVENTS, decoder
from lakebed.decode.metadata import ENVELOPE, KNOWN_MEMBERS, metadata_path
from lakebed.errors import InvalidInput, InvalidSchema, LakebedError, MissingPrerequisite, TableDropped, TableNotFound
from lakebed.operations.create import NewTable, check_layout
from lakebed.pipeline.document import Findings
from lakebed.pipeline.places import (
    check_checkpoint,
    check_kafka,
    check_places,
    check_registry,
    check_stores,
    checkpoint_of,
    is_local,
)
from lakebed.pipeline.sections import (
    ChangesFormat,
    FilesSection,
    GeneratorSection,
    JsonFormat,
    KafkaSection,
    LakebedSection,
    RowsFormat,
    TypedRowsFormat,
)
from lakebed.pipeline.settings import Pipeline, decoder_options
from lakebed.pipeline.target import ANOTHER_PATH, differences
from lakebed.pipeline.transforming import (
    Shape,
    Upstream,
    check_file_columns,
    check_spark_expression,
    check_upstream,
    columns_of_files,
    columns_read,
    files_settings,
    find_upstream,
    records_before,
    shape_of,
    with_upstream,
)
from lakebed.schema.conversion import canonical_schema, check_columns, check_new_names
from lakebed.schema.type_names import table_schema
from lakebed.settings import suggest
from lakebed.sortkey.sort_key import parse_sort_key
from lakebed.sources.files.folder import Looker
from lakebed.sources.files.reader import FilesReader
from lakebed.sources.files.settings import notes_on
from lakebed.sources.generator import OrderStream
from lakebed.table import Table

Role = Literal["ingest", "maintain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """What a check found out."""

    pipeline: Pipeline  # with what its source says of a table that is to be created
    table: Table | None  # None if there is none yet, or if that was not looked at
    target: Shape | None  # what a run would write to; None if that is not known
    was_looked_for: bool
    notes: tuple[str, ...]

    @property
    def columns(self) -> pa.Schema:
        """The columns that a run would write."""
        return pa.schema([]) if self.target is None else self.target.columns


def check(pipeline: Pipeline, *, connect: bool = False, only: Role | None = None) -> Checked:
    """Raises one error that lists all that is wrong: InvalidInput, if any of it is; else what the first one is.

    ``connect``: ask brokers and stores too; without it, a table in a store is not looked at. ``only``: the role of a run.
    """
    findings = Findings(pipeline.document)
    check_places(pipeline, findings)
    if connect:
        check_stores(pipeline, findings)
    table, was_looked_for = _existing(pipeline, findings, connect)
    upstream = _upstream(pipeline, findings, connect) if only != "maintain" else None
    if upstream is not None and table is None and pipeline.transform is None:
        pipeline = with_upstream(pipeline, upstream)
    target = _target(pipeline, table, was_looked_for, findings)
    if target is not None and only != "maintain":
        records = _records(pipeline, target, upstream, findings)
        if records is not None:
            _check_format(pipeline, records, findings)
            if isinstance(pipeline.source, FilesSection):
                _check_files(pipeline, pipeline.source, records.columns, findings, connect)
    if target is not None and upstream is not None and pipeline.transform is None:
        check_upstream(upstream, target.columns, target.keys, target.sequence_by, findings)
    if only != "maintain":
        _check_source(pipeline, findings, connect)
        check_registry(pipeline, findings, connect)
    findings.raise_if_any()
    return Checked(
        pipeline=pipeline, table=table, target=target, was_looked_for=was_looked_for, notes=tuple(findings.notes)
    )


# -- the table ---------------------------------------------------------------------------------------------------------


def _existing(pipeline: Pipeline, findings: Findings, connect: bool) -> tuple[Table | None, bool]:
    path = pipeline.table.path
    if findings.has("table", "path"):
        return None, False
    if not connect and not is_local(path):
        return None, False
    try:
        return tables.open(path), True
    except TableDropped as error:
        findings.add(error, "table", "path")
        return None, True
    except TableNotFound:
        return None, True
    except LakebedError as error:
        findings.add(error, "table", "path")
        return None, True


def _upstream(pipeline: Pipeline, findings: Findings, connect: bool) -> Upstream | None:
    """The table that the pipeline reads, if it reads one; in a store only with ``connect``."""
    section = pipeline.source
    if not isinstance(section, LakebedSection) or findings.has("source", "path"):
        return None
    return find_upstream(section, findings) if connect or is_local(section.path) else None


def _records(pipeline: Pipeline, target: Shape, upstream: Upstream | None, findings: Findings) -> Shape | None:
    """What the format decodes to: rows of the table, or, with ``transform``, those that its SQL selects from."""
    if pipeline.transform is None:
        return target
    if upstream is None and isinstance(pipeline.source, LakebedSection):
        return None
    records = None
    with findings.at("transform"):
        records = records_before(pipeline, target)
    return records


def _target(pipeline: Pipeline, table: Table | None, was_looked_for: bool, findings: Findings) -> Shape | None:
    """What a run would write to; None if that is not known."""
    section = pipeline.table
    if table is not None:
        for one in differences(section, pipeline.policy, table):
            findings.wrong(f"{one.text}; change the file, or {one.way or ANOTHER_PATH}", "table", *one.key)
        return shape_of(table)
    if section.columns is None:
        if isinstance(pipeline.source, LakebedSection) and pipeline.transform is None:
            return None  # its upstream was not looked at, or is wrong
        if was_looked_for and not findings.has("table", "path"):
            findings.wrong(
                "there is no table at this path, and no table.schema to create it with; add one", "table", "path"
            )
        return None
    before = len(findings.errors)
    with findings.at("table", "schema"):
        check_new_names(section.columns)
    columns = canonical_schema(section.columns)
    _check_names(section.keys, columns, "keys", findings)
    _check_names(section.partition_by, columns, "partition_by", findings)
    for number, term in enumerate(section.sort_key):
        with findings.at("table", "sort_key", number):
            parse_sort_key([term], columns)
    _check_sequence(pipeline, columns, findings)
    groups: tuple[ColumnGroup, ...] = ()
    if len(findings.errors) == before:
        new = NewTable(
            schema=columns,
            keys=section.keys,
            sort_key=section.sort_key,
            sequence_by=section.sequence_by,
            partition_by=section.partition_by,
            properties=section.properties,
        )
        with findings.at("table"):
            settings = new.settings()
            check_layout(columns, settings, section.partition_by)
            groups = settings.groups
    # What is wrong was reported: the format is checked against the rest.
    keys = [key for key in section.keys if columns.get_field_index(key) >= 0] or columns.names[: len(section.keys[:1])]
    sequence_by = None if findings.has("table", "sequence_by") else section.sequence_by
    return Shape(columns=columns, keys=tuple(keys), sequence_by=sequence_by, groups=groups)


def _check_names(names: Sequence[str], columns: pa.Schema, setting: str, findings: Findings) -> None:
    for number, name in enumerate(names):
        with findings.at("table", setting, number):
            check_columns([name], columns, setting)
            if name in names[:number]:
                raise InvalidSchema(f"{setting} names the column {name!r} twice")


def _check_sequence(pipeline: Pipeline, columns: pa.Schema, findings: Findings) -> None:
    name = pipeline.table.sequence_by
    if name is None:
        return
    with findings.at("table", "sequence_by"):
        if name in columns.names:
            check_columns([name], columns, "sequence_by")
            return
        if pipeline.policy.fills and GROUPS in pipeline.table.properties:
            return  # the records may have another order (``_check_format``)
        if isinstance(pipeline.format, RowsFormat):
            extra = pipeline.format.extra_columns
            if name not in extra:
                near = suggest(name, [*columns.names, *extra])
                raise InvalidSchema(f"{name!r} is neither a column of the table nor one of format.extra_columns{near}")
            kind = table_schema({name: extra[name]}).field(0).type
            if not pa.types.is_integer(kind) and not pa.types.is_timestamp(kind):
                raise InvalidSchema(
                    f"{name!r} is {kind}; a sequence that is no column of the table must be whole numbers or timestamps"
                )
            return
        if isinstance(pipeline.format, ChangesFormat):
            return  # the upstream says what there is
        try:
            path = metadata_path(name)
        except InvalidSchema as error:
            raise error.with_text(f"{error}{suggest(name, [*columns.names, *ENVELOPE])}") from None
        known = KNOWN_MEMBERS.get(path[0]) if path is not None else None
        if path is not None and known is not None and path[1] not in known and pipeline.format_kind.startswith(EVENTS):
            findings.note(
                f"sequence_by: no connector that lakebed knows writes {name}{suggest(path[1], known)}. Records that lack it go "
                "to the quarantine"
            )
        if not pipeline.format_kind.startswith(EVENTS) and path is not None and path[0] != "kafka":
            raise InvalidSchema(f"{name!r} is metadata that rows lack; use a column or kafka.offset")
        if isinstance(pipeline.source, FilesSection) and path == ("kafka", "offset"):
            raise InvalidSchema(
                "lines of files have no kafka.offset; use a column, or kafka.timestamp: the time of the file"
            )


# -- format and source -------------------------------------------------------------------------------------------------


def _check_format(pipeline: Pipeline, target: Shape, findings: Findings) -> None:
    form = pipeline.format
    if pipeline.table.sources and not pipeline.format_kind.startswith(EVENTS):
        findings.wrong(f"it has no effect: rows of {pipeline.format_kind} do not name their table", "table", "sources")
    if isinstance(form, RowsFormat):
        _check_rows(form, target, findings)
        if pipeline.format_kind == "csv" and not findings.errors:
            _check_types_of_csv(pipeline, form, target.columns, findings)
        return
    _check_names_of_fields(pipeline, target, findings)
    if isinstance(form, ChangesFormat):
        return
    members = pipeline.document.at("format").value
    if isinstance(form, JsonFormat | TypedRowsFormat) and form.operation_field is None and isinstance(members, Mapping):
        for name in ("delete_values", "upsert_values"):
            if name in members:
                findings.wrong("it has no effect without operation_field; add that, or leave it out", "format", name)
    order = target.sequence_by
    with findings.at("columns"):
        order = target.order_of(pipeline.policy.fills)
    with findings.within("format", form):
        policy = replace(pipeline.policy, renamed={}, fills=())
        decoder_schema = DecoderSchema.of_table(target.columns, target.keys, order, policy)
        decoder(pipeline.format_kind, decoder_schema, decoder_options(pipeline))


def _check_types_of_csv(pipeline: Pipeline, form: RowsFormat, columns: pa.Schema, findings: Findings) -> None:
    place = ("table", "schema") if pipeline.table.schema else ("format",)
    for one in columns_of_files(pipeline, columns):
        if pa.types.is_nested(one.type) and one.name not in form.except_columns:
            findings.wrong(
                f"a CSV file can't have values of the column {one.name!r}, which is {one.type}; use json or parquet, or make "
                "it a string",
                *place,
            )


def _check_files(
    pipeline: Pipeline, section: FilesSection, columns: pa.Schema, findings: Findings, connect: bool
) -> None:
    """The options of the source, and the first files that are there, if nothing else is wrong."""
    before = len(findings.errors)
    with findings.within("source", section):
        Looker(files_settings(section, pipeline))
    if len(findings.errors) > before:
        return
    settings = files_settings(section, pipeline)
    for note in notes_on(settings):
        findings.note(note)
    if isinstance(pipeline.format, RowsFormat) and not findings.errors and (connect or is_local(section.folder)):
        left_out = tuple(pipeline.format.except_columns)
        check_file_columns(FilesReader(settings, columns_read(pipeline, columns), left_out), findings)


def _check_names_of_fields(pipeline: Pipeline, target: Shape, findings: Findings) -> None:
    """What ``renamed_columns`` says: each pair has a column in the table, and one only."""
    policy, names = pipeline.policy, target.columns.names
    with findings.at("columns"):
        DecoderSchema.of_table(target.columns, target.keys, target.sequence_by, replace(policy, renamed={}))
    with findings.at("renamed_columns"):
        policy.other_names(names)
    for new, old in pipeline.renamed_columns.items():
        if not policy.names_of(new) & set(names) and "add" not in policy.allowed:
            findings.wrong(f"the table has no column {old!r}, nor {new!r}{suggest(old, names)}", "renamed_columns", new)


def _check_rows(form: RowsFormat, target: Shape, findings: Findings) -> None:
    names = [*target.columns.names, *form.extra_columns]
    for name, kind in form.extra_columns.items():
        with findings.at("format", "extra_columns", name):
            table_schema({name: kind})
            if target.columns.get_field_index(name) >= 0:
                raise InvalidInput(f"{name!r} is a column of the table, so it is no extra one; leave it out")
    for number, name in enumerate(form.except_columns):
        place = ("format", "except_columns", number)
        if name not in names:
            findings.wrong(f"{name!r} is neither a column of the table nor an extra one{suggest(name, names)}", *place)
        elif name in target.keys or name == target.sequence_by:
            findings.wrong(f"{name!r} is a key or orders the changes; it can't be left out", *place)
    if form.apply_as_deletes is not None:
        with findings.at("format", "apply_as_deletes"):
            if not target.keys:
                raise InvalidInput("it needs a table with keys; this one has none, so it can only be appended to")
            check_spark_expression(form.apply_as_deletes, names)


def _check_source(pipeline: Pipeline, findings: Findings, connect: bool) -> None:
    section, checkpoint = pipeline.source, checkpoint_of(pipeline)
    is_known = not findings.has("checkpoint") and (pipeline.checkpoint or not findings.has("table", "path"))
    if is_known and (connect or is_local(checkpoint)):
        with findings.at("checkpoint"):
            check_checkpoint(pipeline, checkpoint)
    if isinstance(section, GeneratorSection):
        with findings.within("source", section):
            values = asdict(section)
            OrderStream(**{name: values[name] for name in OrderStream.__slots__})
    elif isinstance(section, KafkaSection):
        with findings.within("source", section):
            _check_kafka(section, checkpoint, findings, connect)


def _check_kafka(section: KafkaSection, checkpoint: str, findings: Findings, connect: bool) -> None:
    try:
        from lakebed.sources.kafka.settings import KafkaSettings, refused_settings
    except ModuleNotFoundError as error:
        if error.name != "confluent_kafka":
            raise
        raise MissingPrerequisite("the source kafka needs confluent-kafka: pip install 'lakebed[kafka]'") from None
    settings = KafkaSettings(**{name: getattr(section, name) for name in KafkaSection.__slots__})
    refused = refused_settings(settings)
    for name, why in refused.items():
        findings.wrong(why, "source", "config", name)
    if connect and not refused:
        check_kafka(section, settings, checkpoint, findings)
