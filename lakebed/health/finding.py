"""A finding: what is wrong with a table, how bad it is, where, and what to do about it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from lakebed.notebook import html_table

_FINDINGS_SCHEMA = pa.schema(
    [
        ("severity", pa.string()),
        ("check", pa.string()),
        ("where", pa.string()),
        ("what", pa.string()),
        ("remedy", pa.string()),
    ]
)


class Severity(Enum):
    """How bad a finding is. ``WARNING``: no row is wrong, but an operator has to act. ``CRITICAL``: rows may be lost, wrong or
    unreadable.
    """

    OK = "ok"
    WARNING = "warning"
    CRITICAL = "critical"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    severity: Severity
    check: str  # the id of the invariant (docs/invariants.md), or the name of another check (docs/operations.md)
    where: str  # a file or a version; empty for the table as a whole
    what: str  # a sentence
    remedy: str  # a command, or what to do

    def __str__(self) -> str:
        return f"{self.severity.value}: {self.check}{' ' + self.where if self.where else ''}: {self.what}"


def critical(check: str, where: str, what: str, remedy: str) -> Finding:
    return Finding(severity=Severity.CRITICAL, check=check, where=where, what=what, remedy=remedy)


def warning(check: str, where: str, what: str, remedy: str) -> Finding:
    return Finding(severity=Severity.WARNING, check=check, where=where, what=what, remedy=remedy)


def worst(findings: Iterable[Finding]) -> Severity:
    """The severity of all together."""
    found = {finding.severity for finding in findings}
    return next((severity for severity in (Severity.CRITICAL, Severity.WARNING) if severity in found), Severity.OK)


def counted(findings: Iterable[Finding]) -> Counter[tuple[str, str]]:
    """How many there are, by check and severity."""
    return Counter((finding.check, finding.severity.value) for finding in findings)


def html_findings(findings: Sequence[Finding]) -> str:
    """The findings for a notebook, worst first; nothing if there is none."""
    worst_first = sorted(findings, key=lambda finding: finding.severity is not Severity.CRITICAL)
    rows = [(each.severity.value, each.check, each.where, each.what, each.remedy) for each in worst_first]
    return html_table(_FINDINGS_SCHEMA.names, rows) if rows else ""


def finding_table(findings: Iterable[Finding]) -> pa.Table:
    """One row for each finding (FINDINGS_SCHEMA)."""
    rows = [
        {
            "severity": finding.severity.value,
            "check": finding.check,
            "where": finding.where,
            "what": finding.what,
            "remedy": finding.remedy,
        }
        for finding in findings
    ]
    return pa.Table.from_pylist(rows, _FINDINGS_SCHEMA)
