"""A PostgreSQL server with logical decoding, from the system's packages.

PostgreSQL refuses to run as root: then the server runs as the user ``postgres`` that Debian's package makes, and its
run folder belongs to that user. The packages are installed when they are missing and we are root.
"""

from __future__ import annotations

import csv
import io
import os
import shutil
import signal
import subprocess
from functools import lru_cache
from pathlib import Path

from tests.infra.downloads import MissingPrerequisite
from tests.infra.server import HOST, Server, ServerFailed

PACKAGES = ("postgresql", "postgresql-contrib")
SUPERUSER = "postgres"


class PostgresServer(Server):
    """One cluster with trust authentication on loopback, ``wal_level`` logical."""

    name = "postgres"
    # SIGINT is PostgreSQL's "fast" shutdown: clients are disconnected, data is written.
    stop_signal = signal.SIGINT

    def __init__(self, run_folder: Path | None = None) -> None:
        super().__init__(run_folder)
        self.run_as = SUPERUSER if os.geteuid() == 0 else None

    @property
    def port(self) -> int:
        return self.ports[0]

    def create_database(self, database: str) -> str:
        self.sql(f'create database "{database}"')
        return database

    def sql(self, statements: str, database: str = "postgres") -> list[list[str]]:
        """Runs statements with psql up to the first error; returns the rows of all results as text (NULL as '')."""
        options = ["-X", "-q", "-v", "ON_ERROR_STOP=1", "--csv", "-t", "-d", database]
        done = self._client("psql", *options, stdin=statements)
        return list(csv.reader(io.StringIO(done)))

    def pgbench(self, database: str, *arguments: str) -> str:
        """Runs pgbench with the arguments (``-i -s 1`` to fill the database first) and returns what it printed."""
        return self._client("pgbench", *arguments, database)

    def prepare(self) -> None:
        data = self.run_folder / "data"
        if not (data / "PG_VERSION").exists():
            shutil.rmtree(data, ignore_errors=True)
            if self.run_as:
                shutil.chown(self.run_folder, self.run_as)
            options = ["-U", SUPERUSER, "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync"]
            done = subprocess.run(
                [str(binaries() / "initdb"), "-D", str(data), *options],
                capture_output=True,
                text=True,
                cwd=self.run_folder,
                user=self.run_as,
                group=self.run_as,
                extra_groups=[] if self.run_as else None,
            )
            if done.returncode:
                raise ServerFailed(f"postgres could not make its data folder {data}:\n{done.stdout}{done.stderr}")
        # No fsync: a commit then survives the death of the process (the kernel has it), which is all that tests need.
        (data / "postgresql.auto.conf").write_text(
            f"listen_addresses = '{HOST}'\n"
            f"port = {self.port}\n"
            "unix_socket_directories = ''\n"
            "wal_level = logical\n"
            "max_wal_senders = 16\n"
            "max_replication_slots = 16\n"
            "shared_buffers = 64MB\n"
            "fsync = off\n"
            "full_page_writes = off\n"
            "log_min_messages = warning\n"
        )

    def command(self) -> list[str]:
        return [str(binaries() / "postgres"), "-D", str(self.run_folder / "data")]

    def is_ready(self) -> bool:
        try:
            return self.sql("select 1") == [["1"]]
        except ServerFailed:
            return False

    def _client(self, program: str, *arguments: str, stdin: str = "") -> str:
        command = [str(binaries() / program), "-h", HOST, "-p", str(self.port), "-U", SUPERUSER, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True)
        if done.returncode:
            raise ServerFailed(f"{program} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


@lru_cache(maxsize=1)
def binaries() -> Path:
    """The folder of PostgreSQL's programs; installs Debian's packages when they are missing and we may."""
    found = _find_binaries()
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for arguments in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *PACKAGES]):
            subprocess.run(["apt-get", *arguments], env=quiet, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        found = _find_binaries()
    if found is None:
        raise MissingPrerequisite(f"PostgreSQL is not installed: run `apt-get install {' '.join(PACKAGES)}` as root")
    return found


def _find_binaries() -> Path | None:
    """The newest version that has the server, the client and pgbench."""
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("postgres")
    if on_path:
        candidates.append(Path(on_path).resolve().parent)
    wanted = ("postgres", "initdb", "psql", "pgbench")
    return next((path for path in candidates if all((path / name).exists() for name in wanted)), None)
