"""``lakebed alter | schemas``."""

from __future__ import annotations

import argparse
from functools import partial

from lakebed.cli import exit_codes
from lakebed.cli.names import pairs

# What a command needs is imported when it runs: a parser must not wait for it.


def add_options(parser: argparse.ArgumentParser) -> None:
    """What ``lakebed alter`` changes."""
    for option, form, text in (
        ("--add", "NAME:TYPE", "a column to add, such as coupon:string; null in the rows that are there"),
        ("--widen", "NAME:TYPE", "a column and its wider type, such as qty:long"),
        ("--rename", "NAME=NEW", "a column and its new name"),
        ("--drop", "NAME", "a column that goes"),
        ("--relax", "NAME", "a column that may be null from now on"),
        ("--comment", "NAME=TEXT", "a comment on a column; no text takes it away"),
    ):
        parser.add_argument(
            option, action="append", default=[], metavar=form, help=f"{text}; may be given several times"
        )
    parser.add_argument("--reason", default="", metavar="TEXT", help="why, for lakebed schemas")
    parser.add_argument("--dry-run", action="store_true", help="change nothing, only say what it would cost")


def alter(options: argparse.Namespace) -> int:
    from lakebed.cli.confirm import confirmed
    from lakebed.cli.logs import note
    from lakebed.cli.output import print_record
    from lakebed.schema.type_names import parse_type
    from lakebed.table import open as open_table

    table = open_table(options.path)
    added, widened = (
        {path: parse_type(path, text) for path, text in pairs(texts, ":", option, form="NAME:TYPE").items()}
        for option, texts in (("--add", options.add), ("--widen", options.widen))
    )
    renamed = pairs(options.rename, "=", "--rename", form="NAME=TEXT")
    comments = pairs(options.comment, "=", "--comment", form="NAME=TEXT")

    change = partial(
        table.alter, add=added, widen=widened, rename=renamed, drop=options.drop, relax=options.relax, comment=comments
    )
    costs = [f"{', '.join(options.drop)} can no longer be read, except at older versions"] if options.drop else []
    costs += change(dry_run=True).notes
    if options.dry_run:
        for each in costs or ["nothing is lost: who can read the table now can read it then"]:
            note(each)
        return exit_codes.OK
    if costs and not confirmed("; ".join(costs), options):
        return exit_codes.FAILED
    result = change(reason=options.reason)
    print_record({"version": result.version, "changed": result.changed}, options)
    return exit_codes.OK


def schemas(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import SCHEMAS
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).inspect.schemas(), options, SCHEMAS)
    return exit_codes.OK
