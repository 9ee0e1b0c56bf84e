"""Changing properties of a table that may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lakebed.errors import Contention, InvalidInput, StoreUnavailable
from lakebed.manifest.actions import CommitInfo
from lakebed.manifest.conflicts import BLIND
from lakebed.manifest.table_log import Committed, TableLog, Unknown
from lakebed.settings import check_changeable, wrong_properties
from lakebed.version import ENGINE

_ATTEMPTS_MAX = 20


def set_properties(log: TableLog, properties: Mapping[str, str]) -> int:
    """Set some properties; returns the version. Raises InvalidInput, Contention, StoreUnavailable."""
    check_changeable(properties)
    for _ in range(_ATTEMPTS_MAX):
        snapshot = log.refresh()
        merged = dict(snapshot.metadata.configuration) | dict(properties)
        for name, wrong in wrong_properties(merged).items():
            if name in properties:  # beside another
                raise InvalidInput(wrong)
        metadata = replace(snapshot.metadata, configuration=merged)
        info = CommitInfo(
            operation="SET TBLPROPERTIES", commit_id="", parameters={"properties": dict(properties)}, engine=ENGINE
        )
        outcome = log.commit(snapshot, [metadata], info, BLIND)
        if isinstance(outcome, Committed):
            return outcome.version
        if isinstance(outcome, Unknown):
            raise StoreUnavailable(f"whether the properties were set is unknown: {outcome.cause}")
    raise Contention("others kept changing the table's properties")
