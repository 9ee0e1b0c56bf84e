"""Read parts with Spark: exactly the live rows of a list of files, at the speed of plain Parquet.

Invariants
- The DataFrame never changes: it holds its list of files and dead positions, whatever is committed later.
- A dead position is never read, whether its deletion vector is committed or exists only in memory.
- A part is left out only if its partition values or its statistics prove that no row of it matches.

Algorithm
1. Spark plans its own vectorized Parquet scan (`HadoopFsRelation`, `ParquetFileFormat`) over a file index of ours,
   `PartIndex.java`: predicates, column pruning, nested pruning, splits and dynamic pruning are Spark's own. The index
   is compiled in the driver's JVM by Janino, the compiler that Spark generates its own code with. No executor needs it,
   no jar is added, nothing is listed and no log is replayed.
2. Each part is a partition of its own; a hidden partition column holds the part's dead rows as bytes, laid out so that
   a row is looked up without a branch (`layout_of_dead_rows`). The Parquet reader numbers the rows of the file.
3. A filter keeps the rows whose bit is unset. It consists of Spark's expressions and one old static method of Hadoop's,
   and is compiled into the scan's loop: a few nanoseconds per row. A scan without dead rows has no filter.
4. Spark plans with the users' names of columns. Its reader of a file gets the names that files have, where these differ after a
   rename, and casts from a type that the file had before the column was widened. So a rename costs nothing for a row, and
   predicates, pruning and nested columns work as ever.
5. The index of a table is kept, and only the difference to the next version is sent to the JVM, in one call.
6. If wanted, the index counts for each part the queries that read it, after parts were pruned (``reads_in``).
"""

from __future__ import annotations

import base64
import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Corrupt
from lakebed.log.actions import is_native_file
from lakebed.parts.part_filter import trusts_bounds
from lakebed.schema.column_mapping import stored_fields
from lakebed.schema.conversion import schema_from_json
from lakebed.sparks.compiled import PartIndex, PartIndexes, ReadsInJvm, part_indexes
from lakebed.sparks.jvm import arrow_frame
from lakebed.view.arrow_scan import ScanFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BLOCK_ROWS = 1024  # PartIndex.java depends on this value too
_BLOCK_BYTES = _BLOCK_ROWS // 8
_INDEXES_MAX = 16
_OF_DELTA = "delta."


@dataclass(slots=True)
class _Index:
    """A `PartIndex`, the files that it holds, and their identities."""

    files: Sequence[ScanFile]
    identities: frozenset[str]
    index: PartIndex
    counts_reads: bool = False


@dataclass(slots=True)
class _Slot:
    """The newest index of a table. ``lock`` is held while the index is updated; every scan of the table takes it."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    index: _Index | None = None


@dataclass(slots=True)
class _Engine:
    """The state kept for one JVM: the newest index of some tables, and counts of reads."""

    slots: OrderedDict[tuple[str, ...], _Slot] = field(default_factory=OrderedDict)
    reads: dict[str, ReadsInJvm] = field(default_factory=dict)


_engines: weakref.WeakKeyDictionary[PartIndexes, _Engine] = weakref.WeakKeyDictionary()
_guard = (
    threading.Lock()
)  # guards the engines and their fields; it is held only briefly, so tables do not block each other


def scan(
    spark: SparkSession,
    root: str,
    schema_json: str,
    *,
    partition_columns: Sequence[str],
    table_id: str,
    files: Sequence[ScanFile],
    stored_json: str | None = None,
    counts_reads: bool = False,
    verifies: bool = True,
    places: bool = False,
) -> DataFrame:
    """The live rows of `files` as a DataFrame with the columns of `schema_json` (Delta's ``schemaString``).

    `stored_json`: the same schema with the names that the files have, None if they are the same (`schemas_for_spark`).
    `root` is the table's folder, a local path or a URL. Partition columns are taken from `partition_values`, also where
    the files hold them. A column that a file lacks is null. `counts_reads`: for `reads_in`. `verifies`: Spark's reader compares
    the checksums of the pages that it reads. `places`: with two columns more (`PartIndex`).
    Raises Corrupt if a dead position lies outside its file.
    """
    time_zone = spark.conf.get("spark.sql.session.timeZone") or "UTC"
    key = (root, table_id, schema_json, stored_json or "", *partition_columns, time_zone)
    indexes = part_indexes(spark)
    with _guard:
        engine = _engines.setdefault(indexes, _Engine())
        slot = engine.slots.setdefault(key, _Slot())
        engine.slots.move_to_end(key)
        while len(engine.slots) > _INDEXES_MAX:
            engine.slots.popitem(last=False)
        counts = _reads(indexes, root) if counts_reads else None
    with slot.lock:
        previous = slot.index
        if previous is None:
            empty = indexes.empty(root, schema_json, list(partition_columns), time_zone, stored_json)
            previous = _Index((), frozenset(), empty)
        current = _advance(previous, files, stored_json or schema_json)
        if current.counts_reads != counts_reads:
            counting = current.index.counting(counts)
            current = _Index(current.files, current.identities, counting, counts_reads)
        slot.index = current
    return current.index.dataframe(spark, verifies, places)


def schemas_for_spark(schema_string: str, is_identity: bool, hidden: Sequence[str] = ()) -> tuple[str, str | None]:
    """The schema that Spark's users see, and the one with the names that files have; None for the second if they are the same.

    Without what Delta keeps at a field for itself: a table that is made from the DataFrame must not inherit it. With ``hidden``
    columns of integers at the end.
    """
    return _schemas_for_spark(schema_string, is_identity, tuple(hidden))


def frame_of(spark: SparkSession, rows: pa.Table, schema_string: str) -> DataFrame:
    """Rows of a table, in some columns by their logical names, as a DataFrame in the types of a scan: see ``arrow_frame``."""
    from pyspark.sql.types import StructType

    schema, _ = schemas_for_spark(schema_string, True)
    fields = {field.name: field for field in StructType.fromJson(orjson.loads(schema))}
    return arrow_frame(spark, rows, StructType([fields[name] for name in rows.column_names]))


@lru_cache(maxsize=256)
def _schemas_for_spark(schema_string: str, is_identity: bool, hidden: tuple[str, ...]) -> tuple[str, str | None]:
    if _OF_DELTA not in schema_string and not hidden:
        return schema_string, None
    more = [{"name": name, "type": "long", "nullable": True, "metadata": {}} for name in hidden]
    fields = [*orjson.loads(schema_string)["fields"], *more]
    users, stored = (
        orjson.dumps({"type": "struct", "fields": _without_delta(some)}).decode()
        for some in (fields, fields if is_identity else stored_fields(fields))
    )
    return users, None if is_identity else stored


def _without_delta(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_delta(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: {key: kept for key, kept in inner.items() if not key.startswith(_OF_DELTA)}
        if name == "metadata"
        else _without_delta(inner)
        for name, inner in value.items()
    }


def reads_in(spark: SparkSession, root: str) -> Callable[[], dict[str, int]]:
    """A function that returns, for each file below `root`, how many queries of counting scans read it since its last call."""
    indexes = part_indexes(spark)
    with _guard:
        return _reads(indexes, root).take


def _reads(indexes: PartIndexes, root: str) -> ReadsInJvm:
    reads = _engines.setdefault(indexes, _Engine()).reads
    if root not in reads:
        reads[root] = indexes.reads()
    return reads[root]


def layout_of_dead_rows(dead: BitMap64, rows: int, path: str) -> bytes:
    """Dead positions in the layout that the plan's filter reads: an int per block of 1,024 rows, then the blocks' bits.

    The int is the byte at which the block's bits begin; all blocks without dead rows share the same bits. Everything is
    big-endian, and a block's first row is the highest bit. Raises Corrupt if a position is not below `rows`.
    """
    positions = np.frombuffer(dead.to_array(), dtype=np.uint64)
    blocks = -(-rows // _BLOCK_ROWS)
    if len(positions) and int(positions[-1]) >= rows:
        raise Corrupt(
            f"{path}: its deletion vector marks row {int(positions[-1])}, but the file has {rows} rows",
            path=path,
            part=path,
        )
    touched, block_of_row = np.unique(positions // _BLOCK_ROWS, return_inverse=True)
    flags = np.zeros((len(touched) + 1, _BLOCK_ROWS), dtype=bool)
    flags[block_of_row + 1, positions % _BLOCK_ROWS] = True
    directory = np.full(blocks, blocks * 4, dtype=">i4")
    directory[touched] = blocks * 4 + np.arange(1, len(touched) + 1) * _BLOCK_BYTES
    return directory.tobytes() + np.packbits(flags, axis=1).tobytes()


def _advance(previous: _Index, files: Sequence[ScanFile], schema_json: str) -> _Index:
    """The index of `files`, made from the previous one by applying the difference."""
    if files is previous.files and isinstance(files, tuple):
        return previous
    by_identity = {_identity(file): file for file in files}
    identities = frozenset(by_identity)
    if identities == previous.identities:
        return _Index(files, identities, previous.index, previous.counts_reads)
    added = [by_identity[name] for name in by_identity if name not in previous.identities]
    change = {"remove": sorted(previous.identities - identities), "add": [_entry(file, schema_json) for file in added]}
    return _Index(files, identities, previous.index.apply(orjson.dumps(change)), previous.counts_reads)


def _identity(file: ScanFile) -> str:
    """A text that is equal for two files of a table only if they have the same live rows."""
    if not file.dead:
        return str(file.path)
    if file.deletion_vector is not None:
        return f"{file.path}\0{file.deletion_vector.unique_id}"
    return f"{file.path}\0{hashlib.blake2b(file.dead.serialize(), digest_size=16).hexdigest()}"


def _entry(file: ScanFile, schema_json: str) -> list[Any]:
    dead = None
    if file.dead:
        dead = base64.b64encode(layout_of_dead_rows(file.dead, file.rows, file.path)).decode()
    return [
        _identity(file),
        file.path,
        file.bytes,
        dict(file.partition_values),
        dead,
        entry_for_spark(file, schema_json),
    ]


def entry_for_spark(file: ScanFile, schema_json: str) -> str | None:
    """A file's statistics without the bounds that do not hold for every value; None if they are not JSON."""
    if file.stats is None or is_native_file(file.path):
        return file.stats
    schema = schema_from_json(schema_json)
    untrusted = [field.name for field in schema if not trusts_bounds(file.path, field.type)]
    if not untrusted:
        return file.stats
    try:
        stats = orjson.loads(file.stats)
        for which in ("minValues", "maxValues"):
            stats[which] = {name: bound for name, bound in (stats.get(which) or {}).items() if name not in untrusted}
    except (ValueError, AttributeError):
        return None
    return orjson.dumps(stats).decode()
