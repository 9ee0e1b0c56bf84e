"""The settings of a source of files, and the columns of its files, as a pipeline file says."""

from __future__ import annotations

import pyarrow as pa

from lakebed.pipeline.file.settings import FilesSection, Pipeline, RowsFormat
from lakebed.schema.type_names import table_schema
from lakebed.sources.files.settings import FilesSettings


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
