"""Has the rows of some keys sent again by the connector, and waits until their table has all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lakebed.decode.debezium.snapshots import SnapshotProgress
from lakebed.errors import InvalidInput, Retry
from lakebed.log.table_log import TableLog
from lakebed.pipeline.database.resnapshot import Asking, Sent
from lakebed.positions.resnapshots import Resnapshot, active, resnapshot_of
from lakebed.verify.comparing import Key

PAUSE_SECONDS = 0.5
SIGNAL_BYTES_MAX = 500_000
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
        if len(keys) > 1 and len(json.dumps(self.condition(keys))) > SIGNAL_BYTES_MAX:
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
