"""``lakebed simulate``: estimate the cost and the gain of merges by running the planner over made-up or recorded arrivals."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from lakebed.cli import exit_codes
from lakebed.cli.output import print_record
from lakebed.cli.progress import progress
from lakebed.errors import InvalidInput
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.planning.simulator import plot, simulate
from lakebed.planning.workload import Order, Simulation, Workload, steady
from lakebed.planning.workload_from_log import recorded_workload
from lakebed.settings import parse_settings


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateOptions:
    """The options of the command. ``rate``: rows per second; ``source``: the path of the table whose arrivals are taken.

    ``printed``: how the figures are printed, as for ``print_rows``.
    """

    source: str | None
    days: float
    rate: float | None
    row_bytes: int | None
    read_budget: int | None
    order: Order
    updates: float | None
    plan_bytes_max: int | None
    volatile: bool
    png: str | None
    printed: argparse.Namespace
    log_format: str | None = None


def run_simulation(options: SimulateOptions) -> int:
    """Print the figures, and draw them if a file is given. Raises InvalidInput, MissingPrerequisite."""
    workload, properties, title = _made_up(options) if options.source is None else _recorded(options, options.source)
    for name in ("read_budget", "plan_bytes_max"):
        if getattr(options, name) is not None:
            properties[f"lakebed.{name}"] = str(getattr(options, name))
    workload, settings = replace(workload, volatile=options.volatile), parse_settings(properties)
    with progress("simulating", options.log_format) as report:
        simulation = simulate(workload, settings, on_progress=lambda done, of: report("simulating batches", done, of))
    print_record(figures(simulation), options.printed)
    if options.png is not None:
        plot(simulation, options.png, f"{title}, read budget {settings.read_budget}")
    return exit_codes.OK


def _made_up(options: SimulateOptions) -> tuple[Workload, dict[str, str], str]:
    rate = 1000.0 if options.rate is None else options.rate
    row_bytes = 25 if options.row_bytes is None else options.row_bytes
    arrivals = steady(options.days, rate, row_bytes=row_bytes)
    workload = Workload(arrivals=arrivals, update_share=options.updates or 0.0, order=options.order)
    return workload, {}, f"{options.days:g} days of {rate:g} rows a second"


def _recorded(options: SimulateOptions, path: str) -> tuple[Workload, dict[str, str], str]:
    """The table's arrivals and its own settings."""
    for name in ("rate", "row_bytes", "updates"):
        if getattr(options, name) is not None:
            raise InvalidInput(
                f"--{name.replace('_', '-')} can't be given with --from, which takes it from the table; leave one of them out"
            )
    log = TableLog(open_store(path))
    properties = log.refresh().settings.to_properties()
    return recorded_workload(log, options.days, options.order), properties, f"{options.days:g} days of {path}"


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
