"""``lakebed validate``: check a pipeline file and print its settings with all defaults and without secrets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from lakebed.cli import exit_codes
from lakebed.cli.logs import note, shown, shown_lines
from lakebed.cli.parser import Commands
from lakebed.errors import LakebedError

if TYPE_CHECKING:
    import pyarrow as pa

    from lakebed.pipeline.check import Checked
    from lakebed.pipeline.database.check import Bill, CheckedDatabase, TopicSeen
    from lakebed.pipeline.document import Document
    from lakebed.pipeline.settings import AnyPipeline, DatabasePipeline, Pipeline
    from lakebed.pipeline.transforming import Shape


_TOPICS_SHOWN_MAX = 200


def add_to(commands: Commands) -> None:
    """Add ``validate``."""
    parser = commands.add(
        "validate",
        "check a pipeline file and print its settings",
        lambda options: validate(options.file, options.connect),
        "pipeline.yml --connect",
    )
    parser.add_argument("file", metavar="FILE", help="the pipeline file")
    parser.add_argument("--connect", action="store_true", help="also ask the broker for the topics, and the stores")


def validate(file: str, connect: bool = False) -> int:
    """Print the settings. ``connect``: ask brokers and stores too. Raises LakebedError that lists all that is wrong."""
    import yaml

    from lakebed.pipeline.settings import load

    pipeline = load(file)
    try:
        effective, lines, wrong = _check(pipeline, connect)
    except LakebedError as error:
        raise error.with_text(pipeline.document.redact(str(error))) from None
    print(
        shown_lines(
            yaml.safe_dump(
                effective_settings(effective), sort_keys=False, allow_unicode=True, default_flow_style=None, width=100
            )
        ),
        end="",
    )
    for line in lines:
        print(f"# {shown(pipeline.document.redact(line))}")
    if not connect and _connects(pipeline):
        print("# brokers and stores were not asked; --connect does")
    if wrong:
        whole = pipeline.document.all_of(wrong)
        raise whole.with_text(pipeline.document.redact(str(whole)))
    return exit_codes.OK


def _check(pipeline: AnyPipeline, connect: bool) -> tuple[AnyPipeline, list[str], list[LakebedError]]:
    """The pipeline with what its source says of its table, what there is to say, and what is wrong with single tables of a
    database. Raises for all else that is wrong.
    """
    from lakebed.pipeline.check import check
    from lakebed.pipeline.database.check import check_database, warnings_of_pipeline
    from lakebed.pipeline.settings import DatabasePipeline

    if isinstance(pipeline, DatabasePipeline):
        database = check_database(pipeline, connect=connect, topics=connect)
        return pipeline, [*_database_lines(pipeline, database), *database.notes], _errors_in(database)
    checked = check(pipeline, connect=connect)
    if pipeline.transform is not None and checked.target is not None:
        _check_with_spark(pipeline, checked.target)
    said = [
        _verdict(pipeline, checked),
        *checked.notes,
        _open_question(pipeline, checked.columns),
        _iceberg_cost(pipeline),
    ]
    if checked.table is not None:
        said += [f"warning: {one}" for one in warnings_of_pipeline(pipeline, checked.table, connect=connect)]
    return checked.pipeline, [line for line in said if line], []


def _check_with_spark(pipeline: Pipeline, table: Shape) -> None:
    """Have Spark plan the SQL of the file, which takes some seconds. Raises InvalidInput, MissingPrerequisite."""
    from pyspark.sql import SparkSession

    from lakebed.pipeline.driver import SparkStart
    from lakebed.pipeline.transforming import check_transform

    if (session := SparkSession.getActiveSession()) is not None:
        check_transform(pipeline, table, session)
        return
    note("Spark is started to check the SQL of transform")
    with SparkStart(pipeline) as start:
        start.begin()
        check_transform(pipeline, table, start.wait(lambda: False).spark)


def effective_settings(pipeline: AnyPipeline) -> dict[str, Any]:
    """Every key with its value, as the file could spell it."""
    out: dict[str, Any] = {}
    for item in sorted(fields(pipeline), key=lambda item: item.name not in ("table", "database")):
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


def _verdict(pipeline: Pipeline, checked: Checked) -> str:
    """What a run would find, in words."""
    path = pipeline.table.path
    if not checked.was_looked_for:
        return f"fine; whether there is a table at {path} was not looked at"
    if checked.table is None:
        return f"fine; the table at {path} will be created"
    return f"fine; the table at {path} is there, at version {checked.table.version}"


def _connects(pipeline: AnyPipeline) -> bool:
    from lakebed.pipeline.places import is_local

    places = [pipeline.path, pipeline.checkpoint or ".", getattr(pipeline.source, "folder", ".")]
    return pipeline.source_kind == "kafka" or not all(map(is_local, places))


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
    from lakebed.pipeline.document import HIDDEN

    if is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(member, document, f"{name}.{key}") for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, document, f"{name}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, str):
        return document.redact(value)
    return HIDDEN if name in document.hidden else value


def _database_lines(pipeline: DatabasePipeline, checked: CheckedDatabase) -> Iterator[str]:
    """What becomes of a database's topics: the tables first, then what is none and why, then what a day costs."""
    from lakebed.pipeline.database.check import bill_of
    from lakebed.pipeline.database.introducer import Expected, Introduced
    from lakebed.pipeline.places import is_local

    if not checked.topics:
        yield f"fine; what the topics become below {pipeline.path} was not looked at"
        yield from _cost_bound(pipeline)
        return
    known = [one for one in checked.topics if isinstance(one.found, Introduced | Expected)]
    there = sum(isinstance(one.found, Introduced) for one in known)
    yield f"{len(checked.topics):,} topics: {len(known):,} are tables below {pipeline.path}, {there:,} of them are there"
    shown = sorted(checked.topics, key=lambda one: (not one.warnings, _order(one), one.topic))
    for one in shown[:_TOPICS_SHOWN_MAX]:
        yield f"  {one.topic}: {_topic_text(one)}"
        yield from (f"    warning: {warning}" for warning in one.warnings)
    if len(shown) > _TOPICS_SHOWN_MAX:
        yield f"  and {len(shown) - _TOPICS_SHOWN_MAX:,} more"
    cost, batches = bill_of(pipeline, checked.topics)
    came = f"{sum(one.records for one in known):,} records came in the last 24 hours"
    yield came if is_local(pipeline.path) else f"{came}; as many a day cost {_bill_text(cost)}"
    for name, often in sorted(batches.items(), key=lambda item: -item[1])[:5]:
        if often:
            yield f"  {name}: {often:,.0f} batches a day"
    yield from _cost_bound(pipeline)


def _errors_in(checked: CheckedDatabase) -> list[LakebedError]:
    """What is wrong with single tables."""
    return [one.found for one in checked.topics if isinstance(one.found, LakebedError)]


def _order(one: TopicSeen) -> int:
    from lakebed.discovery import NoTable
    from lakebed.pipeline.database.introducer import Expected, Introduced, NotYet

    kinds = (Introduced, Expected, NotYet, LakebedError, NoTable)
    return next(at for at, kind in enumerate(kinds) if isinstance(one.found, kind))


def _topic_text(one: TopicSeen) -> str:
    from lakebed.discovery import NoTable
    from lakebed.pipeline.database.introducer import Expected, Introduced, NotYet
    from lakebed.schema.conversion import canonical_schema

    match one.found:
        case Introduced(name, table):
            return f"{name} is there, at version {table.version}"
        case Expected(name, _, _, new):
            keys = f"keys {', '.join(new.keys)}" if new.keys else "no keys, so it is only appended to"
            order = f", in the order of {new.sequence_by}" if new.sequence_by else ", in the order of arrival"
            return f"{name} will be created: {len(canonical_schema(new.schema))} columns, {keys}{order if new.keys else ''}"
        case NotYet(reason):
            return f"no table yet: {reason}"
        case NoTable(reason):
            return f"no table: {reason}"
        case LakebedError():
            return "wrong, see below"


def _cost_bound(pipeline: DatabasePipeline) -> Iterator[str]:
    """What a table costs at most, if it is not one of the hot ones; nothing on a local disk."""
    from lakebed.pipeline.database.check import batches_a_day, bill, publications_a_day
    from lakebed.pipeline.places import is_local

    if is_local(pipeline.path):
        return
    section = pipeline.database
    pace = min(section.max_age_seconds, section.points.interval_seconds if section.points else section.max_age_seconds)
    often = batches_a_day(86_400, pace, 0.0)
    one = bill([often], section.prices.puts, section.prices.gets, publications_a_day(often, section.properties))
    idle = bill([0.0], section.prices.puts, section.prices.gets)
    why = "database.points.interval_seconds" if pace < section.max_age_seconds else "max_age_seconds"
    yield (
        f"a table with a record a second costs {_bill_text(one)} at {why}: {pace:g}; an idle one ${idle.dollars:.4f} a day"
    )


def _bill_text(cost: Bill) -> str:
    iceberg = f"; ${cost.iceberg_dollars:,.2f} of it for Iceberg's metadata" if cost.iceberg_dollars else ""
    return (
        f"${cost.dollars:,.2f} a day of requests to an object store ({cost.commits:,.0f} commits, {cost.puts:,.0f} puts, "
        f"{cost.gets:,.0f} gets{iceberg})"
    )


def _iceberg_cost(pipeline: Pipeline) -> str | None:
    """What Iceberg's metadata of the table costs at most; None on a local disk, and where it is off."""
    from lakebed.pipeline.database.check import bill, publications_a_day
    from lakebed.pipeline.database_section import PricesSection
    from lakebed.pipeline.places import is_local

    most, prices = publications_a_day(math.inf, pipeline.table.properties), PricesSection()
    if not most or is_local(pipeline.path):
        return None
    cost = bill([], prices.puts, prices.gets, most)
    return (
        f"Iceberg's metadata costs ${cost.dollars:,.2f} a day at most, by S3's list price: if something new is settled every "
        f"{86_400 / most:,.0f} seconds (lakebed.iceberg_seconds), {cost.puts:,.0f} puts"
    )
