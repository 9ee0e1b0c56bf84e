"""Which partitions a command is about: one, those for which a condition is true, or all of the table; or which rows.

A partition is its values as the log has them, by stored names. Another writer may have spelled a value otherwise than lakebed
does, so values of parts are compared after they were read as the column's type.

**Detached partitions**, as the log has them, are parts that were taken out of the table and can be put back.

Each is an entry of the log, ``lakebed.detached.<uuid>``. The files stay where they are, with their dead rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from lakebed.errors import InvalidInput
from lakebed.far_times import finite_column, python_values
from lakebed.log.actions import Domain, Part, PartitionKey, partition_key
from lakebed.log.commit_codec import add_from_json, add_to_json
from lakebed.log.entries import DETACHED
from lakebed.log.entry_values import checked, document_of, made, reading
from lakebed.log.snapshot import Snapshot
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.write import WrittenPart, partition_text
from lakebed.quoting import quote
from lakebed.schema.column_mapping import stored_fields
from lakebed.schema.conversion import schema_from_fields
from lakebed.sql import (
    Expression,
    check_condition,
    condition,
    constant,
    expression,
    mistakes,
    names_in,
    sql_type,
)
from lakebed.storage.engine import connect, connect_sealed

# -- Detached partitions -----------------------------------------------------------------------------------------------


_PartitionValues = dict[str, str | None]

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
    partition: _PartitionValues
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


# -- Partitions that a command is about --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Region:
    """Some partitions of a table, those among them that do not exist yet."""

    name: str
    """What messages call it, such as "partition region=eu"."""
    partition: Mapping[str, str | None]
    """The one partition, by stored names; empty for several."""
    where: str | None
    """The condition that says which partitions they are; None if there is none."""
    _holds: Callable[[PartitionKey], bool]
    _types: Mapping[str, pa.DataType]
    rows: Expression | None = None
    """The condition, if it is about rows, not about whole partitions; then each partition may have some of them."""

    def has(self, partition: PartitionKey) -> bool:
        """Whether the partition is one of them."""
        return self._holds(partition_key(as_texts(dict(partition), self._types)))

    def parts_of(self, snapshot: Snapshot) -> dict[str, Part]:
        """The parts of the base in these partitions, by path."""
        return {path: part for path, part in snapshot.parts.items() if self.has(part.partition_key)}


def one_partition(partition: Mapping[str, Any], snapshot: Snapshot) -> Region:
    """The partition with these values. Raises InvalidInput."""
    values = partition_values(partition, snapshot)
    key = partition_key(values)
    return Region(f"partition {spelled(values, snapshot)}", values, None, key.__eq__, _types_of(snapshot))


def region_where(snapshot: Snapshot, where: str | None) -> Region:
    """The partitions, or the rows, for which a condition is true; without one all. Raises InvalidInput."""
    if where is None:
        return _whole_table(snapshot)
    asked = expression(where, "where")
    partitions = {name.lower() for name in snapshot.metadata.partition_columns}
    if all(name.lower() in partitions for name in names_in(asked)):
        return _partitions_where(asked, snapshot)
    check_condition(asked, snapshot.logical_schema)
    return Region(f"where {where}", {}, where, lambda partition: True, _types_of(snapshot), asked)


def _whole_table(snapshot: Snapshot) -> Region:
    """All partitions."""
    return Region("the table", {}, None, lambda partition: True, _types_of(snapshot))


def _partitions_where(asked: Expression, snapshot: Snapshot) -> Region:
    where, names = asked.text, snapshot.metadata.partition_columns
    schema = pa.schema([snapshot.logical_schema.field(name) for name in names])
    check_condition(asked, schema)
    columns = [(snapshot.columns.stored_name(field.name), quote(field.name), sql_type(field.type)) for field in schema]

    @cache
    def holds(partition: PartitionKey) -> bool:
        values = dict(partition)
        row = ", ".join(f"{constant(values.get(stored), kind)} as {name}" for stored, name, kind in columns)
        with connect_sealed() as connection, mistakes(f"where={where!r}"):
            found = connection.execute(f"select {condition(asked)} from (select {row or '1'})").fetchone()
        return bool(found and found[0])

    return Region(f"where {where}", {}, where, holds, _types_of(snapshot))


def partition_values(partition: Mapping[str, Any], snapshot: Snapshot) -> _PartitionValues:
    """The values as the log has them, by stored names. A text is read as the column's type; an empty one means null.

    Raises InvalidInput.
    """
    names = snapshot.metadata.partition_columns
    if not names:
        raise InvalidInput("the table has no partitions; they are set when it is created (partition_by)")
    if set(partition) != set(names):
        raise InvalidInput(f"a partition of this table is given by {list(names)}, not {list(partition)}")
    out: _PartitionValues = {}
    for name in names:
        kind, value = snapshot.logical_schema.field(name).type, partition[name]
        try:
            out[snapshot.columns.stored_name(name)] = _text(value, kind)
        except (duckdb.Error, pa.ArrowInvalid) as error:
            raise InvalidInput(f"{value!r} is no value of the partition column {name!r} ({kind}): {error}") from None
    return out


def as_texts(values: Mapping[str, str | None], types: Mapping[str, pa.DataType]) -> _PartitionValues:
    """A part's partition, as lakebed spells it. ``types``: of the partition columns, by stored names."""
    return {name: _text(values.get(name), kind) for name, kind in types.items()}


def named(values: Mapping[str, str | None], snapshot: Snapshot) -> _PartitionValues:
    """A partition by the names that users know."""
    return {snapshot.columns.logical_name(name): value for name, value in values.items()}


def spelled(values: Mapping[str, str | None], snapshot: Snapshot) -> str:
    """A partition in a message."""
    return ", ".join(f"{name}={'' if value is None else value}" for name, value in named(values, snapshot).items())


def require_inside(region: Region, written: Sequence[WrittenPart], read: Snapshot) -> None:
    """Raises InvalidInput naming a partition of the rows that is not of the region."""
    for part in written:
        if not region.has(partition_key(part.partition_values)):
            others = spelled(part.partition_values, read)
            raise InvalidInput(f"the rows for {region.name} hold rows of {others}")


def require_same_shape(spec: WriteSpec, snapshot: Snapshot) -> None:
    """Raises InvalidInput if the table can't take any more what was written in this shape."""
    if not spec.fits(write_spec_of(snapshot)):
        raise InvalidInput("the table's columns changed, or it was purged, meanwhile; replace the rows again")


def overwritten(region: Region, snapshot: Snapshot) -> dict[str, object]:
    """What the commit says to people of the partitions that it replaces."""
    if region.partition:
        return {"partition": named(region.partition, snapshot)}
    return {} if region.where is None else {"where": region.where}


def _types_of(snapshot: Snapshot) -> dict[str, pa.DataType]:
    return {name: snapshot.schema.field(name).type for name in snapshot.partition_columns}


@lru_cache(maxsize=4096, typed=True)
def _text(value: Any, kind: pa.DataType) -> str | None:
    if value is None or value == "":
        return None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return partition_text(value)
    typed = connect().sql(f"select cast(? as {sql_type(kind)}) as value", params=[value]).to_arrow_table()
    return partition_text(python_values(finite_column(typed["value"].cast(kind)))[0])
