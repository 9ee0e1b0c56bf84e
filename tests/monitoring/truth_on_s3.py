"""What metrics say of a run on S3 with a crash in it, beside what the server received and what the log names.

1. A worker process brings batches, settles and merges, and is scraped all the while. Amidst it is killed with SIGKILL.
2. A second one goes on and comes to rest. Its counters begin at zero.
3. An exporter that is started then tells the gauges that come from the log.
4. The truth: the payload of every PUT that the server took, by path, and the JSON of the log, read without lakebed.

The worker: python -m tests.monitoring.truth_on_s3 <table> <first batch> <last batch>
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lakebed
from lakebed import events
from lakebed.health.sampler import Exporter
from lakebed.monitoring.metrics import Metrics
from lakebed.table import internals_of
from tests.infra.downloads import REPOSITORY
from tests.infra.fault_proxy import FaultProxy, Traffic
from tests.infra.s3 import S3Server
from tests.internals import compaction_of, log_of
from tests.monitoring.test_truth import SCHEMA, batch
from tests.waiting import outcome, wait_until

_FOREVER = 100_000


@dataclass(slots=True)
class Truth:
    """Bytes of payloads that the server took. ``orphan``: of parts and vectors that no commit names; ``lying``: of all objects
    that are there in the end (some of the log were written several times over, or deleted); ``sent``: what it refused too, such
    as commits that came second.
    """

    ingested: int = 0
    written: int = 0
    orphan: int = 0
    log: int = 0
    lying: int = 0
    sent: int = 0
    merges: int = 0

    @property
    def write_amplification(self) -> float:
        """Of everything but the log."""
        return self.written / self.ingested


@dataclass(slots=True)
class Told:
    """What metrics say. ``killed``: counters of the worker that was killed, at its last scrape; ``second``: of the other one."""

    killed: dict[str, float] = field(default_factory=dict)
    second: dict[str, float] = field(default_factory=dict)
    second_at_first: dict[str, float] = field(default_factory=dict)
    exported: dict[str, float] = field(default_factory=dict)


def run(proxy: FaultProxy, server: S3Server, batches: int) -> tuple[Truth, Told]:
    """The environment must point at the proxy."""
    bucket = server.create_bucket()
    path = f"s3://{bucket}/orders"
    proxy.traffic(reset=True)
    lakebed.create(path, SCHEMA, keys=["id"], properties={"lakebed.read_budget": 3, "lakebed.volatile": "off"})
    told = Told()
    worker = _Worker(path, 0, _FOREVER)
    wait_until(
        lambda: worker.scrape()["lakebed_batches_total"] >= batches and worker.said["lakebed_merges_total"] >= 2,
        moving=lambda: worker.said.get("lakebed_batches_total"),
    )
    worker.kill()
    told.killed = worker.said
    first = round(told.killed["lakebed_batches_total"]) + 1
    worker = _Worker(path, first, first + batches)
    told.second_at_first = worker.scrape()
    worker.wait_until_idle()
    told.second = worker.scrape()
    worker.end()
    told.exported = _exported(path)
    return _truth(server, bucket, proxy.traffic()), told


class _Worker:
    """A process that works, and its newest scrape."""

    def __init__(self, path: str, first: int, last: int) -> None:
        command = [sys.executable, "-m", "tests.monitoring.truth_on_s3", path, str(first), str(last)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY, env=os.environ.copy()
        )
        assert self._process.stdout is not None
        self._url = self._process.stdout.readline().strip()
        self.said: dict[str, float] = {}

    def scrape(self) -> dict[str, float]:
        assert self._process.poll() is None, "the worker has ended"
        self.said = _sums(urllib.request.urlopen(self._url, timeout=60).read().decode())
        return self.said

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def wait_until_idle(self) -> None:
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "idle"

    def end(self) -> None:
        outcome(self._process)
        assert self._process.returncode == 0


def _sums(text: str) -> dict[str, float]:
    """The samples of a scrape, added up over their labels."""
    sums: Counter[str] = Counter(dict.fromkeys(("lakebed_batches_total", "lakebed_merges_total"), 0.0))  # type: ignore[arg-type]
    for line in text.splitlines():
        if not line.startswith("#"):
            name, value = line.split("{")[0], float(line.rsplit(" ", 1)[1])
            sums[name] += value  # type: ignore[assignment]
    return dict(sums)


def _exported(path: str) -> dict[str, float]:
    metrics = Metrics()
    exporter = Exporter([path], metrics, 0.2, Path("/nonexistent"))
    exporter.start()

    def read(name: str) -> float:
        samples = [sample for family in metrics.registry.collect() for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples)

    wait_until(lambda: read("lakebed_log_window_seconds") == 3600 and read("lakebed_stored_bytes") > 0)
    names = (
        "lakebed_log_ingested_bytes",
        "lakebed_log_written_bytes",
        "lakebed_write_amplification",
        "lakebed_stored_bytes",
    )
    found = {name: read(name) for name in names}
    exporter.close()
    return found


def _truth(server: S3Server, bucket: str, traffic: Traffic) -> Truth:
    sizes = {path.removeprefix(f"/{bucket}/orders/"): size for path, size in traffic.stored.items()}
    change_parts, named, merges = set(), set(), 0
    client = server.client()
    for path in sorted(sizes):
        if path.startswith("_delta_log/") and path.endswith(".json") and "checkpoint" not in path:
            body = client.get_object(Bucket=bucket, Key=f"orders/{path}")["Body"].read().decode()
            actions: list[dict[str, Any]] = [json.loads(line) for line in body.splitlines()]
            merges += sum(action.get("commitInfo", {}).get("operation") == "MERGE" for action in actions)
            for action in actions:
                if "add" in action:
                    named.add(action["add"]["path"])
                    if (vector := action["add"].get("deletionVector") or {}).get("storageType") == "u":
                        named.add(_vector_file(vector["pathOrInlineDv"]))
                domain = action.get("domainMetadata", {})
                if domain.get("domain", "").startswith("lakebed.part.") and not domain["removed"]:
                    change_parts.add(json.loads(domain["configuration"])["path"])
    data = {path: size for path, size in sizes.items() if not path.startswith("_delta_log/")}
    return Truth(
        ingested=sum(data[path] for path in change_parts),
        written=sum(data.values()),
        orphan=sum(size for path, size in data.items() if path not in named | change_parts),
        log=sum(size for path, size in sizes.items() if path.startswith("_delta_log/")),
        lying=sum(
            entry["Size"]
            for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix="orders/")
            for entry in page["Contents"]
        ),
        sent=traffic.stored.total() + traffic.refused.total(),
        merges=merges,
    )


def _vector_file(encoded: str) -> str:
    """The file of a deletion vector: a prefix, then 20 characters of Z85 that are a uuid (the Delta protocol)."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    prefix, text = encoded[:-20], encoded[-20:]
    raw = b""
    for at in range(0, 20, 5):
        number = 0
        for digit in text[at : at + 5]:
            number = number * 85 + digits.index(digit)
        raw += number.to_bytes(4, "big")
    hexed = raw.hex()
    name = "-".join((hexed[:8], hexed[8:12], hexed[12:16], hexed[16:20], hexed[20:]))
    return f"{prefix}/deletion_vector_{name}.bin" if prefix else f"deletion_vector_{name}.bin"


def _work(path: str, first: int, last: int) -> None:
    metrics = Metrics()
    events.listen(metrics)
    print(metrics.serve("127.0.0.1", 0).url, flush=True)
    table, stop = lakebed.open(path), threading.Event()
    following = threading.Thread(target=internals_of(table).follow, args=(stop,), daemon=True)
    following.start()
    for number in range(first, last):
        table.apply(batch(number), batch_id=number)
    while log_of(table).refresh().tail or compaction_of(table).due() or compaction_of(table).running():
        time.sleep(0.05)
    print("idle", flush=True)
    sys.stdin.read()
    stop.set()
    following.join()


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
