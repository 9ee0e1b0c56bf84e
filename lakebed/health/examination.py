"""The doctor checks every invariant that can be checked on a real table, and reports what breaks it.

1. The log (``log_checks``): all commits and checkpoints that are kept.
2. The files of the newest version that can be read (``file_checks``), and files that no version refers to.
3. With ``deep``, the rows of all its parts (``row_checks``).

It changes nothing and blocks no writer, as it examines one version. A table whose log is damaged can't be opened, so the doctor
takes a path.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import islice

from lakebed.errors import TableNotFound
from lakebed.health.file_checks import look_at_files, look_for_orphans
from lakebed.health.finding import Finding, Severity, html_findings, worst
from lakebed.health.iceberg_checks import look_at_iceberg
from lakebed.health.log_checks import Progress, look_at_log, state_findings
from lakebed.health.row_checks import RowChecks
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.notebook import html_record
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.part_storage import PartStorage

FINDINGS_MAX = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What was examined, and what is wrong."""

    path: str
    version: int  # whose files were examined; -1 if none can be read
    deep: bool  # whether rows were read too
    commits: int
    checkpoints: int
    parts: int
    rows: int
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def severity(self) -> Severity:
        """The worst of the findings."""
        return worst(self.findings)

    def _repr_html_(self) -> str:
        examined = {
            "version": self.version,
            "commits": self.commits,
            "parts": self.parts,
            "rows": self.rows,
            "seconds": self.seconds,
        }
        return html_record(f"{self.path}: {self.severity.value}", examined) + html_findings(self.findings)


def _no_progress(what: str, done: int, of: int) -> None:
    return None


def examine(path: str, deep: bool = False, progress: Progress = _no_progress) -> Examination:
    """Examine the table at a path. At most ``FINDINGS_MAX`` findings of each kind are returned.

    Raises TableNotFound, StoreUnavailable, Contention.
    """
    storage = open_part_storage(path)
    return examine_log(path, TableLog(open_store(storage.root)), storage, deep, progress)


def examine_log(
    path: str, log: TableLog, storage: PartStorage, deep: bool = False, progress: Progress = _no_progress
) -> Examination:
    """``examine``, of a log object that nobody else uses. ``path``: the table's path in findings."""
    started = time.perf_counter()
    if not any(log.versions()):
        raise TableNotFound(f"there is no table at {path}", table=path)
    look = look_at_log(log, path, True, progress)
    findings = look.findings[:FINDINGS_MAX]
    snapshot = look.newest
    rows = 0
    if snapshot is not None:
        findings += state_findings(snapshot, path, log.now_ms())
        progress("files", 0, 1)
        findings += islice(look_at_files(snapshot, storage), FINDINGS_MAX)
        findings += look_at_iceberg(log, storage, snapshot, path)
        if look.is_whole and not any(finding.check in ("M1", "M2", "M4", "M5") for finding in findings):
            findings += islice(look_for_orphans(log, storage, path), FINDINGS_MAX)
        if deep:
            bad = {finding.where for finding in findings if finding.check in ("G1", "file", "vector")}
            checks = RowChecks(snapshot, storage, path, progress, bad)
            findings += islice(checks.run(), FINDINGS_MAX)
            rows = checks.rows
    ordered = sorted(findings, key=lambda finding: finding.severity is not Severity.CRITICAL)
    return Examination(
        path=path,
        version=snapshot.version if snapshot else -1,
        deep=deep,
        commits=look.commits,
        checkpoints=look.checkpoints,
        parts=len(snapshot.parts) + len(snapshot.tail) if snapshot else 0,
        rows=rows,
        findings=tuple(ordered),
        seconds=time.perf_counter() - started,
    )
