"""Ctrl-C ends a command at once, with exit code 130 and without a trace.

1. Python raises KeyboardInterrupt in the main thread, but not before the thread returns to Python: a query in DuckDB, or a wait
   for a thread, may take minutes. So a thread of its own hears of the signal at once (a wakeup descriptor) and interrupts all
   queries of DuckDB, again and again until the command has ended.
2. What cleans up behind the command has ``GRACE_SECONDS``. Then the process ends, whatever it is doing: everything that is
   committed is whole, and what is not committed does not exist.

Commands that run until they are stopped end in order instead (``run_command``).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from lakebed.cli import exit_codes

GRACE_SECONDS = 2.0
_AGAIN_SECONDS = 0.05
_OVER = b"\0"
_SHOW_CURSOR = "\x1b[?25h"


@contextmanager
def ends_at_once() -> Iterator[threading.Event]:
    """While the block runs, Ctrl-C ends it. Yields whether Ctrl-C was pressed. Does nothing outside of the main thread."""
    pressed, over = threading.Event(), threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher = threading.Thread(target=_watch, args=(reader, pressed, over), name="lakebed-interrupt", daemon=True)
    watcher.start()
    try:
        yield pressed
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.write(writer, _OVER)
        watcher.join()
        os.close(writer)
        os.close(reader)


def _watch(reader: int, pressed: threading.Event, over: threading.Event) -> None:
    while (number := os.read(reader, 1)) != bytes([signal.SIGINT]):
        if number == _OVER:
            return
    pressed.set()
    give_up_at = time.monotonic() + GRACE_SECONDS
    while not over.wait(_AGAIN_SECONDS):
        if "lakebed.storage.engine" in sys.modules:
            sys.modules["lakebed.storage.engine"].interrupt_all()
        if time.monotonic() >= give_up_at:
            if sys.stderr.isatty():  # a bar may have hidden it
                sys.stderr.write(_SHOW_CURSOR)
            os._exit(exit_codes.INTERRUPTED)
