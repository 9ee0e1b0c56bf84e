"""What each kind of job does, by the verbs of a table, and which arguments it takes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lakebed.compaction.recluster_job import ReclusterProgress
from lakebed.operations.drop import drop
from lakebed.table import Table
from lakebed.table.table import internals_of

Schema: TypeAlias = Mapping[str, Any]
Report: TypeAlias = Callable[[Mapping[str, Any]], object]
Stop: TypeAlias = Callable[[], bool]

_AGE: Schema = {"type": "string", "maxLength": 100}
_TRUTH: Schema = {"type": "boolean"}
_WHERE: Schema = {"type": "string", "maxLength": 10_000}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAction:
    """``run`` takes the table, the arguments, where it reports how far it is, and whether it shall stop; returns the result.

    ``arguments``: the JSON Schema of each. ``required``: those that must be given. ``summary``: for people.
    ``is_repeatable``: it may be begun again if its runner died, and nothing is done twice to the table's harm. ``is_private``:
    its arguments may have values of rows, so the log must not have them. ``ends_table``: there is no log when it has succeeded.
    ``destroys``: it deletes what no later job brings back, so people are asked once more.
    """

    summary: str
    run: Callable[[Table, Mapping[str, Any], Report, Stop], Mapping[str, Any]]
    arguments: Mapping[str, Schema] = dataclasses.field(default_factory=dict)
    required: tuple[str, ...] = ()
    is_repeatable: bool = True
    is_private: bool = False
    ends_table: bool = False
    destroys: bool = False


def _settle(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    return fields_of(table.settle())


def _compact(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    return fields_of(table.maintenance.compact())


def _resume(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    return {"resumed": table.maintenance.resume()}


def _recluster(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    def progress(far: ReclusterProgress) -> None:
        report(fields_of(far))

    done = table.maintenance.recluster(**arguments, on_progress=progress, stop=stop)
    return fields_of(done)


def _cleaned(files: pa.Table) -> Mapping[str, Any]:
    return {"files": len(files), "bytes": pc.sum(files["bytes"]).as_py() or 0}


def _expire(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    return _cleaned(table.maintenance.expire_snapshots(**arguments, dry_run=False))


def _vacuum(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    return _cleaned(table.maintenance.vacuum(**arguments, dry_run=False))


def _remove_orphan_files(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    return _cleaned(table.maintenance.remove_orphan_files(**arguments, dry_run=False))


def _restore(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    return {"version": table.restore(**arguments)}


def _expire_rows(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    expired = table.maintenance.expire_rows(dry_run=False)
    return {"parts": len(expired), "rows": pc.sum(expired["expired_rows"]).as_py() or 0}


def _purge(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    where, force, quarantine = arguments["where"], arguments.get("force", False), arguments.get("quarantine")
    found = table.purge(where, force=force, quarantine=quarantine)
    return {"files": len(found), "files_left": found["gone_at"].null_count, "rows": pc.sum(found["rows"]).as_py() or 0}


def _drop(table: Table, arguments: Mapping[str, Any], report: Report, stop: Stop) -> Mapping[str, Any]:
    internals = internals_of(table)
    return {"files": drop(internals.log, internals.storage)}


DROP = "drop"
ACTIONS: Mapping[str, JobAction] = {
    "settle": JobAction(summary="settle the tail, so that every Delta reader sees it", run=_settle),
    "compact": JobAction(summary="merge parts until the plan is empty", run=_compact),
    "resume": JobAction(summary="let the table, if it is parked, and its parked merges go on at once", run=_resume),
    "recluster": JobAction(
        summary="sort parts together, so that fewer cover a point of the sort key",
        run=_recluster,
        arguments={"where": _WHERE, "final": _TRUTH},
    ),
    "expire_snapshots": JobAction(
        summary="expire old versions: delete their log files and data files",
        run=_expire,
        arguments={"older_than": _AGE, "retain_last": {"type": "integer", "minimum": 1, "maximum": 1_000_000}},
        destroys=True,
    ),
    "vacuum": JobAction(
        summary="delete data files of old versions, and orphans",
        run=_vacuum,
        arguments={"retention": _AGE},
        destroys=True,
    ),
    "remove_orphan_files": JobAction(
        summary="delete files that no version refers to",
        run=_remove_orphan_files,
        arguments={"older_than": _AGE},
        destroys=True,
    ),
    "restore": JobAction(
        summary="make the table what it was at an earlier version, in one commit",
        run=_restore,
        arguments={
            "version": {"type": "integer", "minimum": 0, "maximum": 2**53},
            "timestamp": {"type": ["string", "number"], "maxLength": 100},
        },
        is_repeatable=False,
        destroys=True,
    ),
    "expire_rows": JobAction(
        summary="remove the rows whose time to live (lakebed.ttl) has ended", run=_expire_rows, destroys=True
    ),
    "purge": JobAction(
        summary="erase rows for good: no file keeps a byte of them",
        run=_purge,
        arguments={"where": _WHERE, "force": _TRUTH, "quarantine": _WHERE},
        required=("where",),
        is_private=True,
        destroys=True,
    ),
    DROP: JobAction(summary="delete the table with all its files", run=_drop, ends_table=True, destroys=True),
}


def fields_of(result: Any) -> dict[str, Any]:
    """The fields of a result, as JSON has them."""
    out = {field.name: getattr(result, field.name) for field in dataclasses.fields(result)}
    return {name: _plain(value) for name, value in out.items()}


def _plain(value: Any) -> Any:
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else value
