"""One batch of files into one table: the files that its log does not have yet (``files_read``), in the order of the batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakebed.ingest.batch_writer import Marks, Written
from lakebed.ingest.table_batch import Reached, Reading, TableIngest
from lakebed.log.snapshot import Snapshot
from lakebed.positions.files_read import FileRead, FilesRead
from lakebed.remarks import Counts, Remark, RemarkCounts
from lakebed.sources.cut import Cut, TaskCut
from lakebed.sources.files.names import shown
from lakebed.sources.files.planned import file_of
from lakebed.sources.source import Range


class FilesIngest(TableIngest):
    """Brings files into one table. One thread at a time."""

    def _reading(self, snapshot: Snapshot, ranges: Sequence[Range], records_max: int | None) -> Reading:
        return files_reading(snapshot, ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesReading:
    """What one attempt reads; a ``Reading``. ``files``: those of the ranges; ``rewritten``: not read, but in another state."""

    before: FilesRead
    ranges: tuple[Range, ...]
    files: tuple[FileRead, ...]
    rewritten: tuple[FileRead, ...]
    remarks: Counts = field(default_factory=dict)
    topic_ids: Mapping[str, str | None] = field(default_factory=dict)
    anew: frozenset[str] = frozenset()

    def up_to(self, cut: Cut) -> tuple[tuple[Range, ...], Mapping[str, TaskCut]]:
        return self.ranges, {}

    def marks(self, written: Written, cut: Cut | None) -> Marks | None:
        if not self.files and not self.remarks:
            return None
        return self.before.plus(self.files, self.rewritten)

    def reached(self, written: Written) -> Reached:
        return Reached()


def files_reading(snapshot: Snapshot, ranges: Sequence[Range]) -> FilesReading:
    """What is to be read of the ranges of a batch: all of each file that the table has not read."""
    read = FilesRead.of(snapshot)
    planned = {one.topic: file_of(one) for one in ranges if one.size}
    unread = set(read.without(list(planned)))
    files = tuple(file for url, file in planned.items() if url in unread)
    only_told = [file_of(one) for one in ranges if not one.size]
    known = set(read.places([one.url for one in only_told]))
    rewritten = tuple(read.rewritten(only_told))
    urls_of = {
        Remark.FILE_REWRITTEN: [one.url for one in rewritten],
        Remark.FILE_FORGOTTEN: [one.url for one in only_told if one.url not in known],
        Remark.FILE_LATE: _late(snapshot, read, files),
    }
    return FilesReading(
        before=read,
        ranges=tuple(one for one in ranges if one.size and one.topic in unread),
        files=files,
        rewritten=rewritten,
        remarks=_remarks({kind: list(map(_named, urls)) for kind, urls in urls_of.items()}),
    )


def _remarks(names: Mapping[Remark, Sequence[str]]) -> Counts:
    counts = RemarkCounts()
    for kind, several in names.items():
        for name in several:
            counts.add(kind, name)
    return counts.counts


def _late(snapshot: Snapshot, read: FilesRead, files: Sequence[FileRead]) -> list[str]:
    """The files that are older than one of an earlier batch, where the order of reading decides which row is newer."""
    if not snapshot.settings.keys or snapshot.settings.sequence_by is not None:
        return []
    return [one.url for one in files if one.time_ns < read.newest_ns]


def _named(url: str) -> str:
    """The name of a file in a remark: the end of its path, which tells more than its beginning."""
    return shown(url).rpartition("/")[2]
