"""Tables and a JSON file of the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.kafka_peers.measured import Run, Scale
from benchmarks.workload import table

_MB = 1e6


def show(runs: Sequence[Run], scale: Scale) -> None:
    """Print what was verified, then what failed, then how each was configured."""
    good = [run for run in runs if run.error is None]
    table(
        f"A backlog of {scale.events:,} events",
        ["system", "who sees it", "seconds", "events/s", "x append", "CPU s", "CPU µs an event", "MB written"],
        [row for run in good for row in _drain(run, good, scale)],
    )
    for number, rate in enumerate(scale.rates):
        table(
            f"Freshness at {rate:,} events/s for {scale.seconds:.0f} s",
            [
                "system", "who sees it", "events/s sent", "p50 s", "p95 s", "p99 s", "max s", "unseen at the end",
                "kept up", "CPU s", "MB written",
            ],
            [row for run in good for row in _rate(run, number)],
        )  # fmt: skip
    print()
    for run in runs:
        if run.error is not None:
            print(f"- {run.system}: NO FIGURES: {run.error}")
    for run in good:
        settings = ", ".join(f"{name} = {value}" for name, value in run.settings.items())
        print(f"- {run.system} (Spark {run.spark}): {settings}")


def _drain(run: Run, runs: Sequence[Run], scale: Scale) -> list[list[object]]:
    floor = next((max(other.drained.values()) for other in runs if other.system == "append"), None)
    phase = run.phases[0]
    return [
        [
            run.system,
            reader,
            seconds,
            int(scale.events / seconds),
            floor / seconds if floor else "-",
            phase.cpu_seconds,
            phase.cpu_seconds / scale.events * 1e6,
            phase.written_bytes / _MB,
        ]
        for reader, seconds in run.drained.items()
    ]


def _rate(run: Run, number: int) -> list[list[object]]:
    if number >= len(run.freshness):
        return [[run.system, "not tried: too far behind at the rate before", *["-"] * 9]]
    phase = run.phases[number + 1]
    return [
        [
            run.system,
            reader,
            int(seen.rate),
            *(_seconds(value) for value in (seen.p50, seen.p95, seen.p99, seen.max)),
            phase.lag[reader],
            "yes" if seen.kept_up else "no",
            phase.cpu_seconds,
            phase.written_bytes / _MB,
        ]
        for reader, seen in run.freshness[number].items()
    ]


def _seconds(value: float) -> object:
    return "never" if value == float("inf") else value


def save(path: Path, head: Sequence[str], runs: Sequence[Run], scale: Scale) -> None:
    """All that was measured, null for what is infinite; a run that failed has its error and no figures."""
    document = {
        "header": list(head),
        "scale": asdict(scale),
        "runs": [asdict(run) if run.error is None else {"system": run.system, "error": run.error} for run in runs],
    }
    finite = json.loads(json.dumps(document), parse_constant=lambda _: None)
    path.write_text(json.dumps(finite, indent=1))
