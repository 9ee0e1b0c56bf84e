"""Why a streaming query ended: lakebed's own error out of the text of Spark's."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from lakebed import errors
from lakebed.errors import LakebedError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_OWN = re.compile(r"lakebed\.errors\.([A-Za-z]+): ([^\n]*)")

# Spark waits ten seconds for a Python process that it started: too short on a busy machine, and nothing is wrong.
_LATE_WORKERS = ("Python worker failed to connect back", "Timed out while waiting for the Python worker")

_TWO_WRITE = "CONCURRENT_STREAM_LOG_UPDATE"
"""What Spark says to the query that finds the batch it wants to write already in the checkpoint."""


def failure_of(query: StreamingQuery, name: str) -> LakebedError | None:
    """The error of a query that failed; None if it runs, or was stopped."""
    error = query.exception()
    return None if error is None else failure_in(str(error), name)


def failure_in(text: str, name: str) -> LakebedError:
    """The error in the text of a failed query."""
    found = list(_OWN.finditer(text))
    for match in reversed(found):
        kind = getattr(errors, match[1], None)
        if isinstance(kind, type) and issubclass(kind, LakebedError):
            return kind(match[2].strip())
    if _TWO_WRITE in text:  # started again it would only end the other one
        return errors.InvalidInput(
            f"another process runs this pipeline, or did: while this {name} query ran, it wrote the next batch into the same "
            "checkpoint. So this one ends. Run one process a pipeline; two pipelines of one table need the setting "
            "'checkpoint', a folder each"
        )
    if any(late in text for late in _LATE_WORKERS):
        return errors.Retry(
            f"the {name} query failed: a Python worker of Spark did not start in time; is the machine busy?"
        )
    lines = [line.strip().removeprefix(": ") for line in text.splitlines() if line.strip()]
    python = [line for line in lines if re.match(r"^[A-Za-z_][\w.]*(Error|Exception): ", line)]
    said = python[-1] if python else (lines[0] if lines else "no reason given")
    return LakebedError(f"the {name} query failed: {said}")
