"""Changes a table's sort key: the next version of it in the table's properties, and nothing else.

It applies to all work that begins after it. A batch, a settle or a merge that had begun before still commits, in the old order:
each part records the version of the sort key that sorted its rows. Parts of an earlier one are sorted later, by maintenance or
a recluster job.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import BLIND
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog, require_writable
from lakebed.operations.create import check_settings
from lakebed.settings import PREFIX, SORT_KEY_FRAME
from lakebed.sortkey.sort_key import frame_properties, parse_sort_key


def set_sort_key(log: TableLog, sort_key: Sequence[str]) -> int:
    """Make this the table's sort key; returns the version that sets it, or the newest one if it was set already.

    Raises InvalidInput, Contention, StoreUnavailable.
    """

    def build(snapshot: Snapshot) -> Proposal[int] | Finished[int]:
        require_writable(snapshot.protocol)
        before, columns = snapshot.logical_settings, snapshot.columns
        stored = columns.stored_sort_key(sort_key)
        frame = frame_properties(parse_sort_key(stored, snapshot.schema), snapshot).get(SORT_KEY_FRAME, "")
        settings = replace(before, sort_key=tuple(sort_key), sort_key_frame=frame)
        check_settings(settings, snapshot.logical_schema)
        if settings == before:
            return Finished(snapshot.version)
        settings = replace(settings, sort_key_version=before.sort_key_version + 1)
        others = {
            name: text
            for name, text in snapshot.metadata.configuration.items()
            if not name.startswith(PREFIX + "sort_key")
        }
        ours = {name: text for name, text in settings.to_properties().items() if name.startswith(PREFIX + "sort_key")}
        metadata = replace(snapshot.metadata, configuration=others | ours)
        parameters = {"columns": list(sort_key), "version": settings.sort_key_version}
        return Proposal(
            actions=[metadata], access=BLIND, result=lambda committed: committed.version, parameters=parameters
        )

    return commit_loop(log, Operation.SET_SORT_KEY, build)
