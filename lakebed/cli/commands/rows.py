"""``lakebed delete | update | purge``, and ``lakebed partition``: changes of rows and of whole partitions."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from lakebed.cli import exit_codes
from lakebed.cli.arguments import add_yes, confirmed, pairs, plain, table_of, takes_table
from lakebed.cli.commands.tables import add_kind
from lakebed.cli.logs import note
from lakebed.cli.parser import Commands

_WHERE = "a SQL expression in DuckDB's dialect over the columns; true means every row"


def add_to(commands: Commands) -> None:
    """Add the commands."""
    delete = commands.add("delete", "delete rows", _delete, "lake/orders --where \"status = 'void'\"", rows=True)
    update = commands.add(
        "update", "set columns of rows", _update, "lake/orders --set amount=amount*2 --where 'id = 7'", rows=True
    )
    purge = commands.add(
        "purge",
        "erase rows for good, in all versions",
        _purge,
        "lake/orders --where 'customer_id = 7' --dry-run",
        rows=True,
    )
    takes_table(delete, update, purge)
    which = delete.add_mutually_exclusive_group(required=True)
    which.add_argument("--where", help=_WHERE)
    which.add_argument("--all", action="store_true", help="all rows, also those in the tail, without reading them")
    update.add_argument(
        "--set",
        action="append",
        required=True,
        metavar="COLUMN=EXPRESSION",
        dest="assignments",
        help="the new value of a column, computed from the old row; repeatable",
    )
    for command in (update, purge):
        command.add_argument("--where", required=True, help=_WHERE)
    purge.add_argument("--dry-run", action="store_true", help="only list the files that have such rows")
    purge.add_argument("--force", action="store_true", help="end the holds of readers on older versions")
    purge.add_argument(
        "--quarantine",
        metavar="CONDITION",
        help="a condition on the quarantine: which records go; 'true' for all (default: those with a key of the rows)",
    )
    family = commands.family("partition", "take partitions out of a table, and put them back")
    detach = family.add(
        "detach",
        "remove a partition from a table; it can be attached again or dropped",
        _detach,
        "lake/orders day=2026-01-31",
        rows=True,
    )
    attach = family.add("attach", "put a detached partition back", _attach, "lake/orders NAME", rows=True)
    drop = family.add("drop", "delete a detached partition for good", _drop, "lake/orders NAME", rows=True)
    add_kind(family, "list", "detached", "list the partitions that are detached")
    takes_table(detach, attach, drop)
    detach.add_argument(
        "partition", nargs="+", metavar="COLUMN=VALUE", help="one for each partition column; no value means null"
    )
    for command in (attach, drop):
        command.add_argument("name", metavar="NAME", help="as lakebed partition list has it")
    add_yes(delete, purge, drop)


def _delete(options: argparse.Namespace) -> int:
    from lakebed.sql.expression import expression, names_a_column

    table = table_of(options)
    [figures] = table.inspect.detail().to_pylist()
    if options.all:
        tail = f" and {figures['tail_rows']:,} changes in the tail" if figures["tail_rows"] else ""
        what = f"delete --all takes all {figures['rows']:,} rows{tail} out of {options.path}"
        return _print({"version": table.truncate()}, options) if confirmed(what, options) else exit_codes.FAILED
    if not names_a_column(expression(options.where, "where")):
        what = (
            f"--where {options.where!r} names no column: it deletes all of the {figures['rows']:,} rows of {options.path}, "
            "or none"
        )
        if not confirmed(what, options):
            return exit_codes.FAILED
    return _print(table.delete(options.where), options)


def _update(options: argparse.Namespace) -> int:
    assignments = _pairs(options.assignments, "--set")
    return _print(table_of(options).update(assignments, options.where), options)


def _purge(options: argparse.Namespace) -> int:
    from lakebed.cli.display.output import print_rows
    from lakebed.cli.display.progress import progress
    from lakebed.cli.display.views import PURGED

    table = table_of(options)
    what = (
        f"purge erases the rows of {options.path} with --where {options.where!r} for good, and ends all versions of the table "
        "until now"
    )
    if not options.dry_run and not confirmed(what, options):
        return exit_codes.FAILED
    with progress("looking for rows" if options.dry_run else "purging", options.log_format):
        report = table.purge(options.where, dry_run=options.dry_run, force=options.force, quarantine=options.quarantine)
    print_rows(report, options, PURGED)
    left = report["gone_at"].null_count
    if options.dry_run:
        note(f"{len(report):,} files have such rows; without --dry-run they go")
    else:
        note(f"{len(report) - left:,} files are gone" + (f", {left:,} are not yet: see their notes" if left else ""))
    return exit_codes.OK


def _detach(options: argparse.Namespace) -> int:
    partition = _pairs(options.partition, "the partition")
    return _print({"name": table_of(options).detach_partition(partition)}, options)


def _attach(options: argparse.Namespace) -> int:
    return _print({"version": table_of(options).attach_partition(options.name)}, options)


def _drop(options: argparse.Namespace) -> int:
    if not confirmed(f"partition drop deletes {options.name} of {options.path} for good", options):
        return exit_codes.FAILED
    return _print({"files_deleted": table_of(options).drop_detached(options.name)}, options)


def _pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """``column=value`` texts; spaces around the column are ignored. Raises InvalidInput."""
    return {plain(name): value for name, value in pairs(texts, "=", what, form="COLUMN=VALUE").items()}


def _print(result: Any, options: argparse.Namespace) -> int:
    from lakebed.cli.display.output import print_record

    print_record(result, options)
    return exit_codes.OK
