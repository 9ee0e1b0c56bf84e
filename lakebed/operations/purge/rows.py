"""Finds the rows that a purge is about, in every file of every version, and writes parts again without them.

Which rows: those for which the condition is true, live or dead; and in a table with keys all dead rows of the same keys, such as
deletes and changes that lacked values, that came before the purge. A live row for which the condition is false stays, whatever it
was before. A delete that came since stays too, also in a part with older rows: late changes must still lose against it.

1. Files are looked at once each: a file never changes. Bounds in the log rule most of them out. The keys of the rows found are
   collected.
2. The dead rows of these keys are looked up in the base, as a settle does.
3. A part with dead rows that go is written again without them, alone and in the same level. Its live rows stay, so the commit is
   that of a merge: what died since is carried over by provenance, and other readers and writers take it for one. Claims on the
   part end in this commit.
4. So are the parts of detached partitions. There a row that is not dead goes too if the condition is true of it.

**The quarantine.** Records are found that are about the rows that a purge takes out of the table beside it. A quarantined record
could not be decoded, so nothing says for certain whose it is. It goes if its bytes, those of its headers, or the reason that it
was refused for, have

- a JSON member of a key's column with the key's value: ``"id": 7``, of all columns of the key; or
- a text of a key, or a text that the condition compares a column with, of ``_TEXT_LENGTH_MIN`` characters or more; or
- if the user gives a condition of his own (``quarantine=``), what that says.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from lakebed.errors import Contention, Corrupt, InvalidInput
from lakebed.far_times import python_rows
from lakebed.log.actions import Action, AddChangePart, AddPart, Commit, Part
from lakebed.log.claims import claims_of
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.merge.kernel import MergedPart, MergeSource, merge_parts
from lakebed.operations.references import kept_version
from lakebed.operations.region import Detached, detached_of
from lakebed.parts.changes import WriteSpec, write_spec_of
from lakebed.parts.deletion_vector_cache import DeletionVectorCache
from lakebed.parts.part_filter import parts_that_may_match
from lakebed.parts.quarantine import HEADERS
from lakebed.parts.row_origins import ROW, numbered, row_versions
from lakebed.quoting import literal, quote
from lakebed.resolve.locate import KeyLocator
from lakebed.schema.column_mapping import misfit
from lakebed.sql import Expression, condition, connection_for, mistakes, registered
from lakebed.storage.engine import connect, naming_unreadable
from lakebed.storage.part_storage import PartStorage

_MEMORY_BYTES_MAX = 512 << 20
_WHOLE = 1 << 62
"""A part is written again as one part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PurgeCondition:
    """What a purge looks for. ``columns``: the users' names of columns in ``where``, by stored names."""

    where: Expression
    columns: Mapping[str, str]

    def named(self, spec: WriteSpec) -> pa.Schema:
        """The table's schema with these names; columns that came since have names that no user can give."""
        fields = zip(spec.schema.names, spec.incoming.schema, strict=True)
        return pa.schema([each.with_name(self.columns.get(stored, f"_lakebed_{stored}")) for stored, each in fields])


@dataclass(slots=True, kw_only=True)
class RowsToPurge:
    """What was found of a purge so far. One thread at a time."""

    log: TableLog
    storage: PartStorage
    deletion_vectors: DeletionVectorCache
    which: PurgeCondition
    locator: Callable[[WriteSpec], KeyLocator]
    scanner: Callable[[WriteSpec], KeyLocator]
    clock: Callable[[], float] = time.time
    matching: dict[str, BitMap64] = field(default_factory=dict)  # the rows for which the condition is true, by path
    keys: pa.Table | None = None  # the keys of these rows
    until: int = 1 << 62  # dead rows of these keys go if they came in this version or an older one
    seen: int = 1 << 62  # all that versions up to this one brought was looked at
    _of_keys: dict[str, BitMap64] = field(default_factory=dict)
    _keys_looked_up: dict[str, int] = field(default_factory=dict)  # by path: of how many of the keys its rows are known

    # -- finding -----------------------------------------------------------------------------------------------------

    def look_at(self, parts: Iterable[Part], snapshot: Snapshot, *, may_be_gone: bool = False) -> None:
        """Find the rows of files that were not looked at yet. Raises InvalidInput, Corrupt.

        ``may_be_gone``: what can't be read and is not there any more has no rows.
        """
        new = [part for part in parts if part.path not in self.matching]
        spec = write_spec_of(snapshot)
        named = self.which.named(spec)
        may_match = new
        if named.names == spec.incoming.schema.names:
            where, statistics = self.which.where, self.log.statistics
            may_match = parts_that_may_match(connect(), new, spec.schema, where, statistics, snapshot.columns)
        self.matching |= {part.path: BitMap64() for part in new}
        for part in may_match:
            try:
                rows, keys = found_in(part, spec, named, self.which.where, self.storage)
            except Corrupt:
                if not may_be_gone or self.storage.exists(part.path):
                    raise
                del self.matching[part.path]
                continue
            self.matching[part.path] = rows
            if keys is not None and len(keys):
                self._add_keys(keys, spec)

    def look_on(self, snapshot: Snapshot) -> list[str]:
        """Look at what versions brought since ``seen``, also at what has left again; returns the paths."""
        parts: dict[str, Part] = {}
        with suppress(Contention):  # what left the log meanwhile is looked at when its files go
            for commit in self.log.commits_since(self.seen, snapshot.version):
                parts |= {part.path: part for part in _parts_of_commit(commit)}
        self.look_at(parts.values(), snapshot, may_be_gone=True)
        self.seen = snapshot.version
        return list(parts)

    def rows_in(self, paths: Iterable[str]) -> dict[str, int | None]:
        """By path, of how many rows the condition is true; None where that can't be told. Only of files not looked at before."""
        rows: dict[str, int | None] = {}
        for path in paths:
            if path not in self.matching and path.endswith(".parquet"):
                try:
                    self.look_at([Part(path=path, rows=-1, bytes=0)], self.log.refresh(), may_be_gone=True)
                    rows[path] = len(self.matching.get(path, ()))
                except (InvalidInput, Corrupt):  # nobody was told before, and the rows are out: it goes all the same
                    rows[path] = None
        return rows

    def _add_keys(self, keys: pa.Table, spec: WriteSpec) -> None:
        schema = pa.schema([spec.schema.field(name) for name in spec.keys])
        before = schema.empty_table() if self.keys is None else self.keys.cast(schema)
        known = set(map(tuple, zip(*before.to_pydict().values(), strict=True)))
        rows = list(zip(*keys.to_pydict().values(), strict=True))
        new = [at for at, row in enumerate(rows) if row not in known]
        self.keys = pa.concat_tables([before, keys.cast(schema).take(pa.array(new, pa.int64()))])

    def going(self, part: Part) -> tuple[BitMap64, BitMap64]:
        """The rows of a part that go: those that are live, and those that are dead. It must have been looked at."""
        dead = self.deletion_vectors.of(part)
        matching = self.matching[part.path]
        return matching - dead, (matching | self._of_keys_before(part)) & dead

    def _of_keys_before(self, part: Part) -> BitMap64:
        """The rows of the keys that came before the purge."""
        rows = self._of_keys.get(part.path, BitMap64())
        if part.min_block > self.until:
            return BitMap64()
        if part.max_block <= self.until or not rows:
            return rows
        numbers = np.frombuffer(rows.to_array(), np.uint64).astype(np.int64)
        oldest, _ = row_versions(part, numbers, self.storage)
        return BitMap64(numbers[oldest <= self.until].astype(np.uint64))

    def _seek_keys(self, parts: Mapping[str, Part], spec: WriteSpec, *, in_base: bool) -> None:
        """Find the rows of the keys in parts, dead or live."""
        if self.keys is None or not spec.keys:
            return
        count = len(self.keys)
        seen = {path: self._keys_looked_up.get(path, 0) for path in parts}
        missing = {path: part for path, part in parts.items() if seen[path] < count}
        if not missing:
            return
        from_key = min(seen[path] for path in missing)
        keys = self.keys.slice(from_key).cast(pa.schema([spec.schema.field(name) for name in spec.keys]))
        found = (self.locator if in_base else self.scanner)(spec).lookup(parts if in_base else missing, keys)
        for path, row in zip(found["part"].to_pylist(), found["row"].to_pylist(), strict=True):
            self._of_keys.setdefault(path, BitMap64()).add(row)
        self._keys_looked_up |= dict.fromkeys(missing, count)

    def rows_by_file(self) -> dict[str, int]:
        """How many rows of each file go, for those of which any does."""
        paths = self.matching.keys() | self._of_keys.keys()
        rows = {path: self.matching.get(path, BitMap64()) | self._of_keys.get(path, BitMap64()) for path in paths}
        return {path: len(each) for path, each in rows.items() if each}

    def look_at_all(self, snapshot: Snapshot) -> None:
        """Find the rows in all that a version has: its base, its tail, and what is detached."""
        spec = write_spec_of(snapshot)
        tail = [part.settled(None) for part in snapshot.tail.values()]
        detached = {part.path: part for one in detached_of(snapshot).values() for part in one.parts}
        self.look_at([*snapshot.parts.values(), *tail, *detached.values()], snapshot)
        self._seek_keys(snapshot.parts, spec, in_base=True)
        self._seek_keys(detached, spec, in_base=False)

    def is_clean(self, snapshot: Snapshot) -> bool:
        """Whether no file that the version refers to has a row that goes."""
        self.look_at_all(snapshot)
        detached = [part for one in detached_of(snapshot).values() for part in one.parts]
        if any(any(self.going(part)) for part in (*snapshot.parts.values(), *detached)):
            return False
        return not any(self.matching[part.path] for part in snapshot.tail.values())

    # -- writing again -----------------------------------------------------------------------------------------------

    def rewrite_base(self, snapshot: Snapshot) -> None:
        """Write each part of the base again that has dead rows that go. It must have been looked at."""
        for part in snapshot.parts.values():
            if self.going(part)[1]:
                self._rewrite(part.path)

    def rewrite_detached(self, snapshot: Snapshot) -> None:
        """Write the parts of detached partitions again that have rows that go."""
        for one in detached_of(snapshot).values():
            if any(any(self.going(part)) for part in one.parts):
                self._rewrite_detached(one)

    def _written(self, part: Part, purged: BitMap64, dead: BitMap64, snapshot: Snapshot) -> list[MergedPart]:
        keeps_deletes = snapshot.keeps_deletes(part, int(self.clock() * 1000))
        url = self.storage.duckdb_url(part.path)
        source = MergeSource(part, dead, keeps_deletes=keeps_deletes, url=url, purged=purged)
        connection = connect(_MEMORY_BYTES_MAX, threads=1)
        return merge_parts(
            [source], write_spec_of(snapshot), self.storage, connection, rows_max=_WHOLE, bytes_max=_WHOLE
        )

    def _rewrite(self, path: str) -> None:
        """Step 3. Raises Corrupt, Contention, StoreUnavailable."""
        read = self.log.refresh()
        part = read.parts.get(path)
        if part is None:
            return
        dead, spec = self.deletion_vectors.of(part), write_spec_of(read)
        merged = self._written(part, self.going(part)[1], dead, read)

        def discard() -> None:
            self.storage.delete_many([each.path for each in merged])

        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
            now = snapshot.parts.get(path)
            dead_now = self.deletion_vectors.of(now) if now else BitMap64()
            # A restore may have made rows live again that were not written.
            if now is None or not dead <= dead_now or not spec.fits(write_spec_of(snapshot)):
                discard()
                return Finished(None)  # what is there in its place is looked at in the next round
            died = dead_now - dead
            claims = [claim for claim in claims_of(snapshot.domains).values() if path in claim.sources]
            actions: list[Action] = [now.removed(int(self.clock() * 1000), data_change=False)]
            actions += [AddPart(one, data_change=False) for one in self._parts(now, merged, died)]
            actions += [claim.ended() for claim in claims]
            access = ReadWriteSet(
                parts={path: now.partition_key},
                claimed=frozenset([path]),  # a claim that comes first must end too
                domains=frozenset(claim.domain for claim in claims),
            )
            return Proposal(actions=actions, access=access, result=lambda committed: None)

        commit_loop(self.log, Operation.PURGE, build, discard=discard)

    def _parts(self, of: Part, merged: Sequence[MergedPart], died: BitMap64) -> Iterator[Part]:
        """The parts in place of one; ``died``: its rows that died since it was read."""
        dead = {one.path: BitMap64(one.dead) | one.provenance.map_rows(0, died) for one in merged}
        vectors = self.deletion_vectors.write({path: rows for path, rows in dead.items() if rows})
        for one in merged:
            if len(dead[one.path]) == one.rows and not one.deletes:
                continue
            part = replace(
                of,
                path=one.path,
                rows=one.rows,
                bytes=one.bytes,
                stats=one.stats,
                checksum=one.checksum,
                sort_key_version=one.sort_key_version,
                deletes=one.deletes,
                has_op_column=one.has_op_column,
                deletes_ms=of.newest_delete_ms if one.deletes else None,
                modified_ms=int(self.clock() * 1000),
                passes=one.passes,
                deletion_vector=None,
                spelling=None,
            )
            yield part.marked(vectors.get(one.path))

    def _rewrite_detached(self, one: Detached) -> None:
        """Step 4. Raises InvalidInput if the parts don't fit the table any more."""
        read = self.log.refresh()
        spec = write_spec_of(read)
        if misfit(one.stored, read.schema):
            raise InvalidInput(
                f"the detached partition {one.name!r} has rows to purge, but its columns don't fit the table any more, so it "
                "can't be written again: drop it first (drop_detached)"
            )
        written: list[MergedPart] = []
        parts: list[Part] = []
        for part in one.parts:
            live, dead = self.going(part)
            if live or dead:
                going = self.deletion_vectors.of(part) | live
                merged = self._written(part, live | dead, going, read)
                written += merged
                parts += self._parts(part, merged, BitMap64())
            else:
                parts.append(part)

        def discard() -> None:
            self.storage.delete_many([each.path for each in written])

        def build(snapshot: Snapshot) -> Proposal[None] | Finished[None]:
            if snapshot.domains.get(one.domain) != read.domains.get(one.domain) or not spec.fits(
                write_spec_of(snapshot)
            ):
                discard()
                return Finished(None)
            return Proposal(
                actions=[replace(one, schema=read.metadata.schema_string, parts=tuple(parts)).to_action()],
                result=lambda committed: None,
            )

        commit_loop(self.log, Operation.PURGE, build, discard=discard)


def found_in(
    part: Part, spec: WriteSpec, named: pa.Schema, where: Expression, storage: PartStorage
) -> tuple[BitMap64, pa.Table | None]:
    """The rows of a file for which ``where`` is true, dead or live, and the keys of these rows (stored names)."""
    connection = connection_for(storage, [part.path])
    try:
        with naming_unreadable([part.path]), mistakes(f"where={where.text!r}", [part.path]):
            query = f"select {ROW} from ({numbered(part, spec.schema, storage, named)}) where {condition(where)}"
            rows = BitMap64(connection.sql(query).to_arrow_table()[ROW].to_numpy().astype(np.uint64))
    except InvalidInput as error:
        raise error.with_text(
            f"{error} (in {part.path}, perhaps in a row that was replaced or deleted since: a purge looks at these too; write "
            "the condition so that it fails on no row, for example with try_cast)"
        ) from None
    if not rows or not spec.keys:
        return rows, None
    wanted = pa.table({"row": np.frombuffer(rows.to_array(), np.uint64).astype(np.int64)})
    columns = ", ".join(map(quote, spec.keys))
    with naming_unreadable([part.path]), registered(connection, "lakebed_rows", wanted):
        of_part = numbered(part, spec.schema, storage)
        keys = connection.sql(
            f"select distinct {columns} from ({of_part}) where {ROW} in (select row from lakebed_rows)"
        ).to_arrow_table()
    return rows, keys


def parts_of_versions(log: TableLog, first: int, newest: Snapshot) -> Iterator[Part]:
    """Every part that a version from ``first`` on has: base, tail, and what is detached. Raises Contention."""
    oldest = kept_version(log, first)
    for snapshot in (oldest, newest):
        yield from snapshot.parts.values()
        yield from (part.settled(None) for part in snapshot.tail.values())
        yield from (part for one in detached_of(snapshot).values() for part in one.parts)
    for commit in log.commits_since(first, newest.version):
        yield from _parts_of_commit(commit)


def _parts_of_commit(commit: Commit) -> Iterator[Part]:
    for action in commit.actions:
        match action:
            case AddPart(part, _):
                yield part
            case AddChangePart(change_part):
                yield change_part.settled(None)
            case _:
                pass


_TEXT_LENGTH_MIN = 6
_KEYS_MAX = 1000
_SPACE = r"(\s|\\x0A|\\x0D|\\x09)*"
_BYTES = "(coalesce(value::varchar, '') || ' ' || coalesce(key::varchar, '')"
_HEADERS = " || ' ' || coalesce(array_to_string([one.value::varchar for one in headers], ' '), '')"


def condition_of_quarantine(
    keys: pa.Table | None, snapshot: Snapshot, where: Expression, given: str | None, quarantine: Snapshot
) -> str | None:
    """A condition over the quarantine's columns; None if no record can be meant. ``keys``: of the rows, by stored names.

    Raises InvalidInput for more than ``_KEYS_MAX`` keys, unless ``given`` says which records go.
    """
    if given is not None:
        return given
    if keys is not None and len(keys) > _KEYS_MAX:
        raise InvalidInput(
            f"the rows to purge have {len(keys):,} keys, too many to look for in the records of the quarantine (at most "
            f"{_KEYS_MAX:,}): say which records go (quarantine='true' for all), or purge fewer rows at once"
        )
    everything = f"{_BYTES}{_HEADERS if HEADERS in quarantine.logical_schema.names else ''})"
    texts = {text for text in _compared(where.tree) if len(text) >= _TEXT_LENGTH_MIN}
    members = []
    for row in python_rows(keys) if keys is not None else ():
        named = {snapshot.columns.logical_name(name): value for name, value in row.items()}
        members.append(" and ".join(f"regexp_matches({everything}, {literal(_member(*one))})" for one in named.items()))
        texts |= {value for value in named.values() if isinstance(value, str) and len(value) >= _TEXT_LENGTH_MIN}
    anywhere = [
        f"contains({everything}, {literal(_as_blob_text(text))}) or contains(coalesce(reason, ''), {literal(text)})"
        for text in sorted(texts)
    ]
    conditions = [*(f"({one})" for one in members), *anywhere]
    return " or ".join(conditions) or None


def _member(column: str, value: Any) -> str:
    """A pattern for a member of a JSON object, as DuckDB spells bytes that are no plain characters."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    quote = re.escape(_as_blob_text('"'))
    name, shown = re.escape(_as_blob_text(column)), re.escape(_as_blob_text(text.strip('"')))
    return f"{quote}{name}{quote}{_SPACE}:{_SPACE}({quote})?{shown}({quote})?{_SPACE}[,}}]"


def _as_blob_text(text: str) -> str:
    r"""A text as DuckDB casts its bytes to one: quotes, backslashes and what is not plain ASCII as ``\xNN``."""
    return "".join(
        chr(each) if 32 <= each <= 126 and chr(each) not in "\\'\"" else f"\\x{each:02X}" for each in text.encode()
    )


def _compared(node: Any) -> Iterator[str]:
    """The texts that a condition compares columns with."""
    if isinstance(node, Mapping):
        if node.get("type") in ("COMPARE_EQUAL", "COMPARE_IN"):
            yield from _constants(node)
        for value in node.values():
            yield from _compared(value)
    elif isinstance(node, list):
        for value in node:
            yield from _compared(value)


def _constants(node: Mapping[str, Any]) -> Iterator[str]:
    sides = [node.get("left"), node.get("right"), *node.get("children", ())]
    for side in sides:
        if isinstance(side, Mapping) and side.get("type") == "VALUE_CONSTANT":
            found = side.get("literal", {})
            if found.get("kind") == "STRING":
                yield found["text"]
