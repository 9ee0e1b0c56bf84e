"""``python -m tests.simulation --seeds 1000``: many worlds; the first that fails is printed with its seed and trace."""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter

from tests.simulation import breaks
from tests.simulation.run import STEPS, simulate


def main() -> int:
    """Run the seeds asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description="simulate writers of one log")
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (default %(default)s)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps with faults a seed (default %(default)s)")
    parser.add_argument("--trace", action="store_true", help="print the whole trace of each seed")
    parser.add_argument("--pin", action="store_true", help="find a world for each break of tests/simulation/breaks.py")
    asked = parser.parse_args()
    logging.disable(logging.ERROR)  # what is said of faults: there are many
    if asked.pin:
        return 0 if breaks.pin(asked.seeds) else 1
    started, total, versions = time.monotonic(), Counter[str](), 0
    for seed in range(asked.first, asked.first + asked.seeds):
        try:
            report = simulate(seed, asked.steps)
        except AssertionError as failure:
            print(failure)
            print(f"run it again: python -m tests.simulation --from {seed} --seeds 1 --steps {asked.steps}")
            return 1
        if asked.trace:
            print("\n".join(report.trace))
        total += report.counts
        versions += report.versions
    counted = ", ".join(f"{name} {count}" for name, count in sorted(total.items()))
    took = time.monotonic() - started
    print(f"seeds {asked.first} to {asked.first + asked.seeds - 1}: {versions} versions, {counted}; {took:.1f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
