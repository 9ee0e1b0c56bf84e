"""What tests take from inside a table: the objects that the table itself works with."""

from __future__ import annotations

from lakebed.compaction.compaction import Compaction
from lakebed.log.table_log import TableLog
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.storage.part_storage import PartStorage
from lakebed.table import Internals, Table, internals_of


def log_of(table: Table) -> TableLog:
    """The table's log."""
    return internals_of(table).log


def storage_of(table: Table) -> PartStorage:
    """Where the table's parts are."""
    return internals_of(table).storage


def deletion_vectors_of(table: Table) -> DeletionVectorCache:
    """The table's deletion vectors."""
    return internals_of(table).deletion_vectors


def compaction_of(table: Table) -> Compaction:
    """What merges the table in this process."""
    return internals_of(table).compaction


def table_of(path: str, log: TableLog) -> Table:
    """The table at a local path, by a log that the test made."""
    return Table(Internals(path, log))
