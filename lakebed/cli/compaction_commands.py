"""``lakebed plan | compact | maintain``."""

from __future__ import annotations

import argparse

from lakebed.cli import exit_codes

# What a command needs is imported when it runs: a parser must not wait for it.


def plan(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.table import open as open_table

    rows = open_table(options.path).plan()
    # The inputs of a plan are many: they are for programs.
    print_rows(rows if options.format == "json" else rows.drop_columns(["inputs"]), options.format)
    return exit_codes.OK


def compact(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    import pyarrow as pa

    from lakebed.cli.output import print_rows
    from lakebed.table import open as open_table

    print_rows(pa.Table.from_pylist([asdict(open_table(options.path).compact())]), options.format)
    return exit_codes.OK


def maintain(options: argparse.Namespace) -> int:
    from lakebed.cli.run_command import maintain_table

    return maintain_table(options.path, options.duration, options.metrics_port)
