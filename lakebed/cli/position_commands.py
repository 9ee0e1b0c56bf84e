"""``lakebed positions | rewind | restart-order``: up to where a table has read its source, reading again from an earlier offset,
and a source that goes on at lower positions.
"""

from __future__ import annotations

import argparse

from lakebed.cli import exit_codes
from lakebed.errors import InvalidInput

# What a command needs is imported when it runs: a parser must not wait for it.


def positions(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import POSITIONS
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).inspect.positions(), options, POSITIONS)
    return exit_codes.OK


def rewind(options: argparse.Namespace) -> int:
    from lakebed.cli.confirm import confirmed
    from lakebed.cli.output import print_record
    from lakebed.table import internals_of
    from lakebed.table import open as open_table

    if options.partition is not None and options.to is None:
        raise InvalidInput("--partition wants --to: the offset to read that partition from")
    table = open_table(options.path)
    has_keys = internals_of(table).log.refresh().settings.keys
    if not has_keys and not confirmed("the table has no keys, so rows that are read again are in it twice", options):
        return exit_codes.FAILED
    to = options.to if options.partition is None else {options.partition: options.to}
    version = table.maintenance.rewind(options.topic, to)
    print_record({"version": version, "topic": options.topic}, options)
    return exit_codes.OK


def restart_order(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record
    from lakebed.table import open as open_table

    print_record({"version": open_table(options.path).maintenance.restart_order()}, options)
    return exit_codes.OK
