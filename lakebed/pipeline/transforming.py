"""The SQL of a pipeline (``transform``): the table, files or records that it selects from, and whether its result fits the table.

Files are read by the same code as in a run: their first rows, and of Parquet all columns.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed import table as tables
from lakebed.column_groups import ColumnGroup, order_of_stream
from lakebed.decode.decoder import DecoderSchema
from lakebed.errors import InvalidChanges, InvalidInput, LakebedError, TableNotFound
from lakebed.ingest.transform_query import Transform
from lakebed.parts.changes import WriteSpec
from lakebed.pipeline.document import Findings
from lakebed.pipeline.sections import (
    FilesSection,
    GeneratorSection,
    LakebedSection,
    RowsFormat,
    TableSection,
    TransformSection,
)
from lakebed.pipeline.settings import Pipeline
from lakebed.schema.conversion import ChangeNames, canonical_schema
from lakebed.schema.type_names import table_schema, type_text
from lakebed.settings import suggest
from lakebed.sources.files.parquet_rows import matched, open_parquet
from lakebed.sources.files.planner import ranges_of
from lakebed.sources.files.reader import FilesReader
from lakebed.sources.files.settings import FilesSettings, shown
from lakebed.sources.generator import COLUMNS, KEYS
from lakebed.sources.rows import sequences
from lakebed.sql import parsed
from lakebed.table import Table, internals_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES_MAX = 8
_LISTED_MAX = 10_000
_PLACE = ("source", "folder")


# -- What can be said about an expression of Spark's SQL without Spark: whether it ends, and which columns it names --------
#
# DuckDB's parser reads what both dialects share, once Spark's quotes are translated (`` ` `` quotes a name, ``"`` a text).
# What it can't read may still be Spark's, so nothing is said about it but that brackets and quotes are closed.


_TOKEN = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`|[()'\"`]|[^()'\"`]+", re.DOTALL)
_WORDS = {"current_date", "current_timestamp", "localtimestamp", "current_user", "session_user", "user", "_metadata"}
"""Names that are no columns of the changes: functions without brackets, and what Spark adds to rows of files."""


def check_spark_expression(text: str, columns: Collection[str]) -> None:
    """Raises InvalidInput for an expression that is not closed, or that names a column which is not there."""
    depth, out = 0, []
    for token in _TOKEN.findall(text):
        if token in ("'", '"', "`"):
            raise InvalidInput(f"{text!r} is not one SQL expression: the quote {token} is not closed")
        depth += (token == "(") - (token == ")")
        if depth < 0:
            raise InvalidInput(f"{text!r} is not one SQL expression: a bracket closes that was not opened")
        if token.startswith("`") and len(token) > 1:
            token = '"' + token[1:-1].replace("``", "`").replace('"', '""') + '"'
        elif token.startswith('"') and len(token) > 1:
            token = "'" + token[1:-1].replace("'", "''") + "'"
        out.append(token)
    if depth:
        raise InvalidInput(f"{text!r} is not one SQL expression: a bracket is not closed")
    if not text.strip():
        raise InvalidInput("it is empty; write an expression such as op = 'd'")
    try:
        tree = parsed("".join(out), text)
    except InvalidInput:
        return  # Spark may know it
    known = {name.lower() for name in columns} | _WORDS
    for name in _columns_in(tree):
        if name.lower() not in known:
            raise InvalidInput(f"{text!r} names the column {name!r}, which is not there{suggest(name, columns)}")


def _columns_in(tree: object) -> list[str]:
    """The first part of each column name in a syntax tree; a name within a lambda may be its parameter."""
    found: list[str] = []
    left = [tree]
    while left:
        match left.pop():
            case {"class": "LAMBDA"}:
                return []
            case {"class": "COLUMN_REF", "column_names": [str(name), *_]}:
                found.append(name)
            case dict() as node:
                left.extend(node.values())
            case list() as items:
                left.extend(items)
    return found


# -- The table that a pipeline of kind ``lakebed`` reads -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A table whose changes are read. ``sequence_by``: what orders them in a copy; None if the order of arrival does."""

    columns: pa.Schema
    keys: tuple[str, ...]
    sequence_by: str | None

    @property
    def hides_sequence(self) -> bool:
        """Whether what orders the changes is none of the columns."""
        return self.sequence_by is not None and self.sequence_by not in self.columns.names

    def section(self, section: TableSection) -> TableSection:
        """The section of a table of these changes, where the file has no schema."""
        schema = {one.name: type_text(one.type) + ("" if one.nullable else " not null") for one in self.columns}
        keys = section.keys or self.keys
        return replace(
            section, schema=schema, keys=keys, sequence_by=section.sequence_by or (self.sequence_by if keys else None)
        )


def _upstream_of(section: LakebedSection) -> Upstream:
    """Raises TableNotFound, and what opening the table raises."""
    found = shape_of(tables.open(section.path))
    names, sequence_by = found.columns.names, found.sequence_by
    if sequence_by is not None and sequence_by not in names:
        sequence_by = ChangeNames.beside(names).sequence
    return Upstream(columns=found.columns, keys=found.keys, sequence_by=sequence_by)


def with_upstream(pipeline: Pipeline, upstream: Upstream | None = None) -> Pipeline:
    """The pipeline with the schema of its upstream for a table that the file gives none. Raises as ``_upstream_of`` does."""
    if not isinstance(pipeline.source, LakebedSection) or pipeline.table.schema:
        return pipeline
    found = upstream or _upstream_of(pipeline.source)
    return replace(pipeline, table=found.section(pipeline.table))


def find_upstream(section: LakebedSection, findings: Findings) -> Upstream | None:
    """The upstream, if it is there."""
    try:
        return _upstream_of(section)
    except TableNotFound:
        text = f"there is no table at {section.path}; the pipeline that writes it must run first, or fix the path"
        findings.wrong(text, "source", "path")
    except LakebedError as error:
        findings.add(error, "source", "path")
    return None


def check_upstream(
    upstream: Upstream, columns: pa.Schema, keys: tuple[str, ...], sequence_by: str | None, findings: Findings
) -> None:
    """Whether the changes of the upstream can become those of a table with these columns."""
    names = upstream.columns.names
    for number, key in enumerate(keys):
        if key not in names:
            near = suggest(key, names)
            findings.wrong(f"the table {key!r} is a key of has changes without it{near}", "table", "keys", number)
    if keys and upstream.sequence_by is not None and sequence_by is None:
        findings.wrong(
            f"late changes are among those of the source, which orders them: set table.sequence_by to {upstream.sequence_by}",
            "table",
        )
    besides = sequences(names)
    if sequence_by is not None and sequence_by not in (*names, *besides):
        near = suggest(sequence_by, [*names, *besides])
        findings.wrong(
            f"the changes have no column {sequence_by!r}, nor is it one of {', '.join(besides)}{near}",
            "table",
            "sequence_by",
        )
    if sequence_by == besides[0] and not upstream.hides_sequence:
        text = (
            f"the changes have no {besides[0]}: the source orders them by {upstream.sequence_by or 'arrival'}; use that"
        )
        findings.wrong(text, "table", "sequence_by")
    lacking = [one.name for one in columns if one.name not in names and not one.nullable]
    if lacking:
        findings.wrong(
            f"the source has no column {lacking[0]!r}, which is not null in the table", "table", "schema", lacking[0]
        )


# -- The SQL, and whether its result fits the table ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Columns, what identifies a row, and what orders the changes: of a table, or of the records before the SQL."""

    columns: pa.Schema
    keys: tuple[str, ...]
    sequence_by: str | None
    groups: tuple[ColumnGroup, ...] = ()

    def order_of(self, fills: Sequence[str]) -> str | None:
        """What orders the changes of a stream that fills these columns (``order_of_stream``). Raises InvalidInput."""
        return order_of_stream(fills, self, self.columns.names)

    @property
    def spec(self) -> WriteSpec:
        return WriteSpec(schema=self.columns, keys=self.keys, sequence_by=self.sequence_by)


def shape_of(table: Table) -> Shape:
    """Of a table, at its newest version."""
    snapshot = internals_of(table).log.refresh()
    settings = snapshot.logical_settings
    return Shape(
        columns=snapshot.logical_schema,
        keys=settings.keys,
        sequence_by=settings.sequence_by,
        groups=settings.groups,
    )


def records_before(pipeline: Pipeline, table: Shape) -> Shape:
    """The records that the SQL selects from. Raises InvalidInput; what opening an upstream raises."""
    section = pipeline.transform
    assert section is not None
    is_metadata = table.sequence_by is not None and table.sequence_by not in table.columns.names
    sequence_by = table.sequence_by if is_metadata else None
    if isinstance(pipeline.source, LakebedSection):
        upstream = _upstream_of(pipeline.source)
        columns, keys = upstream.columns, upstream.keys
        sequence_by = upstream.sequence_by if upstream.hides_sequence else None
    elif isinstance(pipeline.source, GeneratorSection):
        columns, keys = COLUMNS, KEYS
    else:
        columns = canonical_schema(table_schema(section.columns)) if section.columns else table.columns
        keys = section.keys or tuple(key for key in table.keys if columns.get_field_index(key) >= 0)
    if missing := [key for key in keys if columns.get_field_index(key) < 0]:
        raise InvalidInput(f"keys names {missing[0]!r}, which is none of the columns of the records")
    return Shape(columns=pa.schema([one.with_nullable(True) for one in columns]), keys=keys, sequence_by=sequence_by)


def transform_of(pipeline: Pipeline, records: Shape, table: Shape) -> Transform:
    """The SQL between these records and a table."""
    section: TransformSection | None = pipeline.transform
    assert section is not None
    columns = records.columns
    if isinstance(pipeline.format, RowsFormat):
        extra = table_schema(pipeline.format.extra_columns) if pipeline.format.extra_columns else pa.schema([])
        left_out = pipeline.format.except_columns
        columns = pa.schema([one for one in (*columns, *extra) if one.name not in left_out])
    return Transform(sql=section.sql, columns=columns, taken=tuple(table.columns.names) if table.keys else ())


def check_transform(pipeline: Pipeline, table: Shape, spark: SparkSession) -> None:
    """Have Spark plan the SQL. Raises InvalidInput with the line of the file."""
    document = pipeline.document
    try:
        transform_of(pipeline, records_before(pipeline, table), table).check(spark, table.spec)
    except InvalidInput as error:
        raise document.error(document.at("transform"), str(error)) from None


def schema_of_records(pipeline: Pipeline, records: Shape) -> DecoderSchema:
    """What records are decoded to, where SQL follows."""
    policy = replace(pipeline.policy, allowed=frozenset(), renamed={})
    return DecoderSchema(records.columns, records.keys, records.sequence_by, policy)


def files_settings(section: FilesSection, pipeline: Pipeline) -> FilesSettings:
    """The settings of a source. Raises InvalidInput."""
    return FilesSettings(
        folder=section.folder,
        format=pipeline.format_kind,  # type: ignore[arg-type]
        table=pipeline.table.path,
        files_per_batch_max=section.files_per_batch_max,
        options=dict(section.options),
    )


def columns_of_files(pipeline: Pipeline, columns: pa.Schema) -> pa.Schema:
    """The columns that files of rows have: those of the table, or of the records before the SQL, and the extra ones."""
    form = pipeline.format
    assert isinstance(form, RowsFormat)
    every = [*columns, *(table_schema(form.extra_columns) if form.extra_columns else ())]
    if pipeline.format_kind == "csv":  # what is not taken over may have values that CSV can't have
        left_out = form.except_columns
        every = [
            one.with_type(pa.string()) if pa.types.is_nested(one.type) and one.name in left_out else one
            for one in every
        ]
    return pa.schema(every)


def columns_read(pipeline: Pipeline, columns: pa.Schema) -> pa.Schema:
    """Those of them that are read: of Parquet without the ones that are not taken over, unless Spark is to see these too."""
    form, every = pipeline.format, columns_of_files(pipeline, columns)
    assert isinstance(form, RowsFormat)
    reads_all = pipeline.computes_in_spark
    return every if reads_all else pa.schema([one for one in every if one.name not in form.except_columns])


def check_file_columns(reader: FilesReader, findings: Findings) -> None:
    """``reader``: as it is in a run."""
    try:
        paths = sorted(islice(reader.looker.paths(), _LISTED_MAX))[:FILES_MAX]
        states = [(path, reader.looker.folder.state(path)) for path in paths]
    except (LakebedError, FileNotFoundError):
        return  # who can't list the folder is told so elsewhere
    noted = False
    for ordinal, (path, state) in enumerate((path, state) for path, state in states if state.size):
        [first, *_] = ranges_of(reader.looker.url(path), ordinal, state, [(0, state.size)])
        try:
            next(iter(reader.read(first)), None)
        except InvalidChanges as error:
            findings.wrong(str(error), *_PLACE)
            return
        except LakebedError:
            continue  # it is gone, or is being written
        if reader.settings.format == "parquet" and not noted:
            noted = True
            _note_differences(reader, path, findings)


def _note_differences(reader: FilesReader, path: str, findings: Findings) -> None:
    """What is not taken over of a file: columns that are not asked for, and nanoseconds."""
    looker, columns = reader.looker, reader.columns
    assert columns is not None
    with looker.folder.open(path, looker.folder.state(path).size) as opened:
        schema = open_parquet(opened).schema_arrow
    found = matched(schema.names, columns.names)
    more = [name for name in schema.names if name not in found.values() and name not in reader.left_out]
    file = shown(looker.url(path))
    kinds = {name: schema.field(name).type for name in found.values()}
    if fine := [name for name, kind in kinds.items() if pa.types.is_timestamp(kind) and kind.unit == "ns"]:
        findings.note(f"{file} has times in nanoseconds: {', '.join(fine)}. They are cut to microseconds")
    if more:
        findings.note(
            f"{file} has columns that no column takes: {', '.join(more)}. They are left out; a table can have them"
        )
