"""``lakebed plan | compact | maintain | recluster | set-sort-key``."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes

if TYPE_CHECKING:
    from lakebed.cli.progress import Report
    from lakebed.compaction.recluster_job import ReclusterProgress
    from lakebed.events import Event

# What a command needs is imported when it runs: a parser must not wait for it.


def plan(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import PLAN
    from lakebed.table import open as open_table

    print_rows(open_table(options.path).maintenance.plan(), options, PLAN)
    return exit_codes.OK


def compact(options: argparse.Namespace) -> int:
    from lakebed import events
    from lakebed.cli.output import print_record
    from lakebed.cli.progress import progress
    from lakebed.table import open as open_table

    table = open_table(options.path)
    with progress("looking for parts to merge", options.log_format) as report:
        end = events.listen(_MergeCount(report))
        try:
            result = table.maintenance.compact()
        finally:
            end()
    print_record(result, options)
    return exit_codes.OK


def maintain(options: argparse.Namespace) -> int:
    from lakebed.cli.run_command import maintain_table

    return maintain_table(options.path, options.duration, options.metrics_port, options.log_format, options.host)


def recluster(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_record
    from lakebed.cli.progress import progress
    from lakebed.table import open as open_table

    table = open_table(options.path)
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


class _MergeCount:
    """A listener that reports the merge under way. How many follow is not known: outputs may be merged again."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._merges = 0

    def __call__(self, event: Event) -> None:
        from lakebed.cli.views import bytes_text
        from lakebed.events import MergeBegan

        if isinstance(event, MergeBegan):
            self._merges += 1
            what = f"merging {event.parts:,} parts, {bytes_text(event.bytes)}, for level {event.level}: merge"
            self._report(what, self._merges, None)


def set_sort_key(options: argparse.Namespace) -> int:
    from lakebed.table import open as open_table

    table = open_table(options.path)
    version = table.set_sort_key(options.columns)
    [unsorted] = table.inspect.detail()["unsorted_parts"].to_pylist()
    print(
        f"version {version}: {unsorted:,} parts to be sorted by it, by lakebed maintain or now by lakebed recluster --final"
    )
    return exit_codes.OK
