"""``lakebed verify``: whether tables are equal to their source, to another table, or right by themselves."""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes
from lakebed.cli.arguments import end_in_order, names, positive, until_stopped
from lakebed.cli.commands.health import examine_tables
from lakebed.cli.logs import note, progress, shown
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, LakebedError

if TYPE_CHECKING:
    from lakebed.pipeline.file.settings import DatabasePipeline
    from lakebed.verify.report import TableReport

_CODES = {"differs": exit_codes.FAILED, "unsettled": exit_codes.TRY_AGAIN}


def add_to(commands: Commands) -> None:
    """Add ``verify``."""
    verify = commands.add(
        "verify", "compare tables with their database, row by row, while both go on", _verify, "shop.yml public.orders"
    )
    verify.add_argument(
        "path", metavar="FILE", help="the pipeline file of the database; with --against and --self the path of a table"
    )
    verify.add_argument("tables", nargs="*", default=(), metavar="TABLE", help="such as public.orders (default: all)")
    verify.add_argument(
        "--rows-per-second",
        type=positive,
        metavar="N",
        help="how many rows are read of the database, at most (default: database.verify.rows_per_second)",
    )
    verify.add_argument(
        "--repair",
        action="store_true",
        help="have rows that differ sent again by Debezium, remove those that the database does not have, and compare once more",
    )
    verify.add_argument(
        "--continuous",
        action="store_true",
        help="compare each table again and again, until Ctrl-C or SIGTERM (database.verify.every_hours, between)",
    )
    verify.add_argument(
        "--snapshot",
        action="store_true",
        help="compare all tables with the database as it was at one position, read in one transaction",
    )
    verify.add_argument(
        "--topics",
        action="store_true",
        help="ask no database: compare with the records of the tables' topics, which are read once more",
    )
    verify.add_argument(
        "--against", metavar="PATH", help="compare with another table of lakebed or Delta, or a folder of Parquet files"
    )
    verify.add_argument(
        "--key", metavar="COLUMNS", help="with --against: what identifies a row (default: the keys of the table)"
    )
    verify.add_argument(
        "--self",
        action="store_true",
        dest="of_itself",
        help="compare the table with its own log, parts and vectors, as doctor --deep does",
    )
    verify.add_argument(
        "--format", choices=("text", "json"), default="text", help="json: an object for each table, a line each"
    )


def _verify(options: argparse.Namespace) -> int:
    """Compare, and print a report of each table as soon as it is known."""
    if options.of_itself and options.against:
        raise InvalidInput("give --self or --against, not both")
    if options.key and not options.against:
        raise InvalidInput("--key is for --against; rows of a database have the keys of their table")
    if options.of_itself or options.against:
        if options.repair or options.continuous or options.snapshot or options.topics:
            raise InvalidInput(
                "--repair, --continuous, --snapshot and --topics are for a database; give its pipeline file alone"
            )
        if options.tables:
            raise InvalidInput(f"{options.tables[0]!r} is one argument too many: --self and --against take one path")
        return _of_itself(options) if options.of_itself else _against(options)
    if options.topics and (options.repair or options.continuous or options.snapshot):
        raise InvalidInput("--topics asks no database, and --repair, --continuous and --snapshot need one")
    if options.snapshot and options.continuous:
        raise InvalidInput("give --snapshot or --continuous, not both: no snapshot is held for days")
    return _with_database(options)


def _of_itself(options: argparse.Namespace) -> int:
    form = "json" if options.format == "json" else "table"
    return examine_tables(argparse.Namespace(**vars(options) | {"deep": True, "format": form, "wide": False}))


def _against(options: argparse.Namespace) -> int:
    from lakebed.verify.tables import verify_tables

    with progress("reading", options.log_format) as report:
        found = verify_tables(options.path, options.against, names(options.key or ""), report)
    _print(found, options)
    return _CODES.get(found.outcome, exit_codes.OK)


def _with_database(options: argparse.Namespace) -> int:
    from lakebed.verify.continuous import Continuous
    from lakebed.verify.databases import verified
    from lakebed.verify.topics import verified_by_topics

    pipeline = _pipeline_of(options)
    codes = [exit_codes.OK]

    def failed(name: str, error: LakebedError) -> None:
        note(f"{name} can't be compared: {pipeline.document.redact(str(error))}")
        codes.append(exit_codes.exit_code_of(error))

    try:
        with progress("connecting", options.log_format) as report:
            if options.continuous:
                stop = until_stopped()
                again = Continuous(pipeline, stop, options.tables, report, failed, repairs=options.repair)
                for found in again.reports():
                    _print(found, options)
                return exit_codes.OK
            # Or holds on versions stay, and tables wait for rows that the connector was not asked for.
            if options.snapshot or options.repair:
                end_in_order()
            reports = (
                verified_by_topics(pipeline, options.tables, report, failed)
                if options.topics
                else verified(
                    pipeline, options.tables, report, failed, repairs=options.repair, at_once=options.snapshot
                )
            )
            for found in reports:
                _print(found, options)
                codes.append(_CODES.get(found.outcome, exit_codes.OK))
    except LakebedError as error:
        raise error.with_text(pipeline.document.redact(str(error))) from None
    return exit_codes.FAILED if exit_codes.FAILED in codes else max(codes)


def _pipeline_of(options: argparse.Namespace) -> DatabasePipeline:
    from lakebed.pipeline.file.settings import DatabasePipeline, load

    pipeline = load(options.path)
    if not isinstance(pipeline, DatabasePipeline):
        raise InvalidInput(f"{options.path} describes one table; this needs the file of a database")
    section = pipeline.database.verify
    if section is None or options.rows_per_second is None:
        return pipeline
    section = replace(section, rows_per_second=options.rows_per_second)
    return replace(pipeline, database=replace(pipeline.database, verify=section))


def _print(found: TableReport, options: argparse.Namespace) -> None:
    from lakebed.verify.report import lines

    if options.format == "json":
        print(shown(json.dumps(found.document(), ensure_ascii=False)), flush=True)
        return
    for line in lines(found):
        print(shown(line), flush=True)
