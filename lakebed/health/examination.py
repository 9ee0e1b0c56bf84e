"""The doctor checks every invariant that can be checked on a real table, and reports what breaks it.

1. The log (``log_checks``): all commits and checkpoints that are kept.
2. The files of the newest version that can be read (``file_checks``), and files that no version refers to.
3. With ``deep``, the rows of all its parts (``row_checks``).

It changes nothing and blocks no writer, as it examines one version. A table whose log is damaged can't be opened, so the doctor
takes a path.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from lakebed.errors import Corrupt, InvalidSchema, TableNotFound, VersionNotFound
from lakebed.health.file_checks import look_at_files, look_for_orphans
from lakebed.health.finding import Finding, Severity, critical, html_findings, warning, worst
from lakebed.health.log_checks import Progress, look_at_log, state_findings
from lakebed.health.row_checks import RowChecks
from lakebed.iceberg.metadata import FOLDER, HINT
from lakebed.iceberg.publisher import PREFIX, Publisher, needed_files
from lakebed.log.snapshot import Snapshot
from lakebed.log.stores import open_store
from lakebed.log.table_log import TableLog
from lakebed.notebook import html_record
from lakebed.storage.data_files import open_part_storage
from lakebed.storage.part_storage import PartStorage

# -- Iceberg's metadata: it is of a version of the log, names that version's parts, and its files are there ----------------


_CHECK = "iceberg"


def _look_at_iceberg(log: TableLog, storage: PartStorage, snapshot: Snapshot, path: str) -> Iterator[Finding]:
    """What is wrong with the metadata of a table that has it. Raises StoreUnavailable."""
    if not snapshot.settings.iceberg:
        return
    again = f"lakebed compact --only publish {path}"
    anew = f"delete the folder {FOLDER} of the table, then {again}: it is written anew from the log"
    publisher = Publisher(log, storage)
    try:
        newest = publisher.newest()
        head = newest.head
        for name in newest.damaged:
            what = "it is no metadata of lakebed's, and readers of Iceberg that find it fail; the next publication passes it over"
            yield critical(_CHECK, name, what, again)
        if newest.damaged:
            return
        if head is None:
            yield warning(
                _CHECK, "", "the table has no metadata of Iceberg's yet", f"lakebed maintain {path}, or {again}"
            )
            return
        if head.document["location"] != publisher.location:
            where = head.document["location"]
            yield warning(_CHECK, "", f"Iceberg's metadata is for the table at {where}: it was moved or copied", again)
            return
        there = {name: size for name, size, _ in storage.list(PREFIX)}
        for name, size in sorted(needed_files(publisher).items()):
            if name not in there and name == HINT:
                yield warning(_CHECK, name, "the hint is missing by which readers find Iceberg's metadata", again)
            elif name not in there:
                yield critical(_CHECK, name, "the file is missing, and Iceberg's metadata names it", anew)
            elif size not in (None, there[name]):
                what = f"the file has {there[name]:,} bytes, and Iceberg's metadata says {size:,}"
                yield critical(_CHECK, name, what, anew)
        try:
            of_head = log.at_version(head.version)
        except VersionNotFound:
            what = f"Iceberg's readers see version {head.version}, which the log does not have"
            yield warning(_CHECK, "", what, anew if head.version > snapshot.version else again)
            return
        named = {publisher.name_of(row["manifest_path"]) for row in publisher.rows_of(head.versions()[head.version])}
        expected = [manifest.prefix for manifest in publisher.manifests(of_head)]
        is_same = len(named) == len(expected) and all(
            any(name.rsplit("/", 1)[-1].startswith(prefix) for name in named) for prefix in expected
        )
        if not is_same:
            what = f"Iceberg's metadata of version {head.version} does not say what the log says of its parts"
            yield critical(_CHECK, "", what, anew)
    except FileNotFoundError:
        return  # reported above
    except Corrupt as error:
        yield critical(_CHECK, str(error.path or ""), str(error), anew)
    except InvalidSchema as error:
        yield warning(_CHECK, "", str(error), "do what it says")


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
        findings += _look_at_iceberg(log, storage, snapshot, path)
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
