"""The records of a table's quarantine, counted by reason. Read at most once a minute, and only if there are new ones."""

from __future__ import annotations

import time
from typing import Any

from lakebed.errors import LakebedError
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.table import Table
from lakebed.table import open as open_table
from lakebed.ui.texts import blotted, cut

REASONS_MAX = 20
SECONDS_MIN = 60.0
ROWS_MAX = 1_000_000
_QUERY = f"""
    select reason, count(*) as records, epoch_ms(max(time)) as newest_ms, count(*) over () as reasons
    from quarantined group by reason order by records desc, reason limit {REASONS_MAX}
"""


class QuarantineReasons:
    """Follows the quarantine of one table. Not thread-safe."""

    def __init__(self, root: str) -> None:
        self._path = root + QUARANTINE_SUFFIX
        self._table: Table | None = None
        self._version = -1
        self._read_at = 0.0
        self._document: dict[str, Any] | None = None

    def document(self, records: int) -> dict[str, Any] | None:
        """The reasons that most records have; None without records. ``records``: how many there are."""
        if not records:
            self._version, self._document = -1, None
        elif self._version < 0 or time.monotonic() - self._read_at >= SECONDS_MIN:
            try:
                self._read(records)
            except LakebedError as error:  # the table itself is well; ``status`` has a finding for this
                self._table, self._version = None, -1
                self._document = {"reasons": [], "more": 0, "error": cut(blotted(str(error)))}
            self._read_at = time.monotonic()
        return self._document

    def _read(self, records: int) -> None:
        if records > ROWS_MAX:
            text = f"it has more than {ROWS_MAX:,} records; count them with lakebed query {self._path}"
            self._document = {"reasons": [], "more": 0, "error": cut(blotted(text))}
            return
        self._table = self._table or open_table(self._path)
        version = self._table.version
        if version == self._version:
            return
        found = self._table.query(_QUERY, "quarantined").to_pylist()
        reasons = [
            {"reason": cut(blotted(row["reason"] or "")), "records": row["records"], "newest_ms": row["newest_ms"]}
            for row in found
        ]
        more = found[0]["reasons"] - len(found) if found else 0
        self._document = {"reasons": reasons, "more": more, "error": None}
        self._version = version
