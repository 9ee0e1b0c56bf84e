"""Write a pipeline file from a few answers, such as those of ``lakebed init``.

What it writes passes ``validate``, as soon as the folder of files and, if it gives no columns, the table are there.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from lakebed.pipeline.check import check
from lakebed.pipeline.file.settings import parse_any, parse_pipeline

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
