"""A worker of a fleet that has merges of a few bytes run on the cluster, and whose tasks wait to be let go.

    SPARK_MASTER=… SPARK_CONF_DIR=… python fleet_on_cluster.py ROOT GATE

A task that has merged writes its process, its executor's, and which attempt it is into a file in the folder GATE. It returns when
there is a file ``go``, or if it is not the first attempt. Prints the events that say which engine merged, a line of JSON each.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

from lakebed import events
from lakebed.cli.command_line import execute
from lakebed.compaction import compaction
from lakebed.fleet import worker
from lakebed.sparks import cluster

BYTES_MIN = 100_000


def merge_and_wait(gate: str, work: bytes, root: str) -> Any:
    import os
    import time
    import uuid
    from pathlib import Path

    from pyspark import TaskContext

    from lakebed.compaction.compaction import merge_in_task

    merged = merge_in_task(work, root)
    daemon = os.getppid()
    executor = int(Path(f"/proc/{daemon}/stat").read_text().split()[3])
    context = TaskContext.get()
    assert context is not None
    note = Path(gate, uuid.uuid4().hex)
    note.write_text(f"{os.getpid()} {executor} {context.attemptNumber()}")
    note.rename(note.with_suffix(".merged"))
    while not Path(gate, "go").exists() and context.attemptNumber() == 0:
        time.sleep(0.05)
    return merged


def say(event: events.Event) -> None:
    if isinstance(event, events.MergeEnded | events.MergeFailed):
        print(json.dumps({"event": type(event).__name__, **asdict(event)}, default=str), flush=True)


def main(root: str, gate: str) -> int:
    compaction.merge_in_task = partial(merge_and_wait, gate)  # this module goes to the executors as it is
    cluster.AWAY_SECONDS = (1.0, 1.0)
    worker.BEAT_SECONDS = 0.3
    cluster.Cluster = partial(cluster.Cluster, bytes_min=BYTES_MIN)  # type: ignore[misc, assignment]
    events.listen(say)
    return execute(["maintain", root, "--cores", "1", "--memory", "1GiB", "--spark", os.environ["SPARK_MASTER"]])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
