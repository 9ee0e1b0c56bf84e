"""Where the work of a merge is done: in this process, or as a Spark job of one task.

A replica on a local master uses its own process: a merge as a task would hold one of the few slots that the next batch of
ingest waits for. On a cluster the driver is no place for heavy work, so the merge is a task, and its output goes
straight to the object store: executors don't share the replica's disk.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from lakebed.compaction.compactor import KernelMaker
from lakebed.compaction.merge import Cancelled, Kernel
from lakebed.manifest.snapshot import Snapshot
from lakebed.parts.changes import WriteSpec
from lakebed.parts.merge import MergedPart, MergeSource, merge_parts
from lakebed.storage.engine import connect
from lakebed.storage.open import open_part_storage
from lakebed.storage.part_storage import PartStorage
from lakebed.telemetry.task_cost import measured
from lakebed.telemetry.task_requests import counted, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_BYTES_MAX = 512 << 20


def local_kernel(storage: PartStorage, limits: Callable[[], Snapshot]) -> KernelMaker:
    """Merges in this process, on one thread. ``storage`` is where sources are read; ``limits`` gives the table's settings."""

    def make(cancelled: Callable[[], bool], progress: Callable[[int], None]) -> Callable[[PartStorage], Kernel]:
        def report(rows: int) -> None:
            if cancelled():
                raise Cancelled("the merge was told to stop")
            progress(rows)

        def to(out: PartStorage) -> Kernel:
            def run(sources: Sequence[MergeSource], spec: WriteSpec) -> list[MergedPart]:
                settings = limits().settings
                connection = connect(MEMORY_BYTES_MAX, threads=1)
                with measured(storage.root, "merge"):
                    return merge_parts(
                        sources, spec, out, connection, rows_max=settings.target_part_rows,
                        bytes_max=settings.target_part_bytes, on_progress=report,
                        read_from=storage,
                    )  # fmt: skip

            return run

        return to

    return make


def spark_kernel(spark: SparkSession, root: str, limits: Callable[[], Snapshot]) -> KernelMaker:
    """Merges as Spark jobs; ``root`` is the table's, where sources are read and the output goes."""

    def make(cancelled: Callable[[], bool], progress: Callable[[int], None]) -> Callable[[PartStorage], Kernel]:
        def to(out: PartStorage) -> Kernel:
            def run(sources: Sequence[MergeSource], spec: WriteSpec) -> list[MergedPart]:
                settings = limits().settings
                work = pickle.dumps((list(sources), spec, settings.target_part_rows, settings.target_part_bytes))

                def merge(works: Iterable[bytes]) -> Iterator[bytes]:
                    for one in works:
                        with counted() as requests:
                            merged = _merge_in_task(one, root)
                        yield pickle.dumps((merged, requests.to_json()))

                if cancelled():
                    raise Cancelled("the merge was told to stop")
                [result] = spark.sparkContext.parallelize([work], 1).mapPartitions(merge).collect()
                merged: list[MergedPart]
                merged, requests = pickle.loads(result)
                tell(requests)
                return merged

            return run

        return to

    return make


def _merge_in_task(work: bytes, root: str) -> list[MergedPart]:
    sources, spec, rows_max, bytes_max = pickle.loads(work)
    storage = open_part_storage(root)
    connection = connect(MEMORY_BYTES_MAX, threads=1)
    with measured(root, "merge"):
        return merge_parts(sources, spec, storage, connection, rows_max=rows_max, bytes_max=bytes_max)
