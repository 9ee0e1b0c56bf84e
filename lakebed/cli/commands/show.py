"""``lakebed show``: what the log of a table says, as tables."""

from __future__ import annotations

import argparse
from functools import partial

from lakebed.cli import exit_codes
from lakebed.cli.arguments import count, table_of, takes_table
from lakebed.cli.parser import Commands, Parser

_KINDS = {
    "figures": "how large the table is, its settings, and what is in its tail",
    "parts": "the parts of the table",
    "commits": "the newest commits, and what each did",
    "merges": "the newest merges, and what each cost",
    "plan": "what maintenance would do now, and why",
    "claims": "which replica merges which parts, and until when",
    "clustering": "how well the table is clustered by its sort key, level by level",
    "schemas": "the schemas that the table has had, with the reason for each",
    "detached": "the partitions that are detached",
}


def add_to(commands: Commands) -> None:
    """Add ``show``."""
    family = commands.family("show", "show parts, commits, merges and more of a table")
    parsers = {kind: add_kind(family, kind, kind, text) for kind, text in _KINDS.items()}
    parsers["parts"].add_argument("--at-version", type=int, metavar="N", help="of that version (default: the newest)")
    parsers["commits"].add_argument("--last", type=count, default=20, metavar="N", help="how many (default: 20)")
    parsers["merges"].add_argument(
        "--last", type=count, default=1000, metavar="N", help="merges among the newest N commits (default: 1000)"
    )
    parsers["clustering"].add_argument(
        "--png", metavar="FILE", help="draw the parts over the sort key, and their depth"
    )


def add_kind(family: Commands, name: str, kind: str, text: str) -> Parser:
    """Add a command that shows one kind of table; ``kind``: as in ``_KINDS``."""
    parser = family.add(name, text, partial(_show, kind), "lake/orders", rows=True)
    takes_table(parser)
    return parser


def _show(kind: str, options: argparse.Namespace) -> int:
    from lakebed.cli.display import views
    from lakebed.cli.display.output import print_rows

    table = table_of(options)
    inspect = table.inspect
    match kind:
        case "parts":
            rows, view = inspect.parts(options.at_version), views.PARTS
        case "commits":
            rows, view = inspect.timeline(options.last), views.TIMELINE
        case "merges":
            rows, view = inspect.compactions(options.last), views.COMPACTIONS
        case "plan":
            rows, view = table.maintenance.plan(), views.PLAN
        case "claims":
            rows, view = inspect.claims(), views.CLAIMS
        case "clustering":
            rows, view = inspect.clustering(), views.CLUSTERING
        case "schemas":
            rows, view = inspect.schemas(), views.SCHEMAS
        case "detached":
            rows, view = inspect.detached(), views.DETACHED
        case _:
            rows, view = inspect.detail(), views.RECORD
    print_rows(rows, options, view)
    if kind == "clustering" and options.png is not None:
        inspect.draw_clustering(options.png)
    return exit_codes.OK
