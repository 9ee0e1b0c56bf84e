"""``make soak-kill``: twenty kills -9 of a running pipeline (``KILLS=50`` for more), then the table is compared."""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.end_to_end.kills import kill_and_compare
from tests.infra.kafka import KafkaServer
from tests.infra.server import new_run_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak_kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--records-per-second", type=int, default=500)
    parser.add_argument("--folder", type=Path, help="where the tables go; default: a folder that is deleted afterwards")
    parser.add_argument("--as-query", action="store_true", help="a streaming query maintains the table, no thread")
    given = parser.parse_args()
    folder = given.folder or new_run_folder("soak-kill")
    with KafkaServer() as kafka:
        rate = given.records_per_second
        print(kill_and_compare(kafka, folder, given.kills, given.seed, rate, as_query=given.as_query))
    print("nothing was lost and nothing came twice")


if __name__ == "__main__":
    main()
