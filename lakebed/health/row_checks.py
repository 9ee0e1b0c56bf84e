"""Checks of rows: part by part, then the keys of all parts together, which DuckDB spills to disk where needed.

1. The deletion vector can be decoded, marks as many rows as it says, and only rows that exist. The file is what was written
   (``parts.intact``); in files of other writers only pages that have checksums are compared.
2. The file has as many rows as the log says; its statistics hold for every live row (S1); columns that are NOT NULL have no null;
   the number of delete rows is the one in the log, and in the base all of them are dead (B5).
3. The file's footer has the table's columns, in their types or in narrower ones (C1).
4. The rows are in the order of the table's sort key, between the first and the last key in the part's statistics (S1). Parts
   that an earlier sort key sorted, or whose order is unknown, are not checked.
5. A change part has each key at most once (B2).
6. A key is live at most once in the base (B1).
7. The tail can be resolved as a settle does it (B2).

A part that can't be read is reported, and not part of steps 6 and 7.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.far_times import python_rows
from lakebed.health.finding import Finding, critical
from lakebed.health.log_checks import Progress
from lakebed.log.actions import ChangePart, Part, is_native_file
from lakebed.log.snapshot import Snapshot
from lakebed.parts.arrow_source import damaged
from lakebed.parts.changes import DELETE, OP_COLUMN, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.intact import verify
from lakebed.parts.legacy_calendar import legacy_column, legacy_marks
from lakebed.parts.order import sort_order
from lakebed.parts.part_filter import trusts_bounds
from lakebed.parts.write import bounds_count_deletes, order_bound_terms, with_order_bounds
from lakebed.quoting import literal, quote
from lakebed.resolve.locate import ScanLocator
from lakebed.resolve.resolve import resolve
from lakebed.schema.column_mapping import misfit
from lakebed.sortkey.order_values import key_at
from lakebed.sortkey.ranges import ORDER_BOUNDS, range_of
from lakebed.sortkey.statistics import comparable, has_bounds, highest, lowest, parsed_stats
from lakebed.sql import aliases, named, parquet, scan_of, sql_type
from lakebed.storage.engine import connect, naming_unreadable, reason
from lakebed.storage.part_storage import PartStorage
from lakebed.view.arrow_scan import ScanFile, register_view

_BATCH_ROWS = 262_144
_TAIL_ROWS = 2_000_000
_DUPLICATES_SHOWN = 20
_RESTORE = "restore {} from a copy of the store"


class RowChecks:
    """The checks of one version. ``rows``: how many rows of parts were looked at so far."""

    def __init__(
        self, snapshot: Snapshot, storage: PartStorage, path: str, progress: Progress, known_bad: Collection[str] = ()
    ) -> None:
        """``known_bad``: files that were reported already, so they are not read."""
        self._snapshot = snapshot
        self._storage = storage
        self._path = path
        self._progress = progress
        self._spec = write_spec_of(snapshot)
        self._deletion_vectors = DeletionVectorCache(storage)
        self._known_bad = known_bad
        self._unreadable = set(known_bad)
        self.rows = 0

    def run(self) -> Iterator[Finding]:
        """Everything. Raises StoreUnavailable."""
        tail = self._snapshot.tail_in_order()
        parts: list[Part | ChangePart] = [*sorted(self._snapshot.parts.values(), key=lambda part: part.path), *tail]
        for done, part in enumerate(parts, 1):
            if part.path not in self._known_bad:
                yield from self._part(part)
            self._progress("parts", done, len(parts))
        if not self._spec.keys:
            return
        yield from self._keys_are_live_once()
        yield from self._tail_resolves(tail)

    # -- a part ------------------------------------------------------------------------------------------------------

    def _part(self, part: Part | ChangePart) -> Iterator[Finding]:
        try:
            dead = self._deletion_vectors.of(part) if isinstance(part, Part) else BitMap64()
        except Corrupt as error:
            self._unreadable.add(part.path)
            if _vector_file(part) not in self._known_bad:
                yield self._bad_vector(part, str(error))
            return
        if dead and 0 <= part.rows <= dead.max():
            self._unreadable.add(part.path)
            yield self._bad_vector(part, f"it marks row {dead.max()}, but the part has {part.rows} rows")
            return
        try:
            self._storage.forget(part.path)
            verify(part, self._storage)
            with naming_unreadable([part.path]), connect() as connection:
                self._storage.attach(connection)
                yield from self._contents(part, dead, connection)
        except Corrupt as error:
            self._unreadable.add(part.path)
            yield critical("file", part.path, str(error), _RESTORE.format(part.path))
        except duckdb.Error as error:  # whatever failed, this file caused it
            self._unreadable.add(part.path)
            yield critical("file", part.path, str(damaged(part.path, reason(error))), _RESTORE.format(part.path))

    def _bad_vector(self, part: Part | ChangePart, reason: str) -> Finding:
        vector = _vector_file(part)
        what = f"the deletion vector of {part.path} is bad, so which of its rows are dead is not known: {reason}"
        remedy = _RESTORE.format(vector) if vector else "read an older version, and write a new table from it"
        return critical("vector", vector or part.path, what, remedy)

    def _contents(
        self, part: Part | ChangePart, dead: BitMap64, connection: duckdb.DuckDBPyConnection
    ) -> Iterator[Finding]:
        [(rows,)] = connection.sql(f"select count(*) from {self._scan(part)}").fetchall()
        self.rows += rows
        if rows != part.rows:
            self._unreadable.add(part.path)
            what = f"the file has {rows:,} rows and the log says {part.rows:,}"
            yield critical("file", part.path, what, _RESTORE.format(part.path))
            return
        if (finding := self._footer(part, connection)) is not None:
            self._unreadable.add(part.path)
            yield finding
            return
        if isinstance(part, Part) and not is_native_file(part.path):
            yield from self._calendar(part, connection)
        yield from self._statistics(part, dead, connection)
        if isinstance(part, ChangePart) or part.has_op_column:
            yield from self._deletes(part, dead, connection)
        if self._spec.terms and part.sort_key_version == self._spec.order_version:
            yield from self._order(part, connection)
        if isinstance(part, ChangePart) and self._spec.keys and not part.incomplete:
            kinds = {name: sql_type(self._spec.schema.field(name).type) for name in self._spec.keys}
            keys = scan_of([self._storage.duckdb_url(part.path)], kinds, {})
            grouped = f"select 1 from ({keys}) group by {', '.join(aliases(kinds).values())} having count(*) > 1"
            [(twice,)] = connection.sql(f"select count(*) from ({grouped})").fetchall()
            if twice:
                what = f"{twice:,} keys are in the change part more than once: nobody can know which row is the newest"
                yield critical("B2", part.path, what, f"read version {part.version - 1}, and apply the batch again")

    def _footer(self, part: Part | ChangePart, connection: duckdb.DuckDBPyConnection) -> Finding | None:
        """Step 3. Names match in any case, and other writers have other types for the same times and texts."""
        names = {name.lower(): name for name in self._spec.schema.names}
        written = [
            field.with_name(names.get(field.name.lower(), field.name))
            for field in connection.sql(f"from {self._scan(part)} limit 0").to_arrow_table().schema
        ]
        if not is_native_file(part.path):
            kinds = {field.name: field.type for field in self._spec.schema}
            written = [field for field in written if not _is_spelled_otherwise(field.type, kinds.get(field.name))]
            kept = {field.name for field in written}
            wanted = [field for field in self._spec.schema if field.name in kept]
        else:
            wanted = list(self._spec.schema)
        why = misfit(written, wanted, part.partition_values, is_footer=True)
        if why is None:
            return None
        what = f"it can't be read by the table's schema: its column {why}"
        return critical("C1", part.path, what, "read an older version, and write a new table from it")

    def _calendar(self, part: Part, connection: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
        fields = [field for field in self._spec.schema if field.name not in part.partition_values]
        url = self._storage.duckdb_url(part.path)
        if (
            found := legacy_column(url, part, pa.schema(fields), legacy_marks([url], connection), connection)
        ) is not None:
            yield critical("calendar", part.path, found.what, found.remedy)

    def _scan(self, part: Part | ChangePart) -> str:
        return parquet(self._storage.duckdb_url(part.path))

    def _statistics(
        self, part: Part | ChangePart, dead: BitMap64, connection: duckdb.DuckDBPyConnection
    ) -> Iterator[Finding]:
        """Step 2, also NOT NULL. Only live rows count."""
        stats = parsed_stats(part.stats) if part.stats else {}
        fields = [field for field in self._spec.schema if field.name not in part.partition_values]
        if not fields or len(dead) == part.rows:
            return
        self._register(connection, [_scan_file(part, dead)], self._spec.schema)
        outputs = ["count(*)"]
        for field in fields:
            name = quote(field.name)
            bounds = f"min({name}), max({name})" if has_bounds(field.type) else "null, null"
            outputs.append(f"count({name}), {bounds}")
        found = connection.sql(f"select {', '.join(outputs)} from lakebed_live").to_arrow_table()
        live = found.column(0)[0].as_py()
        nulls = stats.get("nullCount") or {}
        for at, field in enumerate(fields):
            filled = found.column(1 + 3 * at)[0].as_py()
            empty = live - filled
            expected = nulls.get(field.name)
            if isinstance(expected, int) and (
                empty > expected or filled > part.rows - expected
            ):  # of a struct Delta counts its leaves
                yield self._wrong_statistics(
                    part, field.name, f"{expected:,} nulls, but {empty:,} of {live:,} live rows are null"
                )
            if empty and not field.nullable and isinstance(part, Part):
                what = f"the column {field.name!r} is NOT NULL, and {empty:,} live rows have no value"
                yield critical("schema", part.path, what, f"lakebed delete {self._path} --where '{field.name} is null'")
            if filled and has_bounds(field.type):
                broken = _bounds_broken(field, found.column(2 + 3 * at)[0], found.column(3 + 3 * at)[0], part, stats)
                if broken:
                    yield self._wrong_statistics(part, field.name, broken)

    def _wrong_statistics(self, part: Part | ChangePart, column: str, what: str) -> Finding:
        what = f"its statistics of {column!r} are wrong, so queries may leave rows out: they say {what}"
        return critical("S1", part.path, what, self._write_anew())

    def _write_anew(self) -> str:
        """The command that sorts and writes every part again, with its statistics: no command does so for a single part."""
        order, settings = self._spec.order_by, self._snapshot.settings
        if not order:
            return "read the table (table.to_arrow()), and write a new one"
        other = "" if settings.sort_key else f"{quote(order[0])} desc"
        back = ", ".join(settings.sort_key)
        change = f"lakebed alter {self._path} --sort-key"
        return f"{change} '{other}' && {change} '{back}' && lakebed recluster --final {self._path}"

    def _deletes(
        self, part: Part | ChangePart, dead: BitMap64, connection: duckdb.DuckDBPyConnection
    ) -> Iterator[Finding]:
        is_delete = f"{quote(OP_COLUMN)} = {literal(DELETE)}"
        [(deletes,)] = connection.sql(f"select count(*) from {self._scan(part)} where {is_delete}").fetchall()
        if deletes != part.deletes:
            what = f"{deletes:,} of its rows are deletes, and the log says {part.deletes:,}"
            yield critical("B5", part.path, what, _RESTORE.format(part.path))
        if not deletes or isinstance(part, ChangePart):
            return
        schema = pa.schema([(OP_COLUMN, pa.string())])
        self._register(connection, [_scan_file(part, dead)], schema)
        [(live,)] = connection.sql(f"select count(*) from lakebed_live where {is_delete}").fetchall()
        if live:
            what = f"{live:,} of its rows are deletes that are not marked dead: readers show them as rows"
            yield critical("B5", part.path, what, "read an older version, and write a new table from it")

    def _register(self, connection: duckdb.DuckDBPyConnection, files: Sequence[ScanFile], schema: pa.Schema) -> None:
        register_view(connection, "lakebed_live", self._storage, files, schema)

    def _order(self, part: Part | ChangePart, connection: duckdb.DuckDBPyConnection) -> Iterator[Finding]:
        """Step 4, batch by batch: the last row of one batch is put before the next one."""
        terms, bound_terms = self._spec.terms, order_bound_terms(self._spec)
        names = list(dict.fromkeys(name for term in terms for name in term.columns))
        fields = [self._spec.schema.field(name).with_nullable(True) for name in names]
        if part.deletes and not bounds_count_deletes(self._spec):
            names, fields = [*names, OP_COLUMN], [*fields, pa.field(OP_COLUMN, pa.string())]
        kinds = {field.name: sql_type(field.type) for field in fields}
        scan = scan_of([self._storage.duckdb_url(part.path)], kinds, {})
        last: pa.Table | None = None
        last_counted: pa.Table | None = None
        row = 0
        for batch in connection.sql(scan).to_arrow_reader(_BATCH_ROWS):
            table = named(pa.Table.from_batches([batch]), names).cast(pa.schema(fields))
            counted = table
            if OP_COLUMN in names:
                counted = table.filter(pc.fill_null(pc.not_equal(table[OP_COLUMN], DELETE), True))
            if last_counted is None and bound_terms and len(counted):
                yield from self._order_bounds(part, counted, 0)
            last_counted = counted.slice(len(counted) - 1) if len(counted) else last_counted
            joined = pa.concat_tables([last, table]) if last is not None else table
            order = sort_order(joined, terms)
            wrong = np.flatnonzero(order != np.arange(len(order)))
            if len(wrong):
                found = row - (last is not None) + int(wrong[0])
                order_by = ", ".join(self._spec.order_by)
                what = f"its rows are not in the order of ({order_by}): row {found:,} is not where it belongs"
                yield critical("S1", part.path, what, self._write_anew())
                return
            row += len(table)
            last = joined.slice(len(joined) - 1)
        if last_counted is not None and bound_terms:
            yield from self._order_bounds(part, last_counted, 1)

    def _order_bounds(self, part: Part | ChangePart, rows: pa.Table, end: int) -> Iterator[Finding]:
        """Compare the first (``end`` 0) or the last key with the part's statistics, as exactly as bounds are kept."""
        terms = order_bound_terms(self._spec)
        stats = parsed_stats(part.stats) if part.stats else {}
        if ORDER_BOUNDS not in stats or stats[ORDER_BOUNDS]["columns"] != [term.name for term in terms]:
            return
        from_key = key_at(rows, 0, terms)
        recorded = range_of(part.stats, terms)
        found = range_of(with_order_bounds('{"numRecords":1}', terms, from_key, from_key), terms)
        if recorded.lower > found.upper if end == 0 else recorded.upper < found.lower:
            what = f"the {'last' if end else 'first'} sort key in its statistics is not that of its rows"
            yield critical("S1", part.path, what, self._write_anew())

    # -- all parts together ------------------------------------------------------------------------------------------

    def _readable_base(self) -> dict[str, Part]:
        return {path: part for path, part in self._snapshot.parts.items() if path not in self._unreadable}

    def _keys_are_live_once(self) -> Iterator[Finding]:
        """Step 6: the keys of all live rows go into one table, part by part; only those that are there twice are looked up."""
        base = self._readable_base()
        keys = list(self._spec.keys)
        alias = aliases(keys)
        listed = ", ".join(alias.values())
        live = f"select {', '.join(f'{quote(name)} as {place}' for name, place in alias.items())} from lakebed_live"
        schema = pa.schema([self._spec.schema.field(name) for name in keys])
        try:
            with naming_unreadable(base), connect() as connection:
                self._storage.attach(connection)
                self._register(connection, [], schema)
                connection.execute(f"create or replace temp table lakebed_keys as {live}")
                for done, part in enumerate(base.values(), 1):
                    if part.live_rows:
                        self._register(connection, [_scan_file(part, self._deletion_vectors.of(part))], schema)
                        connection.execute(f"insert into lakebed_keys {live}")
                    self._progress("keys of parts", done, len(base))
                filled = " and ".join(f"{place} is not null" for place in alias.values())  # step 2 reports nulls
                grouped = f"select {listed} from lakebed_keys where {filled} group by {listed} having count(*) > 1"
                counted = f"select *, count(*) over () as total from ({grouped})"
                found = connection.sql(f"{counted} order by {listed} limit {_DUPLICATES_SHOWN}").to_arrow_table()
        except Corrupt as error:
            yield critical("file", "", str(error), f"lakebed verify {self._path} --self --deep")
            return
        if not len(found):
            return
        total = found["total"][0].as_py()
        twice = named(found.drop_columns(["total"]), keys).cast(schema)
        hits = ScanLocator(self._spec, self._storage).lookup(base, twice).to_pylist()
        for probe, key in enumerate(python_rows(twice)):
            rows = sorted(
                (hit["part"], hit["row"])
                for hit in hits
                if hit["probe"] == probe and hit["row"] not in self._deletion_vectors.of(base[hit["part"]])
            )
            places = ", ".join(f"row {row:,} of {part}" for part, row in rows)
            values = ", ".join(f"{name} = {value!r}" for name, value in key.items())
            what = f"the key {values} is live {len(rows)} times: {places}"
            if probe + 1 == _DUPLICATES_SHOWN and total > _DUPLICATES_SHOWN:
                what += f"; and {total - _DUPLICATES_SHOWN:,} more keys"
            remedy = "apply the right row of that key again (table.apply), and settle: every older one dies"
            yield critical("B1", rows[0][0] if rows else "", what, remedy)

    def _tail_resolves(self, tail: Sequence[ChangePart]) -> Iterator[Finding]:
        """Step 7, in pieces, as a settle takes the tail."""
        base = self._readable_base()
        locator = ScanLocator(self._spec, self._storage)
        for piece in _pieces([part for part in tail if part.path not in self._unreadable]):
            try:
                with naming_unreadable([*base, *(part.path for part in piece)]):
                    resolve(base, piece, self._spec, self._storage, self._deletion_vectors, locator)
            except Corrupt as error:
                what = f"the tail can't be settled: {error}"
                yield critical(
                    "B2",
                    piece[0].path,
                    what,
                    f"lakebed compact --only settle {self._path} tells whether it is mended",
                )
                return


def _is_spelled_otherwise(written: pa.DataType, wanted: pa.DataType | None) -> bool:
    """Whether a column of another writer's file may differ from the table's type and still be read by every reader."""
    if wanted is None or pa.types.is_nested(wanted):
        return True
    if pa.types.is_timestamp(written) and pa.types.is_timestamp(wanted):
        return True
    return bool(pa.types.is_binary(written) and pa.types.is_string(wanted))


def _pieces(tail: Sequence[ChangePart]) -> Iterator[list[ChangePart]]:
    piece: list[ChangePart] = []
    for part in tail:
        if piece and sum(each.rows for each in piece) + part.rows > _TAIL_ROWS:
            yield piece
            piece = []
        piece.append(part)
    if piece:
        yield piece


def _vector_file(part: Part | ChangePart) -> str | None:
    return part.deletion_vector.file_path() if isinstance(part, Part) and part.deletion_vector else None


def _scan_file(part: Part | ChangePart, dead: BitMap64) -> ScanFile:
    return ScanFile(
        path=part.path, bytes=part.bytes, rows=part.rows, partition_values=part.partition_values, dead=dead or None
    )


def _bounds_broken(
    field: pa.Field, low: pa.Scalar, high: pa.Scalar, part: Part | ChangePart, stats: Mapping[str, Any]
) -> str | None:
    """How a live row contradicts the bounds of a column; None if they hold, or no reader uses them."""
    kind = field.type
    if not trusts_bounds(part.path, kind):
        return None
    least, most = (stats.get("minValues") or {}).get(field.name), (stats.get("maxValues") or {}).get(field.name)
    try:
        first, last = low.as_py(), high.as_py()
        if least is not None and (value := comparable(first, kind)) is not None and value < lowest(least, kind):
            return f"no value below {least}, but a live row has {first}"
        if most is not None and last != last:
            return f"no value above {most}, but a live row has NaN"
        if most is not None and (value := comparable(last, kind)) is not None and value > highest(most, kind):
            return f"no value above {most}, but a live row has {last}"
    except (ValueError, OverflowError):  # a time that Python can't represent
        return None
    return None
