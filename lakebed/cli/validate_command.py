"""``lakebed validate``: check a pipeline file and print its settings with all defaults and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa
import yaml

from lakebed import table as tables
from lakebed.cli import exit_codes
from lakebed.cli.escapes import shown, shown_lines
from lakebed.errors import LakebedError, TableNotFound
from lakebed.manifest.schema import canonical_schema
from lakebed.pipeline.document import HIDDEN, Document
from lakebed.pipeline.settings import Pipeline, load
from lakebed.pipeline.sources import open_source
from lakebed.pipeline.target import check
from lakebed.sortkey.sort_key import parse_sort_key


def validate(file: str) -> int:
    """Print the settings. Raises LakebedError for an error in the file."""
    pipeline = load(file)
    try:
        note, columns = _against_table(pipeline)
    except LakebedError as error:
        raise error.with_text(pipeline.document.redact(str(error))) from None
    print(
        shown_lines(
            yaml.safe_dump(
                effective_settings(pipeline), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
            )
        ),
        end="",
    )
    print(f"# {shown(pipeline.document.redact(note))}")
    if question := _open_question(pipeline, columns):
        print(f"# {shown(question)}")
    return exit_codes.OK


def effective_settings(pipeline: Pipeline) -> dict[str, Any]:
    """Every key with its value, as the file could spell it."""
    out: dict[str, Any] = {}
    for item in fields(pipeline):
        value = getattr(pipeline, item.name)
        match item.name:
            case "document" | "source_kind" | "format_kind":
                continue
            case "source":
                out["source"] = {"kind": pipeline.source_kind} | _plain(value, pipeline.document, "source")
            case "format":
                out["format"] = {"kind": pipeline.format_kind} | _plain(value, pipeline.document, "format")
            case _:
                out[item.name] = _plain(value, pipeline.document, item.name)
    return out


def _against_table(pipeline: Pipeline) -> tuple[str, pa.Schema]:
    """What a run would find, in words, and the columns that it would write."""
    try:
        table = tables.open(pipeline.table.path)
    except TableNotFound:
        columns = pipeline.table.columns
        if columns is None:
            return (
                f"no table at {pipeline.table.path}, and no table.schema to create it with: a run would fail",
                pa.schema([]),
            )
        parse_sort_key(pipeline.table.sort_key, canonical_schema(columns))
        open_source(pipeline, columns)
        return f"fine; the table at {pipeline.table.path} will be created", canonical_schema(columns)
    check(pipeline, table)
    open_source(pipeline, table.schema)
    return f"fine; the table at {pipeline.table.path} is there, at version {table.version}", table.schema


def _open_question(pipeline: Pipeline, columns: pa.Schema) -> str | None:
    """A setting that the file leaves to a rule by which records may go to the quarantine; None if there is none."""
    decimals = [column.name for column in columns if "decimal128(" in str(column.type)]
    form = getattr(pipeline.format, "decimal_text", None)
    if pipeline.source_kind == "generator" or pipeline.format_kind != "debezium-json" or form != "auto" or not decimals:
        return None
    return (
        f"{', '.join(decimals)}: unless events contain schemas, set format.decimal_text to the encoding of decimals; with "
        "auto, a text that may be digits or base64, such as 1234, goes to the quarantine"
    )


def _plain(value: Any, document: Document, name: str) -> Any:
    """A setting as the file could spell it, redacted by its place in the file; ``name`` as ``Node.name``."""
    if is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(member, document, f"{name}.{key}") for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, document, f"{name}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, str):
        return document.redact(value)
    return HIDDEN if name in document.hidden else value
