"""What change rows call what they say besides the columns of their table (``parts.change_rows``). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeNames:
    """The names beside the columns of one table; the defaults are the usual ones."""

    type: str = "_change_type"
    """``upsert``, ``delete`` or ``truncate``."""
    sequence: str = "_change_sequence"
    """What orders the changes, where it is no column."""
    version: str = "_commit_version"
    time: str = "_commit_timestamp"

    @staticmethod
    def beside(columns: Iterable[str]) -> ChangeNames:
        """The names beside columns of these names: one that a column has gets one more underscore in front."""
        taken = {name.lower() for name in columns}
        names = {}
        for each in fields(ChangeNames):
            name = str(each.default)
            while name in taken:
                name = f"_{name}"
            names[each.name] = name
        return ChangeNames(**names)

    def renamed(self, newer: ChangeNames) -> list[str]:
        """How names differ from newer ones: ``_change_type is __change_type``."""
        both = [(getattr(self, each.name), getattr(newer, each.name)) for each in fields(self)]
        return [f"{old} is {new}" for old, new in both if old != new]


def is_change_name(name: str) -> bool:
    """Whether change rows of some table may call so what they say besides its columns."""
    return name.startswith("_") and f"_{name.lstrip('_').lower()}" in {each.default for each in fields(ChangeNames)}
