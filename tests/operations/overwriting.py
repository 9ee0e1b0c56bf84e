"""An overwrite whose rows are written by tasks, without Spark: the tasks are functions of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

import lakebed
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.operations.overwrite import Overwriting, Tasks
from lakebed.operations.region import region_where
from lakebed.parts.changes import OP_COLUMN, WriteSpec, prepare, stored_rows, write_spec_of
from lakebed.parts.write import WrittenPart, write_parts
from lakebed.resolve.locate import KeyLocator, ScanLocator
from lakebed.sql import require_true
from lakebed.storage.engine import connect
from lakebed.table import internals_of


def overwrite_by_tasks(
    table: lakebed.Table,
    rows: pa.Table,
    where: str | None = None,
    meanwhile: Callable[[], object] = lambda: None,
    beside_look_ups: Callable[[], object] = lambda: None,
) -> int:
    """Overwrite a table.

    ``meanwhile`` runs when the rows are written, as if that had taken long; ``beside_look_ups`` before each look-up by tasks.
    """
    inside = internals_of(table)

    def write(snapshot: Snapshot) -> Sequence[WrittenPart]:
        spec = write_spec_of(snapshot)
        prepared = prepare(rows, spec.incoming, connect())
        if (condition := region_where(snapshot, where).rows) is not None:
            require_true(condition, prepared)
        prepared = prepared.drop_columns([OP_COLUMN]) if spec.keys else prepared
        written = list(write_parts(stored_rows(prepared, spec), spec, inside.storage))
        meanwhile()
        return written

    def locator(spec: WriteSpec) -> KeyLocator:
        beside_look_ups()
        return ScanLocator(spec, inside.storage)

    return Overwriting(
        log=inside.log,
        storage=inside.storage,
        deletion_vectors=inside.deletion_vectors,
        settle=inside.settler.settle,
        locator=inside.locators.for_settling,
        tasks=Tasks(write=write, check=inside.partitions().require_not_live, locator=locator),
        operation=Operation.OVERWRITE,
        region_of=lambda snapshot: region_where(snapshot, where),
    ).run()
