"""The actions of a commit and the parts that they concern, as typed values. ``commit_codec`` converts them to and from JSON.

Only standard actions carry state: other readers ignore unknown ones and lose them at their next checkpoint. State for
which Delta has no action is an entry, a ``domainMetadata`` (``entries``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from lakebed.lateness import Lateness
from lakebed.log.deletion_vector import DeletionVector
from lakebed.log.entries import PART, PURGED, REPLACED, SCHEMA
from lakebed.schema.metadata import Metadata, Protocol

_LOOSE = re.compile(r'"tightBounds"\s*:\s*false')
_TIGHT = re.compile(r',?\s*"tightBounds"\s*:\s*true')

PartitionKey = tuple[tuple[str, str | None], ...]
"""A partition's columns and values, sorted by name; empty in a table without partitions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A base part: an ``add`` of the log."""

    path: str  # relative to the table's root, or absolute; not url-encoded
    rows: int  # physical rows, including dead ones
    bytes: int
    level: int = 0
    min_block: int = 0
    max_block: int = 0
    sort_key_version: int | None = None
    deletes: int = 0  # delete rows among them, all dead, kept as tombstones
    has_op_column: bool = False  # the file has the hidden column that distinguishes deletes from upserts
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str | None = None  # Delta's statistics, in JSON
    deletion_vector: DeletionVector | None = None
    modified_ms: int = 0
    # the path as another writer spelled it in the log, if lakebed would not spell it so: readers compare the text
    spelling: str | None = None
    deletes_ms: int | None = None  # when the newest of the delete rows was written, if that was before the part
    checksum: int | None = None  # the CRC-32 of the whole file; None for a file that others wrote
    passes: int = 0  # see ``passes_after``

    @property
    def newest_delete_ms(self) -> int:
        """When the newest of the part's delete rows was written, at the latest."""
        return self.modified_ms if self.deletes_ms is None else self.deletes_ms

    @property
    def dead_rows(self) -> int:
        return self.deletion_vector.dead_rows if self.deletion_vector else 0

    @property
    def live_rows(self) -> int:
        return self.rows - self.dead_rows

    @property
    def live_bytes(self) -> float:
        """Bytes of the live rows, if all rows are of equal size; all bytes where the number of rows is unknown."""
        return self.bytes * max(0, self.live_rows) / self.rows if self.rows > 0 else float(self.bytes)

    @property
    def partition_key(self) -> PartitionKey:
        return partition_key(self.partition_values)

    @property
    def is_native(self) -> bool:
        """Whether lakebed wrote the file."""
        return is_native_file(self.path)

    def removed(self, now_ms: int, data_change: bool = True) -> RemovePart:
        """The action that removes the part from the base."""
        return RemovePart(
            path=self.path,
            deleted_ms=now_ms,
            data_change=data_change,
            deletion_vector=self.deletion_vector,
            bytes=self.bytes,
            partition_values=self.partition_values,
            spelling=self.spelling,
        )

    def marked(self, deletion_vector: DeletionVector | None) -> Part:
        """The part with these dead rows; its statistics still hold, but no live row need be at their bounds."""
        stats = loose_stats(self.stats) if deletion_vector else self.stats
        return replace(self, deletion_vector=deletion_vector, stats=stats)


def partition_key(values: Mapping[str, str | None]) -> PartitionKey:
    """The partition of these values."""
    return tuple(sorted(values.items())) if values else ()


def part_domain(path: str) -> str:
    """The name of a change part's entry in the log."""
    return PART + path.rsplit("/", 1)[-1].removesuffix(".parquet")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangePart:
    """A part of the tail: a ``domainMetadata`` of the log."""

    path: str
    version: int  # with ``ordinal`` its place in the order of changes
    ordinal: int
    rows: int
    bytes: int
    deletes: int = 0
    incomplete: int = 0  # rows that are not whole: a value was not sent, or whether there is a row depends on the table
    moves: int = 0  # changes that are part of a move to another key (``parts.key_moves``)
    sort_key_version: int | None = None
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    stats: str | None = None
    modified_ms: int = 0
    checksum: int | None = None  # as in ``Part``
    mutation: bool = False  # a ``delete`` or ``update`` wrote it, so its rows came from no source
    late: Lateness = Lateness.NONE  # how its batch compares to the earlier ones

    @property
    def domain(self) -> str:
        return part_domain(self.path)

    @property
    def partition_key(self) -> PartitionKey:
        return partition_key(self.partition_values)

    @property
    def order(self) -> tuple[int, int]:
        return (self.version, self.ordinal)

    def settled(self, deletion_vector: DeletionVector | None) -> Part:
        """The level-0 base part that this change part becomes; same file, same path."""
        return Part(
            path=self.path,
            rows=self.rows,
            bytes=self.bytes,
            level=0,
            min_block=self.version,
            max_block=self.version,
            sort_key_version=self.sort_key_version,
            deletes=self.deletes,
            has_op_column=True,
            partition_values=self.partition_values,
            stats=self.stats,
            modified_ms=self.modified_ms,
            checksum=self.checksum,
        ).marked(deletion_vector)


@dataclass(frozen=True, slots=True)
class AddPart:
    """``part`` is in the base from this commit on."""

    part: Part
    data_change: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePart:
    """The part with this path and deletion vector is no longer in the base."""

    path: str
    deleted_ms: int
    data_change: bool = True
    deletion_vector: DeletionVector | None = None
    bytes: int | None = None
    partition_values: Mapping[str, str | None] | None = None
    spelling: str | None = None


@dataclass(frozen=True, slots=True)
class AddChangePart:
    """``part`` joins the tail."""

    part: ChangePart


@dataclass(frozen=True, slots=True)
class RemoveChangePart:
    """The change part left the tail: settled, or truncated."""

    domain: str


@dataclass(frozen=True, slots=True)
class Transaction:
    """The newest batch that an application committed. By it a replayed batch is recognised (invariant M3)."""

    app_id: str
    version: int
    updated_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Domain:
    """A named value of the table's state that is not a change part."""

    domain: str
    configuration: str
    removed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInfo:
    """A commit's description of itself. It is not state: checkpoints do not keep it, and another tool may rewrite or drop it.

    lakebed relies on identity and time, which distinguish its commits from those of another log or another time. The rest is
    for people; the kind of a commit follows from its other actions (``commit_kind``).
    """

    operation: str
    commit_id: str
    timestamp_ms: int = 0
    parameters: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, int | float] = field(default_factory=dict)
    blind_append: bool = False
    engine: str = ""
    table: str = ""  # the id of the table that the commit was made for
    parent: str = ""  # the digest of the commit that it follows
    attempt: int = 0  # how often it was sent before


Action = (
    AddPart | RemovePart | AddChangePart | RemoveChangePart | Protocol | Metadata | Transaction | Domain | CommitInfo
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One version of the log."""

    version: int
    actions: tuple[Action, ...]
    digest: str = ""  # of its file's bytes, different for every commit; empty before it is written

    @property
    def info(self) -> CommitInfo | None:
        return next((action for action in self.actions if isinstance(action, CommitInfo)), None)

    @property
    def timestamp_ms(self) -> int:
        info = self.info
        return info.timestamp_ms if info else 0


def is_native_file(path: str) -> bool:
    """Whether lakebed wrote the file, in the table or on a local disk: only lakebed gives files such names."""
    return path.startswith("_lakebed/") or "/_lakebed/" in path


def at_version(action: Action, version: int, parts: int) -> Action:
    """The action in a commit that becomes ``version``: parts, and entries that say when it was, get their place from it.

    ``parts``: how many the version before has, of base and tail; a purge records it.
    """
    if isinstance(action, AddChangePart):
        return AddChangePart(replace(action.part, version=version))
    if isinstance(action, Domain) and action.domain.startswith((SCHEMA, PURGED, REPLACED)) and not action.removed:
        place = {"version": version, "parts": parts} if action.domain == PURGED else {"version": version}
        return Domain(action.domain, orjson.dumps(orjson.loads(action.configuration) | place).decode())
    if isinstance(action, AddPart) and action.part.min_block < 0:
        return AddPart(replace(action.part, min_block=version, max_block=version), action.data_change)
    return action


def loose_stats(stats: str | None) -> str | None:
    """Statistics of a part with dead rows: its bounds still hold, but no row need be at them (``tightBounds``)."""
    if stats is None or _LOOSE.search(stats):
        return stats
    # As text: parsing would round a decimal's bounds.
    body = _TIGHT.sub("", stats.strip())[1:-1].strip().strip(",")
    return "{" + body + (", " if body else "") + '"tightBounds":false}'


def is_one_block_range(parts: Sequence[Part]) -> bool:
    """Whether the parts' rows are from the same commits, as far as lakebed knows."""
    first = parts[0]
    return all(part.min_block == first.min_block and part.max_block == first.max_block for part in parts)


def passes_after(sources: Sequence[Part], rows: int, sort_key_version: int | None) -> int:
    """The passes of a merge's output from these parts: ``rows`` physical rows in all, sorted by this version of the sort key.

    The rows of a part come from the commits of its block range. A merge of parts of several block ranges brings rows of more
    commits together. One of a single block range sorts the same rows once more, as each pass of an external merge sort does, and
    a number of passes is enough. A merge that changed anything else begins at 0. ``planning.admission`` explains why.
    """
    rows_before = [part.rows for part in sources]
    if (
        not is_one_block_range(sources)
        or min(rows_before) <= 0
        or rows < sum(rows_before)
        or any(part.sort_key_version != sort_key_version for part in sources)
    ):
        return 0
    return 1 + max(part.passes for part in sources)
