"""A mutation as the user states it: which rows, and their new values, if any. It is checked before anything is read.

Expressions are SQL in DuckDB's dialect over the table's columns; those of ``update`` see the row as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.log.entries import Operation
from lakebed.notebook import HtmlResult
from lakebed.parts.changes import SEQUENCE_COLUMN, WriteSpec
from lakebed.parts.fills import Fill
from lakebed.quoting import quote
from lakebed.settings import suggest
from lakebed.sql import (
    Expression,
    check_condition,
    condition,
    expression,
    mistakes,
    names_in,
    registered,
    sql_type,
)
from lakebed.storage.engine import connect_sealed

BATCH_ROWS = 65_536
CHUNK_ROWS = 1_000_000
_CHUNK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MutationResult(HtmlResult):
    """What a mutation did."""

    version: int  # of its commit, or the newest one if no row matched
    rows: int = 0  # inserted, updated or deleted
    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    parts_marked: int = 0  # parts of the base with new dead rows
    parts_added: int = 0  # change parts in a table with keys, otherwise parts of level 0
    bytes_written: int = 0
    conflicts: int = 0  # commits that were tried again
    seconds: float = 0.0
    parts_read: int = 0  # parts that the bounds of their columns did not rule out


@dataclass(frozen=True, slots=True)
class Mutation:
    """A delete or an update that was asked for."""

    where: Expression  # the condition
    # an expression for each column that is set; None deletes the rows
    assignments: Mapping[str, Expression] | None = None
    sees_sequence: bool = False  # the condition is about the hidden column that orders changes

    @classmethod
    def of(cls, where: str, assignments: Mapping[str, str] | None = None) -> Mutation:
        """From users' texts. Raises InvalidInput for what is not one expression over one row."""
        if assignments is None:
            return cls(expression(where, "where"))
        values = {name: expression(text, f"set {name!r}") for name, text in assignments.items()}
        return cls(expression(where, "where"), values)

    @property
    def operation(self) -> Operation:
        return Operation.DELETE if self.assignments is None else Operation.UPDATE

    def condition(self) -> str:
        """A boolean expression that is never null."""
        return condition(self.where)

    def columns(self, schema: pa.Schema) -> list[str]:
        """Select items for all columns of the table, by the users' names, new values where they are set."""
        assignments = self.assignments or {}
        return [
            f"cast({assignments[field.name].sql} as {sql_type(field.type)}) as {quote(field.name)}"
            if field.name in assignments
            else quote(field.name)
            for field in schema
        ]

    def names(self) -> frozenset[str]:
        """The columns that it reads or sets, in lower case: SQL does not tell names apart by it."""
        read = [names_in(each) for each in (self.where, *(self.assignments or {}).values())]
        return frozenset(name.lower() for name in frozenset().union(*read, self.assignments or {}))

    def fill(self, spec: WriteSpec) -> Fill | None:
        """The columns that the changes fill if a row has the values of several changes: those of the owner, or of the groups that
        are assigned to.

        ``spec`` has the users' names. So the mutation says nothing of other groups, whose newest changes keep counting.
        """
        if not spec.resolves_by_group:
            return None
        grouped = {name: group for group in spec.groups for name in group.columns}
        groups = {grouped.get(name) for name in self.assignments or [spec.keys[0]]}
        others = {*spec.keys, *(one.column for one in spec.aggregates if one.counts_all)}
        return Fill(tuple(name for name in spec.schema.names if grouped.get(name) in groups and name not in others))

    @property
    def parameters(self) -> dict[str, object]:
        """What the commit records of the mutation."""
        parameters: dict[str, object] = {"predicate": self.where.text}
        if self.assignments is not None:
            parameters["set"] = {name: value.text for name, value in self.assignments.items()}
        return parameters

    def check(self, spec: WriteSpec) -> None:
        """Raises InvalidInput, naming the expression or column, for what can't be evaluated on such a table.

        ``spec`` has the users' names (``WriteSpec.incoming``).
        """
        hidden = [pa.field(SEQUENCE_COLUMN, pa.int64())] if self.sees_sequence else []
        check_condition(self.where, pa.schema([*spec.schema, *hidden]))
        with connect_sealed() as connection, registered(connection, "lakebed_nothing", spec.schema.empty_table()):
            if self.assignments is not None and not self.assignments:
                raise InvalidInput("set assigns no column; write for example {'status': \"'paid'\"}")
            for name, value in (self.assignments or {}).items():
                self._check_column(name, spec)
                kind = sql_type(spec.schema.field(name).type)
                with mistakes(f"set {name!r}={value.text!r}"):
                    connection.sql(f"select cast({value.sql} as {kind}) from lakebed_nothing")

    def _check_column(self, name: str, spec: WriteSpec) -> None:
        if name not in spec.schema.names:
            raise InvalidInput(
                f"set assigns {name!r}, which is no column of the table{suggest(name, spec.schema.names)}"
            )
        if name in spec.keys:
            raise InvalidInput(
                f"set assigns {name!r}, a key: a key never changes; delete the row and apply one with the new key"
            )
        for one in spec.aggregates:
            if name == one.column and one.counts_all:
                raise InvalidInput(
                    f"set assigns {name!r}, which is the {one.function} of all changes: only changes bring it"
                )
        if name == spec.sequence_by or name in {group.sequence_by for group in spec.groups}:
            raise InvalidInput(f"set assigns {name!r}, which orders the changes (sequence_by): only changes bring it")

    @contextmanager
    def mistakes(self, paths: Iterable[str]) -> Iterator[None]:
        """Turns what is wrong with the user's expressions, on some row of these files, into InvalidInput that quotes them."""
        values = {name: value.text for name, value in (self.assignments or {}).items()}
        given = f"where={self.where.text!r}" + (f", set={values!r}" if values else "")
        try:
            with mistakes(given, paths):
                yield
        except InvalidChanges as error:
            raise InvalidInput(f"{given}: {error}") from None


def in_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of about ``CHUNK_ROWS`` rows or ``_CHUNK_BYTES``: so much is in memory at once."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= CHUNK_ROWS or size >= _CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)
