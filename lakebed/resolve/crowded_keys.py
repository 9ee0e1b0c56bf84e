"""Keys with several rows, in a transaction of the source that was settled in part; and the entry of the log that keeps them.

A settle can cut a transaction of the source in two. If a row has come to a key whose own row has not left yet, the table shows
the row that came, and the entry says that one more will leave (``parts.key_moves``). The key leaves the entry when changes of it
are settled again. An entry of a key that never changes again is of no use, and does no harm: changes of another transaction do
not look at it. So the newest ``KEYS_MAX`` are kept, and ``SINGLE_KEYS_MAX`` of keys that have one row. These are kept because a
connector that dies begins its last transaction again.

Values of keys are not in the entry, only digests of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import orjson

from lakebed.log.actions import Domain
from lakebed.log.entries import CROWDED_KEYS
from lakebed.log.entry_values import decoded
from lakebed.log.snapshot import Snapshot

KEYS_MAX, SINGLE_KEYS_MAX = 10_000, 1_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """``more`` rows of a key will leave in a transaction. ``place``: of the newest change of the key in the source's log;
    ``deletes``: whether that is a delete.

    ``more`` may be 0: then only the place says something, in case that the change is sent again.
    """

    transaction: int
    more: int
    place: int | None = None
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class CrowdedKeys:
    """By the digest of a key, oldest first."""

    keys: Mapping[str, Crowd]

    def after(self, settled: Collection[str], crowded: Mapping[str, Crowd]) -> CrowdedKeys:
        """What is left once changes of some keys are settled, of which some are crowded."""
        left = {**{key: crowd for key, crowd in self.keys.items() if key not in settled}, **crowded}
        single = [key for key, one in left.items() if not one.more]
        for key in single[:-SINGLE_KEYS_MAX]:
            del left[key]
        return CrowdedKeys(dict(list(left.items())[-KEYS_MAX:]))

    def to_entry(self) -> Domain:
        """The entry; it is removed if there are no keys."""
        if not self.keys:
            return Domain(CROWDED_KEYS, "", removed=True)
        keys = {
            key: {"transaction": one.transaction, "more": one.more, "place": one.place, "deletes": one.deletes}
            for key, one in self.keys.items()
        }
        return Domain(CROWDED_KEYS, orjson.dumps({"keys": keys}).decode())


NONE_CROWDED = CrowdedKeys({})


def crowded_keys_of(snapshot: Snapshot) -> CrowdedKeys:
    """Those that the log has. Raises Corrupt."""
    text = snapshot.domains.get(CROWDED_KEYS)
    return NONE_CROWDED if text is None else decoded(CrowdedKeys, CROWDED_KEYS, text)
