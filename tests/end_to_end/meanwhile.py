"""What goes on beside a test: a database that changes, and a lake that follows it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(step: Callable[[int], None]) -> Iterator[None]:
    """While the block runs, ``step`` is called with 1, 2 and so on, in a thread; what it raises is raised at the end."""
    over, failed = threading.Event(), list[BaseException]()

    def work() -> None:
        number = 0
        try:
            while not over.is_set():
                number += 1
                step(number)
        except BaseException as error:
            failed.append(error)

    worker = threading.Thread(target=work, name="meanwhile")
    worker.start()
    try:
        yield
    finally:
        over.set()
        worker.join()
    if failed:
        raise failed[0]
