"""lakebed: change streams become fresh, sorted, compact tables that every Delta reader reads.

The names below are the whole public surface; everything else may change.
"""

from __future__ import annotations

from lakebed import errors, events
from lakebed.compaction.settle import SettleResult
from lakebed.convert import convert
from lakebed.session import spark
from lakebed.table import Table, create, open
from lakebed.version import __version__

__all__ = ["SettleResult", "Table", "__version__", "convert", "create", "errors", "events", "open", "spark"]
