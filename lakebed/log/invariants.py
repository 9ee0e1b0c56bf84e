"""The invariants, each with its id, its text and, where a commit can be checked against it, its predicate.

1. A writer checks a commit before it is written (``require_sound``): one that would break an invariant is refused as Corrupt.
2. A reader checks each commit that it reads of a table that only lakebed writes (``report_violations``). It goes on reading: the
   commit is a version of the table, and the violation is reported.
3. Both emit ``events.InvariantViolated``, which is counted as ``lakebed_invariant_violations_total``.
4. The tests' auditors and ``lakebed verify --self`` use the same predicates.

docs/invariants.md has the same ids and texts, and says what keeps each invariant and which tests show it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson

from lakebed import events
from lakebed.errors import Corrupt
from lakebed.log.actions import (
    AddChangePart,
    AddPart,
    ChangePart,
    Commit,
    Domain,
    Part,
    RemoveChangePart,
    RemovePart,
    Transaction,
)
from lakebed.log.claims import Claim, claim_of, claims_of
from lakebed.log.commit_kind import restores
from lakebed.log.snapshot import Snapshot
from lakebed.schema.column_mapping import MAX_ID, columns_of, misfit, numbers_stay
from lakebed.schema.metadata import Metadata, Protocol

Check = Callable[[Snapshot, Commit], Iterator[str]]
_logger = logging.getLogger("lakebed.invariants")


@dataclass(frozen=True, slots=True)
class _Invariant:
    """What is always true of a table. ``check``: yields how a commit breaks it; None if a commit alone can't show that."""

    id: str
    text: str
    check: Check | None = None


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that a commit breaks, by its id, and how."""

    invariant: str
    detail: str


def violations(before: Snapshot, commit: Commit) -> list[Violation]:
    """The invariants that the commit breaks; empty for a sound commit.

    The cost depends on the commit's size. For a commit that settles, the tail is read too; for one that claims, all claims.
    """
    return [
        Violation(one.id, detail) for one in INVARIANTS.values() if one.check for detail in one.check(before, commit)
    ]


def require_sound(before: Snapshot, commit: Commit, table: str) -> None:
    """Raises Corrupt, naming the invariants, if the commit would break one. ``table``: its root, for the event."""
    found = violations(before, commit)
    if found:
        _emit(found, table, commit.version, "write")
        text = "; ".join(f"{violation.invariant}: {violation.detail}" for violation in found[:5])
        raise Corrupt(
            f"version {commit.version} was not written because it would break the table: {text}",
            table=table,
            version=commit.version,
            invariants=tuple(dict.fromkeys(violation.invariant for violation in found)),
        )


def report_violations(before: Snapshot, commit: Commit, table: str) -> None:
    """Report which invariants a commit that was read breaks, by events and in the log."""
    try:
        found = violations(before, commit)
    except Corrupt:
        return  # an entry that can't be read: whoever needs it raises, and lakebed verify --self reports it
    if found:
        _emit(found, table, commit.version, "read")


def _emit(found: list[Violation], table: str, version: int, when: str) -> None:
    for violation in found:
        _logger.error(
            "version %d of %s breaks invariant %s: %s",
            version,
            table,
            violation.invariant,
            violation.detail,
            extra=events.ALSO_AN_EVENT,
        )
        events.emit(
            events.InvariantViolated(
                table=table, invariant=violation.invariant, version=version, detail=violation.detail, when=when
            )
        )


def _log_has_no_gap(before: Snapshot, commit: Commit) -> Iterator[str]:
    if commit.version != before.version + 1:
        yield f"version {commit.version} can't follow {before.version}"


def _batch_is_committed_once(before: Snapshot, commit: Commit) -> Iterator[str]:
    for action in commit.actions:
        if isinstance(action, Transaction) and action.version <= before.transaction_version(action.app_id):
            yield f"batch {action.version} of {action.app_id} is committed already"


def _base_changes_add_up(before: Snapshot, commit: Commit) -> Iterator[str]:
    removed = {action.path: action for action in commit.actions if isinstance(action, RemovePart)}
    may_revive = restores(commit)
    for path, action in removed.items():
        part = before.parts.get(path)
        if part is None:
            yield f"{path} is removed but is not in the base"
        elif part.deletion_vector != action.deletion_vector:
            yield f"{path} is removed with another deletion vector than it has"
    for part, data_change in ((a.part, a.data_change) for a in commit.actions if isinstance(a, AddPart)):
        earlier = before.parts.get(part.path)
        same_dead_rows = earlier is not None and part.deletion_vector == earlier.deletion_vector
        if earlier and part.path not in removed and (data_change or not same_dead_rows):
            yield f"{part.path} is added but is in the base already"  # but for its statistics alone
        if earlier and part.path in removed and same_dead_rows:
            yield f"{part.path} is removed and added with the same dead rows: some readers would treat it as removed"
        if part.deletion_vector and not 0 < part.deletion_vector.dead_rows <= part.rows:
            yield f"{part.path} has {part.rows} rows but {part.deletion_vector.dead_rows} dead ones"
        if earlier and earlier.dead_rows > part.dead_rows and not may_revive:
            yield f"dead rows of {part.path} would become live again ({earlier.dead_rows} to {part.dead_rows})"
        if part.deletes > part.dead_rows:
            yield f"{part.path} has {part.deletes} delete rows but only {part.dead_rows} dead ones"
        if part.min_block > part.max_block or part.max_block > commit.version:
            yield f"{part.path} has the block range [{part.min_block}, {part.max_block}] in version {commit.version}"


def _tail_is_left_in_order(before: Snapshot, commit: Commit) -> Iterator[str]:
    removed = {action.domain for action in commit.actions if isinstance(action, RemoveChangePart)}
    moved = {action.part.domain for action in commit.actions if isinstance(action, AddChangePart)}  # gets another place
    for domain in sorted(removed - before.tail.keys()):
        yield f"{domain} leaves the tail but is not in it"
    if removed:
        newest = max((before.tail[domain].order for domain in removed if domain in before.tail), default=None)
        oldest = min(
            (part.order for domain, part in before.tail.items() if domain not in removed | moved), default=None
        )
        if newest is not None and oldest is not None and newest > oldest:
            yield f"a change part of version {newest[0]} leaves the tail before one of version {oldest[0]}"
    places: dict[int, str] = {}
    for part in (action.part for action in commit.actions if isinstance(action, AddChangePart)):
        if part.version != commit.version:
            yield f"{part.path} joins the tail as version {part.version} in version {commit.version}"
        if part.ordinal in places:
            yield f"{part.path} has the same place in the order of changes as {places[part.ordinal]}"
        places[part.ordinal] = part.path


def _claimed_parts_are_in_the_base(before: Snapshot, commit: Commit) -> Iterator[str]:
    for claim in _claims_added(before, commit):
        for path in claim.sources:
            if path not in before.parts:
                yield f"claim {claim.id} has the source {path}, which is not in the base"


def _rearranging_keeps_the_live_rows(before: Snapshot, commit: Commit) -> Iterator[str]:
    """The part of S2 that a log can show."""
    removed = {a.path for a in commit.actions if isinstance(a, RemovePart) and not a.data_change}
    if not removed:
        return
    added = [a.part for a in commit.actions if isinstance(a, AddPart) and not a.data_change]
    live_before = sum(before.parts[path].live_rows for path in removed if path in before.parts)
    live_after = sum(part.live_rows for part in added if part.path in removed or part.path not in before.parts)
    if live_before != live_after:
        yield f"{len(removed)} parts with {live_before} live rows are replaced by {live_after} rows"


def _part_is_claimed_once(before: Snapshot, commit: Commit) -> Iterator[str]:
    new = _claims_added(before, commit)
    if not new:
        return
    touched = {action.domain for action in commit.actions if isinstance(action, Domain)}
    claimed = {
        path: claim.id
        for claim in claims_of(before.domains).values()
        if claim.domain not in touched
        for path in claim.sources
    }
    for claim in new:
        for path in claim.sources:
            if path in claimed:
                yield f"{path} is claimed by {claimed[path]} and by {claim.id}"
            claimed[path] = claim.id


def _parts_stay_readable(before: Snapshot, commit: Commit) -> Iterator[str]:
    """What a change of the schema alone can show. Changes are rare, so one may look at all parts."""
    metadata = next((action for action in commit.actions if isinstance(action, Metadata)), None)
    if metadata is None:
        return
    protocol = next((action for action in commit.actions if isinstance(action, Protocol)), before.protocol)
    known, columns = before.columns, columns_of(metadata, protocol)
    parts: list[Part | ChangePart] = [*before.parts.values(), *before.tail.values()]
    if not parts or (known.stored, known.field_ids) == (columns.stored, columns.field_ids):
        return
    if why := misfit(known.stored, columns.stored):
        yield f"parts could not be read by the new schema: {why}"
    yield from numbers_stay(known.field_ids, columns.field_ids, int(before.metadata.configuration.get(MAX_ID, 0)))
    before_names = set(known.stored.names)
    for name in columns.stored.names:
        if name not in before_names:
            mark = orjson.dumps(name).decode() + ":"
            used = next((part.path for part in parts if part.stats and mark in part.stats), None)
            if used is not None:
                yield f"the new column has the stored name {name!r}, and {used} has values of an earlier column of that name"


def _claims_added(before: Snapshot, commit: Commit) -> list[Claim]:
    """Claims that the commit brings or whose sources it changes; a heartbeat is none of these."""
    claims = []
    for action in commit.actions:
        if isinstance(action, Domain) and not action.removed:
            claim = claim_of(action.domain, action.configuration)
            known = before.domains.get(action.domain)
            earlier = claim_of(action.domain, known) if claim and known else None
            if claim and (earlier is None or earlier.sources != claim.sources):
                claims.append(claim)
    return claims


INVARIANTS: dict[str, _Invariant] = {
    one.id: one
    for one in (
        _Invariant("M1", "A version is written once. A reader of version V sees all of V's commit or none."),
        _Invariant("M2", "Replaying commits from any checkpoint gives the same snapshot."),
        _Invariant("M3", "A batch id is committed at most once per table and query.", _batch_is_committed_once),
        _Invariant(
            "M4",
            "A commit is acknowledged, and read as a version, only on the log that it was made for. No clock "
            "decides that: while the version that was read is in the log, no later name ever became free again.",
        ),
        _Invariant(
            "M5",
            "The log has no gap: the commit of each version follows the version before it, from version 0 or a "
            "checkpoint on, up to the newest checkpoint at least.",
            _log_has_no_gap,
        ),
        _Invariant(
            "M6",
            "A record of a source with offsets is in the table if and only if its offset is below the table's position: "
            "once, whatever becomes of the checkpoint, and however many processes read. The same holds for each file of a "
            "folder: once, and not at all if it may be one that the table has forgotten. Its changes are in the order of the "
            "batch's list, whatever tasks read them.",
        ),
        _Invariant(
            "M7",
            "The kind of a commit follows from its actions: its `commitInfo` gives identity and time, and decides "
            "nothing.",
        ),
        _Invariant("B1", "A key is live at most once in the base."),
        _Invariant("B2", "Base ⊖ tail ⊕ newest tail rows = the change stream applied in order."),
        _Invariant(
            "B3",
            "A live row is not older than a delete of its key that the base remembers: every live row can be "
            "changed and deleted.",
        ),
        _Invariant(
            "B4",
            "Applying the change rows in their order (with the sequence, where there is one) gives the table; a "
            "change that lacks values is among them once it is settled.",
        ),
        _Invariant(
            "B5",
            "A commit's changes to the base add up: a part that it removes is there with that deletion vector, a "
            "part that it adds is new or replaces itself, dead rows stay dead (unless an earlier version is restored) and "
            "are no more than the rows, and no part holds rows of a later version.",
            _base_changes_add_up,
        ),
        _Invariant(
            "B6",
            "No update is lost: each row that a mutation of a table with keys changes is changed from what it is just before "
            "the mutation's commit.",
        ),
        _Invariant(
            "T1",
            "Change parts join the tail as the version of their commit, each at a place of its own in the order "
            "of changes, and leave it oldest first.",
            _tail_is_left_in_order,
        ),
        _Invariant(
            "T2",
            "At the version that settling up to a version returns, the base has exactly the rows and columns that"
            " the table had at that version.",
        ),
        _Invariant(
            "C1",
            "Every part is readable by the schema of every version that refers to it: it has the schema's columns in their "
            "types or in narrower ones, or was written before they were added; no stored name is given twice.",
            _parts_stay_readable,
        ),
        _Invariant(
            "P1", "Every source of a claim is in the base when the claim is committed.", _claimed_parts_are_in_the_base
        ),
        _Invariant("P2", "A part is volatile or materialized, never both."),
        _Invariant(
            "P3",
            "A commit that only rearranges rows leaves as many live rows as it found: a part leaves the base only "
            "in the commit that adds what replaces it.",
            _rearranging_keeps_the_live_rows,
        ),
        _Invariant("P4", "No part is a source of two claims.", _part_is_claimed_once),
        _Invariant(
            "Q1",
            "A table that fails, or whose store does not answer, delays the maintenance of no other table of the "
            "process.",
        ),
        _Invariant(
            "Q2",
            "Whichever workers are believed to own a table, its rows are those of the change stream, and its "
            "claims end.",
        ),
        _Invariant(
            "Q3",
            "No change waits longer than its table's `lakebed.freshness` even if two workers are killed, with threads and a "
            "store that answer, clocks that agree, and a table that the others have known of for two beats.",
        ),
        _Invariant(
            "J1",
            "A job is ended only by the runner and the attempt that have taken it.",
        ),
        _Invariant(
            "J2",
            "A job that may not run twice is not taken over.",
        ),
        _Invariant(
            "X1",
            "A table of a database that fails, hangs or can't be made stops no other table of it, and delays none"
            " by more than the time of one batch.",
        ),
        _Invariant("X2", "What fails for all tables of a database parks none of them."),
        _Invariant("X3", "A parked table goes on where it stopped, with nothing lost or twice, whoever resumes it."),
        _Invariant(
            "X4",
            "At the end of a resnapshot with `mirror` the table has the rows that the source has; at no time is a "
            "row removed that came again, and what comes late wins over the removal.",
        ),
        _Invariant(
            "W1",
            "At a point each table that is in it has every event of every transaction up to the point, and none "
            "of a later one.",
        ),
        _Invariant("W2", "Points only grow; the newest one may be taken again, with tables that were left out of it."),
        _Invariant("W3", "At the versions that a settled point names every Delta reader sees the rows of the point."),
        _Invariant("W4", "A table that is not in a point is named in it with the reason, and can't be read there."),
        _Invariant(
            "W5",
            "No cleanup of a table deletes what a kept point of its database needs: every kept point can be read, "
            "and so can the versions of settled ones.",
        ),
        _Invariant(
            "W6",
            "No point has a table that has not read all that its topic had when a batch was planned, so no rows "
            "of a snapshot are missing in it.",
        ),
        _Invariant(
            "R1",
            "A restore shows exactly the rows of the version that it restores, and the versions in between stay as they "
            "were.",
        ),
        _Invariant(
            "R2",
            "A row leaves for its age only if its newest value is older than the time to live of the table; once nothing "
            "changes any more, none that old is left.",
        ),
        _Invariant(
            "R3",
            "After a purge has ended, no file of the table's folder that was there before its rows were out has one of "
            "them, and the log begins after that.",
        ),
        _Invariant(
            "L1",
            "A layer has each change of its upstream once, in order, whatever becomes of the checkpoint, and "
            "however many processes read.",
        ),
        _Invariant("L2", "No cleanup deletes what a live reader of changes has not read."),
        _Invariant(
            "L5",
            "A listener gets the events of every version of a table at least once and in order, or one `resync` "
            "in place of those that the log no longer has.",
        ),
        _Invariant("L3", "What `transform` gives does not depend on where batches end."),
        _Invariant("L4", "The rows of `bootstrap` and the positions are in one commit."),
        _Invariant(
            "S1",
            "Within a part rows are in the order of the sort key whose version the part records, and its bounds "
            "hold for every live row; its sort-key range also leaves deletes out, unless all columns of the sort key are keys.",
        ),
        _Invariant("S2", "A merge preserves the live rows, also those that change while it runs."),
        _Invariant(
            "E1",
            "Merges end: every merge that is planned lowers a measure that is bounded below and does not depend "
            "on statistics.",
        ),
        _Invariant(
            "G1",
            "A file is deleted only if no version within retention and no held version refers to it, nor does the "
            "tail, a claim or a detached part of these; an empty live set means stop, unless the log has the "
            "commit that emptied the table, or that of a purge which recorded that no part was left. Files without a "
            "name go only when the store's own clock calls them older than writing takes, or, in a purge, when they "
            "were listed before the fence of the log was raised; no property lowers that.",
        ),
        _Invariant("F1", "A part is what its writer wrote before anything is made of it."),
        _Invariant("F2", "No file is skipped because of a bound that does not hold for all its values."),
        _Invariant(
            "N1",
            "User names and internal names never meet: queries call columns `c0`, `c1`, …; elsewhere internal "
            "names begin with `_lakebed_`, which no column name may.",
        ),
        _Invariant(
            "U1",
            "One row in, one row out: a user's expression gives one value for each live row, and fails on no dead one.",
        ),
        _Invariant("U2", "Users' SQL reaches the table it is for and nothing else, unless `allow_files` says so."),
        _Invariant(
            "D1", "Every record becomes change rows, a quarantined record or a truncate, or is counted; none raises."
        ),
        _Invariant(
            "D4",
            "What a record becomes depends on it, the schema and the settings, not on the records beside it: what "
            "decoding by columns accepts, decoding record by record decodes to the same bits.",
        ),
        _Invariant(
            "D5",
            "A record is left out for a truncate only if all that is known (offset in its partition, place in the "
            "source's log, clock) says that it came before. A truncate that an earlier batch applied leaves "
            "nothing out.",
        ),
        _Invariant(
            "D6",
            "A quarantined record is applied by at most one replay, and stays in the quarantine until it is applied.",
        ),
        _Invariant(
            "D7",
            "The operation of every record is an upsert, a delete, ignored by the rules of its format, or "
            "quarantined; one that is not known is never guessed.",
        ),
        _Invariant(
            "D8",
            "A record of a batch is in the table or in the quarantine, never in both or in neither, whatever ends "
            "the process between their commits, whatever schema and settings there are when the batch comes again, and "
            "whoever reads it too.",
        ),
        _Invariant(
            "D9",
            "A change of the schema costs a stream one more reading of the batch that met it, and later batches "
            "nothing.",
        ),
        _Invariant(
            "D10",
            "A row that an incremental snapshot of PostgreSQL sends never hides a change that commits later,"
            " whatever transactions are open.",
        ),
        _Invariant(
            "D11",
            "No row of a snapshot hides a change that commits later: of PostgreSQL, Oracle and SQL Server, also "
            "of a transaction that was open during the initial snapshot.",
        ),
        _Invariant(
            "A1",
            "Both ways of reading Avro give the same rows and the same errors, for all bytes; what the native "
            "reader of Protobuf is sure of, google.protobuf reads to the same values.",
        ),
        _Invariant(
            "A2",
            "A record that is not exactly one value of its writer's schema is an error, and changes no other record.",
        ),
        _Invariant(
            "A3",
            "What an Avro record takes in memory is bounded by its bytes and the schema: no count or length is "
            "trusted, and values that take no bytes are counted.",
        ),
    )
}
