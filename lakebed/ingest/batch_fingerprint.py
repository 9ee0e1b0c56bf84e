"""Fingerprints of batches: a batch whose id was committed before is skipped only if it reads the same input.

Spark records its plan of a batch in the query's checkpoint. The batch id does not identify the input, and two batches
can get the same id in two ways:

- Two processes run one query, and its checkpoint is in an object store, where Spark's rename is not exclusive. Both plan
  a batch with this id, and the later file replaces the earlier one.
- The checkpoint was restored from a copy, or lost its last files when a machine failed.

To skip such a batch by its id alone would lose the records that only it read. So:

1. The commit of a batch carries its id, and a fingerprint of the ranges that it read in an entry under the name of the
   query. Only the entry of the last batch is kept, about 100 bytes.
2. A batch whose id is in the table is skipped if it is that last batch and has the same fingerprint. Otherwise the
   query ends.

A source without ranges (files, rows) has no fingerprint; there the id alone decides.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import astuple

from lakebed.errors import InvalidInput
from lakebed.ingest.source import Range
from lakebed.manifest.actions import Domain, Transaction
from lakebed.manifest.snapshot import Snapshot


def batch_fingerprint(ranges: Iterable[Range]) -> str:
    """A short digest of the ranges, whatever their order; different ranges have different digests."""
    return hashlib.sha256(json.dumps(sorted(map(astuple, ranges))).encode()).hexdigest()[:16]


def fingerprint_entry(batch: Transaction, fingerprint: str) -> Domain:
    """The entry of the log that holds the fingerprint."""
    return Domain(batch.app_id, json.dumps({"batch": batch.version, "fingerprint": fingerprint}))


def require_same(snapshot: Snapshot, batch: Transaction, fingerprint: str) -> None:
    """Raises InvalidInput if the committed batch with this id read other input than ``fingerprint`` stands for."""
    text = snapshot.domains.get(batch.app_id)
    if text is None:
        return
    last = json.loads(text)
    if (last["batch"], last["fingerprint"]) == (batch.version, fingerprint):
        return
    raise InvalidInput(
        f"batch {batch.version} of this pipeline is in the table, but with other input than it has now (the last batch in "
        f"the table is {last['batch']}): another process runs this pipeline too, or its checkpoint is older than the "
        "table. To continue would lose records. Run one process per pipeline. If the checkpoint was restored or damaged, "
        "set 'checkpoint' to a new folder and begin early enough in the source: a table with keys is not changed by "
        "records that it reads again"
    )
