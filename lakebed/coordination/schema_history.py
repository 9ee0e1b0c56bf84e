"""The changes of a table's schema, as entries of the log: they stay when the commits that made them have left it.

An entry says in which version a change came, when, what it was and why. The table keeps the newest ``KEPT_MAX``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from lakebed.errors import InvalidSchema
from lakebed.log.actions import Domain
from lakebed.log.entries import SCHEMA
from lakebed.log.entry_values import decoded, readable, reading
from lakebed.schema.change import SchemaChange

KEPT_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _PastChange:
    """A change of the schema. ``change``: as ``SchemaChange.to_json`` has it; ``reason``: what its author said."""

    number: int
    version: int
    timestamp_ms: int
    change: Mapping[str, Any]
    reason: str = ""


def past_changes(domains: Mapping[str, str]) -> list[_PastChange]:
    """The changes of the schema that entries tell of, oldest first. One that can't be read is left out."""
    return sorted((change for _, change in readable(domains, SCHEMA, past_change_of)), key=lambda each: each.number)


def past_change_of(domain: str, text: str) -> _PastChange:
    """The change of the schema in an entry of the log. Raises Corrupt."""
    with reading(domain):
        found = decoded(_PastChange, domain, text, number=int(domain.removeprefix(SCHEMA)))
        try:
            SchemaChange.from_json(found.change)
        except InvalidSchema as error:
            raise ValueError(str(error)) from None
        return found


def next_change(domains: Mapping[str, str]) -> str:
    """The name of the entry that the next change will set: whoever rests on the columns' names conflicts with it."""
    past = [
        number
        for domain in domains
        if domain.startswith(SCHEMA) and (number := domain.removeprefix(SCHEMA)).isdecimal()
    ]
    return f"{SCHEMA}{max(map(int, past), default=0) + 1:06}"


def entries_of(domains: Mapping[str, str], change: SchemaChange, reason: str, now_ms: int) -> list[Domain]:
    """The actions that record a change; they get the version from their commit. The oldest entries beyond the limit go."""
    past = sorted(domain for domain in domains if domain.startswith(SCHEMA))  # a damaged one does no harm
    value = {"timestamp_ms": now_ms, "change": change.to_json(), "reason": reason}
    new = Domain(next_change(domains), orjson.dumps(value).decode())
    gone = past[: max(0, len(past) + 1 - KEPT_MAX)]
    return [new, *(Domain(each, "", removed=True) for each in gone)]
