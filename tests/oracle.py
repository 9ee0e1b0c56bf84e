"""A dictionary that applies changes one by one: what a table must be equal to at every version."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Key = tuple[Any, ...]


@dataclass
class Oracle:
    """``newest`` keeps, per key, the sequence and the row of the newest change; a deleted row is None."""

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    sequence_by: str | None = None
    newest: dict[Key, tuple[Any, Row | None]] = field(default_factory=dict)
    appended: list[Row] = field(default_factory=list)

    def apply(self, changes: list[Row], is_delete: str = "op", unavailable: str | None = None) -> None:
        """Apply changes in order; ``changes[i][is_delete] == "d"`` deletes."""
        for change in changes:
            row = {name: change[name] for name in self.columns}
            if not self.keys:
                self.appended.append(row)
                continue
            key = tuple(change[name] for name in self.keys)
            sequence = change[self.sequence_by] if self.sequence_by else None
            known = self.newest.get(key)
            if known and self.sequence_by and sequence < known[0]:
                continue
            if change[is_delete] == "d":
                self.newest[key] = (sequence, None)
                continue
            for name in (change.get(unavailable) or ()) if unavailable else ():
                row[name] = known[1][name] if known and known[1] else None
            self.newest[key] = (sequence, row)

    def truncate(self) -> None:
        self.newest.clear()
        self.appended.clear()

    def rows(self) -> list[Row]:
        """The live rows, in an order of their own."""
        live = self.appended if not self.keys else [row for _, row in self.newest.values() if row is not None]
        return in_order(live)


def in_order(rows: list[Row]) -> list[Row]:
    """Rows in an order that does not depend on where they came from."""
    return sorted(rows, key=lambda row: repr(sorted(row.items(), key=lambda item: item[0])))
