"""``lakebed validate``: check a pipeline file and print its settings with all defaults and without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import pyarrow as pa
import yaml

from lakebed.cli import exit_codes
from lakebed.cli.database_lines import database_lines, errors_in
from lakebed.cli.escapes import shown, shown_lines
from lakebed.cli.logs import note
from lakebed.errors import LakebedError
from lakebed.pipeline.check import Checked, check
from lakebed.pipeline.database.check import check_database
from lakebed.pipeline.database.order_warnings import warnings_of_pipeline
from lakebed.pipeline.file.document import HIDDEN, Document
from lakebed.pipeline.file.settings import AnyPipeline, DatabasePipeline, Pipeline, load
from lakebed.pipeline.places import is_local
from lakebed.pipeline.transforming import Shape


def validate(file: str, connect: bool = False) -> int:
    """Print the settings. ``connect``: ask brokers and stores too. Raises LakebedError that lists all that is wrong."""
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
    if isinstance(pipeline, DatabasePipeline):
        database = check_database(pipeline, connect=connect, topics=connect)
        return pipeline, [*database_lines(pipeline, database), *database.notes], errors_in(database)
    checked = check(pipeline, connect=connect)
    if pipeline.transform is not None and checked.target is not None:
        _check_with_spark(pipeline, checked.target)
    said = [_verdict(pipeline, checked), *checked.notes, _open_question(pipeline, checked.columns)]
    if checked.table is not None:
        said += [f"warning: {one}" for one in warnings_of_pipeline(pipeline, checked.table, connect=connect)]
    return checked.pipeline, [line for line in said if line], []


def _check_with_spark(pipeline: Pipeline, table: Shape) -> None:
    """Have Spark plan the SQL of the file, which takes some seconds. Raises InvalidInput, MissingPrerequisite."""
    from pyspark.sql import SparkSession

    from lakebed.pipeline.spark.driver import SparkStart
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
    if is_dataclass(value):
        value = {item.name: getattr(value, item.name) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: _plain(member, document, f"{name}.{key}") for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, document, f"{name}[{number}]") for number, item in enumerate(value)]
    if isinstance(value, str):
        return document.redact(value)
    return HIDDEN if name in document.hidden else value
