"""What a table must be equal to, from the topic alone: DuckDB over the records, read by no system's own code.

The newest event of each key by ``source.lsn``, without those that are deletes. A system is judged at the offsets that its last
commit claims, so also one that has not come to the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.kafka_peers.stream import COLUMNS, Ends
from benchmarks.peers.given import differ
from tests.infra.kafka import messages_before

_SCHEMA = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("ms", pa.int64()), ("value", pa.string())])
_EVENT = (
    '{"before": {"id": "BIGINT"}, "after": {"id": "BIGINT", "customer": "BIGINT", "region": "VARCHAR", "status": "VARCHAR", '
    '"amount": "DOUBLE", "note": "VARCHAR", "updated_at": "BIGINT"}, "op": "VARCHAR", "source": {"lsn": "BIGINT"}}'
)
_VALUES = ("customer", "region", "status", "amount", "note")
_TYPED = ", ".join("epoch_us(updated_at) as updated_at" if name == "updated_at" else name for name in COLUMNS)
_CHUNK = 50_000


def keep_topic(bootstrap: str, topic: str, ends: Ends, file: Path) -> None:
    """Write the topic's records up to some offsets to a Parquet file. Raises RuntimeError if some don't come."""
    records = messages_before(bootstrap, topic, {int(partition): end for partition, end in ends.items()})
    with pq.ParquetWriter(file, _SCHEMA, compression="zstd") as writer:
        while rows := list(islice(records, _CHUNK)):
            columns: list[list[Any]] = [
                [m.partition() for m in rows],
                [m.offset() for m in rows],
                [m.timestamp()[1] for m in rows],
                [m.value().decode() for m in rows],
            ]
            writer.write_table(pa.table(columns, schema=_SCHEMA))


def times(file: Path) -> Mapping[str, npt.NDArray[np.float64]]:
    """When each event came into Kafka, in seconds since the epoch, by partition in the order of offsets."""
    records = pq.read_table(file, columns=["partition", "offset", "ms"]).sort_by("offset")
    partitions = records["partition"].to_numpy()
    return {
        str(number): records.filter(pa.array(partitions == number))["ms"].to_numpy() / 1000
        for number in np.unique(partitions)
    }


def difference(file: Path, ends: Ends, rows: Path, resolved: bool) -> str | None:
    """What is wrong with a table's rows at some offsets; None if count and hash are right.

    ``resolved`` False: every event must be there, of a delete its key.
    """
    with duckdb.connect() as connection:
        connection.execute("set TimeZone = 'UTC'")
        values = ", ".join(f"e.after.{name} as {name}" for name in _VALUES)
        seen = " or ".join(f'("partition" = {partition} and "offset" < {end})' for partition, end in ends.items())
        connection.execute(
            f"create table events as select coalesce(e.after.id, e.before.id) as id, {values}, "
            "make_timestamptz(e.after.updated_at) as updated_at, e.op as op, e.source.lsn as lsn "
            f"""from (select from_json(value, '{_EVENT}') as e from read_parquet('{file}') where {seen or "false"})"""
        )
        newest = (
            "(select * from events qualify row_number() over (partition by id order by lsn desc) = 1) where op <> 'd'"
        )
        expected = f"(select * from {newest})" if resolved else "events"
        return differ(connection, expected, f"read_parquet('{rows}/*.parquet')", _TYPED)
