"""``lakebed init``: write a pipeline file from options, from files that are there already, and on a terminal from answers."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from lakebed.cli import exit_codes
from lakebed.cli.arguments import names, parse_columns
from lakebed.cli.logs import note, shown
from lakebed.cli.parser import Commands, did_you_mean
from lakebed.errors import InvalidInput, LakebedError

if TYPE_CHECKING:
    from lakebed.pipeline.draft import DatabaseDraft, Draft, SourceKind

_SOURCES = ("kafka", "files", "generator")
_TOPICS_SHOWN_MAX = 20
_BROKER_SECONDS = 5.0
Check = Callable[[str], object]
_ORDERS = {
    "order_id": "long not null", "customer_id": "long", "region": "string", "status": "string",
    "amount": "decimal(12,2)", "note": "string", "created_at": "timestamp", "updated_at": "timestamp",
}  # fmt: skip
"""What the generator makes."""
_ROW_FORMATS = ("json", "avro", "protobuf", "json-schema")
_OPERATION_FIELDS = ("op", "__op", "operation", "_op")


def add_to(commands: Commands) -> None:
    """Add ``init``."""
    init = commands.add(
        "init",
        "write a pipeline file; on a terminal, it asks questions",
        _init,
        "orders.yml --source files --folder inbox --keys id",
    )
    add = init.add_argument
    add("output", metavar="FILE", nargs="?", default="pipeline.yml", help="default: pipeline.yml")
    add("--source", metavar="KIND", help="kafka, files or generator")
    add("--folder", metavar="DIR", help="files: the folder where they appear")
    add("--bootstrap-servers", metavar="HOST:PORT", help="kafka: the brokers")
    add("--topic", metavar="NAME", action="append", help="kafka: repeatable")
    add("--database", metavar="PATH", help="in place of --path: one table for each topic, below this folder")
    add("--topic-prefix", metavar="NAME", help="with --database: what the topics begin with, such as shop")
    add("--record-format", metavar="KIND", help="such as debezium-json, avro; of files also csv or parquet")
    add("--registry", metavar="URL", help="the schema registry, for formats whose schemas are in one")
    add("--path", metavar="TABLE", help="the table: a folder, or s3://bucket/prefix")
    text = "such as 'id long, name string' (default: from the files, or from the registry)"
    add("--columns", metavar="TEXT", help=text)
    add("--keys", metavar="NAMES", help="the columns that identify a row, separated by commas")
    add("--sequence-by", metavar="NAME", help="what orders the changes of a key, such as updated_at")
    add("--force", action="store_true", help="write over a file that is there")


def _init(options: argparse.Namespace) -> int:
    """Write the file. Raises InvalidInput for what is missing or can't be used."""
    from lakebed.pipeline.draft import Draft, text_of, text_of_database

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
    from lakebed.decode.formats import TYPED_FORMATS
    from lakebed.pipeline.draft import DatabaseDraft

    for name in ("path", "columns", "keys", "sequence_by", "topic", "folder"):
        if getattr(options, name):
            raise InvalidInput(f"--{name.replace('_', '-')} is for one table; leave it out with --database")
    if options.source not in (None, "kafka"):
        raise InvalidInput(f"--source is {options.source}; the topics of a database are in kafka")
    servers = options.bootstrap_servers or ask("--bootstrap-servers", "Which brokers?", "localhost:9092")
    prefix = options.topic_prefix or ask("--topic-prefix", "What is the connector's topic.prefix?", "")
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
    from lakebed.decode.formats import TYPED_FORMATS
    from lakebed.pipeline.draft import Draft, Sample, format_of, sample_of
    from lakebed.pipeline.settings import FORMATS

    kinds = f"Where do changes come from: {', '.join(_SOURCES)}?"
    source = ask("--source", kinds, "files", options.source, check=_one_of("source", _SOURCES))
    folder, servers, topics, guess = options.folder or "", options.bootstrap_servers or "", options.topic or [], ""
    if source == "files":
        there = "./inbox" if Path("inbox").is_dir() else ""
        folder = ask("--folder", "In which folder do the files appear?", there, options.folder, check=_is_there)
        guess = format_of(folder) or "json"
    elif source == "kafka":
        servers = servers or ask("--bootstrap-servers", "Which brokers?", "localhost:9092")
        topics = topics or _topics(servers, ask)
        guess = "debezium-json"
    form = options.record_format or ("debezium-json" if source == "generator" else guess)
    if source in ("kafka", "files"):
        question = f"What are its records: {', '.join(FORMATS)}?"
        known = _one_of("format", FORMATS)
        form = ask("--record-format", question, guess, options.record_format, optional=True, check=known)
    registry = options.registry or ""
    if form in TYPED_FORMATS and source == "kafka" and not registry:
        registry = ask("--registry", "Where is the schema registry?", "http://localhost:8081")
    of_topic = Sample({})
    if registry and topics and options.columns is None:
        of_topic = sample_of(registry, topics[0].strip(), form)
    columns = of_topic.columns or _columns(options, ask, source, folder, form)
    operations = [name for name in _OPERATION_FIELDS if form in _ROW_FORMATS and name in columns]
    columns = {name: kind for name, kind in columns.items() if name not in operations[:1]}
    path = options.path or ask("--path", "Where will the table be?", f"./lake/{_name(topics, folder)}", optional=True)
    keys = of_topic.keys if of_topic.keys and options.keys is None else _keys(options, ask, source, columns)
    sequence = options.sequence_by or ("source.lsn" if source == "generator" else None)
    if source != "generator" and keys:
        question = "What orders the changes of a key? Empty: their arrival"
        check = _among("--sequence-by", {} if form.startswith("debezium") else columns)  # or a field of the events
        sequence = ask("--sequence-by", question, "", options.sequence_by, optional=True, check=check)
    return Draft(
        path=path,
        source=cast("SourceKind", source or "files"),
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


def _one_of(what: str, known: Sequence[str]) -> Check:
    def check(value: str) -> None:
        if value not in known:
            raise InvalidInput(
                f"there is no {what} {value!r}; there are {', '.join(known)}{did_you_mean(value, known)}"
            )

    return check


def _is_there(folder: str) -> None:
    if "://" not in folder and not Path(folder).is_dir():
        raise InvalidInput(f"there is no folder {folder}; make it, or give the one where the files appear")


def _topics(servers: str, ask: _Questions) -> list[str]:
    """The topics to read. On a terminal, those that the brokers have are proposed."""
    there = _topics_of(servers) if ask.asks else []
    if there:
        more = f" and {len(there) - _TOPICS_SHOWN_MAX:,} more" if len(there) > _TOPICS_SHOWN_MAX else ""
        note(f"topics of {servers}: {', '.join(there[:_TOPICS_SHOWN_MAX])}{more}")

    def check(text: str) -> None:
        if unknown := [name for name in _listed(text) if there and name not in there]:
            raise InvalidInput(f"{servers} has no topic {unknown[0]}{did_you_mean(unknown[0], there)}")

    return _listed(
        ask("--topic", "Which topics, separated by commas?", there[0] if len(there) == 1 else "", check=check)
    )


def _topics_of(servers: str) -> list[str]:
    """The topics of some brokers; none if they can't be asked, which is said."""
    try:
        from confluent_kafka.admin import AdminClient

        found = AdminClient({"bootstrap.servers": servers, "log_level": 0}).list_topics(timeout=_BROKER_SECONDS)
    except Exception as error:  # a client that is not installed, a name that is none, no answer: all are no topics
        note(f"the topics of {servers} can't be listed: {' '.join(str(error).split())}")
        return []
    return sorted(name for name in found.topics if not name.startswith("_"))


def _listed(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _columns(options: argparse.Namespace, ask: _Questions, source: str, folder: str, form: str) -> dict[str, str]:
    from lakebed.pipeline.draft import columns_of

    if options.columns is None and source == "generator":
        return dict(_ORDERS)
    found = columns_of(folder, form) if options.columns is None and source == "files" else {}
    if found:
        return found
    question = "Which columns? Such as: id long, name string"
    return parse_columns(ask("--columns", question, "", options.columns, check=parse_columns))


def _keys(options: argparse.Namespace, ask: _Questions, source: str, columns: dict[str, str]) -> tuple[str, ...]:
    if options.keys is None and source == "generator" and columns == _ORDERS:
        return ("order_id",)
    guess = next((name for name in columns if name.lower() == "id"), "")

    question, check = "Which columns identify a row? Empty: none", _among("--keys", columns)
    return tuple(names(ask("--keys", question, guess, options.keys, optional=True, check=check)))


def _among(option: str, columns: Mapping[str, str]) -> Check:
    """Names of columns, if these are known."""

    def check(text: str) -> None:
        if unknown := [name for name in names(text) if columns and name not in columns]:
            there = f"{', '.join(columns)}{did_you_mean(unknown[0], columns)}"
            raise InvalidInput(f"{option}: there is no column {unknown[0]!r}; there are {there}")

    return check


def _required(kind: str) -> str:
    return kind if kind.lower().rstrip().endswith("null") else f"{kind} not null"


def _name(topics: list[str], folder: str) -> str:
    """A table's name for a topic such as ``shop.public.orders``, or for a folder."""
    of_topic = topics[0].strip().rpartition(".")[2] if topics else ""
    return of_topic or Path(folder).name or "orders"


class _Questions:
    """Asks on a terminal. Elsewhere an optional question has its default, and the others are what is missing."""

    def __init__(self, asks: bool) -> None:
        self.asks = asks
        self._missing: list[str] = []

    def __call__(
        self,
        option: str,
        question: str,
        default: str,
        given: str | None = None,
        *,
        optional: bool = False,
        check: Check = lambda value: None,
    ) -> str:
        """The value of an option: the given one, or an answer.

        Args:
            option: Its name.
            question: What to ask.
            default: What an empty answer means.
            given: What the command line has.
            optional: Off a terminal, the default will do.
            check: Raises LakebedError for a value that can't be used. A given one ends the command, an answer is asked for again.
        """
        if given is not None:
            check(given)
            return given
        if not self.asks:
            if not optional:
                self._missing.append(option)
            return default if optional else ""
        while True:
            print(f"{question} [{shown(default)}] " if default else f"{question} ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                raise InvalidInput(f"the answers ended at {option}; nothing was written")
            answer = line.strip() or default
            if not answer and not optional:
                continue
            try:
                if answer:
                    check(answer)
            except LakebedError as error:
                note(str(error))
            else:
                return answer

    def require_answers(self) -> None:
        """Raises InvalidInput naming the options that are missing where nobody could be asked."""
        if self._missing:
            raise InvalidInput(f"give {', '.join(self._missing)}; on a terminal, lakebed init asks for what is missing")
