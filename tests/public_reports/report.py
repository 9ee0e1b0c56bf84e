"""A public report of a user of another system whose copy of a database was wrong, as a case for lakebed.

``where`` is the repository and the number of its issue or pull request, ``saw`` what the user saw there. The records are those
that a connector or the user would send in that case, and the rest is what is right: the rows that the source has, or records in
the quarantine with a finding that tells of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.decode.records import with_schema
from tests.pipeline.pipelines_in_memory import TOPIC, Sent

_KAFKA = "config: {bootstrap.servers: 'nowhere:1'}"


@dataclass(frozen=True, kw_only=True)
class Report:
    """``rows``: in the order of the table's columns. ``quarantine``: by offset, what the reason says (a regular expression)."""

    where: str
    saw: str
    pipeline: str
    records: Sequence[Sent]
    rows: Sequence[tuple[Any, ...]] = ()
    quarantine: Mapping[int, str] = field(default_factory=dict)
    findings: frozenset[str] = frozenset()
    """The checks of the table's status; ``quarantine`` is among them if anything is there."""
    no_table: str | None = None
    """Why the topic is no table."""
    stopped: str | None = None
    """Why the table takes no more records."""
    topic: str = TOPIC
    columns: Sequence[str] | None = None
    """The names of the table's columns, where they are what matters."""


def table(
    columns: str, *, keys: str = "id", order: str | None = "source.lsn", format: str = "debezium-json", rest: str = ""
) -> str:
    """A pipeline of one table. ``columns`` and ``format`` are YAML."""
    sequence = f", sequence_by: {order}" if order else ""
    return (
        f"table: {{path: '${{LAKE}}/t', schema: {{{columns}}}, keys: [{keys}]{sequence}{rest}}}\n"
        f"source: {{kind: kafka, topics: [{TOPIC}], {_KAFKA}}}\nformat: {format}\n"
    )


def database(more: str = "") -> str:
    """A pipeline of a whole database, whose records carry their schemas."""
    return (
        f"database: {{path: '${{LAKE}}'{more}}}\n"
        f"source: {{kind: kafka, topic_pattern: 'shop\\..*', {_KAFKA}}}\nformat: debezium-json\n"
    )


def of(type: str, field: str, /, **more: Any) -> dict[str, Any]:
    """A field of a schema of Kafka Connect."""
    return {"type": type, "field": field, "optional": True, **more}


ID = of("int64", "id", optional=False)


def key(**values: int | str) -> dict[str, Any]:
    """A message key with its schema."""
    fields = [
        {"type": "int64" if isinstance(value, int) else "string", "field": name, "optional": False}
        for name, value in values.items()
    ]
    return {"schema": {"type": "struct", "fields": fields, "optional": False}, "payload": values}


def typed(change: dict[str, Any], *fields: dict[str, Any]) -> Sent:
    """The record of a change of a row with an ``id``, with the schemas of its other fields."""
    row = change["after"] or change["before"]
    return key(id=row["id"]), with_schema(change, [ID, *fields])
