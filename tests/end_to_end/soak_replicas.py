"""``make soak-replicas``: replicas and writers on one table, killed in turn (``DURATION=600`` seconds), then all is compared."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from tests.end_to_end.replicas import fight
from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server, aws_environment
from tests.infra.server import new_run_folder


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.end_to_end.soak_replicas", description=__doc__)
    parser.add_argument("--duration", type=float, default=600, help="seconds, about: a kill every so often")
    parser.add_argument("--kill-every", type=float, default=20, help="seconds from one kill to the next, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--volatile", choices=("on", "off", "changing"), default="changing")
    parser.add_argument("--commands", type=int, default=0, help="how many of the three replicas are `lakebed maintain`")
    parser.add_argument(
        "--readers", type=int, default=0, help="how many of them also read, and build what others merge"
    )
    parser.add_argument("--folder", type=Path, help="where the logs go; default: a folder that is deleted afterwards")
    given = parser.parse_args()
    folder = given.folder or new_run_folder("soak-replicas")
    replicas = 3 - given.commands - given.readers
    roles = ["maintain"] * given.commands + ["replica"] * replicas + ["reader"] * given.readers
    with S3Server() as server, FaultProxy(server.ports[0]) as proxy, aws_environment(proxy.endpoint):
        outcome = fight(
            server,
            proxy,
            folder,
            kills=max(1, round(given.duration / given.kill_every)),
            kill_seconds=given.kill_every,
            seed=given.seed,
            volatile=given.volatile,
            roles=roles,
            lease_seconds=min(15.0, given.kill_every),
        )
    for name, value in asdict(outcome).items():
        print(f"{name:>22}: {value}")
    print("no row, no file and no claim was lost or left over")


if __name__ == "__main__":
    main()
