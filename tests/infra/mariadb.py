"""A MariaDB server with a binary log of rows, from Debian's packages, unpacked under ``.build/``: nothing is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.infra.downloads import libraries_of, mariadb_folder
from tests.infra.server import HOST, Server, ServerFailed
from tests.waiting import wait_until

USER = "root"
SERVER_ID = 1
REDO_LOG = "8M"


class MariaDbServer(Server):
    """One server; ``root`` needs no password on loopback. ``server_id`` is what its binary log is marked with."""

    name = "mariadb"

    def __init__(self, run_folder: Path | None = None, server_id: int = SERVER_ID) -> None:
        super().__init__(run_folder)
        self._server_id = server_id

    @property
    def port(self) -> int:
        return self.ports[0]

    def sql(self, statements: str, database: str = "") -> list[list[str]]:
        """Runs statements up to the first error; returns the rows of all results as text (NULL as 'NULL').

        Tabs and line ends in values are not told from those between them: select ``json_object(…)`` where they may be.
        """
        done = self._run(*self.client(database), "--batch", "--raw", "--skip-column-names", stdin=statements)
        return [line.split("\t") for line in done.splitlines()]

    def client(self, database: str = "") -> list[str]:
        """The command of a client that reads statements from its input."""
        program = str(mariadb_folder() / "usr" / "bin" / "mariadb")
        address = ["-h", HOST, "-P", str(self.port), "-u", USER, "--default-character-set=utf8mb4"]
        return [program, "--no-defaults", *address, *([database] if database else [])]

    def position(self) -> tuple[str, int]:
        """The end of the binary log: its newest file and the position in it."""
        [[file, position, *_]] = self.sql("show master status")
        return file, int(position)

    def wait_until_idle(self, database: str) -> None:
        """Ends what still runs in a database, and returns when nothing does.

        A procedure does not notice that its client is gone.
        """
        working = (
            "select id from information_schema.processlist "
            f"where command = 'Query' and db = '{database}' and id <> connection_id()"
        )

        def is_idle() -> bool:
            found = self.sql(working)
            for (number,) in found:
                with suppress(ServerFailed):  # it may be gone by itself
                    self.sql(f"kill {number}")
            return not found

        wait_until(is_idle, "a client is gone and its procedure is not")

    def prepare(self) -> None:
        data = self.run_folder / "data"
        if (data / "mysql").exists():
            return
        shutil.rmtree(data, ignore_errors=True)
        program = str(mariadb_folder() / "usr" / "bin" / "mariadb-install-db")
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve"]
        options += [f"--basedir={mariadb_folder() / 'usr'}", f"--datadir={data}", f"--innodb-log-file-size={REDO_LOG}"]
        self._run(program, "--no-defaults", *options)

    def command(self) -> list[str]:
        settings = {
            "basedir": mariadb_folder() / "usr",
            "datadir": self.run_folder / "data",
            "socket": self.run_folder / "socket",
            "pid-file": self.run_folder / "pid",
            "bind-address": HOST,
            "port": self.port,
            "user": "root",
            "server-id": self._server_id,
            "log-bin": "binlog",
            "binlog-format": "ROW",
            "binlog-row-image": "FULL",
            "character-set-server": "utf8mb4",
            "innodb-buffer-pool-size": "48M",
            "innodb-log-file-size": REDO_LOG,
            # A commit survives the death of the process (the kernel has it), which is all that tests need.
            "innodb-flush-log-at-trx-commit": 2,
            "performance-schema": "OFF",
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [str(mariadb_folder() / "usr" / "sbin" / "mariadbd"), "--no-defaults", "--skip-name-resolve", *options]

    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": libraries_of(mariadb_folder())}

    def is_ready(self) -> bool:
        try:
            return self.sql("select 1") == [["1"]]
        except ServerFailed:
            return False

    def _run(self, *command: str, stdin: str = "") -> str:
        environment = {**os.environ, **self.environment()}
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise ServerFailed(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout
