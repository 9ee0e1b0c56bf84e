"""What cleanups and readers of old versions tell each other, as entries of the log.

- A reader's *lease*, ``lakebed.lease.<uuid>``: until when it needs a version.
- The *mark*, ``lakebed.expired``: versions before it have expired, and their files may be gone. It only moves forward.

A cleanup commits the mark before it deletes anything, a reader commits its lease before it reads, and each gives way to the
other's commit. So one of them always comes first: the cleanup sees the lease and leaves the version alone, or the reader
sees the mark and is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from lakebed.errors import VersionNotFound
from lakebed.manifest.actions import Domain
from lakebed.manifest.entries import EXPIRED, LEASE


@dataclass(frozen=True, slots=True)
class Lease:
    """A version that a reader holds until ``until_ms`` (epoch milliseconds)."""

    id: str
    version: int
    until_ms: int

    @property
    def domain(self) -> str:
        return LEASE + self.id

    def is_live(self, now_ms: int) -> bool:
        """Whether the reader still holds the version."""
        return now_ms < self.until_ms

    def to_action(self) -> Domain:
        """What puts the lease into the log."""
        return Domain(self.domain, orjson.dumps({"version": self.version, "until_ms": self.until_ms}).decode())

    def ended(self) -> Domain:
        """What takes the lease out of the log."""
        return Domain(self.domain, "", removed=True)


def leases_of(domains: Mapping[str, str]) -> list[Lease]:
    """All leases among a snapshot's domains, also those that have ended."""
    leases = []
    for domain, text in domains.items():
        if domain.startswith(LEASE):
            value = orjson.loads(text)
            leases.append(Lease(domain.removeprefix(LEASE), value["version"], value["until_ms"]))
    return leases


def leased_versions(domains: Mapping[str, str], now_ms: int) -> frozenset[int]:
    """Versions that readers hold now."""
    return frozenset(lease.version for lease in leases_of(domains) if lease.is_live(now_ms))


def first_unexpired(domains: Mapping[str, str]) -> int:
    """The mark: files of versions before this one may be gone."""
    text = domains.get(EXPIRED)
    return int(orjson.loads(text)["before"]) if text else 0


def expired_before(version: int) -> Domain:
    """What moves the mark to a version."""
    return Domain(EXPIRED, orjson.dumps({"before": version}).decode())


def require_unexpired(domains: Mapping[str, str], version: int, now_ms: int) -> None:
    """Raises VersionNotFound for a version whose files may be gone; one that a reader holds is there."""
    first = first_unexpired(domains)
    if version < first and version not in leased_versions(domains, now_ms):
        raise VersionNotFound(
            f"version {version} has expired: a cleanup deleted its files; the oldest version that is kept is {first}",
            version=version,
            oldest=first,
        )
