"""What a pipeline's settings say about one table of a database; what they leave out is derived from its records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class TableWishes:
    """``keys``: None: those of the message key; empty: the table is only appended to. ``sequence_by``: None: the order of the
    source, as far as its records have one. ``renamed_columns``: new name of a field to the one that it had before.
    ``sources``: regular expressions of the names of the source's tables whose events are taken; empty: one table's.
    """

    keys: tuple[str, ...] | None = None
    sort_key: tuple[str, ...] = ()
    sequence_by: str | None = None
    partition_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)
    types: Literal["given", "wide"] = "given"
    renamed_columns: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    max_age_seconds: float = 10.0
