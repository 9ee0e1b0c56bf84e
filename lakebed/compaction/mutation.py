"""A mutation as its user states it: which rows, and what becomes of them; checked before anything is read.

Expressions are SQL in DuckDB's dialect over the table's columns; those of ``update`` see the row as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from lakebed.errors import InvalidChanges, InvalidInput
from lakebed.manifest.actions import CommitInfo
from lakebed.parts.changes import TableShape
from lakebed.parts.engine import connect
from lakebed.parts.sql import quote, registered, sql_type
from lakebed.settings import suggest
from lakebed.version import ENGINE

BATCH_ROWS = 65_536
CHUNK_ROWS = 1_000_000
CHUNK_BYTES = 256 << 20
_STREAM_FAILED = re.compile(r"^(Conversion|Out of Range|Invalid Input) Error")


@dataclass(frozen=True, slots=True)
class MutationResult:
    """What a mutation did; ``version`` is its commit's, or the newest seen if no row matched.

    ``rows``: rows deleted or updated; ``rows_left``: rows that matched and were left as others changed them meanwhile;
    ``parts_marked``: base parts with new dead rows; ``parts_added``: change parts (tables with keys), or level-0 parts;
    ``parts_read``: those that the bounds of their columns did not rule out.
    """

    version: int
    rows: int = 0
    rows_left: int = 0
    parts_marked: int = 0
    parts_added: int = 0
    bytes_written: int = 0
    conflicts: int = 0
    seconds: float = 0.0
    parts_read: int = 0


@dataclass(frozen=True, slots=True)
class Mutation:
    """``assignments``: an expression for each column that is set; None deletes the rows."""

    where: str
    assignments: Mapping[str, str] | None = None

    @property
    def operation(self) -> str:
        return "DELETE" if self.assignments is None else "UPDATE"

    def condition(self) -> str:
        """A boolean expression that is never null."""
        return f"coalesce(({self.where}\n)::boolean, false)"  # the line ends a comment in it

    def columns(self, schema: pa.Schema) -> list[str]:
        """Select items for all columns of the table, new values where they are set."""
        assignments = self.assignments or {}
        return [
            f"cast(({assignments[field.name]}\n) as {sql_type(field.type)}) as {quote(field.name)}"
            if field.name in assignments
            else quote(field.name)
            for field in schema
        ]

    def info(self, rows: int, parts: int) -> CommitInfo:
        """What the commit says of itself."""
        parameters: dict[str, object] = {"predicate": self.where}
        if self.assignments is not None:
            parameters["set"] = dict(self.assignments)
        return CommitInfo(
            self.operation, "", parameters=parameters, metrics={"rows": rows, "parts": parts}, engine=ENGINE
        )

    def check(self, shape: TableShape) -> None:
        """Raises InvalidInput, naming the expression or column, for what can't be evaluated on such a table."""
        connection = connect()
        with registered(connection, "lakebed_nothing", shape.schema.empty_table()):
            with self.mistakes(f"where={self.where!r}"):
                connection.sql(f"select 1 from lakebed_nothing where {self.condition()}")
            if self.assignments is not None and not self.assignments:
                raise InvalidInput("set names no column; write for example {'status': \"'paid'\"}")
            for name, expression in (self.assignments or {}).items():
                self._check_column(name, shape)
                kind = sql_type(shape.schema.field(name).type)
                with self.mistakes(f"set {name!r} = {expression!r}"):
                    # Beside a plain column, an aggregate is refused.
                    connection.sql(
                        f"select {quote(name)}, cast(({expression}\n) as {kind}) as lakebed_value from lakebed_nothing"
                    )

    def _check_column(self, name: str, shape: TableShape) -> None:
        if name not in shape.schema.names:
            raise InvalidInput(
                f"set names {name!r}, which is no column of the table{suggest(name, shape.schema.names)}"
            )
        if name in shape.keys:
            raise InvalidInput(f"set names {name!r}, a key: a key stays; delete the row and apply one with the new key")
        if name == shape.sequence_by:
            raise InvalidInput(f"set names {name!r}, which orders the changes (sequence_by): only changes bring it")

    @contextmanager
    def mistakes(self, expression: str | None = None) -> Iterator[None]:
        """Turns what is wrong with the user's expressions into InvalidInput that names them."""
        named = expression or f"where={self.where!r}" + (
            f", set={dict(self.assignments)!r}" if self.assignments else ""
        )
        try:
            yield
        except (duckdb.ProgrammingError, duckdb.DataError, duckdb.NotSupportedError) as error:
            raise InvalidInput(f"{named}: {error}") from None
        except InvalidChanges as error:
            raise InvalidInput(f"{named}: {error}") from None
        except OSError as error:  # how a mistake in a later row of a stream comes out
            if _STREAM_FAILED.match(str(error)):
                raise InvalidInput(f"{named}: {error}") from None
            raise


def in_chunks(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in tables of about ``CHUNK_ROWS`` rows or ``CHUNK_BYTES``: what is held at once, whatever comes."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= CHUNK_ROWS or size >= CHUNK_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size = [], 0, 0
    if rows:
        yield pa.Table.from_batches(held)
