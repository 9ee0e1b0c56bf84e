"""Arguments of jobs that may have values of rows: in a file of the table, since the log keeps what it has seen.

1. The file is written before the job is asked for, so a job in the log has its arguments.
2. Whoever ends a job, or finds that it was not put into the log, calls ``sweep``: it deletes the files that no job which has not
   ended refers to. Maintenance and purges do so, too, so a process that is killed in between leaves none for long.
3. A file that no job of the log refers to is left alone for ``ASK_SECONDS``: its job may be about to be committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from lakebed.coordination.jobs import Job, jobs_of, new_id
from lakebed.log.table_log import TableLog
from lakebed.storage.part_storage import PartStorage

FOLDER = "_lakebed/jobs"
ASK_SECONDS = 600.0


def keep(storage: PartStorage, arguments: Mapping[str, Any]) -> str:
    """Write arguments to a new file of the table; returns its path."""
    path = f"{FOLDER}/{new_id()}.json"
    storage.write_bytes(path, orjson.dumps(arguments))
    return path


def arguments_of(storage: PartStorage, job: Job) -> Mapping[str, Any]:
    """The arguments of a job. Raises FileNotFoundError."""
    if not job.arguments_file:
        return job.arguments
    found: Mapping[str, Any] = orjson.loads(storage.read_bytes(job.arguments_file))
    return found


def sweep(log: TableLog, storage: PartStorage, *, also: str = "") -> None:
    """Delete files of arguments that no job needs any more.

    Args:
        log: Of the table.
        storage: Of the table.
        also: A file whose job was not put into the log, so that it need not wait for ``ASK_SECONDS``.

    Raises:
        StoreUnavailable: They are deleted by the next one who sweeps.
    """
    listed = {path: modified for path, _, modified in storage.list(f"{FOLDER}/")}
    if not listed:
        return
    jobs = jobs_of(log.refresh())
    needed = {job.arguments_file for job in jobs if not job.has_ended}
    ended = {also, *(job.arguments_file for job in jobs if job.has_ended)}
    old = storage.now() - ASK_SECONDS
    going = [path for path, modified in listed.items() if path not in needed and (path in ended or modified < old)]
    for error in storage.delete_many(going).values():
        raise error
