"""The actions that remove parts from the base for good, for truncate, detach and the replacement of a partition.

A claim on such a part ends in the same commit (P1): its merge finds the claim gone and drops its output.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from lakebed.log.actions import Action, Domain, Part, RemoveChangePart
from lakebed.log.claims import claims_of
from lakebed.log.commit_kind import truncated
from lakebed.log.snapshot import Snapshot
from lakebed.positions.positions import entry_of, positions_of
from lakebed.positions.remarks import sent_again


def removals(snapshot: Snapshot, parts: Iterable[Part], now_ms: int) -> list[Action]:
    """The removal of these parts of the base, and the end of every claim on one of them."""
    going = {part.path: part for part in parts}
    actions: list[Action] = [part.removed(now_ms) for part in going.values()]
    claims = claims_of(snapshot.domains).values()
    actions += [claim.ended() for claim in claims if not going.keys().isdisjoint(claim.sources)]
    return actions


def all_removals(snapshot: Snapshot, now_ms: int) -> list[Action]:
    """The removal of all base parts and of the tail, in the commit of the next version, and the entry that records it."""
    actions = removals(snapshot, snapshot.parts.values(), now_ms)
    actions += [RemoveChangePart(domain) for domain in snapshot.tail]
    return [*actions, truncated(snapshot.version + 1)]


def order_forgotten(snapshot: Snapshot, now_ms: int) -> list[Domain]:
    """What the commit that empties a table says of the order of its changes: without rows none of them loses."""
    positions = positions_of(snapshot)
    entries = [entry_of(topic, replace(one, newest={})) for topic, one in positions.items() if one.newest]
    return [*entries, *sent_again(snapshot, now_ms + 1)]
