"""Where a merge works: in this process, or as a Spark job of one task.

On a local master it works in this process, because a task would take one of the few slots that the next batch of ingest needs.
On a cluster the driver should not do heavy work, so the merge is a task. Its output goes straight to the object store, because
executors do not share the disk of the driver.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakebed.compaction.merge import Progress
from lakebed.error_transport import crosses_spark, from_spark
from lakebed.manifest.snapshot import Snapshot
from lakebed.parts.changes import FEW_ROWS_MAX, WriteSpec
from lakebed.parts.merge import MergedPart, MergeSource, merge_parts
from lakebed.storage.engine import connect
from lakebed.storage.open import open_part_storage
from lakebed.storage.part_storage import PartStorage
from lakebed.telemetry.task_cost import measured
from lakebed.telemetry.task_requests import counted, report_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MEMORY_BYTES_MAX = 512 << 20


@dataclass(frozen=True, slots=True)
class LocalKernel:
    """Merges in this process, on one thread. ``storage`` is where sources are read; ``snapshot`` gives the table's settings."""

    storage: PartStorage
    snapshot: Callable[[], Snapshot]

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        settings = self.snapshot().settings
        connection = connect(MEMORY_BYTES_MAX, threads=1)
        are_few = all(0 <= source.part.rows <= FEW_ROWS_MAX for source in sources)
        may_spill = not are_few or sum(source.part.rows for source in sources) > FEW_ROWS_MAX
        with measured(self.storage.root, "merge", may_spill=may_spill):
            return merge_parts(
                sources, spec, output, connection, rows_max=settings.target_part_rows,
                bytes_max=settings.target_part_bytes, on_progress=progress, read_from=self.storage,
            )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SparkKernel:
    """Merges as Spark jobs of one task. ``root`` is the table's: sources are read there, and the output goes there.

    A merge can be cancelled before it begins, but not while it runs.
    """

    spark: SparkSession
    root: str
    snapshot: Callable[[], Snapshot]

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        settings, root = self.snapshot().settings, self.root
        work = pickle.dumps((list(sources), spec, settings.target_part_rows, settings.target_part_bytes))

        @crosses_spark
        def merge_all(works: Iterable[bytes]) -> Iterator[bytes]:
            for one in works:
                with counted() as requests:
                    merged = _merge_in_task(one, root)
                yield pickle.dumps((merged, requests.to_json()))

        progress(0)
        with from_spark():
            [result] = self.spark.sparkContext.parallelize([work], 1).mapPartitions(merge_all).collect()
        merged: list[MergedPart]
        merged, requests = pickle.loads(result)
        report_requests(requests)
        return merged


def _merge_in_task(work: bytes, root: str) -> list[MergedPart]:
    sources, spec, rows_max, bytes_max = pickle.loads(work)
    storage = open_part_storage(root)
    connection = connect(MEMORY_BYTES_MAX, threads=1)
    with measured(root, "merge"):
        return merge_parts(sources, spec, storage, connection, rows_max=rows_max, bytes_max=bytes_max)
