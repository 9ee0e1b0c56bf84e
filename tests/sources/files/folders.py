"""Folders of files, and processes that bring them into a table, without Spark; all else is as it is in a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lakebed
from lakebed.decode.decoder import Decoder, DecoderSchema
from lakebed.decode.formats import decoder
from lakebed.ingest.batch_writer import Written, in_this_process
from lakebed.ingest.stream import FilesIngest
from lakebed.ingest.table_batch import BatchDone, WriteWork, run_alone
from lakebed.positions.remarks import remarks_of
from lakebed.remarks import Remark
from lakebed.sources.files.planner import FilesPlanner
from lakebed.sources.files.reader import FilesReader
from lakebed.sources.files.settings import FilesSettings
from lakebed.sources.rows import FileRows
from lakebed.sources.source import grouped
from lakebed.table import internals_of
from tests.clock import Clock
from tests.internals import log_of

Run = Callable[[WriteWork], Written]
NOW = 1_790_000_000


def write(folder: Path | str, name: str, rows: Sequence[Any], time: float | None = NOW) -> Path:
    """A file of JSON lines that appears at once, with this time; None: with the time of now."""
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    hidden = path.with_name(".new")
    hidden.write_text(text)
    if time is not None:
        os.utime(hidden, ns=(int(time * 1e9), int(time * 1e9)))
    os.replace(hidden, path)
    return path


class Process:
    """One process with a checkpoint of its own, or one that it was given."""

    def __init__(
        self,
        table: str,
        folder: Path | str,
        format: Any = "json",
        *,
        checkpoint: dict[str, Any] | None = None,
        run: Run | None = None,
        **settings: Any,
    ) -> None:
        self.table = lakebed.open(table)
        internals = internals_of(self.table)
        snapshot = internals.log.refresh()
        own = snapshot.logical_settings
        shape = DecoderSchema.of_table(snapshot.logical_schema, own.keys, own.sequence_by)
        self.settings = FilesSettings(folder=str(folder), format=format, table=self.table.path, **settings)
        self.reader = FilesReader(self.settings, None if self.settings.has_lines else snapshot.logical_schema)
        self.clock = Clock(0.0)
        self.planner = FilesPlanner(self.settings, self.clock)
        self.checkpoint: dict[str, Any] = {} if checkpoint is None else checkpoint
        decoding: Decoder = decoder(format, shape) if self.settings.has_lines else FileRows(shape)
        self.ingest = FilesIngest(
            self.table.path,
            internals.log,
            self.reader,
            decoding,
            evolution=internals.evolution("nothing"),
            quarantine_log=internals.quarantine_log,
        )
        self.run = run or here

    def plan(self) -> dict[str, Any] | None:
        """The next batch, as it is written into the checkpoint; None if there is none."""
        self.clock.now += 1000
        document = self.planner.next(self.checkpoint)
        return None if document == self.checkpoint else json.loads(json.dumps(document))

    def bring(self, document: dict[str, Any]) -> BatchDone:
        """Read a batch that was planned."""
        done = run_alone(self.ingest.batch(self.reader.ranges(self.checkpoint, document)), self.run)
        self.checkpoint = document
        return done

    def batch(self) -> BatchDone | None:
        document = self.plan()
        return None if document is None else self.bring(document)

    def follow(self) -> list[BatchDone]:
        """All batches until nothing is left."""
        done = []
        while (one := self.batch()) is not None:
            done.append(one)
        return done

    def rows(self) -> dict[Any, Any]:
        """The other column by the first."""
        return {next(iter(row.values())): list(row.values())[1] for row in self.table.to_arrow().to_pylist()}


def here(work: WriteWork) -> Written:
    """Do the work in this process."""
    return in_this_process(work.task, work.ranges)


def in_groups(records_each: int) -> Run:
    """Do the work as several tasks do it, which share the ranges."""

    def run(work: WriteWork) -> Written:
        return Written.of(in_this_process(work.task, group) for group in grouped(work.ranges, records_each))

    return run


def remarks(table: lakebed.Table) -> dict[str, list[str]]:
    """The names of what the log has to say of files, by kind."""
    counts = remarks_of(log_of(table).refresh()).counts
    return {kind: sorted(names) for kind, names in counts.items() if kind in set(Remark)}
