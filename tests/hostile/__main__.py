"""``python -m tests.hostile --minutes 60``: hostile worlds, one after the other; each that fails is printed with its seed."""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.hostile import folders, world

WORLDS = {"tables": world.run, "files": folders.run}


def main() -> int:
    """Run worlds until the time is over; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60, help="how long (default %(default)s)")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=10**9, help="at most so many seeds")
    parser.add_argument("--steps", type=int, default=14, help="steps of each world (default %(default)s)")
    parser.add_argument("--keep-going", action="store_true", help="go on after a world that fails")
    parser.add_argument("--worlds", choices=WORLDS, default="tables", help="of which kind (default %(default)s)")
    asked = parser.parse_args()
    run = WORLDS[asked.worlds]
    logging.disable(logging.ERROR)
    ends, done, worlds, failed = time.monotonic() + asked.minutes * 60, Counter[str](), 0, 0
    for seed in range(asked.first, asked.first + asked.seeds):
        if time.monotonic() > ends:
            break
        with tempfile.TemporaryDirectory(prefix="lakebed-hostile-") as folder:
            try:
                done += run(seed, Path(folder), asked.steps).done
            except AssertionError as failure:
                failed += 1
                print(
                    f"{failure}\nrun it again: python -m tests.hostile --worlds {asked.worlds} --from {seed} --seeds 1 "
                    f"--steps {asked.steps}",
                    flush=True,
                )
                if not asked.keep_going:
                    return 1
        worlds += 1
    counted = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
    print(f"{worlds} worlds from seed {asked.first}, {failed} failed; {counted}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
