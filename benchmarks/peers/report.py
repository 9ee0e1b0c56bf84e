"""Tables, a JSON file and a picture of the runs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.peers.given import Given, Scale
from benchmarks.peers.measured import Figures, Run, as_json, figures
from benchmarks.workload import table

_MB = 1e6


def header(command: str, date: str) -> list[str]:
    """What a reader must know of the machine and the run."""
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return [
        f"Command: {command}",
        f"Date: {date}; {platform.platform()}; {os.cpu_count()} cores ({_processor()}); {int(memory.split()[1]) / 2**20:.0f} GB; "
        f"load before: {os.getloadavg()[0]:.1f}",
    ]


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def show(runs: Sequence[Run], scale: Scale, given: Given) -> None:
    """Print what was verified, then what failed, then how each was configured."""
    good = [(run, figures(run, scale, given)) for run in runs if run.error is None]
    title = f"{scale.batches} batches of {scale.changes:,} changes into {scale.rows:,} rows, {_kind(scale)}"
    table(
        f"{title}: writing",
        [
            "system", "batch median s", "p95 s", "max s", "x plain append", "stalls", "waited for maintenance s", "CPU s",
            "write amplification: before the last upload", "with it", "data MB", "metadata MB", "local MB", "files", "size MB",
        ],
        [_writing(run, each) for run, each in good],
    )  # fmt: skip
    table(
        f"{title}: fresh reads, x plain sorted Parquet",
        [
            "system", "aggregate: median", "max", "last", "selective: median", "max", "last", "point: median", "max", "last",
        ],
        [_reading(run, each) for run, each in good if each.reads],
    )  # fmt: skip
    for run in runs:
        if run.error is not None:
            print(f"\n{_name(run)}: no figures: {run.error}")
    print(f"\n### Settings\n\n- all: local[2], {scale.memory}, two shuffle partitions, Parquet with zstd")
    for run in runs:
        if run.round == 1 and run.settings:
            settings = ", ".join(f"{name} = {value}" for name, value in run.settings.items())
            print(f"- {run.system} (Spark {run.spark}): {settings}")


def _kind(scale: Scale) -> str:
    return "append-only" if scale.append_only else f"{scale.updates} updates"


def _name(run: Run) -> str:
    return run.system if run.round == 1 else f"{run.system} ({run.round})"


def _writing(run: Run, each: Figures) -> list[object]:
    return [
        _name(run),
        each.batch_median,
        each.batch_p95,
        each.batch_max,
        each.times_plain,
        each.stalls,
        each.maintenance_seconds,
        each.cpu_seconds,
        each.write_amplification_running,
        each.write_amplification,
        each.data_bytes / _MB,
        each.metadata_bytes / _MB,
        each.local_bytes / _MB,
        each.files,
        each.bytes / _MB,
    ]


def _reading(run: Run, each: Figures) -> list[object]:
    out: list[object] = [_name(run)]
    for name in ("aggregate", "selective", "point"):
        ratios = each.reads[name]
        out += [ratios.median, ratios.max, ratios.last]
    return out


def save(path: Path, head: Sequence[str], runs: Sequence[Run], scale: Scale, given: Given) -> None:
    """All figures, and all that they were made of."""
    document: dict[str, Any] = {
        "header": list(head), "scale": asdict(scale), "change_bytes": given.change_bytes,
        "runs": [as_json(run, scale, given) for run in runs],
    }  # fmt: skip
    path.write_text(json.dumps(document, indent=1))


def draw(path: Path, runs: Sequence[Run], scale: Scale, given: Given) -> None:
    """Batch times over the batches, and write amplification against the fresh aggregate."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    good = [(run, figures(run, scale, given)) for run in runs if run.error is None]
    figure, (left, right) = plt.subplots(1, 2, figsize=(14, 5.5))
    colours = plt.get_cmap("tab20").colors
    systems = list(dict.fromkeys(run.system for run, _ in good))
    for run, each in good:
        colour = colours[systems.index(run.system) % len(colours)]
        numbers = range(1, len(each.batch_seconds) + 1)
        left.plot(numbers, each.batch_seconds, color=colour, marker=".", label=run.system if run.round == 1 else None)
        if "aggregate" in each.reads:
            point = max(each.write_amplification, 0.01), each.reads["aggregate"].median
            right.scatter(*point, color=colour, s=60)
            right.annotate(run.system, point, xytext=(6, 4), textcoords="offset points", fontsize=8)
    left.set(
        yscale="log",
        xlabel="batch",
        ylabel="seconds, with the maintenance it waited for",
        title=f"A batch of {scale.changes:,}",
    )
    left.legend(fontsize=8, ncols=2)
    left.grid(alpha=0.3, which="both")
    right.axhline(1, color="grey", linewidth=0.8)
    right.set(
        xscale="log",
        yscale="log",
        xlabel="write amplification (bytes written / bytes of changes)",
        ylabel="fresh aggregate / plain sorted Parquet",
        title=f"{scale.rows:,} rows, {_kind(scale)}; lower left is better",
    )
    right.grid(alpha=0.3, which="both")
    for axis in (left.yaxis, right.xaxis, right.yaxis):
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter("{x:g}")
        axis.set_tick_params(which="both", labelsize=8)
    left.xaxis.get_major_locator().set_params(integer=True)
    right.margins(0.15)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
