"""A source of files: its settings and columns as a pipeline file says, and whether the first files can be read so.

Files are read by the same code as in a run: their first rows, and of Parquet all columns.
"""

from __future__ import annotations

from itertools import islice

import pyarrow as pa

from lakebed.errors import InvalidChanges, LakebedError
from lakebed.pipeline.file.document import Findings
from lakebed.pipeline.file.sections import FilesSection, RowsFormat
from lakebed.pipeline.file.settings import Pipeline
from lakebed.schema.type_names import table_schema
from lakebed.sources.files.parquet_rows import matched, open_parquet
from lakebed.sources.files.planner import ranges_of
from lakebed.sources.files.reader import FilesReader
from lakebed.sources.files.settings import FilesSettings, shown

# -- The settings of a source of files, and the columns of its files, as a pipeline file says ------------------------------


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


# -- Whether the files in a source's folder can be read as a pipeline file says --------------------------------------------


FILES_MAX = 8
_LISTED_MAX = 10_000
_PLACE = ("source", "folder")


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
