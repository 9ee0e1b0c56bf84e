"""Whether the files in a source's folder can be read as a pipeline file says, judged by the first files that are there.

Files are read by the same code as in a run: their first rows, and of Parquet all columns.
"""

from __future__ import annotations

from itertools import islice

import pyarrow as pa

from lakebed.errors import InvalidChanges, LakebedError
from lakebed.pipeline.findings import Findings
from lakebed.sources.files.names import shown
from lakebed.sources.files.parquet_rows import matched, open_parquet
from lakebed.sources.files.planned import ranges_of
from lakebed.sources.files.reader import FilesReader

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
