"""How far a table is in the order of the source's transactions. It is part of the table's position in a topic.

A transaction's place in that order is the offset of the record of its end in the topic of transactions. Debezium writes these
records one after the other, in the order in which the source committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakebed.log.entry_values import checked

Counts = Mapping[str, Mapping[int, tuple[int, int]]]
"""By transaction and partition: how many of its events the table has, and the number of the last of them in the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What a table has of the transactions.

    ``cut``: it has no event of a transaction that ends after this one. ``through``: of this transaction and all before it, it has
    every event. ``partial``: what it has of those between. -1: none. ``doubt_ms``: it was read without regard to transactions
    until this time, so it may have parts of some that were open then. ``tables``: names in their parts, of tables of the source
    whose events are routed into the topic.
    """

    cut: int = -1
    through: int = -1
    partial: Counts = field(default_factory=dict)
    doubt_ms: int | None = None
    tables: tuple[tuple[str, ...], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As it is in a log."""
        out: dict[str, Any] = {"cut": self.cut, "through": self.through}
        if self.partial:
            out["partial"] = {
                id: {str(partition): list(count) for partition, count in places.items()}
                for id, places in self.partial.items()
            }
        if self.doubt_ms is not None:
            out["doubt_ms"] = self.doubt_ms
        if self.tables:
            out["tables"] = self.tables
        return out

    @staticmethod
    def of_json(document: Mapping[str, Any] | None) -> Progress | None:
        """None for None. Raises KeyError, ValueError for what is no progress."""
        if document is None:
            return None
        partial = checked(Mapping[str, Mapping[int, tuple[int, ...]]], document.get("partial", {}), "partial")
        return Progress(
            cut=checked(int, document["cut"], "cut"),
            through=checked(int, document["through"], "through"),
            partial={
                id: {partition: (count, last) for partition, (count, last) in places.items()}
                for id, places in partial.items()
            },
            doubt_ms=checked(int | None, document.get("doubt_ms"), "doubt_ms"),
            tables=checked(tuple[tuple[str, ...], ...], document.get("tables", []), "tables"),
        )
