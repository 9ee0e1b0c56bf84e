"""What every system must do to be measured. A module a system; each runs in the environment of its own, with Spark alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

COLUMNS = ("pk", "ts", "region", "status", "amount", "note", "seq")
DDL = "pk bigint, ts timestamp, region string, status string, amount double, note string, seq bigint"
KEY = "pk"
SORT_KEY = ("region", "ts")
ORDER = "seq"
_NEWEST = f"row_number() over (partition by {KEY} order by {ORDER} desc) as newest"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a system lives. ``table``: its folder, whose bytes are counted; ``local``: what an object store would never see."""

    table: str
    local: str
    rows: int
    append_only: bool

    @property
    def files(self) -> int:
        """How many files the first rows are written to, by systems that can be told."""
        return max(2, self.rows // 1_000_000)


class Peer(Protocol):
    """One system. The changes have the table's columns and ``op``: ``c``, ``u`` or ``d``; several of one key in one batch."""

    resolves: bool
    """Whether its rows are the newest ones. The floor only appends."""

    def __init__(self, spark: SparkSession, place: Place, variant: str) -> None: ...

    @staticmethod
    def session(place: Place) -> Mapping[str, str]:
        """Spark's settings for it, jars among them."""
        ...

    @property
    def settings(self) -> Mapping[str, str]:
        """How the table is configured, as it is printed beside the results."""
        ...

    def create(self, initial: DataFrame) -> None:
        """Make the table with its first rows, sorted by the sort key where the system can."""
        ...

    def apply(self, batch: DataFrame) -> None:
        """Apply one batch; its fresh reader sees it when this returns."""
        ...

    def maintain(self, batches: int) -> bool:
        """The maintenance due after so many batches, if the writer must wait for it; returns whether there was any."""
        ...

    def rest(self) -> None:
        """Wait until the maintenance that runs beside has nothing to do."""
        ...

    def finish(self) -> None:
        """End maintenance and write what is owed, such as data that is on the local disk alone."""
        ...

    def rows(self) -> DataFrame:
        """The table's columns at its newest version, planned anew at each call."""
        ...


class Inline:
    """The part of a peer whose maintenance does not run beside."""

    resolves = True

    def maintain(self, batches: int) -> bool:
        return False

    def rest(self) -> None:
        pass

    def finish(self) -> None:
        pass


def by_sort_key(initial: DataFrame, place: Place) -> DataFrame:
    """The first rows in files that do not overlap by the sort key."""
    return initial.repartitionByRange(place.files, *SORT_KEY).sortWithinPartitions(*SORT_KEY)


def newest(spark: SparkSession, changes: DataFrame) -> DataFrame:
    """The newest change of each key, for systems that want one (MERGE fails if there are more)."""
    changes.createOrReplaceTempView("changes")
    return spark.sql(f"select {', '.join(COLUMNS)}, op from (select *, {_NEWEST} from changes) where newest = 1")


def merge_statement(table: str) -> str:
    """MERGE of the view ``newest_changes``, one row a key, into a table."""
    values = [name for name in COLUMNS if name != KEY]
    return (
        f"merge into {table} t using newest_changes s on t.{KEY} = s.{KEY} "
        "when matched and s.op = 'd' then delete "
        f"when matched then update set {', '.join(f't.{name} = s.{name}' for name in values)} "
        f"when not matched and s.op <> 'd' then insert ({', '.join(COLUMNS)}) "
        f"values ({', '.join(f's.{name}' for name in COLUMNS)})"
    )


def columns(frame: Any) -> DataFrame:
    """Only the table's columns, without ``op`` and what a system adds."""
    out: DataFrame = frame.select(*COLUMNS)
    return out
