"""``lakebed simulate``: what merging would cost and bring, by running the planner over synthetic arrivals."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from lakebed.cli import exit_codes
from lakebed.cli.output import Format, print_rows
from lakebed.compaction.simulator import Order, Simulation, Workload, plot, simulate, steady
from lakebed.settings import parse_settings


@dataclass(frozen=True, slots=True)
class SimulateOptions:
    """What the command line says; ``rate`` is rows a second."""

    days: float
    rate: float
    row_bytes: int
    read_budget: int
    order: Order
    updates: float
    plan_bytes_max: int | None
    png: str | None
    form: Format


def run_simulation(options: SimulateOptions) -> int:
    """Print the figures and draw them if a file is named. Raises InvalidInput, MissingPrerequisite."""
    properties = {"lakebed.read_budget": str(options.read_budget)}
    if options.plan_bytes_max is not None:
        properties["lakebed.plan_bytes_max"] = str(options.plan_bytes_max)
    workload = Workload(
        steady(options.days, options.rate, row_bytes=options.row_bytes),
        update_share=options.updates,
        order=options.order,
    )
    simulation = simulate(workload, parse_settings(properties))
    print_rows(figures(simulation), options.form)
    if options.png is not None:
        plot(
            simulation,
            options.png,
            f"{options.days:g} days of {options.rate:g} rows a second, read budget {options.read_budget}",
        )
    return exit_codes.OK


def figures(simulation: Simulation) -> pa.Table:
    """One row of figures."""
    samples = simulation.samples
    last = samples[-1]
    return pa.Table.from_pylist(
        [
            {
                "flushes": simulation.flushes,
                "merges": simulation.merges,
                "purges": simulation.purges,
                "ingested_bytes": last.ingested_bytes,
                "merged_bytes": last.merged_bytes,
                "write_amplification": round(last.write_amplification, 3),
                "merged_to_least": round(simulation.merged_to_least, 3),
                "depth_max": max(sample.depth_max for sample in samples),
                "depth_average": round(sum(sample.depth_average for sample in samples) / len(samples), 3),
                "space_amplification": round(last.space_amplification, 3),
                "parts": last.parts,
            }
        ]
    )
