"""Asks before a command that takes much away; where nobody can answer, ``--yes`` is the answer."""

from __future__ import annotations

import argparse
import sys

from lakebed.cli.escapes import shown
from lakebed.cli.logs import note
from lakebed.errors import InvalidInput


def add_option(parser: argparse.ArgumentParser) -> None:
    """``--yes``."""
    parser.add_argument("--yes", action="store_true", help="do not ask; required if stdin is not a terminal")


def confirmed(what: str, options: argparse.Namespace) -> bool:
    """Whether to do it. ``what``: what will happen, as a clause. Raises InvalidInput where nobody can be asked."""
    if options.yes:
        return True
    if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidInput(f"{what}; give --yes to do it without being asked")
    print(f"lakebed: {shown(what)}. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    note("nothing was done")
    return False
