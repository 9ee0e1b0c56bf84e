"""The columns of files or of a topic that are there already, for a pipeline file that a user begins to write.

DuckDB reads some of the files and guesses types; people check what it guessed. A topic's schemas are in a registry.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow as pa

from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.text import Unreadable
from lakebed.decode.typed.formats import EVENTS, KINDS, record_format
from lakebed.decode.typed.registry import Registry, RegistrySettings
from lakebed.decode.typed.shapes import row_of
from lakebed.decode.typed.values import column_field
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.schema.conversion import canonical_schema
from lakebed.schema.type_names import table_schema, type_text
from lakebed.sql.pieces import file_literal
from lakebed.storage.engine import connect

FILES_MAX = 8
_FORMAT_OF_SUFFIX = {
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}
_READERS = {
    "json": "read_json([{}], format = 'newline_delimited', union_by_name = true, maximum_depth = 4)",
    "csv": "read_csv([{}], header = true, union_by_name = true)",
    "parquet": "read_parquet([{}], union_by_name = true)",
}


def format_of(folder: str) -> str | None:
    """The format of the files in a folder by their suffix; None if there is none, or no suffix is known."""
    return next((_FORMAT_OF_SUFFIX[file.suffix.lower()] for file in _files(folder)), None)


def columns_of(folder: str, format: str) -> dict[str, str]:
    """Column names and types of the first files of a folder, as in a pipeline file. None is read for an unknown format.

    Raises InvalidInput naming the folder for files that are in another format.
    """
    files = _files(folder)[:FILES_MAX]
    if not files or format not in _READERS:
        return {}
    listed = ", ".join(file_literal(str(file)) for file in files)
    try:
        with connect() as connection:
            found = connection.sql(f"from {_READERS[format].format(listed)} limit 0").to_arrow_table().schema
    except duckdb.Error as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"the files in {folder} can't be read as {format}: {reason}", path=folder) from None
    return {field.name: type_of(field.name, field.type) for field in found}


def _files(folder: str) -> list[Path]:
    try:
        files = sorted(Path(folder).iterdir())
    except OSError:
        return []
    return [
        file
        for file in files
        if file.suffix.lower() in _FORMAT_OF_SUFFIX and not file.name.startswith((".", "_")) and file.is_file()
    ]


def type_of(name: str, kind: pa.DataType) -> str:
    """The column type for such values; ``string`` for what no column type spells, such as a time of day."""
    try:
        text = type_text(canonical_schema(pa.schema([pa.field(name, kind)])).field(0).type)
        table_schema({name: text})
    except InvalidSchema:
        is_number = pa.types.is_unsigned_integer(kind)
        return "string" if not is_number else "long" if kind.bit_width < 64 else "decimal(20,0)"
    return text


@dataclass(frozen=True, slots=True)
class Sample:
    """``columns``: name to type, as in a pipeline file. ``keys``: of the message key, those that are columns."""

    columns: dict[str, str]
    keys: tuple[str, ...] = ()


def sample_of(url: str, topic: str, format: str) -> Sample:
    """Asks a registry for the newest schemas of a topic, under the names that Confluent's and Debezium's converters give them.

    Raises InvalidInput saying why there are no columns; Retry if the registry does not answer; MissingPrerequisite.
    """
    registry = Registry(RegistrySettings(url=url))
    found = _fields(registry, f"{topic}-value", format, events=format.startswith(EVENTS))
    if isinstance(found, str) or not found[0]:
        why = found if isinstance(found, str) else f"subject '{topic}-value': it is no schema of rows"
        raise InvalidInput(f"the columns of {topic} are not known: {why}; give them as --columns")
    columns = [column_field(one, found[1].get(one.name, PLAIN)) for one in found[0]]
    named = {one.name: type_of(one.name, one.type) for one in columns if not pa.types.is_null(one.type)}
    keys = _fields(registry, f"{topic}-key", format, events=False)
    return Sample(named, () if isinstance(keys, str) else tuple(one.name for one in keys[0] if one.name in named))


def _fields(
    registry: Registry, subject: str, format: str, *, events: bool
) -> tuple[list[pa.Field], dict[str, LogicalType]] | str:
    """The fields of a subject's newest schema, or why there are none."""
    schema = registry.latest(subject)
    if isinstance(schema, str):
        return schema
    kind = KINDS[format.removeprefix(EVENTS)]
    if schema.kind != kind:
        return f"subject {subject!r} is a schema of {schema.kind}, and the format reads {kind}"
    try:
        return row_of(record_format(format).compile(schema.text, schema.references), events=events)
    except Unreadable as error:
        return f"subject {subject!r}: {error}"
