"""Where a merge works: in this process, or as a Spark job of one task.

On a local master it works in this process, because a task would take one of the few slots that the next batch of ingest needs.
On a cluster the driver should not do heavy work, so the merge is a task. Its output goes straight to the object store, because
executors do not share the disk of the driver.

The names of the files that a task writes begin with an id of the merge. If an executor was lost, or the job was cancelled, its
task could not delete what it had written. Then whoever asked for the merge lists the files of this id, and deletes those that no
task returned. What a task writes even later, the cleanup deletes as an orphan.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from lakebed.compaction.merge_values import Progress
from lakebed.error_transport import crosses_spark
from lakebed.log.snapshot import Snapshot
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.parts.changes import FEW_ROWS_MAX, WriteSpec
from lakebed.parts.write_arrow import delete_left
from lakebed.sparks.cluster import Cluster
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.engine import connect
from lakebed.storage.part_storage import PartStorage
from lakebed.telemetry import counted, measured, report_requests

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
                sources,
                spec,
                output,
                connection,
                rows_max=settings.target_part_rows,
                bytes_max=settings.target_part_bytes,
                on_progress=progress,
                read_from=self.storage,
            )


@dataclass(frozen=True, slots=True)
class SparkKernel:
    """Merges as Spark jobs of one task. ``root`` is the table's: sources are read there, and the output goes there."""

    cluster: Cluster
    root: str
    snapshot: Callable[[], Snapshot]

    def merge(
        self, sources: Sequence[MergeSource], spec: WriteSpec, output: PartStorage, progress: Progress
    ) -> list[MergedPart]:
        settings, root, names = self.snapshot().settings, self.root, f"{uuid.uuid4()}-"
        work = pickle.dumps((list(sources), spec, settings.target_part_rows, settings.target_part_bytes, names))

        @crosses_spark
        def merge_all(works: Iterable[bytes]) -> Iterator[bytes]:
            for one in works:
                with counted() as requests:
                    merged = merge_in_task(one, root)
                yield pickle.dumps((merged, requests.to_json(), _attempt()))

        progress(0)
        try:
            result = self.cluster.run(work, merge_all, progress)
        except BaseException:
            delete_left(output, names, ())
            raise
        merged: list[MergedPart]
        merged, requests, attempt = pickle.loads(result)
        report_requests(requests)
        if attempt:
            delete_left(output, names, {part.path for part in merged})
        return merged


def merge_in_task(work: bytes, root: str) -> list[MergedPart]:
    """What a task does: the merge of a table at ``root`` that ``SparkKernel`` pickled."""
    sources, spec, rows_max, bytes_max, names = pickle.loads(work)
    storage = open_part_storage(root)
    connection = connect(MEMORY_BYTES_MAX, threads=1)
    with measured(root, "merge"):
        return merge_parts(sources, spec, storage, connection, rows_max=rows_max, bytes_max=bytes_max, names=names)


def _attempt() -> int:
    """Which attempt of its task this is, from 0."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.attemptNumber()
