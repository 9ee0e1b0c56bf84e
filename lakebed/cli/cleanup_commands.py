"""``lakebed expire-rows | expire-snapshots | remove-orphan-files | vacuum``: a dry run unless ``--no-dry-run`` is given."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lakebed.cli import exit_codes

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import pyarrow as pa

    from lakebed.cli.progress import Report

# What a command needs is imported when it runs: a parser must not wait for it.


def expire_rows(options: argparse.Namespace) -> int:
    from lakebed.cli.logs import note
    from lakebed.cli.output import print_rows
    from lakebed.cli.progress import progress
    from lakebed.cli.views import EXPIRED_ROWS, bytes_text

    with progress("looking for old rows" if options.dry_run else "removing old rows", options.log_format):
        parts = _open(options).maintenance.expire_rows(options.dry_run)
    print_rows(parts, options, EXPIRED_ROWS)
    done = "would be removed; --no-dry-run removes them" if options.dry_run else "removed"
    whole, size = sum(parts["removed"].to_pylist()), bytes_text(sum(parts["bytes"].to_pylist()))
    note(
        f"{sum(parts['expired_rows'].to_pylist()):,} rows, {whole:,} of their {len(parts):,} parts as a whole ({size}), {done}"
    )
    return exit_codes.OK


def expire_snapshots(options: argparse.Namespace) -> int:
    with _progress(options):
        rows = _open(options).maintenance.expire_snapshots(
            options.older_than, options.retain_last, options.dry_run, options.allow_short_retention
        )
    return _print(rows, options)


def remove_orphan_files(options: argparse.Namespace) -> int:
    with _progress(options):
        rows = _open(options).maintenance.remove_orphan_files(
            options.older_than, options.dry_run, options.allow_short_retention
        )
    return _print(rows, options)


def vacuum(options: argparse.Namespace) -> int:
    with _progress(options):
        rows = _open(options).maintenance.vacuum(options.older_than, options.dry_run, options.allow_short_retention)
    return _print(rows, options)


def _progress(options: argparse.Namespace) -> AbstractContextManager[Report]:
    from lakebed.cli.progress import progress

    what = "listing files to delete" if options.dry_run else "deleting files"
    return progress(what, options.log_format)


def _open(options: argparse.Namespace) -> Any:
    from lakebed.table import open as open_table

    return open_table(options.path)


def _print(rows: pa.Table, options: argparse.Namespace) -> int:
    from lakebed.cli.logs import note
    from lakebed.cli.output import print_rows
    from lakebed.cli.views import FILES, bytes_text

    print_rows(rows, options, FILES)
    done = "would be deleted; --no-dry-run deletes them" if options.dry_run else "deleted"
    total = sum(rows["bytes"].to_pylist())
    note(f"{len(rows):,} files, {bytes_text(total)}, {done}")
    return exit_codes.OK
