"""The columns that come and go in a simulated table, and what the oracle knows of them without the code under test.

The table has the columns ``k`` (the key), ``p`` (the partition) and ``v`` (the value), which may be renamed, and further ones of
whole numbers, which come and go. In a file a row has the values of these by stored names (``Row.extra``). The oracle gives every
column that was ever added a number of its own, its *line*: a rename keeps it, and a column that is dropped and added again is
another line. Its rows have values by line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.files import CORE, Row, Value

_PHYSICAL = "delta.columnMapping.physicalName"
LIMITS = {"byte": 2**7, "short": 2**15, "integer": 2**31, "long": 2**63}


@dataclass(frozen=True)
class Columns:
    """The columns of one version. ``lines``: by the name that users see, the column's line and its type."""

    lines: Mapping[str, tuple[str, str]]
    used: int = 0

    @property
    def alive(self) -> frozenset[str]:
        """The lines that users see, but those of the core."""
        return frozenset(line for line, _ in self.lines.values()) - frozenset(CORE)

    def after(self, change: Mapping[str, Any]) -> Columns:
        """The columns after a change, as docs say what it does."""
        lines, used = dict(self.lines), self.used
        for name, kind in change.get("widen", {}).items():
            line, before = lines[name]
            lines[name] = line, max(before, kind, key=list(LIMITS).index)
        moved = {new: lines.pop(name) for name, new in change.get("rename", {}).items() if name in lines}
        for name in change.get("drop", ()):
            lines.pop(name, None)
        lines |= moved
        for name, kind in change.get("add", {}).items():
            if name not in lines:
                used += 1
                lines[name] = f"line-{used}", kind
        return Columns(lines, used)


def first_columns(schema_string: str) -> Columns:
    """The columns of version 0."""
    return Columns({each["name"]: (each["name"], each["type"]) for each in json.loads(schema_string)["fields"]})


@dataclass
class Reader:
    """How a reader finds values: the names and the stored names that the schema of a version has, read without lakebed."""

    names: Mapping[str, str] = field(default_factory=dict)  # stored, by the name that users see
    types: Mapping[str, str] = field(default_factory=dict)  # by the name that users see

    @staticmethod
    def of(schema_string: str, is_mapped: bool) -> Reader:
        fields = json.loads(schema_string)["fields"]
        return Reader(
            {each["name"]: each["metadata"][_PHYSICAL] if is_mapped else each["name"] for each in fields},
            {each["name"]: each["type"] for each in fields},
        )

    def told(self, row: Row, columns: Columns) -> Row:
        """A row of a file as the oracle has it: values by line."""
        if not row.extra and not columns.alive:
            return row
        stored = dict(row.extra)
        found: list[tuple[str, Value]] = []
        for name, at in self.names.items():
            if at in CORE or (value := stored.get(at)) is None:
                continue
            kind = self.types[name]
            assert abs(value) < LIMITS.get(kind, 0), f"C1: {value} of {row} does not fit {name}: {kind}"
            found.append((columns.lines[name][0], value))
        return row._replace(extra=tuple(sorted(found)))


def shown_of(row: Row, alive: frozenset[str]) -> Row:
    """A row of the oracle as users see it: without the lines that are gone."""
    if not row.extra:
        return row
    return row._replace(extra=tuple(each for each in row.extra if each[0] in alive))
