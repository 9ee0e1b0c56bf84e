"""What one batch of a source of files reads: the offset document of its query.

    {"batch": 17, "files": [["day=1/a.json", 1790000000123456789, 4711, 1790000000130000000]], "changed": [[…]]}

1. ``files`` are in the order in which they are read: by their times, then by their paths. Each has its path, its time, its size
   and when it arrived (``folder.State``). A replay reads the same files in the same order.
2. ``changed``: files that are not read, and of which something is to be said: they were written again, or forgotten.
3. A document has the files of its own batch alone, and no more than ``FILES_MAX``. What was read before is in the table's log.

A document of Spark's own source of files, which lakebed used before, has no files: what its batch did not bring is planned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakebed.positions.files_read import FileRead
from lakebed.sources.files.folder import State
from lakebed.sources.files.look import Found
from lakebed.sources.source import Range

FILES_MAX = 10_000
CHANGED_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles:
    """The files of a batch; ``number``: 1 for the first batch of a checkpoint."""

    number: int = 0
    files: tuple[Found, ...] = ()
    changed: tuple[Found, ...] = ()

    @staticmethod
    def of(document: Mapping[str, Any]) -> PlannedFiles:
        """The batch of an offset document; number 0 for ``{}``, and for a document of Spark's own source."""
        return PlannedFiles(
            number=document.get("batch", 0),
            files=tuple(_found(document.get("files", ()))),
            changed=tuple(_found(document.get("changed", ()))),
        )

    def document(self) -> dict[str, Any]:
        """The offset document."""
        document: dict[str, Any] = {"batch": self.number, "files": list(map(_listed, self.files))}
        return document | ({"changed": list(map(_listed, self.changed))} if self.changed else {})


def _found(listed: Iterable[Any]) -> Iterable[Found]:
    return (
        Found(path, State(modified_ns=modified, size=size, arrived_ns=arrived))
        for path, modified, size, arrived in listed
    )


def _listed(found: Found) -> list[Any]:
    return [found.path, found.state.modified_ns, found.state.size, found.state.arrived_ns]


def ranges_of(
    url: str, ordinal: int, state: State, cuts: Iterable[tuple[int, int]], record_bytes: int = 1
) -> list[Range]:
    """A file as ranges of its bytes: its URL is their topic, its place in the batch their partition."""
    version, micros = f"{state.modified_ns}:{state.size}:{state.arrived_ns}", state.modified_ns // 1000
    return [
        Range(url, ordinal, start, end, clock_micros=micros, topic_id=version, offsets_each=record_bytes)
        for start, end in cuts
    ]


def file_of(one: Range) -> FileRead:
    """The file that a range is of."""
    modified_ns, size, arrived_ns = map(int, str(one.topic_id).split(":"))
    return FileRead(url=one.topic, modified_ns=modified_ns, size=size, arrived_ns=arrived_ns)
