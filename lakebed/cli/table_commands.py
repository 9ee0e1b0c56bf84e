"""``lakebed query | parts | timeline | detail | clustering | settle``."""

from __future__ import annotations

import argparse

from lakebed.cli import exit_codes

# What a command needs is imported when it runs: a parser must not wait for it.


def query(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.table import open as open_table

    result = open_table(options.path).query(options.sql, options.name, allow_files=options.allow_files)
    print_rows(result, options)
    return exit_codes.OK


def parts(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import PARTS
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).inspect.parts(options.at_version), options, PARTS)
    return exit_codes.OK


def timeline(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import TIMELINE
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).inspect.timeline(options.last), options, TIMELINE)
    return exit_codes.OK


def detail(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import RECORD
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).inspect.detail(), options, RECORD)
    return exit_codes.OK


def clustering(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import CLUSTERING
    from lakebed.table import open as open_table

    table = open_table(options.path)
    print_rows(table.inspect.clustering(), options, CLUSTERING)
    if options.png is not None:
        table.inspect.draw_clustering(options.png)
    return exit_codes.OK


def settle(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record
    from lakebed.cli.progress import progress
    from lakebed.events import CommitEnded, Event, listen
    from lakebed.log.entries import Operation
    from lakebed.table import open as open_table

    table = open_table(options.path)
    [tail] = table.inspect.detail()["tail_rows"].to_pylist()
    with progress("settling", options.log_format) as report:

        def count(event: Event) -> None:
            if isinstance(event, CommitEnded) and event.operation == Operation.SETTLE:
                report("settling rows", tail - table.inspect.detail()["tail_rows"][0].as_py(), tail)

        end = listen(count)
        try:
            result = table.settle()
        finally:
            end()
    print_record(result, options)
    return exit_codes.OK
