"""Which records of a batch are in the quarantine already, since it was committed there and not yet in the table.

The quarantine is committed before the batch. If the process dies in between, the batch comes again. By then the table may have
another schema, or the format other settings, so that other records fit. A record must not be in both, nor in none:

1.  The commit of the quarantine says which records of the batch it has: their offsets, in an entry under the query's name. Only
    the entry of the last batch is kept.
2.  A batch that comes again leaves these records out, also if a replay has applied them since.
3.  What it quarantines beside them is committed to the quarantine under an id of its own.

Records without offsets (lines of files, rows) are not known by name; there the batch must decode to the same as before.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from lakebed.manifest.actions import Domain, Transaction
from lakebed.manifest.snapshot import Snapshot

AGAIN = ".again."
"""Between the name of a query and the number of a batch: the id of what the batch quarantined when it came again."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Records, by topic and partition. Mutable only by ``add``, which the one who made it calls."""

    by_partition: dict[tuple[str, int], BitMap64] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_partition)

    def add(self, records: pa.Table) -> None:
        """Add records (with ``topic``, ``partition`` and ``offset``); those without an offset are left out."""
        known = records.filter(pc.and_(records["topic"].is_valid(), records["offset"].is_valid()))
        places = known.select(["topic", "partition"]).group_by(["topic", "partition"]).aggregate([])
        for topic, partition in zip(places["topic"].to_pylist(), places["partition"].to_pylist(), strict=True):
            here = pc.and_(pc.equal(known["topic"], topic), pc.equal(known["partition"], partition))
            offsets = np.asarray(known.filter(here)["offset"], np.uint64)
            self.by_partition.setdefault((topic, partition), BitMap64()).update(offsets.tolist())

    def add_all(self, other: Offsets) -> None:
        """Add those of another batch or task."""
        for place, offsets in other.by_partition.items():
            self.by_partition.setdefault(place, BitMap64()).update(offsets)

    def without(self, records: pa.Table) -> pa.Table:
        """The records that are not among these."""
        for (topic, partition), offsets in self.by_partition.items():
            here = pc.and_(pc.equal(records["topic"], topic), pc.equal(records["partition"], partition))
            if pc.any(here).as_py():
                listed = pa.array(np.frombuffer(offsets.to_array(), np.uint64).astype(np.int64))
                known = pc.and_(pc.fill_null(here, False), pc.is_in(records["offset"], value_set=listed))
                records = records.filter(pc.invert(known))
        return records

    def to_json(self) -> list[tuple[str, int, str]]:
        """(topic, partition, offsets), as JSON has it."""
        out = []
        for (topic, partition), offsets in sorted(self.by_partition.items()):
            offsets.run_optimize()
            out.append((topic, partition, base64.b64encode(offsets.serialize()).decode()))
        return out

    @staticmethod
    def from_json(listed: list[tuple[str, int, str]]) -> Offsets:
        """The inverse of ``to_json``."""
        found = {(topic, number): BitMap64.deserialize(base64.b64decode(text)) for topic, number, text in listed}
        return Offsets(found)


@dataclass(frozen=True, slots=True)
class QuarantinedBefore:
    """What earlier attempts at a batch have in the quarantine; ``attempts``: those that committed something there."""

    offsets: Offsets
    attempts: int

    def entry(self, batch: Transaction, more: Offsets) -> tuple[Transaction, Domain]:
        """The id and the entry with which the next attempt commits more records of the batch."""
        whole = Offsets()
        for offsets in (self.offsets, more):
            whole.add_all(offsets)
        known = {"batch": batch.version, "attempts": self.attempts + 1, "offsets": whole.to_json()}
        batch_id = batch if not self.attempts else Transaction(f"{batch.app_id}{AGAIN}{batch.version}", self.attempts)
        return batch_id, Domain(batch.app_id, json.dumps(known))


NOTHING_BEFORE = QuarantinedBefore(Offsets(), 0)


def quarantined_before(quarantine: Snapshot, batch: Transaction) -> QuarantinedBefore:
    """What the quarantine has of a batch that is not in the table."""
    text = quarantine.domains.get(batch.app_id)
    entry: dict[str, Any] = json.loads(text) if text else {}
    if entry.get("batch") != batch.version:
        return NOTHING_BEFORE
    return QuarantinedBefore(Offsets.from_json(entry["offsets"]), entry["attempts"])
