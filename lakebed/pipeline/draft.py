"""Begins a pipeline file from a few answers, such as those of ``lakebed init``, and from files or a topic that are there.

What it writes passes ``validate``, as soon as the folder of files and, if it gives no columns, the table are there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa
import yaml

from lakebed.decode.formats import EVENTS, KINDS, record_format
from lakebed.decode.json.connect_types import PLAIN, LogicalType
from lakebed.decode.json.text import Unreadable
from lakebed.decode.typed.registry import Registry, RegistrySettings
from lakebed.decode.typed.values import column_field, row_of
from lakebed.errors import InvalidInput, InvalidSchema
from lakebed.pipeline.check import check
from lakebed.pipeline.settings import parse_any, parse_pipeline
from lakebed.schema.conversion import canonical_schema
from lakebed.schema.type_names import table_schema, type_text
from lakebed.sql import file_literal
from lakebed.storage.engine import connect

# -- The columns of files or of a topic that are there already -------------------------------------------------------------
#
# DuckDB reads some of the files and guesses types; people check what it guessed. A topic's schemas are in a registry.


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
    return {field.name: _type_of(field.name, field.type) for field in found}


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


def _type_of(name: str, kind: pa.DataType) -> str:
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
    named = {one.name: _type_of(one.name, one.type) for one in columns if not pa.types.is_null(one.type)}
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


# -- The text of the file --------------------------------------------------------------------------------------------------


SourceKind = Literal["kafka", "files", "generator"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A pipeline to be. ``columns``: name to type, as in a pipeline file; none: the table must exist when it is run.

    ``bootstrap_servers`` and ``topics`` are for Kafka, ``folder`` for files, ``registry`` (its url) for formats whose schemas are
    in one. ``operation_field``: the member of JSON records that says which are deletes.
    """

    path: str
    source: SourceKind
    format: str
    columns: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()
    sequence_by: str | None = None
    bootstrap_servers: str = ""
    topics: tuple[str, ...] = ()
    folder: str = ""
    registry: str = ""
    operation_field: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseDraft:
    """A pipeline of a whole database to be. ``topic_prefix``: what the topics' names begin with, and a dot."""

    path: str
    format: str
    bootstrap_servers: str
    topic_prefix: str
    registry: str = ""


def text_of_database(draft: DatabaseDraft, file: str) -> str:
    """As ``text_of``."""
    config = {"bootstrap.servers": draft.bootstrap_servers}
    pattern = re.escape(draft.topic_prefix) + r"\..*"
    lines = [
        *_head(file),
        _section("database", {"path": draft.path, "topic_prefix": draft.topic_prefix}),
        "  # What differs from what is derived, such as: exclude: [public.tmp_.*], tables: {public.orders: {keys: [id]}}\n",
        "\n",
        _section("source", {"kind": "kafka", "topic_pattern": pattern, "config": config}),
        "\n",
        _section("format", {"kind": draft.format}),
    ]
    if draft.registry:
        lines += ["\n", _section("registry", {"url": draft.registry})]
    text = "".join(lines)
    parse_any(text, file, {})
    return text


def text_of(draft: Draft, file: str) -> str:
    """The pipeline file, to be saved as ``file``. Raises InvalidInput, with the line, for an answer that can't be used."""
    text = "".join(_lines(draft, file))
    pipeline = parse_pipeline(text, file, {})
    if draft.columns and not (draft.folder and not os.path.isdir(draft.folder)):
        check(pipeline)
    return text


def _lines(draft: Draft, file: str) -> list[str]:
    table: dict[str, Any] = {"path": draft.path} | ({"keys": list(draft.keys)} if draft.keys else {})
    if draft.sequence_by:
        table["sequence_by"] = draft.sequence_by
    if draft.columns:
        table["schema"] = dict(draft.columns)
    lines = [*_head(file), _section("table", table)]
    if not draft.keys:
        lines.append(
            "  # Without keys the table is only appended to. With keys: [id] a newer row replaces an older one.\n"
        )
    elif not draft.sequence_by:
        lines.append(
            "  # Changes apply in the order of their arrival. With sequence_by: updated_at, a late one loses.\n"
        )
    lines += ["\n", _section("source", _source(draft)), "\n", _section("format", _format(draft))]
    return [*lines, "\n", _section("registry", {"url": draft.registry})] if draft.registry else lines


def _head(file: str) -> tuple[str, str]:
    return (
        f"# Check it with: lakebed validate {' '.join(file.split())}\n",
        "# Every key of a pipeline file: lakebed docs pipeline\n\n",
    )


def _source(draft: Draft) -> dict[str, Any]:
    match draft.source:
        case "kafka":
            return {
                "kind": "kafka",
                "topics": list(draft.topics),
                "config": {"bootstrap.servers": draft.bootstrap_servers},
            }
        case "files":
            return {"kind": "files", "folder": draft.folder}
        case "generator":
            return {"kind": "generator", "events_per_second": 1000}


def _format(draft: Draft) -> dict[str, Any]:
    deletes = {"operation_field": draft.operation_field} if draft.operation_field else {}
    return {"kind": draft.format} | deletes


def _section(name: str, values: Mapping[str, Any]) -> str:
    return yaml.dump({name: _literal(values)}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)


def _literal(value: Any) -> Any:
    """The value, so that nothing in it is taken for the name of an environment variable."""
    if isinstance(value, Mapping):
        return {name: _literal(member) for name, member in value.items()}
    if isinstance(value, list):
        return _Short(_literal(item) for item in value)
    return value.replace("${", "$${") if isinstance(value, str) else value


class _Short(list[Any]):
    """A list that stays on one line."""


class _Dumper(yaml.SafeDumper):
    """Writes lists on one line; everything else as YAML usually is."""


_Dumper.add_representer(
    _Short, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)
