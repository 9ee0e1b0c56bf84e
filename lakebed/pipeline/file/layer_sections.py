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
    starting_version: str = "snapshot"
    """``snapshot``: begin with all rows of the table as it is; a number: with the changes of that version; ``newest``: with those
    that are committed from now on."""
    on_data_loss: Literal["fail", "skip"] = "fail"

    def __post_init__(self) -> None:
        if self.starting_version not in ("snapshot", "newest") and not self.starting_version.isdecimal():
            raise InvalidInput(
                f"starting_version is {self.starting_version!r}; it must be snapshot, newest or a version"
            )

    @property
    def first_version(self) -> int | Literal["newest", "snapshot"]:
        """``starting_version``, a version as a number."""
        match self.starting_version:
            case "newest" | "snapshot" as word:
                return word
            case number:
                return int(number)

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint belongs to: for a source with another identity, the offsets in it are meaningless."""
        return {"table": self.path}


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformSection:
    """``transform``: SQL between the records and the table; a text is short for ``{sql: …}``."""

    sql: str
    # of the records, name to type, where nothing else says them
    columns: Mapping[str, str] = field(default_factory=dict)
    keys: tuple[str, ...] = ()  # columns that identify a row


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapSection:
    """``bootstrap``: rows that fill the table before its source is followed. Spark reads them."""

    kind: Literal["parquet", "jdbc"]
    position: Mapping[str, Mapping[str, int]]  # topic to partition to the first offset that they do not have
    path: str | None = None  # for ``parquet``
    url: str | None = None  # for ``jdbc``, with ``table`` or ``query``
    table: str | None = None
    query: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)  # of Spark's reader

    def __post_init__(self) -> None:
        _offsets_of(self.position)
        given = {name for name in ("path", "url", "table", "query") if getattr(self, name) is not None}
        if self.kind == "parquet" and given != {"path"}:
            raise InvalidInput("for parquet give path, and none of url, table and query")
        if self.kind == "jdbc" and given not in ({"url", "table"}, {"url", "query"}):
            raise InvalidInput("for jdbc give url, and either table or query; path is for parquet")

    @property
    def offsets(self) -> dict[str, dict[int, int]]:
        """``position`` with the partitions as numbers."""
        return _offsets_of(self.position)


def _offsets_of(position: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """A position with its partitions as numbers. Raises InvalidInput."""
    if not position or not all(position.values()):
        raise InvalidInput("position is empty; name each topic with its partitions: {orders: {0: 1200}}")
    for topic, partitions in position.items():
        for partition, offset in partitions.items():
            if not partition.isdecimal() or offset < 0:
                raise InvalidInput(
                    f"position of {topic!r} has {partition}: {offset}; use partitions and offsets, both from 0 on"
                )
    return {topic: {int(one): offset for one, offset in several.items()} for topic, several in position.items()}


@dataclass(frozen=True, slots=True)
class ChangesFormat:
    """What the changes of a table are: rows with the table's columns."""
