"""``lakebed init``: write a pipeline file from options, from files that are there already, and on a terminal from answers."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import cast, get_args

from lakebed.cli import exit_codes
from lakebed.cli.escapes import shown
from lakebed.cli.names import pieces, plain, without_names
from lakebed.decode.typed.formats import TYPED_FORMATS
from lakebed.errors import InvalidInput
from lakebed.pipeline.draft import DatabaseDraft, Draft, SourceKind, text_of, text_of_database
from lakebed.pipeline.file.settings import FORMATS
from lakebed.pipeline.registry_sample import Sample, sample_of
from lakebed.pipeline.sample import columns_of, format_of
from lakebed.schema.type_names import table_schema

SOURCES = get_args(SourceKind)
_ORDERS = {
    "order_id": "long not null", "customer_id": "long", "region": "string", "status": "string",
    "amount": "decimal(12,2)", "note": "string", "created_at": "timestamp", "updated_at": "timestamp",
}  # fmt: skip
"""What the generator makes."""
ROW_FORMATS = ("json", "avro", "protobuf", "json-schema")
_OPERATION_FIELDS = ("op", "__op", "operation", "_op")


def init(options: argparse.Namespace) -> int:
    """Write the file. Raises InvalidInput for what is missing or can't be used."""
    if not options.force and os.path.lexists(options.output):
        raise InvalidInput(f"{options.output} is there already; give another name, or --force to write over it")
    ask = _Questions(bool(sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()))
    draft = _draft(options, ask) if options.database is None else _database_draft(options, ask)
    ask.require_answers()
    text = text_of(draft, options.output) if isinstance(draft, Draft) else text_of_database(draft, options.output)
    try:
        Path(options.output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{options.output} can't be written: {error.strerror}") from None
    print(f"wrote {shown(options.output)}")
    for verb in ("validate", "run"):
        print(f"next: lakebed {verb} {shown(options.output)}")
    return exit_codes.OK


def _database_draft(options: argparse.Namespace, ask: _Questions) -> DatabaseDraft:
    """What is asked for one table alone is derived for each table of a database."""
    for name in ("path", "columns", "keys", "sequence_by", "topic", "folder"):
        if getattr(options, name):
            raise InvalidInput(f"--{name.replace('_', '-')} is for one table; leave it out with --database")
    if options.source not in (None, "kafka"):
        raise InvalidInput(f"--source is {options.source}; the topics of a database are in kafka")
    servers = options.bootstrap_servers or ask("--bootstrap-servers", "Which brokers?", "localhost:9092")
    prefix = options.topic_prefix or ask("--topic-prefix", "Which topic.prefix has the connector?", "")
    form = options.record_format or ask("--record-format", "What are its records?", "debezium-json", optional=True)
    registry = options.registry or ""
    if form in TYPED_FORMATS and not registry:
        registry = ask("--registry", "Where is the schema registry?", "http://localhost:8081")
    return DatabaseDraft(
        path=options.database,
        format=form,
        bootstrap_servers=servers,
        topic_prefix=prefix.rstrip("."),
        registry=registry,
    )


def _draft(options: argparse.Namespace, ask: _Questions) -> Draft:
    source = options.source or ask("--source", "Where do changes come from: kafka, files or generator?", "files")
    if source and source not in SOURCES:
        raise InvalidInput(f"there is no source {source!r}; there are {', '.join(SOURCES)}")
    folder, servers, topics, guess = options.folder or "", options.bootstrap_servers or "", options.topic or [], ""
    if source == "files":
        folder = folder or ask("--folder", "In which folder do the files appear?", "./inbox")
        guess = format_of(folder) or "json"
    elif source == "kafka":
        servers = servers or ask("--bootstrap-servers", "Which brokers?", "localhost:9092")
        topics = topics or ask("--topic", "Which topics, separated by commas?", "").split(",")
        guess = "debezium-json"
    form = options.record_format or ("debezium-json" if source == "generator" else guess)
    if not options.record_format and source in ("kafka", "files"):
        form = ask("--record-format", f"What are its records: {', '.join(FORMATS)}?", guess, optional=True)
    if form and form not in FORMATS:
        raise InvalidInput(f"there is no format {form!r}; there are {', '.join(FORMATS)}")
    registry = options.registry or ""
    if form in TYPED_FORMATS and source == "kafka" and not registry:
        registry = ask("--registry", "Where is the schema registry?", "http://localhost:8081")
    of_topic = Sample({})
    if registry and topics and options.columns is None:
        of_topic = sample_of(registry, topics[0].strip(), form)
    columns = of_topic.columns or _columns(options, ask, source, folder, form)
    operations = [name for name in _OPERATION_FIELDS if form in ROW_FORMATS and name in columns]
    columns = {name: kind for name, kind in columns.items() if name not in operations[:1]}
    path = options.path or ask("--path", "Where will the table be?", f"./lake/{_name(topics, folder)}", optional=True)
    keys = of_topic.keys if of_topic.keys and options.keys is None else _keys(options, ask, source, columns)
    sequence = options.sequence_by or ("source.lsn" if source == "generator" else None)
    if sequence is None and keys:
        sequence = ask("--sequence-by", "What orders the changes of a key? Empty: their arrival", "", optional=True)
    return Draft(
        path=path,
        source=cast(SourceKind, source or "files"),
        format=form,
        columns={name: _required(kind) if name in keys else kind for name, kind in columns.items()},
        keys=keys,
        sequence_by=sequence or None,
        bootstrap_servers=servers,
        topics=tuple(topic.strip() for topic in topics if topic.strip()),
        folder=folder,
        registry=registry,
        operation_field=operations[0] if operations else None,
    )


def _columns(options: argparse.Namespace, ask: _Questions, source: str, folder: str, form: str) -> dict[str, str]:
    if options.columns is None and source == "generator":
        return dict(_ORDERS)
    found = columns_of(folder, form) if options.columns is None and source == "files" else {}
    if found:
        return found
    return parse_columns(options.columns or ask("--columns", 'Which columns? Such as "id: long, name: string"', ""))


def _keys(options: argparse.Namespace, ask: _Questions, source: str, columns: dict[str, str]) -> tuple[str, ...]:
    if options.keys is None and source == "generator" and columns == _ORDERS:
        return ("order_id",)
    guess = next((name for name in columns if name.lower() == "id"), "")
    text = (
        ask("--keys", "Which columns identify a row? Empty: none", guess, True)
        if options.keys is None
        else options.keys
    )
    return tuple(plain(name.strip()) for name in pieces(text, ",") if name.strip())


def parse_columns(text: str) -> dict[str, str]:
    """``id: long not null, lines: array<struct<sku: string, pieces: int>>`` as names and types. Raises InvalidInput."""
    columns: dict[str, str] = {}
    for piece in _at_depth_0(text):
        name, *rest = pieces(piece, ":", 1)
        name, kind = plain(name.strip()), "".join(rest).strip()
        if not (name and kind):
            raise InvalidInput(f"{piece.strip()!r} is no column; write its name and type, such as id: long not null")
        if name in columns:
            raise InvalidInput(f"the column {name!r} is there twice")
        columns[name] = kind
    if columns:
        table_schema(columns)
    return columns


def _at_depth_0(text: str) -> list[str]:
    """The text cut at the commas that are in no brackets and no backticks."""
    found: list[str] = []
    depth = 0
    for piece in pieces(text, ","):
        if depth > 0:
            found[-1] += f",{piece}"
        else:
            found.append(piece)
        depth += sum((character in "<(") - (character in ">)") for character in without_names(piece))
    return [piece for piece in found if piece.strip()]


def _required(kind: str) -> str:
    return kind if kind.lower().rstrip().endswith("null") else f"{kind} not null"


def _name(topics: list[str], folder: str) -> str:
    """A table's name for a topic such as ``shop.public.orders``, or for a folder."""
    of_topic = topics[0].strip().rpartition(".")[2] if topics else ""
    return of_topic or Path(folder).name or "orders"


class _Questions:
    """Asks on a terminal. Elsewhere an optional question has its default, and the others are what is missing."""

    def __init__(self, asks: bool) -> None:
        self._asks = asks
        self._missing: list[str] = []

    def __call__(self, option: str, question: str, default: str, optional: bool = False) -> str:
        if self._asks:
            print(f"{question} [{shown(default)}] " if default else f"{question} ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise InvalidInput(f"the answers ended at {option}; nothing was written")
            return line.strip() or default
        if not optional:
            self._missing.append(option)
        return default if optional else ""

    def require_answers(self) -> None:
        """Raises InvalidInput naming the options that are missing where nobody could be asked."""
        if self._missing:
            raise InvalidInput(f"give {', '.join(self._missing)}; on a terminal, lakebed init asks for what is missing")
