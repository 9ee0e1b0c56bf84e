"""``lakebed delete | update | truncate | detach-partition | attach-partition | drop-detached | detached``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from lakebed.cli import exit_codes
from lakebed.errors import InvalidInput

# What a command needs is imported when it runs: a parser must not wait for it.


def delete(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    return _print([asdict(_open(options).delete(options.where))], options)


def update(options: argparse.Namespace) -> int:
    from dataclasses import asdict

    assignments = _pairs(options.assignments, "--set")
    return _print([asdict(_open(options).update(assignments, options.where))], options)


def truncate(options: argparse.Namespace) -> int:
    return _print([{"version": _open(options).truncate()}], options)


def detach(options: argparse.Namespace) -> int:
    partition = _pairs(options.partition, "the partition")
    return _print([{"name": _open(options).detach_partition(partition)}], options)


def attach(options: argparse.Namespace) -> int:
    return _print([{"version": _open(options).attach_partition(options.name)}], options)


def drop(options: argparse.Namespace) -> int:
    return _print([{"files_deleted": _open(options).drop_detached(options.name)}], options)


def detached(options: argparse.Namespace) -> int:
    from lakebed.cli.output import print_rows

    print_rows(_open(options).inspect.detached(), options.format)
    return exit_codes.OK


def _open(options: argparse.Namespace) -> Any:
    from lakebed.table import open as open_table

    return open_table(options.path)


def _pairs(texts: Sequence[str], what: str) -> dict[str, str]:
    """``column=value`` texts; spaces around the column are ignored. Raises InvalidInput."""
    out: dict[str, str] = {}
    for text in texts:
        name, found, value = text.partition("=")
        name = name.strip()
        if not found or not name:
            raise InvalidInput(f"{what} is {text!r}; write COLUMN=VALUE")
        if name in out:
            raise InvalidInput(f"{what} names the column {name!r} twice")
        out[name] = value.strip()
    return out


def _print(rows: list[dict[str, Any]], options: argparse.Namespace) -> int:
    import pyarrow as pa

    from lakebed.cli.output import print_rows

    print_rows(pa.Table.from_pylist(rows), options.format)
    return exit_codes.OK
