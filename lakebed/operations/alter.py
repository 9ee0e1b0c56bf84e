"""Changes what a table is, its schema, its properties or its sort key, in one commit: no file is read or written.

1. The change is applied to the newest schema (``schema.evolve``), which refuses what may not change and says why.
2. Metadata, the protocol if it needs another feature, and an entry for the history are committed. What others planned before a
   compatible change commits after it (``log.conflicts``).
3. Another change of metadata that came first is a conflict: the change is applied again, to what is newest then. What another
   process dropped or renamed in the same way meanwhile is left out.

What the table has already is left out too. So processes that make the same change at once agree, and one of them changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import orjson
import pyarrow as pa

from lakebed import events
from lakebed.column_groups import AGGREGATE, GROUPS, check_aggregates, check_groups
from lakebed.coordination.schema_history import entries_of, past_changes
from lakebed.errors import InvalidInput, InvalidSchema, Retry
from lakebed.iceberg.columns import require_known_columns, with_former_columns
from lakebed.iceberg.metadata import withdraw
from lakebed.log.actions import Action, Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import BLIND, Committed, ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.removals import purges_of
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog, require_writable
from lakebed.notebook import HtmlResult
from lakebed.operations.create import check_keep, check_sequence_names, check_settings, numbered_for_iceberg
from lakebed.planning.time_to_live import check_time_to_live
from lakebed.positions.positions import positions_of
from lakebed.positions.remarks import remarks_of
from lakebed.positions.source_columns import source_columns_of
from lakebed.remarks import Remark, remarks_on
from lakebed.schema.change import SchemaChange, steps_of
from lakebed.schema.column_mapping import StoredPath, stored_paths
from lakebed.schema.evolve import Evolved, evolve
from lakebed.settings import PREFIX, SORT_KEY_FRAME, check_changeable, read_settings, wrong_properties
from lakebed.sortkey.sort_key import frame_properties, parse_sort_key

_Wanted: TypeAlias = SchemaChange | Callable[[pa.Schema], SchemaChange]
"""A change, or what finds it from the newest logical schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterResult(HtmlResult):
    """What a change of the schema did."""

    version: int  # the newest one after it
    changed: bool  # whether there was anything to change
    notes: tuple[str, ...] = ()  # sentences for people, such as which readers can't read the table from now on


def alter(
    log: TableLog,
    change: _Wanted,
    *,
    reason: str = "",
    by_records: bool = False,
    require: Callable[[Snapshot], None] = lambda snapshot: None,
) -> AlterResult:
    """Change the schema; returns what was done. ``reason`` goes into the history; see ``evolve`` for what is refused.

    ``by_records``: whether records of a source need it. ``require`` raises for a version that the change was not meant for; it is
    asked before each attempt to commit.

    Raises InvalidSchema naming the column, what is wrong and the way out; Contention; StoreUnavailable, which says whether
    altering again is safe: a second time names might be swapped back, or a column that was added in place of one be dropped;
    Retry for a rename or drop while rows are being purged.
    """
    if not change:
        raise InvalidSchema("there is nothing to change; name what to add, widen, relax, rename, drop or comment on")
    first: list[Snapshot] = []

    def build(snapshot: Snapshot) -> Proposal[AlterResult] | Finished[AlterResult]:
        require(snapshot)
        wanted = change(snapshot.logical_schema) if callable(change) else change
        if (wanted.rename or wanted.drop) and any(
            one.where is not None for one in purges_of(snapshot.domains).values()
        ):
            raise Retry(
                "rows of the table are being purged, by a condition over columns as they are called now: rename and drop columns "
                "when that has ended",
                table=log.root,
            )
        if first and not callable(change):
            wanted = _without_done(wanted, first[0], snapshot)
        evolved = _evolved_by(snapshot, wanted)
        first.append(snapshot)
        if evolved.metadata is snapshot.metadata:
            return Finished(AlterResult(version=snapshot.version, changed=False, notes=evolved.notes))
        beside, notes = _of_old_rows(snapshot, wanted, log.now_ms(), by_records=by_records)
        notes = (*evolved.notes, *notes)
        if wanted.drop:
            beside = [*beside, with_former_columns(snapshot)]
        actions: list[Action] = [evolved.metadata, *entries_of(snapshot.domains, wanted, reason, log.now_ms()), *beside]
        if evolved.protocol is not snapshot.protocol:
            actions.insert(0, evolved.protocol)

        def result(committed: Committed) -> AlterResult:
            text = orjson.dumps(wanted.to_json()).decode()
            events.emit(events.SchemaChanged(table=log.root, version=committed.version, change=text, reason=reason))
            return AlterResult(version=committed.version, changed=True, notes=notes)

        parameters = wanted.to_json() | ({"reason": reason} if reason else {})
        access = ReadWriteSet(domains=frozenset(entry.domain for entry in beside))
        return Proposal(actions=actions, access=access, result=result, parameters=parameters)

    again = callable(change) or not (change.rename or change.drop)
    return commit_loop(log, Operation.ALTER, build, repeatable=again)


def _of_old_rows(
    snapshot: Snapshot, change: SchemaChange, now_ms: int, *, by_records: bool
) -> tuple[list[Domain], tuple[str, ...]]:
    """What a change says besides of rows that the table has: as entries, and for people."""
    if not change.add or not (snapshot.parts or snapshot.tail):
        return [], ()
    added = [steps[0] for steps in map(steps_of, change.add) if len(steps) == 1]
    before = remarks_of(snapshot)
    after = before.with_columns({path: path for path in change.add}, now_ms)
    is_fed = by_records and positions_of(snapshot)
    if is_fed and (back := _former_names(snapshot).intersection(change.add)):
        after = after.plus(remarks_on(Remark.RESNAPSHOT_ADVISED, dict.fromkeys(sorted(back), 1)), now_ms)
    entries = [source_columns_of(snapshot).with_added(added).to_entry()] if added else []
    if after == before:
        return entries, ()
    note = "rows that came before lack values that the source has: lakebed status says what to do"
    return [*entries, after.to_entry()], (note,)


def _former_names(snapshot: Snapshot) -> set[str]:
    """The paths of columns that were dropped or renamed in the table."""
    return {
        path
        for past in past_changes(snapshot.domains)
        for kind in ("drop", "rename")
        for path in past.change.get(kind, ())
    }


def cost_of(log: TableLog, change: SchemaChange) -> AlterResult:
    """What a change would cost; nothing is done. Raises InvalidSchema, Unsupported."""
    snapshot = log.refresh()
    return AlterResult(version=snapshot.version, changed=False, notes=_evolved_by(snapshot, change).notes)


def _evolved_by(snapshot: Snapshot, change: SchemaChange) -> Evolved:
    require_writable(snapshot.protocol)
    evolved = evolve(snapshot.metadata, snapshot.protocol, change)
    if evolved.metadata is snapshot.metadata:
        return evolved
    return replace(evolved, metadata=numbered_for_iceberg(evolved.metadata, evolved.protocol))


def _without_done(change: SchemaChange, first: Snapshot, now: Snapshot) -> SchemaChange:
    """The change without what another process dropped or renamed in the same way since ``first``."""
    before, after = stored_paths(first.metadata, first.protocol), stored_paths(now.metadata, now.protocol)
    present: Mapping[StoredPath, tuple[str, ...]] = {stored: path for path, stored in after.items()}

    def is_renamed(path: str, name: str) -> bool:
        found = present.get(before.get(steps_of(path), ()))
        return found is not None and found[-1] == name

    return replace(
        change,
        drop=tuple(path for path in change.drop if before.get(steps_of(path), ()) in present),
        rename={path: name for path, name in change.rename.items() if not is_renamed(path, name)},
    )


# -- Changes those properties of a table that may change -------------------------------------------------------------------


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
        check_keep(settings)
        if any(name == GROUPS or name.startswith(AGGREGATE) for name in properties):
            check_groups(settings, snapshot.logical_schema, snapshot.metadata.partition_columns)
            check_aggregates(settings, snapshot.logical_schema, snapshot.metadata.partition_columns)
        if GROUPS in properties:
            check_sequence_names(settings, snapshot.logical_schema)
        metadata = numbered_for_iceberg(replace(snapshot.metadata, configuration=merged), snapshot.protocol)
        if settings.iceberg and "lakebed.iceberg" in properties:
            require_known_columns(snapshot)
        return Proposal(
            actions=[metadata],
            access=BLIND,
            result=lambda committed: committed.version,
            parameters={"properties": dict(properties)},
        )

    version = commit_loop(log, Operation.SET_PROPERTIES, build)
    if "lakebed.iceberg" in properties and log.newest is not None and not log.newest.settings.iceberg:
        withdraw(log.store)  # if the process is killed before, the next cleanup does it
    return version


# -- Changes a table's sort key: the next version of it in the table's properties, and nothing else ------------------------
#
# It applies to all work that begins after it. A batch, a settle or a merge that had begun before still commits, in the old order:
# each part records the version of the sort key that sorted its rows. Parts of an earlier one are sorted later, by maintenance or
# a recluster job.


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
        check_settings(settings, snapshot.logical_schema, snapshot.metadata.partition_columns)
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
