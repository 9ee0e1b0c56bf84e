"""The SQL of a pipeline (``transform``): what it selects from, and whether its result fits the table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from lakebed.decode.decoder import DecoderSchema
from lakebed.errors import InvalidInput
from lakebed.ingest.transform.query import Transform
from lakebed.parts.changes import WriteSpec
from lakebed.pipeline.file.layer_sections import LakebedSection, TransformSection
from lakebed.pipeline.file.settings import GeneratorSection, Pipeline, RowsFormat
from lakebed.pipeline.upstream import upstream_of
from lakebed.schema.conversion import canonical_schema
from lakebed.schema.type_names import table_schema
from lakebed.sources.generator import COLUMNS, KEYS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Columns, what identifies a row, and what orders the changes: of a table, or of the records before the SQL."""

    columns: pa.Schema
    keys: tuple[str, ...]
    sequence_by: str | None

    @property
    def spec(self) -> WriteSpec:
        return WriteSpec(schema=self.columns, keys=self.keys, sequence_by=self.sequence_by)


def records_before(pipeline: Pipeline, table: Shape) -> Shape:
    """The records that the SQL selects from. Raises InvalidInput; what opening an upstream raises."""
    section = pipeline.transform
    assert section is not None
    is_metadata = table.sequence_by is not None and table.sequence_by not in table.columns.names
    sequence_by = table.sequence_by if is_metadata else None
    if isinstance(pipeline.source, LakebedSection):
        upstream = upstream_of(pipeline.source)
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
