"""Mends the keys of a table that differ from the source: ``lakebed verify SHOP.yml --repair``.

Of ``KEYS_AT_ONCE`` keys:

1. The sequences of their rows in the table are read, then the keys are compared once more. What follows is about those that still
   differ.
2. A row that the source does not have is deleted, unless its sequence is above the one that was read first. A row that has come
   since has a greater one, so it stays, and the delete has the sequence of its row, so whatever comes later wins.
3. The connector is asked for the rows of the other keys (``pipeline.database.resnapshot``). They come through the table's topic
   with a greater sequence than all that the table has, and the table's log says when all of them are in.
4. The keys are compared once more. What still differs then has a cause that sends it again the same way.

Nothing is written that did not come through the topic, but for the deletes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import duckdb
import pyarrow as pa

from lakebed.decode.debezium.snapshots import SnapshotProgress
from lakebed.errors import InvalidInput, LakebedError, Retry
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.operations.mutate import run_mutation, why_not
from lakebed.operations.mutation import Mutation
from lakebed.parts.changes import OLDEST_SEQUENCE, SEQUENCE_COLUMN
from lakebed.pipeline.database.resnapshot import Asking, Sent
from lakebed.positions.resnapshots import Resnapshot, active, resnapshot_of
from lakebed.quoting import literal, quote
from lakebed.sql import expression
from lakebed.table.internals import Internals
from lakebed.verify.canonical import DUCKDB, Shape, key_texts, put
from lakebed.verify.comparing import Key
from lakebed.verify.proof import Proof
from lakebed.verify.report import Repaired

KEYS_AT_ONCE = 1_000
AT_ONCE = 100
"""Keys in one condition: what DuckDB does for one of keys of several columns grows with the square of their number."""
_ROWS = "lakebed_surplus"
_HIDDEN = pa.field(SEQUENCE_COLUMN, pa.int64())
_SEQUENCE = f"coalesce({SEQUENCE_COLUMN}, {OLDEST_SEQUENCE})"


class Sender(Protocol):
    """Has rows of the source sent again."""

    def __call__(self, keys: Sequence[Key], /) -> None:
        """Return when the table has all of them. Raises Retry, InvalidInput."""
        ...


def repair(
    keys: Sequence[Key],
    proof: Proof,
    internals: Internals,
    shape: Shape,
    snapshot: Callable[[], Snapshot],
    send: Sender,
) -> Repaired:
    """Mend keys, and compare them once more. An error ends it early, and is in what it returns: what was mended stays so.

    Args:
        keys: Those that differed.
        proof: Compares them.
        internals: The table.
        shape: What is compared of it.
        snapshot: Returns the version of the table that the proof has read last.
        send: Has rows sent again.
    """
    out = Repaired()
    for begin in range(0, len(keys), KEYS_AT_ONCE):
        some = keys[begin : begin + KEYS_AT_ONCE]
        try:
            _repair(some, proof, internals, shape, snapshot, send, out=out)
        except LakebedError as error:
            out.error, out.left = str(error), out.left + len(keys) - begin
            break
    return out


def _repair(
    some: Sequence[Key],
    proof: Proof,
    internals: Internals,
    shape: Shape,
    snapshot: Callable[[], Snapshot],
    send: Sender,
    *,
    out: Repaired,
) -> None:
    first, bounds = snapshot(), dict[Key, int]()
    for each in _chunks(some, AT_ONCE):
        bounds |= _sequences(internals, first, shape, each)
    differing = proof.again(some).differing
    surplus = [key for key, kind in differing.items() if kind == "surplus"]
    if surplus and (why := why_not(snapshot())):
        out.kept, surplus = why, []
    for each in _chunks(surplus, AT_ONCE):
        out.removed += _remove(internals, shape, {key: bounds[key] for key in each if key in bounds})
    if others := [key for key, kind in differing.items() if kind != "surplus"]:
        send(others)
        out.sent_again += len(others)
    found = proof.again(some)
    out.left += found.differing_keys + len(found.unsettled)
    out.shown += found.differences
    out.last_position = found.last_position


def _chunks(keys: Sequence[Key], size: int) -> Iterator[Sequence[Key]]:
    return (keys[begin : begin + size] for begin in range(0, len(keys), size))


def _sequences(internals: Internals, snapshot: Snapshot, shape: Shape, keys: Sequence[Key]) -> dict[Key, int]:
    """The greatest sequence of the rows of each key, of which the table has a row."""
    texts = ", ".join(key_texts(shape, DUCKDB, of_source=False))
    where = " or ".join(_is(shape, key) for key in keys)
    query = f"select {texts}, max({_SEQUENCE}) from {_ROWS} where {where} group by all"

    def run(connection: duckdb.DuckDBPyConnection, parts: int) -> dict[Key, int]:
        return {tuple(key): int(sequence) for *key, sequence in connection.execute(query).fetchall()}

    return internals.view.rows_for_sql(snapshot, _ROWS, [_HIDDEN], expression(where, "the keys that differ"), run)


def _remove(internals: Internals, shape: Shape, bounds: dict[Key, int]) -> int:
    """Delete the rows of some keys up to these sequences; returns how many there were."""
    if not bounds:
        return 0
    where = " or ".join(f"({_is(shape, key)} and {_SEQUENCE} <= {bound})" for key, bound in bounds.items())
    mutation = Mutation(expression(where, "where"), sees_sequence=True)
    return run_mutation(
        internals.path,
        internals.log,
        internals.storage,
        internals.deletion_vectors,
        internals.view.rows_for_sql,
        mutation,
    ).rows


def _literal(text: str) -> str:
    """SQL that is kept can't have a NUL."""
    return (
        "(" + " || chr(0) || ".join(literal(one) for one in text.split("\0")) + ")" if "\0" in text else literal(text)
    )


def _is(shape: Shape, key: Key) -> str:
    pairs = zip(shape.keys, shape.of_keys, key, strict=True)
    return "(" + " and ".join(f"{quote(one.name)} = {put(of.lake, _literal(text))}" for one, of, text in pairs) + ")"


# -- The rows of some keys are sent again by the connector, and the table has all of them ----------------------------------


PAUSE_SECONDS = 0.5
_SIGNAL_BYTES_MAX = 500_000
"""Of what is asked for at once: a record of Kafka has a megabyte at most, unless its brokers say otherwise."""


@dataclass(slots=True, kw_only=True)
class Resending:
    """Of one table. See ``repair.Sender``."""

    asking: Asking
    table: str
    log: TableLog
    condition: Callable[[Sequence[Key]], str]  # what is true of the rows of some keys, in the source's SQL
    wait_seconds: float
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def __call__(self, keys: Sequence[Key]) -> None:
        """Ask for the rows of some keys, and wait for them. Raises Retry, InvalidInput."""
        if len(keys) > 1 and len(json.dumps(self.condition(keys))) > _SIGNAL_BYTES_MAX:
            self(keys[: len(keys) // 2])
            self(keys[len(keys) // 2 :])
        else:
            self._send(keys)

    def _send(self, keys: Sequence[Key]) -> None:
        found = active(self.log.refresh())
        if found is not None and not self._is_lost(found):
            raise Retry(
                f"rows of {self.table} are being sent again already (lakebed status); repair it when they have come"
            )
        sent = self.asking.send([self.table], self.condition(keys), mirror=False)
        done = self._followed(sent)
        if done.was_aborted or self.table in done.failed:
            why = done.failed.get(self.table, "the snapshot was stopped before its end")
            raise InvalidInput(f"the connector sends no rows of {self.table}: {why}")
        until = self.clock() + self.wait_seconds
        while True:
            found = resnapshot_of(self.log.refresh())
            if found is None or found.id != sent.signal_id:
                raise Retry(f"somebody else has rows of {self.table} sent again; repair it when they have come")
            if found.state == "failed":
                raise InvalidInput(f"the rows of {self.table} that were sent again did not come: {found.error}")
            if not found.is_active:
                return
            if self.clock() >= until:
                raise Retry(f"{self.table} has not got the rows that the connector sent again: does its pipeline run?")
            self.tell(f"waiting for rows of {self.table} that were sent again")
            self.sleep(PAUSE_SECONDS)

    def _is_lost(self, found: Resnapshot) -> bool:
        """Whether nothing came of it for so long that whoever asked was probably killed before the connector heard of it.

        If the rows come after all, that does no harm: nothing else is to be done at their end.
        """
        began = found.state != "asked" or not found.is_partial or found.mirror_from is not None
        return not began and self.log.now_ms() - found.asked_ms > self.wait_seconds * 1000

    def _followed(self, sent: Sent) -> SnapshotProgress:
        """The connector may stop in the midst, and then it says no more."""
        until = self.clock() + self.wait_seconds

        def tell(text: str) -> None:
            nonlocal until
            until = self.clock() + self.wait_seconds
            self.tell(text)

        def waiting() -> None:
            self.sleep(0)  # ends with this process, if it is to
            if self.clock() >= until:
                raise Retry(f"the connector has stopped sending rows of {self.table} again: does it run?")

        return self.asking.follow(sent, tell, waiting)
