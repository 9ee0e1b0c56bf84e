"""The sections of the runbook, for the findings that they are about."""

from __future__ import annotations

import re
from functools import cache

from lakebed import manual

_PAGE = "runbook"
_HEADING = re.compile(r"^## (\w+)$", re.MULTILINE)
_SECTIONS = {
    "look": "LakebedTableUnreadable",
    "gate": "LakebedTableUnreadable",
    "tail": "LakebedTailOld",
    "backpressure": "LakebedWriterDelayed",
    "backlog": "LakebedBacklogGrowing",
    "depth": "LakebedDepthOverBudget",
    "claim": "LakebedClaimsStuck",
    "quarantine": "LakebedQuarantineGrowing",
    "query": "LakebedQueryDown",
    "parked": "LakebedTableParked",
    "failing": "LakebedPlansFailing",
    "settle": "LakebedSettleParked",
    "run": "LakebedRunDown",
    "disk": "LakebedRunDown",
    "waiting": "LakebedTopicsWaiting",
}
_INVARIANT = re.compile(r"[A-Z]\d+")


def section_of(check: str) -> str | None:
    """The section about what a check finds; None if there is none."""
    found = "LakebedInvariantViolated" if _INVARIANT.fullmatch(check) else _SECTIONS.get(check)
    return found if found in sections() else None


@cache
def sections() -> dict[str, str]:
    """The text of each section (Markdown), by its heading."""
    path = manual.pages()[_PAGE]
    return {title: manual.text(path, title.lower()) for title in _HEADING.findall(manual.text(path))}
