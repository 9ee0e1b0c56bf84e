"""``lakebed source``: up to where a table has read its source, and reading from it again."""

from __future__ import annotations

import argparse

from lakebed.cli import exit_codes
from lakebed.cli.arguments import add_yes, confirmed, table_of, takes_table
from lakebed.cli.logs import note
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput, LakebedError


def add_to(commands: Commands) -> None:
    """Add ``source``."""
    family = commands.family("source", "show how far a source is read, or read from it again")
    positions = family.add(
        "positions", "list up to which offsets a table has read its source", _positions, "lake/orders", rows=True
    )
    rewind = family.add(
        "rewind",
        "have a table read a topic of its source again, while its pipeline runs",
        _rewind,
        "lake/orders shop.public.orders --partition 0 --to 1200",
        rows=True,
    )
    restart = family.add(
        "restart-order",
        "have what a table reads from now on count as newer than all that it has: its source goes on at lower positions",
        _restart_order,
        "lake/orders",
        rows=True,
    )
    takes_table(positions, rewind, restart)
    rewind.add_argument("topic", metavar="TOPIC", help="as lakebed source positions lists it")
    rewind.add_argument(
        "--to",
        type=int,
        metavar="OFFSET",
        help="read from here on (default: from where the pipeline file says to begin)",
    )
    rewind.add_argument("--partition", type=int, metavar="N", help="only this partition, which needs --to")
    add_yes(rewind)
    resnapshot = family.add(
        "resnapshot",
        "have Debezium send all rows of tables again, while everything goes on",
        _resnapshot,
        "shop.yml public.orders --wait",
    )
    resnapshot.add_argument(
        "file", metavar="FILE", help="the pipeline file of the database, which names the signal_topic"
    )
    resnapshot.add_argument(
        "tables", nargs="+", metavar="TABLE", help="such as public.orders; MariaDB, MySQL: shop.orders"
    )
    resnapshot.add_argument(
        "--where", metavar="SQL", help='only rows for which this is true, in the SQL of the source, such as "id > 17"'
    )
    resnapshot.add_argument(
        "--mirror",
        action=argparse.BooleanOptionalAction,
        help="when all have come, remove those that the source no longer has (default: database.mirror)",
    )
    resnapshot.add_argument(
        "--wait", action="store_true", help="show how far it is, until it is over (database.notification_topic)"
    )


def _positions(options: argparse.Namespace) -> int:
    from lakebed.cli.display.output import print_rows
    from lakebed.cli.display.views import POSITIONS

    print_rows(table_of(options).inspect.positions(), options, POSITIONS)
    return exit_codes.OK


def _rewind(options: argparse.Namespace) -> int:
    from lakebed.cli.display.output import print_record
    from lakebed.table import internals_of

    if options.partition is not None and options.to is None:
        raise InvalidInput("--partition wants --to: the offset to read that partition from")
    table = table_of(options)
    has_keys = internals_of(table).log.refresh().settings.keys
    if not has_keys and not confirmed("the table has no keys, so rows that are read again are in it twice", options):
        return exit_codes.FAILED
    to = options.to if options.partition is None else {options.partition: options.to}
    version = table.maintenance.rewind(options.topic, to)
    print_record({"version": version, "topic": options.topic}, options)
    return exit_codes.OK


def _restart_order(options: argparse.Namespace) -> int:
    from lakebed.cli.display.output import print_record

    print_record({"version": table_of(options).maintenance.restart_order()}, options)
    return exit_codes.OK


def _resnapshot(options: argparse.Namespace) -> int:
    """Ask Debezium for the rows of tables again; with ``--wait`` until it has read them."""
    from lakebed.cli.display.progress import progress
    from lakebed.pipeline.database.resnapshot import Asking
    from lakebed.pipeline.file.settings import DatabasePipeline, load

    pipeline = load(options.file)
    if not isinstance(pipeline, DatabasePipeline):
        raise InvalidInput(f"{options.file} describes one table; this needs the file of a database")
    try:
        asking = Asking(pipeline)
        if options.wait:
            asking.check_waits()
        sent = asking.send(options.tables, options.where, options.mirror)
        note(f"the signal {sent.signal_id} is sent: the connector is asked for the rows of {', '.join(sent.tables)}")
        for table in sent.restarted:
            note(f"{table}: what comes from now on counts as newer than all that the table has: its source began again")
        if not options.wait:
            return exit_codes.OK
        with progress("the connector is asked", options.log_format) as report:
            done = asking.follow(sent, lambda text: report(text, None, None))
    except LakebedError as error:
        raise error.with_text(pipeline.document.redact(str(error))) from None
    for table, rows in done.rows.items():
        print(f"{table}: the connector has read {rows:,} rows; they come through its topic")
    for table, status in done.failed.items():
        note(f"{table}: the connector sends no rows: {status}")
    if done.was_aborted:
        note("the snapshot was stopped before its end")
    return exit_codes.FAILED if done.failed or done.was_aborted else exit_codes.OK
