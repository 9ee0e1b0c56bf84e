"""The changes of a table's schema, as entries of the log: they stay when the commits that made them have left it.

An entry says in which version a change came, when, what it was and why. The table keeps the newest ``KEPT_MAX``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from lakebed.manifest.actions import Domain
from lakebed.manifest.entries import SCHEMA
from lakebed.manifest.schema_change import SchemaChange

KEPT_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PastChange:
    """A change of the schema. ``change``: as ``SchemaChange.to_json`` has it; ``reason``: what its author said."""

    number: int
    version: int
    timestamp_ms: int
    change: Mapping[str, Any]
    reason: str


def past_changes(domains: Mapping[str, str]) -> list[PastChange]:
    """The changes of the schema that entries tell of, oldest first. Raises ValueError, KeyError for a damaged entry."""
    found = []
    for domain, text in domains.items():
        if domain.startswith(SCHEMA):
            value = orjson.loads(text)
            found.append(
                PastChange(
                    number=int(domain.removeprefix(SCHEMA)),
                    version=value["version"],
                    timestamp_ms=value["timestamp_ms"],
                    change=value["change"],
                    reason=value.get("reason", ""),
                )
            )
    return sorted(found, key=lambda each: each.number)


def next_change(domains: Mapping[str, str]) -> str:
    """The name of the entry that the next change will set: whoever rests on the columns' names conflicts with it."""
    past = sorted(domain for domain in domains if domain.startswith(SCHEMA))  # a damaged one does no harm
    return f"{SCHEMA}{int(past[-1].removeprefix(SCHEMA)) + 1 if past else 1:06}"


def entries_of(domains: Mapping[str, str], change: SchemaChange, reason: str, now_ms: int) -> list[Domain]:
    """The actions that record a change; they get the version from their commit. The oldest entries beyond the limit go."""
    past = sorted(domain for domain in domains if domain.startswith(SCHEMA))  # a damaged one does no harm
    value = {"timestamp_ms": now_ms, "change": change.to_json(), "reason": reason}
    new = Domain(next_change(domains), orjson.dumps(value).decode())
    gone = past[: max(0, len(past) + 1 - KEPT_MAX)]
    return [new, *(Domain(each, "", removed=True) for each in gone)]
