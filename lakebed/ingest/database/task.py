"""A Spark task with work of several tables: it writes the parts of one after the other.

1. The work of a table is cut into pieces, one a partition: what is in a partition is read in its order, by one task.
2. The pieces are spread over the tasks so that all have about as many records: the largest piece first, into the task with the
   fewest. Each task gets its own pieces and no others.
3. A piece that fails is a row of its table with the error. The task goes on with the next piece, and never fails.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heapify, heapreplace
from itertools import groupby
from typing import TYPE_CHECKING, TypeAlias

from lakebed.error_transport import crosses_spark, decode, encode, from_spark
from lakebed.errors import LakebedError, Unexpected
from lakebed.ingest.batch_writer import Written, in_this_process
from lakebed.ingest.table_batch import WriteWork
from lakebed.sources.source import RangeChanges
from lakebed.telemetry import counted, report_requests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS_TASK_MIN = 5_000
"""A task with fewer records costs more than it saves."""
_Answer: TypeAlias = "tuple[str, int, Written | str, str]"
"""The topic, the number of the piece, what was written or the error, and the requests to the object store."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Work of one table. ``number``: its place among the table's pieces."""

    topic: str
    number: int
    work: WriteWork

    @property
    def records(self) -> int:
        """At most so many."""
        return self.work.records


def pieces_of(works: Mapping[str, WriteWork]) -> list[Piece]:
    """The work of tables, by topic, in pieces."""
    return [
        Piece(topic, number, WriteWork(work.task, tuple(ranges)))
        for topic, work in works.items()
        for number, (_, ranges) in enumerate(groupby(work.ranges, key=lambda one: one.place))
    ]


def spread(pieces: Iterable[Piece], tasks: int) -> list[list[Piece]]:
    """The pieces of each of so many tasks, or of fewer if there is little to do; no task is empty."""
    ordered = sorted(pieces, key=lambda piece: (-piece.records, piece.topic, piece.number))
    total = sum(piece.records for piece in ordered)
    count = max(1, min(tasks, len(ordered), -(-total // RECORDS_TASK_MIN)))
    chosen: list[list[Piece]] = [[] for _ in range(count)]
    loads = [(0, 0, number) for number in range(count)]
    heapify(loads)
    for piece in ordered:
        records, held, number = loads[0]
        chosen[number].append(piece)
        heapreplace(loads, (records + piece.records, held + 1, number))
    return [each for each in chosen if each]


def run_piece(piece: Piece) -> Written | LakebedError:
    """Write the parts of a piece, in this process. Never raises."""
    try:
        return in_this_process(piece.work.task, piece.work.ranges)
    except LakebedError as error:
        return error
    except Exception as error:
        return Unexpected(f"unexpected {type(error).__name__} while {piece.topic} was read: {error}")


@crosses_spark
def run_task(payloads: Iterable[bytes]) -> Iterator[_Answer]:
    """What a Spark task does: ``payloads`` are its pieces, pickled."""
    for payload in payloads:
        for piece in pickle.loads(payload):
            with counted() as requests:
                written = run_piece(piece)
            answer = encode(written) if isinstance(written, LakebedError) else written
            yield piece.topic, piece.number, answer, requests.to_json()


def run_in_tasks(spark: SparkSession, works: Mapping[str, WriteWork]) -> dict[str, Written | LakebedError]:
    """Run the work of tables, by topic, as one Spark job. Raises the error of a job that failed as a whole."""
    context = spark.sparkContext
    payloads = [pickle.dumps(each) for each in spread(pieces_of(works), 2 * context.defaultParallelism)]
    with from_spark():
        answers = context.parallelize(payloads, len(payloads)).mapPartitions(run_task).collect()
    return answered(works, answers)


def run_here(work: WriteWork) -> Written:
    """Run the work of one table in this process. Raises its error."""
    task, stream = work.task, work.task.stream
    if isinstance(stream, RangeChanges):  # a table that waits for its source here can't be stopped, and a task can
        task = replace(task, stream=replace(stream, source=stream.source.impatient()))
    return in_this_process(task, work.ranges)


def answered(topics: Iterable[str], answers: Sequence[_Answer]) -> dict[str, Written | LakebedError]:
    """What the pieces of each table wrote, in their order, or the first error."""
    written: dict[str, list[Written]] = {topic: [] for topic in topics}
    errors: dict[str, LakebedError] = {}
    for topic, _, answer, requests in sorted(answers, key=lambda row: row[1]):
        report_requests(requests)
        if isinstance(answer, Written):
            written[topic].append(answer)
        else:
            errors.setdefault(topic, decode(answer) or Unexpected(answer))
    return {topic: errors.get(topic) or Written.of(some) for topic, some in written.items()}
