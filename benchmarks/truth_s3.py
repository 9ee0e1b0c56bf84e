"""How far metrics are from what an S3 server received, over a run of ingest, settling and merging that is killed once.

    python -m benchmarks.truth_s3 [--batches 60]

Two processes, one after the other, bring 4,000 rows a batch to a table on a real S3 server on loopback; the first is killed with
SIGKILL. Bytes of the truth are payloads of PUTs that the server took; what commits name is read from the log's JSON.
"""

from __future__ import annotations

import argparse
import os
import tempfile

from tests.infra.fault_proxy import FaultProxy
from tests.infra.s3 import S3Server, aws_environment
from tests.monitoring.truth_on_s3 import run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=60, help="of each process (default: 60)")
    batches = parser.parse_args().batches
    with tempfile.TemporaryDirectory() as folder, S3Server() as server:
        os.environ["LAKEBED_CACHE_DIR"] = f"{folder}/cache"
        with FaultProxy(server.ports[0]) as proxy, aws_environment(proxy.endpoint):
            truth, told = run(proxy, server, batches)
    needed = truth.written - truth.orphan
    print(
        f"server: {truth.ingested:,} bytes of change parts, {truth.written:,} of parts and vectors, {truth.log:,} of the log"
    )
    print(f"of these no commit names {truth.orphan:,} bytes; {truth.merges} merges")
    show("log: ingested bytes", told.exported["lakebed_log_ingested_bytes"], truth.ingested)
    show("log: written bytes", told.exported["lakebed_log_written_bytes"], needed)
    show("log: write amplification", told.exported["lakebed_write_amplification"], truth.write_amplification)
    show("listing: stored bytes", told.exported["lakebed_stored_bytes"], truth.lying)
    for name, true in (
        ("lakebed_ingested_bytes_total", truth.ingested),
        ("lakebed_written_bytes_total", needed),
        ("lakebed_store_written_bytes_total", truth.sent),
    ):
        show(f"counters of both: {name}", told.killed[name] + told.second[name], true)


def show(what: str, told: float, true: float) -> None:
    print(f"{what:<55}{told:>14,.3f} told {true:>14,.3f} true   ratio {told / true:.4f}")


if __name__ == "__main__":
    main()
