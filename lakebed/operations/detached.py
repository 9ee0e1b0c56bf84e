"""Detached partitions, as the log has them: parts that were taken out of the table and can be put back.

Each is an entry of the log, ``lakebed.detached.<uuid>``. The files stay where they are, with their dead rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import orjson
import pyarrow as pa

from lakebed.log.actions import Domain, Part
from lakebed.log.entries import DETACHED
from lakebed.log.entry_values import checked, document_of, made, reading
from lakebed.log.files.commit_codec import add_from_json, add_to_json
from lakebed.log.snapshot import Snapshot
from lakebed.schema.column_mapping import stored_fields
from lakebed.schema.conversion import schema_from_fields

PartitionValues = dict[str, str | None]

_DETACHED_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("partition", pa.map_(pa.string(), pa.string())),
        ("detached", pa.timestamp("ms", "UTC")),
        ("parts", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Detached:
    """Parts that were taken out of the table, by the commit ``version``, and can be put back.

    ``partition`` has stored names; ``schema`` is the table's at that version, as Delta's JSON, and ``stored`` in Arrow by stored
    names. ``restored``: the commit that detached the partition once more by restoring a version at which it was, 0 for none.
    """

    name: str
    partition: PartitionValues
    version: int
    detached_ms: int
    schema: str
    parts: tuple[Part, ...]
    restored: int = 0

    @property
    def needed_below(self) -> int:
        """All versions from this one on have the partition detached."""
        return max(self.version, self.restored)

    @property
    def domain(self) -> str:
        return DETACHED + self.name

    @property
    def stored(self) -> pa.Schema:
        return schema_from_fields(stored_fields(orjson.loads(self.schema)["fields"]))

    def to_action(self) -> Domain:
        value = {
            "partition": self.partition,
            "version": self.version,
            "detached_ms": self.detached_ms,
            "schema": self.schema,
            "parts": [add_to_json(part) for part in self.parts],
        }
        return Domain(self.domain, orjson.dumps(value).decode())


def detached_of(snapshot: Snapshot) -> dict[str, Detached]:
    """What is detached at a version, by name, oldest first. Raises Corrupt."""
    found = [detached_in(domain, text) for domain, text in snapshot.domains.items() if domain.startswith(DETACHED)]
    return {one.name: one for one in sorted(found, key=lambda one: (one.detached_ms, one.name))}


def detached_in(domain: str, text: str) -> Detached:
    """The detached partition in an entry of the log. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        for body in document["parts"]:
            checked(int, body["size"], "size")
        parts = tuple(add_from_json(body) for body in document["parts"])
        found = made(Detached, {**document, "name": domain.removeprefix(DETACHED), "parts": []})
        return replace(found, parts=parts)


def detached_table(snapshot: Snapshot) -> pa.Table:
    """A row a detached partition (DETACHED_SCHEMA); ``rows`` are the live ones."""
    rows = [
        {
            "name": one.name,
            "partition": [(snapshot.columns.logical_name(name), value) for name, value in one.partition.items()],
            "detached": one.detached_ms,
            "parts": len(one.parts),
            "rows": sum(part.live_rows for part in one.parts),
            "bytes": sum(part.bytes for part in one.parts),
        }
        for one in detached_of(snapshot).values()
    ]
    return pa.Table.from_pylist(rows, _DETACHED_SCHEMA)
