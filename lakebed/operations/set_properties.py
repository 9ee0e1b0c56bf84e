"""Changes those properties of a table that may change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lakebed.errors import InvalidInput
from lakebed.log.commit_loop import Proposal, commit_loop
from lakebed.log.conflicts import BLIND
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.planning.time_to_live import check_time_to_live
from lakebed.settings import check_changeable, read_settings, wrong_properties


def set_properties(
    log: TableLog, properties: Mapping[str, str], *, require: Callable[[Snapshot], None] = lambda snapshot: None
) -> int:
    """Set some properties; returns the version. Raises InvalidInput, Contention, StoreUnavailable.

    ``require`` raises for a version that the properties were not meant for; it is asked before each attempt to commit.
    """
    check_changeable(properties)

    def build(snapshot: Snapshot) -> Proposal[int]:
        require(snapshot)
        merged = dict(snapshot.metadata.configuration) | dict(properties)
        for name, wrong in wrong_properties(merged).items():
            if name in properties:  # beside another
                raise InvalidInput(wrong)
        settings = read_settings(merged)
        if "lakebed.ttl" in properties:
            check_time_to_live(settings.ttl, snapshot.logical_schema)
        metadata = replace(snapshot.metadata, configuration=merged)
        return Proposal(
            actions=[metadata],
            access=BLIND,
            result=lambda committed: committed.version,
            parameters={"properties": dict(properties)},
        )

    return commit_loop(log, Operation.SET_PROPERTIES, build)
