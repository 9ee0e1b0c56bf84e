"""``lakebed delete | update | purge | truncate | restore | detach-partition``, and the others that change rows or partitions."""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lakebed.cli import exit_codes
from lakebed.cli.names import pairs, plain

if TYPE_CHECKING:
    from lakebed.log.snapshot import Snapshot

# What a command needs is imported when it runs: a parser must not wait for it.


def delete(options: argparse.Namespace) -> int:
    from lakebed.cli.confirm import confirmed
    from lakebed.sql.expression import expression, names_a_column

    table = _open(options)
    if not names_a_column(expression(options.where, "where")):
        rows = table.inspect.detail()["rows"][0].as_py()
        what = (
            f"--where {options.where!r} names no column: it deletes all of the {rows:,} rows of {options.path}, or none"
        )
        if not confirmed(what, options):
            return exit_codes.FAILED
    return _print(table.delete(options.where), options)


def update(options: argparse.Namespace) -> int:
    assignments = _pairs(options.assignments, "--set")
    return _print(_open(options).update(assignments, options.where), options)


def with_purge_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser with the options that ``lakebed purge`` alone has."""
    parser.add_argument("--dry-run", action="store_true", help="only list the files that have such rows")
    parser.add_argument("--force", action="store_true", help="end the holds of readers on older versions")
    parser.add_argument(
        "--quarantine", metavar="CONDITION",
        help="which records of the quarantine go, over its columns; 'true' for all (default: those with a key of the rows)",
    )  # fmt: skip
    return parser


def purge(options: argparse.Namespace) -> int:
    from lakebed.cli.confirm import confirmed
    from lakebed.cli.logs import note
    from lakebed.cli.output import print_rows
    from lakebed.cli.progress import progress
    from lakebed.cli.views import PURGED

    table = _open(options)
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


def truncate(options: argparse.Namespace) -> int:
    from lakebed.cli.confirm import confirmed

    table = _open(options)
    [figures] = table.inspect.detail().to_pylist()
    tail = f" and {figures['tail_rows']:,} changes in the tail" if figures["tail_rows"] else ""
    if not confirmed(f"truncate takes all {figures['rows']:,} rows{tail} out of {options.path}", options):
        return exit_codes.FAILED
    return _print({"version": table.truncate()}, options)


def restore(options: argparse.Namespace) -> int:
    from lakebed.cli.confirm import confirmed
    from lakebed.cli.logs import note
    from lakebed.positions.positions import positions_of
    from lakebed.table import internals_of
    from lakebed.view.time_travel import snapshot_at

    table = _open(options)
    log = internals_of(table).log
    now, earlier = log.refresh(), snapshot_at(log, options.version, options.timestamp)
    at = datetime.datetime.fromtimestamp(earlier.timestamp_ms / 1000, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    between = now.version - earlier.version
    what = (
        f"restore makes {options.path} what it was at version {earlier.version}, {at}: {_size(earlier)} in place of "
        f"{_size(now)}; the {between:,} versions since stay readable"
    )
    if not confirmed(what, options):
        return exit_codes.FAILED
    version = table.restore(earlier.version, positions=options.positions)
    read_then, read_now = positions_of(earlier), {} if options.positions else positions_of(now)
    for topic, position in read_now.items():
        if topic not in read_then or read_then[topic].offsets != position.offsets:
            since = f"from {dict(read_then[topic].offsets)} on" if topic in read_then else "from its beginning"
            note(
                f"what was read of {topic} since then, {since}, is not in the table; with --positions it is read again"
            )
    return _print({"version": version, "restored": earlier.version}, options)


def _size(snapshot: Snapshot) -> str:
    rows = sum(part.live_rows for part in snapshot.parts.values())
    changes = sum(part.rows for part in snapshot.tail.values())
    return f"{rows:,} rows" + (f" and {changes:,} changes in the tail" if changes else "")


def detach(options: argparse.Namespace) -> int:
    partition = _pairs(options.partition, "the partition")
    return _print({"name": _open(options).detach_partition(partition)}, options)


def attach(options: argparse.Namespace) -> int:
    return _print({"version": _open(options).attach_partition(options.name)}, options)


def drop(options: argparse.Namespace) -> int:
    from lakebed.cli.confirm import confirmed

    if not confirmed(f"drop-detached deletes the partition {options.name} of {options.path} for good", options):
        return exit_codes.FAILED
    return _print({"files_deleted": _open(options).drop_detached(options.name)}, options)


def detached(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import DETACHED

    print_rows(_open(options).inspect.detached(), options, DETACHED)
    return exit_codes.OK


def _open(options: argparse.Namespace) -> Any:
    from lakebed.table import open as open_table

    return open_table(options.path)


def _pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """``column=value`` texts; spaces around the column are ignored. Raises InvalidInput."""
    return {plain(name): value for name, value in pairs(texts, "=", what, form="COLUMN=VALUE").items()}


def _print(result: Any, options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record

    print_record(result, options)
    return exit_codes.OK
