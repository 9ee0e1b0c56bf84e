"""Logs that no table has: what spans tables is a small Delta log of its own, with entries and without rows.

Such are the points of a database and the workers of a fleet. Each lives below ``_lakebed/`` of the folder that it is about.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping

import pyarrow as pa

from lakebed.errors import StoreUnavailable
from lakebed.log.actions import CommitInfo
from lakebed.log.conflicts import Unknown
from lakebed.log.entries import Operation
from lakebed.log.table_log import TableLog
from lakebed.schema.conversion import schema_to_json
from lakebed.schema.metadata import FORMAT, GATE_FEATURE, Metadata, Protocol
from lakebed.settings import FORMAT_PROPERTY
from lakebed.version import ENGINE

_FEATURES = frozenset(
    {"deletionVectors", "domainMetadata", "appendOnly", "invariants", "inCommitTimestamp", GATE_FEATURE}
)


def create_log_without_rows(log: TableLog, column: str, properties: Mapping[str, str] | None = None) -> None:
    """Create the log, unless it is there. ``column``: a name for its one column; ``properties``: the ``lakebed.*`` ones.

    Raises StoreUnavailable.
    """
    if log.exists():
        return
    metadata = Metadata(
        id=str(uuid.uuid4()),
        schema_string=schema_to_json(pa.schema([pa.field(column, pa.int64())])),
        partition_columns=(),
        configuration={
            "delta.enableDeletionVectors": "true",
            "delta.enableInCommitTimestamps": "true",
            FORMAT_PROPERTY: str(FORMAT),
            **(properties or {}),
        },
        created_ms=int(time.time() * 1000),
    )
    protocol = Protocol(3, 7, frozenset({"deletionVectors"}), _FEATURES)
    outcome = log.create([protocol, metadata], CommitInfo(operation=Operation.CREATE, commit_id="", engine=ENGINE))
    if isinstance(outcome, Unknown):
        raise StoreUnavailable(f"whether {log.root} was created is unknown: {outcome.cause}", table=log.root)
