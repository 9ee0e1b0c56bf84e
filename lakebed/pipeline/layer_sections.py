"""The settings of a pipeline that reads another table of lakebed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from lakebed.errors import InvalidInput

CHANGES = "changes"
"""The format of an upstream table: it needs no settings, so it is not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LakebedSection:
    """``source: {kind: lakebed}``."""

    path: str
    starting_version: str = "0"
    """The first version that is read: a number, or ``newest`` for what is committed from now on."""
    on_data_loss: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        if self.starting_version != "newest" and not self.starting_version.isdecimal():
            raise InvalidInput(f"starting_version is {self.starting_version!r}; it must be a version or newest")

    @property
    def first_version(self) -> int | Literal["newest"]:
        """``starting_version`` as a number, or ``newest``."""
        return "newest" if self.starting_version == "newest" else int(self.starting_version)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to: for a source with another identity, the offsets in it are meaningless."""
        return {"table": self.path}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSection:
    """``transform``: SQL between the records and the table; a text is short for ``{sql: …}``.

    ``columns``: those of the records, name to type, where nothing else says them; ``keys``: those of them that identify a row.
    """

    sql: str
    columns: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChangesFormat:
    """What the changes of a table are: rows with the table's columns."""
