"""A part as a reader needs it: a file and its dead rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyroaring import BitMap64

from lakebed.log.deletion_vector import DeletionVector


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanFile:
    """``path`` is relative to the table's root and not url-encoded; ``dead`` holds positions of dead rows, None for none.

    ``deletion_vector`` is set when exactly these dead rows are committed in the log. ``checksum``: see ``Part``.
    """

    path: str
    bytes: int
    rows: int
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    dead: BitMap64 | None = None
    deletion_vector: DeletionVector | None = None
    stats: str | None = None
    checksum: int | None = None
