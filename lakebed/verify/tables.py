"""Compares a table with another one, or with a folder of Parquet files: ``lakebed verify TABLE --against PATH``.

Both are read as they are now, each at one version; neither is waited for, and nothing is left to settle.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa

from lakebed.errors import InvalidInput, TableNotFound
from lakebed.log.snapshot import Snapshot
from lakebed.quoting import literal
from lakebed.sql.expression import Expression
from lakebed.table import internals_of
from lakebed.table import open as open_table
from lakebed.table.internals import Internals
from lakebed.verify.canonical import Column, LeftOut, Shape
from lakebed.verify.comparing import Key, Row, Span, States, Tally, Version
from lakebed.verify.databases import report_of
from lakebed.verify.duck import ROWS, DuckRows, Relation, TableRelation
from lakebed.verify.lake import LakeTable
from lakebed.verify.proof import Progress, Proof, no_progress
from lakebed.verify.report import TableReport
from lakebed.verify.source import Pace
from lakebed.verify.sources.types_of_tables import rule_of

_PIECE_ROWS = 100_000
AT_REST = "at rest"
"""The mark of all rows, since nothing changes them."""


class ParquetRelation:
    """The rows of all Parquet files below a folder, or of one file."""

    def __init__(self, path: str) -> None:
        """Raises InvalidInput if there are none."""
        place = Path(path)
        if "://" in path or not (place.is_file() or any(place.rglob("*.parquet"))):
            raise InvalidInput(f"there is neither a table nor a Parquet file at {path}")
        self._pattern = str(place if place.is_file() else place / "**" / "*.parquet")

    def make(self, connection: duckdb.DuckDBPyConnection, where: Expression | None, is_joined: bool) -> None:
        """See ``Relation``."""
        connection.execute(
            f"create or replace temp view {ROWS} as from read_parquet({literal(self._pattern)}, union_by_name = true)"
        )

    def schema(self) -> pa.Schema:
        """The columns. Raises InvalidInput if the files can't be read together."""
        with duckdb.connect() as connection:
            try:
                self.make(connection, None, False)
                return connection.sql(f"from {ROWS} limit 0").to_arrow_table().schema
            except duckdb.Error as error:
                raise InvalidInput(f"the files at {self._pattern} can't be read: {error}") from None


class TableSource:
    """Rows that DuckDB reads, as a source. See ``Source``."""

    def __init__(self, relation: Relation, shape: Shape) -> None:
        self._side = DuckRows(relation, shape, of_source=True)

    def close(self) -> None:
        """Let go of DuckDB."""
        self._side.close()

    def position(self) -> int:
        """See ``Source``: it stays as it is."""
        return 0

    def bound(self, after: Key | None, rows: int) -> Key | None:
        """See ``Source``: it is read as a whole."""
        return None

    def tally(self, span: Span) -> Tally:
        """See ``Source``."""
        self._side.make()
        query = f"select count(*), coalesce(sum({self._side.checksum}), 0)::varchar from {ROWS}"
        [(rows, total)] = self._side.connection.execute(query).fetchall()
        return Tally(rows=rows, sum=int(total))

    def checksums(self, span: Span) -> Iterator[pa.Table]:
        """See ``Source``."""
        self._side.make()
        query = f"select {self._side.named_keys}, {self._side.checksum} as h from {ROWS}"
        reader = self._side.connection.sql(query).to_arrow_reader(_PIECE_ROWS)
        for batch in reader:
            yield pa.Table.from_batches([batch])

    def states(self, keys: Sequence[Key]) -> States:
        """See ``Source``."""
        return {key: [Version(one, AT_REST) for one in found] for key, found in self._side.checksums_of(keys).items()}

    def rows(self, keys: Sequence[Key]) -> Mapping[Key, Sequence[Row]]:
        """See ``Source``."""
        return self._side.rows(keys)


def verify_tables(path: str, against: str, keys: Sequence[str] = (), progress: Progress = no_progress) -> TableReport:
    """Compare a table with what is at another path.

    Args:
        path: The table.
        against: A table of lakebed or of Delta, or a folder of Parquet files.
        keys: What identifies a row; by default the table's keys.
        progress: Is told how far it is.

    Raises:
        TableNotFound: There is no table at ``path``.
        InvalidInput: There is nothing at ``against``, or it lacks a key.
    """
    internals = internals_of(open_table(path))
    snapshot = internals.log.refresh()
    relation, columns = _other(against)
    report = compared(path, internals, snapshot, relation, columns, keys=keys, progress=progress)
    return replace(report, source=against)


def compared(
    path: str,
    internals: Internals,
    snapshot: Snapshot,
    relation: Relation,
    columns: pa.Schema,
    *,
    keys: Sequence[str] = (),
    progress: Progress = no_progress,
) -> TableReport:
    """Compare a version of a table with other rows, which stay as they are. Raises InvalidInput if no key can be compared."""
    shape = shape_of(columns, snapshot, keys)
    if isinstance(shape, LeftOut):
        raise InvalidInput(f"{path} can't be compared: {shape.reason}")
    began = time.monotonic()
    with (
        closing(TableSource(relation, shape)) as source,
        closing(LakeTable(internals, shape, lambda _: snapshot)) as lake,
    ):
        found = Proof(shape, source, lake, Pace(float("inf")), progress=progress).run()
        found.first_position = found.last_position = None
        return report_of(path, shape, found, lake.version, internals, time.monotonic() - began)


def _other(path: str) -> tuple[Relation, pa.Schema]:
    try:
        if Path(path).is_file():
            raise TableNotFound
        internals = internals_of(open_table(path))
    except TableNotFound:
        files = ParquetRelation(path)
        return files, files.schema()
    snapshot = internals.log.refresh()
    return TableRelation(internals, snapshot), snapshot.logical_schema


def shape_of(source: pa.Schema, snapshot: Snapshot, keys: Sequence[str] = ()) -> Shape | LeftOut:
    """What of two tables is compared, or why nothing is. Pure."""
    keys = tuple(keys) or snapshot.logical_settings.keys
    if not keys:
        return LeftOut(reason="the table has no keys; name columns that identify a row with --key")
    there = {field.name.lower(): field for field in source}
    columns: dict[str, Column] = {}
    left_out: dict[str, str] = {}
    for field in snapshot.logical_schema:
        other = there.pop(field.name.lower(), None)
        rule = LeftOut(reason="the source does not have it") if other is None else rule_of(other.type, field.type)
        if isinstance(rule, LeftOut) or other is None:
            left_out[field.name] = rule.reason if isinstance(rule, LeftOut) else ""
        else:
            columns[field.name] = Column(name=field.name, source_name=other.name, kind=str(other.type), rule=rule)
    left_out |= {field.name: "the table does not have it" for field in there.values()}
    for key in keys:
        if key not in columns or columns[key].rule.of_key is None:
            why = left_out.get(key) or "a column of its type can't be a key here"
            return LeftOut(reason=f"its key {key} can't be compared: {why}")
    return Shape(
        keys=tuple(columns[key] for key in keys), columns=tuple(columns.values()), left_out=left_out, is_ordered=False
    )
