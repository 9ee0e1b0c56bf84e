"""One server process of a test: started on free loopback ports, watched until it answers, stopped by its pid.

Invariants:

- A server that ``start()`` returned from answers; one that doesn't come up is an error with the end of its log.
- After ``stop()`` or ``kill()`` neither the process nor one of its descendants runs.
- Servers never outlive the process that started them, not even when that one is killed: see ``_Reaper``.
- ``restart()`` keeps ports and data, as a crashed server that comes back would.

Steps of a start:

1. Ask the operating system for free ports (only the first time) and write the configuration.
2. Start the process in a session of its own, with its output in ``<run folder>/<name>.log``.
3. Ask ``is_ready()`` until it says yes. If the process ended because another program took a port between steps 1 and 2,
   begin again with other ports.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Self

from tests.infra.processes import descendants, is_alive, signal_group, signal_one, started_at
from tests.waiting import Patience, pause, work_of

HOST = "127.0.0.1"
LOG_TAIL_LINES = 25
PORT_TAKEN = ("Address already in use", "address already in use", "BindException")
START_ATTEMPTS_MAX = 3
ORPHAN_SECONDS_MAX = 5


class ServerFailed(RuntimeError):
    """A server did not come up, or ended by itself; the message ends with the tail of its log."""


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now, all different."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind((HOST, 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def new_run_folder(name: str) -> Path:
    """A new folder that a server under another user (PostgreSQL) can reach too, unlike pytest's own folders."""
    folder = Path(tempfile.mkdtemp(prefix=f"lakebed-{name}-"))
    folder.chmod(0o755)
    _REAPER.delete(folder)
    return folder


class Server(ABC):
    """A server process with a run folder; subclasses say what to run and when it answers."""

    name: str
    ports_needed: int = 1
    stop_seconds_max: float = 20
    stop_signal: signal.Signals = signal.SIGTERM
    run_as: str | None = None

    def __init__(self, run_folder: Path | None = None) -> None:
        self._owns_run_folder = run_folder is None
        self.run_folder = run_folder or new_run_folder(self.name)
        self.run_folder.mkdir(parents=True, exist_ok=True)
        self.ports: list[int] = []
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self) -> None:
        """Writes configuration and data folders; called before every start, with ``self.ports`` known."""

    @abstractmethod
    def command(self) -> list[str]:
        """The program and its arguments."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Whether the server answers; may raise OSError for no."""

    def environment(self) -> dict[str, str]:
        """What the process finds in its environment besides what this one has."""
        return {}

    @property
    def log_path(self) -> Path:
        return self.run_folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Starts the server and waits until it answers. Raises ServerFailed."""
        if self.is_running:
            raise ServerFailed(f"{self.name} runs already, as process {self.pid}: stop it first")
        chooses_ports = not self.ports
        for attempt in range(1, START_ATTEMPTS_MAX + 1):
            if chooses_ports:
                self.ports = free_ports(self.ports_needed)
            log_offset = self.log_path.stat().st_size if self.log_path.exists() else 0
            try:
                self._start_once()
                return self
            except ServerFailed:
                said = self._log_since(log_offset)
                if not chooses_ports or attempt == START_ATTEMPTS_MAX or not any(words in said for words in PORT_TAKEN):
                    raise
        raise AssertionError("unreachable")

    def stop(self) -> None:
        """Asks the server to end, and kills what is left after ``stop_seconds_max``. Data stays. Idempotent."""
        self._end(self.stop_signal, self.stop_seconds_max)

    def close(self) -> None:
        """Stops the server and deletes its run folder, if that was not given by the caller."""
        self.stop()
        if self._owns_run_folder:
            shutil.rmtree(self.run_folder, ignore_errors=True)

    def kill(self) -> None:
        """Ends the server as a crash of its machine would: SIGKILL, no goodbye. Data and ports stay for ``start()``."""
        self._end(signal.SIGKILL, self.stop_seconds_max)

    def restart(self) -> Self:
        """Ends the server in good order and starts it again with the same ports and data."""
        self.stop()
        return self.start()

    def log_tail(self, lines: int = LOG_TAIL_LINES) -> str:
        """The end of the server's output."""
        if not self.log_path.exists():
            return "(no log was written)"
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-lines:])

    def wait_until_ready(self) -> None:
        """Returns when the server answers; raises ServerFailed if it ends, or neither answers nor does anything."""
        assert self._process is not None
        patience, looked = Patience(work_of(self._process.pid)), time.monotonic()
        while not self._answers():
            if not self.is_running:
                raise ServerFailed(self._failure(f"ended with code {self._process.returncode} while starting"))
            if patience.is_over():
                raise ServerFailed(self._failure("does not answer"))
            pause(time.monotonic() - looked)
            looked = time.monotonic()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *raised: object) -> None:
        self.close()

    def _log_since(self, offset_bytes: int) -> str:
        return self.log_path.read_bytes()[offset_bytes:].decode(errors="replace") if self.log_path.exists() else ""

    def _start_once(self) -> None:
        self.prepare()
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.run_folder,
                env={**os.environ, **self.environment()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=self.run_as,
                group=self.run_as,
                extra_groups=[] if self.run_as else None,
            )
        _REAPER.watch(self._process.pid)
        try:
            self.wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _end(self, how: signal.Signals, seconds_max: float) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        family = {pid: started_at(pid) for pid in (process.pid, *descendants(process.pid))}
        if how is signal.SIGKILL:
            signal_group(process.pid, how)
        else:
            signal_one(process.pid, how)
        try:
            process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            signal_group(process.pid, signal.SIGKILL)
            process.wait()
        signal_group(process.pid, signal.SIGKILL)
        # A descendant may have left the group (PostgreSQL's backends do): they end by themselves, or are ended. A pid
        # that was given to a new process meanwhile is not ours.
        deadline = time.monotonic() + ORPHAN_SECONDS_MAX
        while alive := [pid for pid, started in family.items() if is_alive(pid) and started_at(pid) == started]:
            if time.monotonic() > deadline:
                for pid in alive:
                    signal_one(pid, signal.SIGKILL)
            time.sleep(0.02)
        _REAPER.forget(process.pid)

    def _answers(self) -> bool:
        try:
            return self.is_running and self.is_ready()
        except OSError:
            return False

    def _failure(self, what: str) -> str:
        return f"{self.name} {what}; the end of {self.log_path}:\n{self.log_tail()}"


def can_connect(port: int, address: str = HOST) -> bool:
    """Whether somebody listens on the port."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


class _Reaper:
    """Ends the servers of this process when it ends in any way, SIGKILL included.

    A small companion process reads the pids of servers, and the folders to delete after them, from a pipe. The kernel
    closes the pipe when this process is gone; the companion then ends the process groups not reported as ended.
    """

    _PROGRAM = """
import os, shutil, signal, sys, time
watched, folders = set(), set()
for line in sys.stdin:
    kind, what = line[0], line[1:-1]
    if kind == "/":
        folders.add(what)
    else:
        (watched.add if kind == "+" else watched.discard)(int(what))
for how in (signal.SIGINT, signal.SIGKILL) if watched else ():
    for pid in watched:
        try:
            os.killpg(pid, how)
        except OSError:
            pass
    time.sleep(2 if how is signal.SIGINT else 0.2)
for folder in folders:
    shutil.rmtree(folder, ignore_errors=True)
"""

    def __init__(self) -> None:
        self._companion: subprocess.Popen[bytes] | None = None
        self._owner_pid = 0
        self._lock = threading.Lock()

    def delete(self, folder: Path) -> None:
        self._say(f"/{folder}\n")

    def watch(self, pid: int) -> None:
        self._say(f"+{pid}\n")

    def forget(self, pid: int) -> None:
        self._say(f"-{pid}\n")

    def _say(self, line: str) -> None:
        with self._lock:
            if self._companion is None or self._owner_pid != os.getpid():
                self._companion = subprocess.Popen(
                    [sys.executable, "-c", self._PROGRAM], stdin=subprocess.PIPE, start_new_session=True
                )
                self._owner_pid = os.getpid()
            assert self._companion.stdin is not None
            self._companion.stdin.write(line.encode())
            self._companion.stdin.flush()


_REAPER = _Reaper()
