"""What others do between a mutation's read and its commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import lakebed
from tests.internals import log_of


@contextmanager
def before_its_commits(table: lakebed.Table, *actions: Callable[[], Any], all_of_them: bool = True) -> Iterator[None]:
    """Each of the table's next commits waits for one of the actions, which others run through a handle of their own.

    ``all_of_them``: the table must commit as often as that.
    """
    log, waiting = log_of(table), list(actions)
    commit = log.commit

    def interrupted(*arguments: Any, **named: Any) -> Any:
        if waiting:
            waiting.pop(0)()
        return commit(*arguments, **named)

    log.commit = interrupted  # type: ignore[method-assign]
    try:
        yield
    finally:
        del log.commit
    assert not (waiting and all_of_them), "the table committed less often than others were to come in between"
