"""Hunt for merges without end, for as long as you like: ``python -m tests.planning.hunt_endless --seconds 3600``.

Worlds with an adversary's statistics and real tables with hostile sort keys take turns, a seed each; the first that does not end
or that does not lower the measure ends the hunt with its seed. Start from that seed (``--seed``) to see it again.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path

from tests.planning.endless import merges_until_the_end, real_merges_until_the_end


def main() -> None:
    parser = argparse.ArgumentParser(description="Hunt for merges without end.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (60)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (0)")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    seed, merges, most = options.seed, 0, 0
    folder = Path(tempfile.mkdtemp(prefix="hunt-endless-"))
    try:
        while time.monotonic() < end:
            for found in (merges_until_the_end(seed), real_merges_until_the_end(seed, folder)):
                merges, most = merges + found, max(most, found)
            shutil.rmtree(folder / f"table-{seed}", ignore_errors=True)
            seed += 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"seeds {options.seed} to {seed - 1}: {merges:,} merges, {most:,} at most in one world, and each world came to an end"
    )


if __name__ == "__main__":
    main()
