"""Fingerprints of batches: a batch whose id was committed before is skipped only if it reads the same input.

Spark plans a batch in the checkpoint of the query, and the id says nothing about the input. Where two processes run one query
and its checkpoint is in an object store, where Spark's rename is not exclusive, both plan a batch of the same id, and the
later file replaces the other. A checkpoint that was put back from a copy, or lost its last files with the machine, does
the same. To skip such a batch by its id alone would lose what only it has read.

1. The commit of a batch has its id and a fingerprint of the ranges that it read, in an entry under the name of the query.
   Only the last batch is kept, some 100 bytes.
2. A batch whose id the table has is skipped if it is that last one and has the same fingerprint. Otherwise the query ends.

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
    """A short text; other ranges have another one."""
    return hashlib.sha256(json.dumps(sorted(map(astuple, ranges))).encode()).hexdigest()[:16]


def fingerprint_entry(batch: Transaction, fingerprint: str) -> Domain:
    """The entry of the log that holds it."""
    return Domain(batch.app_id, json.dumps({"batch": batch.version, "fingerprint": fingerprint}))


def require_same(snapshot: Snapshot, batch: Transaction, fingerprint: str) -> None:
    """Raises InvalidInput if a batch that the table has is not the one that has come again now."""
    text = snapshot.domains.get(batch.app_id)
    if text is None:
        return
    known = json.loads(text)
    if (known["batch"], known["fingerprint"]) == (batch.version, fingerprint):
        return
    raise InvalidInput(
        f"batch {batch.version} of this pipeline is in the table, but not with what it would read now (the newest there is batch "
        f"{known['batch']}): another process runs this pipeline too, or its checkpoint is older than the table. To go on would "
        "lose records. Run one process a pipeline. Where the checkpoint was put back or damaged, set 'checkpoint' to a new "
        "folder and begin early enough in the source: in a table with keys what comes again changes nothing"
    )
