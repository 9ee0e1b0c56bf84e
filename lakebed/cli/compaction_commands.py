"""``lakebed plan | compact | maintain | recluster | set-sort-key``."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes

if TYPE_CHECKING:
    from lakebed.compaction.recluster_job import ReclusterProgress

PROGRESS_SECONDS = 5.0

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


def recluster(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    import pyarrow as pa

    from lakebed.cli.output import print_rows
    from lakebed.table import open as open_table

    progress = None if options.dry_run else _Progress()
    result = asdict(
        open_table(options.path).recluster(
            options.where, final=options.final, on_progress=progress, dry_run=options.dry_run
        )
    )
    depths = pa.map_(pa.int32(), pa.float64())
    columns = {
        name: pa.array([list(value.items())], depths) if isinstance(value, dict) else pa.array([value])
        for name, value in result.items()
    }
    print_rows(pa.table(columns), options.format)
    return exit_codes.OK


class _Progress:
    """A line on stderr now and then."""

    def __init__(self) -> None:
        self._at = time.monotonic()

    def __call__(self, progress: ReclusterProgress) -> None:
        if time.monotonic() - self._at < PROGRESS_SECONDS:
            return
        self._at = time.monotonic()
        text = (
            f"round {progress.rounds}, merge {progress.plans} of about {progress.plans_estimated}: "
            f"{progress.rows:,} of about {progress.rows_estimated:,} rows in {progress.seconds:,.0f} s"
        )
        print(f"lakebed: {text}{', waiting for parts that others merge' if progress.waiting else ''}", file=sys.stderr)


def set_sort_key(options: argparse.Namespace) -> int:
    from lakebed.table import open as open_table

    table = open_table(options.path)
    version = table.set_sort_key(options.columns)
    [unsorted] = table.detail()["unsorted_parts"].to_pylist()
    print(
        f"version {version}: {unsorted:,} parts to be sorted by it, by lakebed maintain or now by lakebed recluster --final"
    )
    return exit_codes.OK
