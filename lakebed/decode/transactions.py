"""Which transaction of its source an event belongs to, and where in it the event is.

Connectors say it in different members. A snapshot's rows belong to none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

POSTGRESQL_ID = "([0-9]+):[0-9]+"
_MEMBERS = ("txId", "gtid", "vgtid", "commit_lsn", "commit_scn", "commitTs")
"""Members of ``source`` that are the same for all events of a transaction, the first that an event has."""
_ROWS_AT_A_POSITION = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What an event is beside its rows. ``transaction``: a text that is the same for all events of one; None: it has none.

    ``place``: grows with each change of a row within a transaction, and is the same if the event is sent again; None: unknown.
    """

    operation: str
    transaction: str | None = None
    place: int | None = None


def identity(id: str) -> str:
    """What is the same for all records of a transaction: PostgreSQL's ids have the position of each operation behind a colon."""
    found = re.fullmatch(POSTGRESQL_ID, id)
    return found[1] if found else id


def described(event: Any) -> Described | None:
    """A parsed event; None for one that changes no row."""
    operation = event.get("op") if isinstance(event, Mapping) else None
    if operation not in ("c", "r", "u", "d"):
        return None
    if operation == "r":
        return Described(operation="r")
    source, block = event.get("source"), event.get("transaction")
    source = source if isinstance(source, Mapping) else {}
    block = block if isinstance(block, Mapping) else {}
    return Described(operation=operation, transaction=_transaction(source, block), place=_place(source, block))


def _transaction(source: Mapping[str, Any], block: Mapping[str, Any]) -> str | None:
    for name in _MEMBERS:
        value = source.get(name)
        if value is not None and value != "":
            return f"{name} {value}"
    if isinstance(block.get("id"), str):
        return f"id {identity(block['id'])}"
    file, position = source.get("file"), source.get("pos")
    return f"{file} {position}" if file and position else None


def _place(source: Mapping[str, Any], block: Mapping[str, Any]) -> int | None:
    order, lsn = _number(block.get("total_order")), _number(source.get("lsn"))
    if lsn is not None or order is not None:
        return order if lsn is None else lsn
    position, row = _number(source.get("pos")), _number(source.get("row"))
    if position is None or row is None or position >= 1 << 42 or row >= _ROWS_AT_A_POSITION:
        return None
    return position * _ROWS_AT_A_POSITION + row


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None
