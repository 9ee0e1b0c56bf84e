"""Hands records that can't be used over from the log of a table to the log of its quarantine, exactly once.

The two tables have a log each, and no commit is in both. So the log of the table decides:

1. The tasks of a batch write the bad records to files in the quarantine's folder.
2. The commit that brings the batch also lists these files, in the entry ``lakebed.quarantined`` of the table. A batch that is not
   committed leaves files that no log refers to.
3. Then the files are committed to the quarantine. Its own entry, with the id of the table, has the number of the newest file that
   it has taken. Files are numbered in the order in which the table lists them, so none is taken twice, whoever does it.
4. The next batch leaves the files out of the entry of the table.

After a crash between 2 and 3 the next batch, of any process, begins with 3. A cleanup of the quarantine leaves alone what the
table lists (``operations.cleanup``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from lakebed.log.actions import Action, AddPart, Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.entries import QUARANTINED, Operation
from lakebed.log.entry_values import checked, document_of, integer_of, made, reading
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from lakebed.parts.quarantine import QUARANTINE_SUFFIX
from lakebed.parts.write import WrittenPart
from lakebed.storage.data_files import open_part_storage

_logger = logging.getLogger("lakebed.ingest")


class Handover:
    """The way from one table to its quarantine. One thread at a time."""

    def __init__(self, table: str, quarantine_log: Callable[..., TableLog]) -> None:
        """``quarantine_log``: opens the log; with True, of a quarantine that has a column of headers."""
        self._table = table
        self._quarantine_log = quarantine_log
        self._taken = 0
        self._own: set[str] = set()

    def entry(self, snapshot: Snapshot, parts: Sequence[WrittenPart]) -> Domain | None:
        """The entry of a commit to the table that brings these files too, and drops those that the quarantine has; None if it is
        the same as before."""
        listed, first = _listed(snapshot)
        left = [(number, part) for number, part in listed if number > self._taken]
        more = [(first + place, orjson.loads(part.to_json())) for place, part in enumerate(parts)]
        self._own.update(part.path for part in parts)
        if not more and len(left) == len(listed):
            return None
        document = {"next": first + len(more), "parts": [*left, *more]}
        return Domain(QUARANTINED, orjson.dumps(document).decode())

    def deliver(self, snapshot: Snapshot) -> None:
        """Commit what the table lists to the quarantine, unless that has it. Raises StoreUnavailable, Contention."""
        listed = [(number, part) for number, part in _listed(snapshot)[0] if number > self._taken]
        if not listed:
            return
        has_headers = any(part.get("has_more_columns") for _, part in listed)
        log = self._quarantine_log(True) if has_headers else self._quarantine_log()
        entry = f"{QUARANTINED}.{snapshot.metadata.id}"

        def build(quarantine: Snapshot) -> Proposal[None] | Finished[None]:
            text = quarantine.domains.get(entry)
            taken = integer_of(entry, text, "taken")
            with reading(QUARANTINED):
                parts = [made(WrittenPart, part) for number, part in listed if number > taken]
            if not parts:
                return Finished(None)
            actions: list[Action] = [
                AddPart(part.base_part(has_op_column=False)) for part in parts if self._is_there(part)
            ]
            actions.append(Domain(entry, orjson.dumps({"taken": listed[-1][0]}).decode()))
            metrics = {"rows": sum(part.rows for part in parts), "parts": len(parts)}
            return Proposal(actions=actions, result=lambda _: None, metrics=metrics)

        commit_loop(log, Operation.QUARANTINE, build)
        self._taken = listed[-1][0]
        self._own.clear()

    def _is_there(self, part: WrittenPart) -> bool:
        """Whether the file is; one that another process listed may be gone with a quarantine that was removed since."""
        there = part.path in self._own or open_part_storage(self._table + QUARANTINE_SUFFIX).exists(part.path)
        if not there:
            _logger.warning("%s: %d quarantined records are gone with their file %s", self._table, part.rows, part.path)
        return there


def _listed(snapshot: Snapshot) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """The files that a table lists, each with its number, and the number of the next one. Raises Corrupt."""
    text = snapshot.domains.get(QUARANTINED)
    return ([], 1) if text is None else listed_in(QUARANTINED, text)


def listed_in(domain: str, text: str) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """The files that an entry of the log lists, and the number of the next one. Raises Corrupt."""
    document = document_of(domain, text)
    with reading(domain):
        files = [
            (checked(int, number, "number"), checked(dict[str, Any], part, "part"))
            for number, part in document["parts"]
        ]
        return files, checked(int, document["next"], "next")
