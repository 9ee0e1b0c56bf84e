"""lakebed: change streams become fresh, sorted, compact Delta tables.

The names below are the whole public surface; everything else may change.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lakebed.version import __version__

if TYPE_CHECKING:
    from lakebed import errors, events
    from lakebed.client import connect
    from lakebed.compaction.compaction import CompactResult
    from lakebed.compaction.recluster_job import ReclusterResult
    from lakebed.compaction.settle import SettleResult
    from lakebed.database import Moment, Warehouse, warehouse
    from lakebed.operations.alter import AlterResult
    from lakebed.operations.mutation import MutationResult
    from lakebed.session import spark
    from lakebed.table import Table, convert, create, open, undrop

__all__ = [
    "AlterResult",
    "CompactResult",
    "Moment",
    "MutationResult",
    "ReclusterResult",
    "SettleResult",
    "Table",
    "Warehouse",
    "__version__",
    "connect",
    "convert",
    "create",
    "errors",
    "events",
    "open",
    "spark",
    "undrop",
    "warehouse",
]

# Loaded when first asked for: each of Spark's Python workers imports some module of lakebed, and needs few of these.
_HOMES = {
    "AlterResult": "lakebed.operations.alter",
    "CompactResult": "lakebed.compaction.compaction",
    "Moment": "lakebed.database",
    "MutationResult": "lakebed.operations.mutation",
    "ReclusterResult": "lakebed.compaction.recluster_job",
    "SettleResult": "lakebed.compaction.settle",
    "Table": "lakebed.table",
    "Warehouse": "lakebed.database",
    "connect": "lakebed.client",
    "convert": "lakebed.table",
    "create": "lakebed.table",
    "open": "lakebed.table",
    "spark": "lakebed.session",
    "undrop": "lakebed.table",
    "warehouse": "lakebed.database",
}


def __getattr__(name: str) -> Any:
    if name in ("errors", "events"):
        return importlib.import_module(f"lakebed.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'lakebed' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return __all__
