"""``lakebed simulate``: estimate the cost and the gain of merges by running the planner over made-up or recorded arrivals."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from lakebed.cli import exit_codes
from lakebed.cli.arguments import ratio, up_to
from lakebed.cli.parser import Commands
from lakebed.errors import InvalidInput

if TYPE_CHECKING:
    from lakebed.planning.workload import Simulation, Workload


def add_to(commands: Commands) -> None:
    """Add ``simulate``."""
    parser = commands.add(
        "simulate",
        "simulate days of merges in seconds",
        _simulate,
        "--days 7 --rate 5000 --read-budget 6",
        rows=True,
    )
    add = parser.add_argument
    add("--from", dest="source", metavar="TABLE", help="take the arrivals of the last days, and the settings, from it")
    add("--days", type=up_to(3_660), default=1.0, metavar="N", help="days to simulate (default: 1)")
    add("--rate", type=up_to(1e9), metavar="N", help="rows per second (default: 1000)")
    add("--row-bytes", type=int, metavar="N", help="bytes of a row in a part, compressed (default: 25)")
    add("--read-budget", type=int, metavar="K", help="lakebed.read_budget (default: the table's, else 8)")
    orders = ("random", "ascending", "none")
    add("--order", choices=orders, default="random", help="where new rows are in the sort key (default: random)")
    add("--updates", type=ratio, metavar="R", help="share of updates, 0 to 1 (default: 0)")
    add("--plan-bytes-max", type=int, metavar="BYTES", help="lakebed.plan_bytes_max")
    add("--volatile", action="store_true", help="merges stay on a local disk (lakebed.volatile)")
    add("--png", metavar="FILE", help="draw write, read and space amplification over time")


def _simulate(options: argparse.Namespace) -> int:
    """Print the figures, and draw them if a file is given. Raises InvalidInput, MissingPrerequisite."""
    from lakebed.cli.display.output import print_record
    from lakebed.cli.display.progress import progress
    from lakebed.planning.simulator import plot, simulate
    from lakebed.settings import parse_settings

    workload, properties, title = _made_up(options) if options.source is None else _recorded(options)
    for name in ("read_budget", "plan_bytes_max"):
        if getattr(options, name) is not None:
            properties[f"lakebed.{name}"] = str(getattr(options, name))
    workload, settings = replace(workload, volatile=options.volatile), parse_settings(properties)
    with progress("simulating", options.log_format) as report:
        simulation = simulate(workload, settings, on_progress=lambda done, of: report("simulating batches", done, of))
    print_record(figures(simulation), options)
    if options.png is not None:
        plot(simulation, options.png, f"{title}, read budget {settings.read_budget}")
    return exit_codes.OK


def _made_up(options: argparse.Namespace) -> tuple[Workload, dict[str, str], str]:
    from lakebed.planning.workload import Workload, steady

    rate = 1000.0 if options.rate is None else options.rate
    row_bytes = 25 if options.row_bytes is None else options.row_bytes
    arrivals = steady(options.days, rate, row_bytes=row_bytes)
    workload = Workload(arrivals=arrivals, update_share=options.updates or 0.0, order=options.order)
    return workload, {}, f"{options.days:g} days of {rate:g} rows a second"


def _recorded(options: argparse.Namespace) -> tuple[Workload, dict[str, str], str]:
    """The table's arrivals and its own settings."""
    from lakebed.log.stores import open_store
    from lakebed.log.table_log import TableLog
    from lakebed.planning.workload_from_log import recorded_workload

    for name in ("rate", "row_bytes", "updates"):
        if getattr(options, name) is not None:
            raise InvalidInput(
                f"--{name.replace('_', '-')} can't be given with --from, which takes it from the table; leave one of them out"
            )
    log = TableLog(open_store(options.source))
    properties = log.refresh().settings.to_properties()
    recorded = recorded_workload(log, options.days, options.order)
    return recorded, properties, f"{options.days:g} days of {options.source}"


def figures(simulation: Simulation) -> dict[str, int | float]:
    samples = simulation.samples
    last = samples[-1]
    return {
        "flushes": simulation.flushes,
        "settles": simulation.settles,
        "merges": simulation.merges,
        "purges": simulation.purges,
        "ingested_bytes": last.ingested_bytes,
        "merged_bytes": last.merged_bytes,
        "write_amplification": round(last.write_amplification, 3),
        "merged_to_reference": round(simulation.merged_to_reference, 3),
        "depth_max": max(sample.depth_max for sample in samples),
        "depth_average": round(sum(sample.depth_average for sample in samples) / len(samples), 3),
        "depth_max_elsewhere": max(sample.depth_max_elsewhere for sample in samples),
        "depth_average_elsewhere": round(sum(sample.depth_average_elsewhere for sample in samples) / len(samples), 3),
        "local_bytes": last.local_bytes,
        "space_amplification": round(last.space_amplification, 3),
        "parts": last.parts,
        "tail_parts_max": max(sample.tail_parts for sample in samples),
    }
