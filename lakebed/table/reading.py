"""What users read of a table: its rows at a version, with and without Spark, and the changes between versions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakebed.errors import MissingPrerequisite
from lakebed.far_times import pandas_frame
from lakebed.parts.arrow_rows import Rows
from lakebed.table.internals import Internals
from lakebed.view.arrow_scan import snapshot_at

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    from pyspark.sql import DataFrame, SparkSession


class TableReads:
    """The part of ``Table`` that reads. Safe to use from several threads."""

    def __init__(self, internals: Internals) -> None:
        self.path = internals.path
        self._internals = internals

    def read(self, spark: SparkSession, version: int | None = None, timestamp: str | float | None = None) -> DataFrame:
        """The table at one version, tail included, as a DataFrame that stays at that version.

        Args:
            spark: The session that reads.
            version: By default the newest.
            timestamp: Epoch seconds, or an ISO text (UTC without an offset): the newest version that was committed until then.

        Raises:
            Corrupt: A file that the tail needs is missing or damaged; the error names it. Spark reads the other files when the
                query runs. It then raises its own error (FAILED_READ_FILE), which names the file. Its advice to refresh does not
                help; ``to_arrow`` says what to do.
        """
        return self._internals.view.dataframe(spark, snapshot_at(self._internals.log, version, timestamp))

    def to_arrow(
        self, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
    ) -> pa.Table:
        """The rows at one version, tail included, without Spark; in no particular order. Raises InvalidInput.

        Args:
            columns: By default all.
            where: One SQL expression over a row's columns, without a subquery, aggregate or window function.
            version: By default the newest.
        """
        return self._internals.view.arrow(snapshot_at(self._internals.log, version), columns, where)

    def to_pandas(
        self, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
    ) -> pd.DataFrame:
        """``to_arrow`` as a DataFrame of pandas, where whole numbers among nulls are floating point.

        A date that Python has no object for, such as one of the year 20222, is a ``numpy.datetime64`` among the objects. The
        arguments are those of ``to_arrow``.
        """
        return pandas_frame(self.to_arrow(columns, where, version))

    def to_polars(
        self, columns: Sequence[str] | None = None, where: str | None = None, version: int | None = None
    ) -> pl.DataFrame:
        """``to_arrow``, with its arguments, as a DataFrame of polars. Raises MissingPrerequisite if polars is not installed."""
        try:
            import polars
        except ImportError:
            raise MissingPrerequisite("to_polars needs polars: pip install polars") from None
        return polars.DataFrame(self.to_arrow(columns, where, version))

    def lookup(
        self, keys: Rows | Sequence[Any], columns: Sequence[str] | None = None, version: int | None = None
    ) -> pa.Table:
        """The rows of some keys at one version, tail included, without Spark; in no particular order.

        Only parts and row groups that may hold them are read. Raises InvalidInput.

        Args:
            keys: Values of the one key, or rows (as for ``apply``) with some columns of the table: the rows that equal one of
                them in all these columns are returned, whether or not the columns are the keys.
            columns: By default all.
            version: By default the newest.
        """
        return self._internals.view.lookup(snapshot_at(self._internals.log, version), keys, columns)

    def query(self, sql: str, name: str | None = None, *, allow_files: bool = False) -> pa.Table:
        """The result of a SQL query (DuckDB's dialect) on the newest version. Raises InvalidInput.

        Args:
            sql: One SELECT over this table, or DESCRIBE, SUMMARIZE or EXPLAIN of one.
            name: What the table is called in the query. By default the name of its folder.
            allow_files: The query may be any statements, and read and write whatever this process may. The result of the last one
                is returned.
        """
        known_as = Path(self.path).name if name is None else name
        return self._internals.view.query(self._internals.log.refresh(), sql, known_as, allow_files)

    def create_view(self, spark: SparkSession, name: str) -> None:
        """Create or replace a temporary view of the newest version; running maintenance keeps it fresh.

        Args:
            spark: The session that gets the view.
            name: The name of the view.
        """
        self._internals.view.register(spark, name)
        self._internals.view.refresh(self._internals.log.refresh())

    def changes(self, from_version: int, to_version: int | None = None, spark: SparkSession | None = None) -> DataFrame:
        """The changes that some versions brought, as rows of a DataFrame.

        Its columns are the table's, then ``_change_type`` (``upsert``, ``delete``, or ``truncate`` without values),
        ``_change_sequence`` if what orders the changes is no column of the table, ``_commit_version``, ``_commit_timestamp``. A
        change with unavailable values is listed, complete, in the version that settles it. The columns are those of today; the
        DataFrame keeps them if the table is altered later. Reading it raises InvalidSchema for a value that does not fit then.
        As a stream: ``spark.readStream.format("lakebed_changes").option("path", …)``.

        Args:
            from_version: The first version.
            to_version: The last one, included. By default the newest.
            spark: The session. By default the active one.
        """
        from lakebed.view.changes import changes_dataframe

        return changes_dataframe(spark, self.path, self._internals.log, from_version, to_version)
