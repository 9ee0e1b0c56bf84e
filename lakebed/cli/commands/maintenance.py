"""``lakebed compact | recluster | clean``: maintenance of a table, once and in this process."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lakebed.cli import exit_codes
from lakebed.cli.arguments import table_of, takes_table
from lakebed.cli.logs import note
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput

if TYPE_CHECKING:
    import pyarrow as pa

    from lakebed.cli.display.progress import Report
    from lakebed.compaction.recluster_job import ReclusterProgress
    from lakebed.events import Event
    from lakebed.table.table import Table

_CLEANINGS = {
    "expire-rows": "rows whose lakebed.ttl has ended",
    "expire-snapshots": "old versions, with their log files and data files",
    "remove-orphan-files": "files that no version refers to",
    "vacuum": "data files of old versions, and orphans; the log stays",
}


def add_to(commands: Commands) -> None:
    """Add the commands."""
    compact = commands.add(
        "compact",
        "settle the tail of a table, and merge its parts",
        _compact,
        "lake/orders",
        rows=True,
    )
    compact.add_argument(
        "--only",
        choices=("settle", "merge"),
        help="settle: only have every Delta reader see the tail; merge: only merge",
    )
    recluster = commands.add(
        "recluster",
        "sort parts together, so that fewer cover a point of the sort key",
        _recluster,
        "lake/orders --final",
        rows=True,
    )
    clean = commands.add(
        "clean",
        "expire old rows and versions, and delete files that nothing needs",
        _clean,
        "lake/orders --no-dry-run",
        rows=True,
    )
    takes_table(compact, recluster, clean)
    recluster.add_argument(
        "--final",
        action="store_true",
        help="go on until every level is shallow and every part is sorted; without it, one level",
    )
    recluster.add_argument("--where", metavar="SQL", help="only parts that may hold rows for which this is true")
    recluster.add_argument("--dry-run", action="store_true", help="only estimate what it would read and write")
    whats = "; ".join(f"{name}: {text}" for name, text in _CLEANINGS.items())
    clean.add_argument("--only", choices=tuple(_CLEANINGS), metavar="WHAT", help=f"{whats} (default: all that is due)")
    clean.add_argument(
        "--no-dry-run", action="store_false", dest="dry_run", help="do it; without it, it is only listed"
    )
    clean.add_argument(
        "--older-than",
        metavar="AGE",
        help="of versions or files, such as '7 days' (default: the table's delta.deletedFileRetentionDuration; of orphans "
        "3 days)",
    )
    clean.add_argument("--retain-last", type=int, metavar="N", help="keep the newest N versions (default: 1)")
    clean.add_argument(
        "--allow-short-retention",
        action="store_true",
        help="allow less than an hour; make sure that nobody else uses the table",
    )


def _compact(options: argparse.Namespace) -> int:
    from lakebed.cli.display.output import print_record

    table = table_of(options)
    done = [
        act(table, options) for name, act in (("settle", _settle), ("merge", _merge)) if options.only in (None, name)
    ]
    for result in done:
        print_record(result, options)
    return exit_codes.OK


def _settle(table: Table, options: argparse.Namespace) -> Any:
    from lakebed.cli.display.progress import progress
    from lakebed.events import CommitEnded, listen
    from lakebed.log.entries import Operation

    [tail] = table.inspect.detail()["tail_rows"].to_pylist()
    with progress("settling", options.log_format) as report:

        def count(event: Event) -> None:
            if isinstance(event, CommitEnded) and event.operation == Operation.SETTLE:
                report("settling rows", tail - table.inspect.detail()["tail_rows"][0].as_py(), tail)

        end = listen(count)
        try:
            return table.settle()
        finally:
            end()


def _merge(table: Table, options: argparse.Namespace) -> Any:
    from lakebed import events
    from lakebed.cli.display.progress import progress

    with progress("looking for parts to merge", options.log_format) as report:
        end = events.listen(_MergeCount(report))
        try:
            return table.maintenance.compact()
        finally:
            end()


class _MergeCount:
    """A listener that reports the merge under way. How many follow is not known: outputs may be merged again."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._merges = 0

    def __call__(self, event: Event) -> None:
        from lakebed.cli.display.views import bytes_text
        from lakebed.events import MergeBegan

        if isinstance(event, MergeBegan):
            self._merges += 1
            what = f"merging {event.parts:,} parts, {bytes_text(event.bytes)}, for level {event.level}: merge"
            self._report(what, self._merges, None)


def _recluster(options: argparse.Namespace) -> int:
    from lakebed.cli.display.output import print_record
    from lakebed.cli.display.progress import progress

    table = table_of(options)
    with progress("looking for parts to recluster", options.log_format) as report:

        def on_progress(at: ReclusterProgress) -> None:
            waiting = ", waiting for parts that others merge" if at.waiting else ""
            what = f"round {at.rounds}, merge {at.plans} of about {at.plans_estimated}{waiting}: rows"
            report(what, at.rows, at.rows_estimated)

        result = table.maintenance.recluster(
            options.where, final=options.final, on_progress=on_progress, dry_run=options.dry_run
        )
    print_record(result, options)
    return exit_codes.OK


def _clean(options: argparse.Namespace) -> int:
    """Without ``--only``: old rows where the table has a time to live, then versions, which takes orphans along."""
    files_too = options.only != "expire-rows"
    if options.retain_last is not None and options.only not in (None, "expire-snapshots"):
        raise InvalidInput(f"--retain-last is not for --only {options.only}, which expires no versions")
    if not files_too and (options.older_than or options.allow_short_retention):
        raise InvalidInput("--older-than and --allow-short-retention are for files; rows are old as lakebed.ttl says")
    table = table_of(options)
    if not files_too or (options.only is None and table.properties.get("lakebed.ttl")):
        _expire_rows(table, options)
    if files_too:
        _delete_files(table, options)
    return exit_codes.OK


def _expire_rows(table: Table, options: argparse.Namespace) -> None:
    from lakebed.cli.display.output import print_rows
    from lakebed.cli.display.progress import progress
    from lakebed.cli.display.views import EXPIRED_ROWS, bytes_text

    with progress("looking for old rows" if options.dry_run else "removing old rows", options.log_format):
        parts = table.maintenance.expire_rows(options.dry_run)
    print_rows(parts, options, EXPIRED_ROWS)
    done = "would be removed; --no-dry-run removes them" if options.dry_run else "removed"
    whole, size = sum(parts["removed"].to_pylist()), bytes_text(sum(parts["bytes"].to_pylist()))
    note(
        f"{sum(parts['expired_rows'].to_pylist()):,} rows, {whole:,} of their {len(parts):,} parts as a whole ({size}), {done}"
    )


def _delete_files(table: Table, options: argparse.Namespace) -> None:
    from lakebed.cli.display.output import print_rows
    from lakebed.cli.display.progress import progress
    from lakebed.cli.display.views import FILES, bytes_text

    upkeep, ages = table.maintenance, (options.dry_run, options.allow_short_retention)
    rows: pa.Table
    with progress("listing files to delete" if options.dry_run else "deleting files", options.log_format):
        match options.only:
            case "vacuum":
                rows = upkeep.vacuum(options.older_than, *ages)
            case "remove-orphan-files":
                rows = upkeep.remove_orphan_files(options.older_than, *ages)
            case _:
                kept = 1 if options.retain_last is None else options.retain_last
                rows = upkeep.expire_snapshots(options.older_than, kept, *ages)
    print_rows(rows, options, FILES)
    done = "would be deleted; --no-dry-run deletes them" if options.dry_run else "deleted"
    total = sum(rows["bytes"].to_pylist())
    note(f"{len(rows):,} files, {bytes_text(total)}, {done}")
