"""Claims: who merges which parts until when, as entries of the log.

A claim in the log is *in flight*. It leaves the log *completed*, in the commit that puts its output in place of its
sources, or *abandoned*, in a commit of its own. A volatile part is a claim: its data exists nowhere else yet.

Invariants
- P1: when a claim is committed, its sources are parts of the base.
- P4: a part is a source of one claim at most. Whoever takes over an expired claim removes it in the commit that adds the
  new one; no clock is needed to check that.

A claim holds until its lease ends; its replica extends it while it lives (a heartbeat). A lease that has ended gives
others the right to take the sources over, nothing more: until one does, the claim may still be completed. A lease is
minutes long. One that ends more than a day from now was written by a clock that is ahead, and counts as ended: else a replica
that died would keep its parts from everybody until then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

from lakebed.log.actions import Domain
from lakebed.log.entries import CLAIM
from lakebed.log.entry_values import decoded

if TYPE_CHECKING:
    from lakebed.log.snapshot import Snapshot

LEASE_MS_MAX = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A merge under way, or a rewrite (``coordination.rewriting``)."""

    id: str
    replica: str
    sources: tuple[str, ...]  # paths of base parts; none of a rewrite
    level: int
    lease_ms: int  # the end of the lease (epoch milliseconds)
    since_ms: int = 0
    volatile: bool = False
    kind: str = ""  # merge, purge, recluster, resort, or the operation of a rewrite; empty if the claim does not say it
    # the merge has ended and its output is on the replica's disk, as of the last time that the lease was extended
    is_made: bool = False
    uploads: bool = False  # the output of a volatile claim is uploaded as soon as it is there

    @property
    def domain(self) -> str:
        return CLAIM + self.id

    @property
    def shown_kind(self) -> str:
        """``merge``, ``volatile``, or the operation of a rewrite."""
        return "volatile" if self.volatile else "merge" if self.sources else self.kind

    def is_live(self, now_ms: int) -> bool:
        """Whether the lease has not ended."""
        return now_ms < self.lease_ms <= now_ms + LEASE_MS_MAX

    def to_action(self) -> Domain:
        """The action that adds the claim to the log, or extends its lease."""
        return Domain(self.domain, self._configuration())

    def ended(self) -> Domain:
        """The action that removes the claim from the log. It keeps the description: the kind of a commit may follow from it."""
        return Domain(self.domain, self._configuration(), removed=True)

    def _configuration(self) -> str:
        value = {
            "replica": self.replica,
            "sources": list(self.sources),
            "level": self.level,
            "lease_ms": self.lease_ms,
            "since_ms": self.since_ms,
            "volatile": self.volatile,
            **({"kind": self.kind} if self.kind else {}),
            **({"is_made": True} if self.is_made else {}),
            **({"uploads": True} if self.uploads else {}),
        }
        return orjson.dumps(value).decode()


def claim_of(domain: str, configuration: str) -> Claim | None:
    """The claim in an entry of the log, None if the entry is something else. Raises Corrupt."""
    if not domain.startswith(CLAIM):
        return None
    return decoded(Claim, domain, configuration, id=domain.removeprefix(CLAIM))


def claims_of(domains: Mapping[str, str]) -> dict[str, Claim]:
    """All claims among a snapshot's domains, by id, also expired ones. Raises Corrupt."""
    found = (claim_of(domain, text) for domain, text in domains.items() if domain.startswith(CLAIM))
    return {claim.id: claim for claim in found if claim is not None}


def claimed_paths(snapshot: Snapshot, now_ms: int) -> frozenset[str]:
    """Paths of the parts that live claims have as sources."""
    live = (claim for claim in claims_of(snapshot.domains).values() if claim.is_live(now_ms))
    return frozenset(path for claim in live for path in claim.sources)
