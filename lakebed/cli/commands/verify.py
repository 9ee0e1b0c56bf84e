"""``lakebed verify``: whether tables are equal to their source, to another table, or right by themselves."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes
from lakebed.cli.arguments import end_in_order, names, positive, tables_at, until_stopped
from lakebed.cli.commands.health import print_findings
from lakebed.cli.logs import note, progress, shown
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, LakebedError

if TYPE_CHECKING:
    import pyarrow as pa

    from lakebed.pipeline.settings import DatabasePipeline
    from lakebed.verify.report import TableReport

_CODES = {"differs": exit_codes.FAILED, "unsettled": exit_codes.TRY_AGAIN}


def add_to(commands: Commands) -> None:
    """Add ``verify``."""
    verify = commands.add(
        "verify",
        "compare tables with their database, another table or themselves",
        _verify,
        "lake/orders --self --deep",
    )
    verify.add_argument(
        "path",
        metavar="PATH",
        help="the pipeline file of the database, whose tables are compared row by row while both go on; with --against the path "
        "of a table, with --self of a table or of a folder of tables",
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
        help="check the logs and files of tables against every invariant",
    )
    verify.add_argument("--deep", action="store_true", help="with --self: read every row of the newest version too")
    verify.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="json: an object for each table, with --self for each finding, a line each",
    )


def _verify(options: argparse.Namespace) -> int:
    """Compare, and print a report of each table as soon as it is known."""
    if options.of_itself and options.against:
        raise InvalidInput("give --self or --against, not both")
    if options.key and not options.against:
        raise InvalidInput("--key is for --against; rows of a database have the keys of their table")
    if options.deep and not options.of_itself:
        raise InvalidInput("--deep is for --self: all else reads every row anyway")
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
    if "://" in options.path or os.path.isdir(options.path):
        raise InvalidInput(
            f"{options.path} is no pipeline file: give --self to check the tables there, or --against to compare one with another"
        )
    return _with_database(options)


def _of_itself(options: argparse.Namespace) -> int:
    """Examine a table, or each table of a folder; one that can't be examined is named, and the others are."""
    import pyarrow as pa

    from lakebed.cli.output import print_rows

    code, tables, findings = exit_codes.OK, tables_at(options.path), list[pa.Table]()
    for name, root in tables.items():
        try:
            found, is_well = _examined(root, name if len(tables) > 1 or root != options.path else "", options)
        except LakebedError as error:
            if root == options.path:
                raise
            note(f"{name} can't be examined: {error}")
            code = exit_codes.FAILED
            continue
        findings.append(found)
        code = code if is_well else exit_codes.FAILED
    if options.format == "json" and findings:
        print_rows(pa.concat_tables(findings), options)
    return code


def _examined(root: str, name: str, options: argparse.Namespace) -> tuple[pa.Table, bool]:
    """The findings in a table, and whether all is well; they are printed. ``name``: of a table of a folder."""
    from lakebed.health.examination import FINDINGS_MAX, examine
    from lakebed.health.finding import Severity, finding_table

    with progress("opening the table", options.log_format) as report:
        found = examine(root, options.deep, report)
    if options.format == "text":
        count = len(found.findings)
        counted = f"{count:,} finding{'s' if count > 1 else ''}" if count else "nothing is wrong"
        looked_at = f"{found.commits:,} commits, {found.checkpoints:,} checkpoints, {found.parts:,} parts"
        rows = f" with {found.rows:,} rows" if found.deep else " without their rows"
        whole = f"version {found.version}: {looked_at}{rows}, {found.seconds:,.1f} s: {counted}"
        if name:
            print(f"{shown(name)}: {whole}", flush=True)
        print_findings(found.findings)
        if not name:
            print(whole)
    if len(found.findings) >= FINDINGS_MAX:
        note(f"at most {FINDINGS_MAX:,} findings of each kind are shown")
    rows_found = finding_table(found.findings)
    if name:
        rows_found = rows_found.add_column(0, "table", [[name] * len(rows_found)])
    return rows_found, found.severity is Severity.OK


def _against(options: argparse.Namespace) -> int:
    from lakebed.verify.tables import verify_tables

    with progress("reading", options.log_format) as report:
        found = verify_tables(options.path, options.against, names(options.key or ""), report)
    _print(found, options)
    return _CODES.get(found.outcome, exit_codes.OK)


def _with_database(options: argparse.Namespace) -> int:
    from lakebed.verify.continuous import Continuous
    from lakebed.verify.databases import verified
    from lakebed.verify.tables import verified_by_topics

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
    from lakebed.pipeline.settings import DatabasePipeline, load

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
