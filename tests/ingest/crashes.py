"""A process that ends in the middle of bringing a batch into a table."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from lakebed.ingest import table_batch
from lakebed.parts.quarantine import Handover


class Crash(BaseException):
    """The process ends here."""


def dying(owner: Any, name: str, when: str, count: int = 1) -> Any:
    """The process ends before or after a call, the ``count``-th one."""
    whole, calls = getattr(owner, name), []

    def crashing(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        result = whole(*args, **kwargs) if len(calls) < count or when == "after" else None
        if len(calls) == count:
            raise Crash(name)
        return result

    return patch.object(owner, name, crashing)


POINTS: list[tuple[Any, str, str, int]] = [
    (table_batch, "WriteTask", "before", 1),
    (table_batch, "commit_written", "before", 1),
    (table_batch, "commit_written", "after", 1),
    (Handover, "deliver", "before", 2),
    (Handover, "deliver", "after", 2),
]
