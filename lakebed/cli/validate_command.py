"""``lakebed validate``: check a pipeline file and print what it means, defaults filled in, secrets blotted out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import yaml

from lakebed import table as tables
from lakebed.cli import exit_codes
from lakebed.errors import LakebedError, TableNotFound
from lakebed.manifest.schema import canonical_schema
from lakebed.pipeline.document import HIDDEN, SENSITIVE, Document
from lakebed.pipeline.settings import Pipeline, load
from lakebed.pipeline.sources import open_source
from lakebed.pipeline.target import check
from lakebed.sortkey.sort_key import parse_sort_key


def validate(file: str) -> int:
    """Raises LakebedError for what is wrong; else prints the settings."""
    pipeline = load(file)
    try:
        note = _against_table(pipeline)
    except LakebedError as error:
        raise type(error)(pipeline.document.redact(str(error))) from None
    print(
        yaml.safe_dump(meaning(pipeline), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100),
        end="",
    )
    print(f"# {pipeline.document.redact(note)}")
    return exit_codes.OK


def meaning(pipeline: Pipeline) -> dict[str, Any]:
    """Every key with its value, as the file could spell it."""
    out: dict[str, Any] = {}
    for item in fields(pipeline):
        value = getattr(pipeline, item.name)
        match item.name:
            case "document" | "source_kind" | "format_kind":
                continue
            case "source":
                out["source"] = {"kind": pipeline.source_kind} | _plain(value, pipeline.document, hide=True)
            case "format":
                out["format"] = {"kind": pipeline.format_kind} | _plain(value, pipeline.document, hide=True)
            case _:
                out[item.name] = _plain(value, pipeline.document, hide=item.name != "table")
    return out


def _against_table(pipeline: Pipeline) -> str:
    try:
        table = tables.open(pipeline.table.path)
    except TableNotFound:
        columns = pipeline.table.columns
        if columns is None:
            return f"no table at {pipeline.table.path}, and no table.schema to create it with: a run would fail"
        parse_sort_key(pipeline.table.sort_key, canonical_schema(columns))
        open_source(pipeline, columns)
        return f"fine; the table at {pipeline.table.path} will be created"
    check(pipeline, table)
    open_source(pipeline, table.schema)
    return f"fine; the table at {pipeline.table.path} is there, at version {table.version}"


def _plain(value: Any, document: Document, hide: bool) -> Any:
    if is_dataclass(value):
        named = {item.name: getattr(value, item.name) for item in fields(value)}
        return {name: _plain(member, document, hide) for name, member in named.items()}
    if isinstance(value, Mapping):
        return {
            name: HIDDEN if hide and SENSITIVE.search(str(name)) else _plain(member, document, hide)
            for name, member in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, document, hide) for item in value]
    if isinstance(value, str):
        return document.redact(value)
    if value is not None and not isinstance(value, bool) and str(value) in document.secrets:
        return HIDDEN
    return value
