"""Other machines, as far as one machine can have them: their own address, user and files. Only root can make them.

A machine is a network namespace on a bridge, whose first address is this machine's. What runs on it is started as ``nobody`` in
a mount namespace, where the repository with its virtual environment, the temporary folder and root's home are empty. So it has
Java, an installation of Spark below ``SPARK_HOME``, and whatever comes over the network.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Self

from tests.infra.downloads import REPOSITORY

SPARK_HOME = "/mnt/spark"
WORK = "/tmp/work"
_USER = "nobody"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Machines:
    """A network with some machines, while the block runs."""

    def __init__(self, count: int) -> None:
        network = f"10.{200 + os.getpid() % 50}.{os.getpid() // 50 % 250}"
        self._name = f"lb{os.getpid() % 1_000_000}"
        self.here = f"{network}.1"
        """The address of this machine."""
        self.all = [Machine(f"{self._name}m{number}", f"{network}.{number + 2}") for number in range(count)]

    @staticmethod
    def can_be_made() -> bool:
        """Whether this process may make some."""
        try:
            _run("unshare", "--net", "--mount", "true")
            _run("ip", "-V")
        except (OSError, subprocess.CalledProcessError):
            return False
        return os.geteuid() == 0

    def __enter__(self) -> Self:
        try:
            _run("ip", "link", "add", self._name, "type", "bridge")
            _run("ip", "addr", "add", f"{self.here}/24", "dev", self._name)
            _run("ip", "link", "set", self._name, "up")
            for machine in self.all:
                machine.connect(self._name)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        for machine in self.all:
            subprocess.run(["ip", "netns", "del", machine.name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._name], check=False, capture_output=True)


class Machine:
    """One machine."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address

    def connect(self, bridge: str) -> None:
        """Make it, and connect it to a bridge."""
        outside, inside = f"{self.name}o", f"{self.name}i"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside)
        _run("ip", "link", "set", inside, "netns", self.name)
        _run("ip", "link", "set", outside, "master", bridge, "up")
        _run("ip", "-n", self.name, "addr", "add", f"{self.address}/24", "dev", inside)
        _run("ip", "-n", self.name, "link", "set", inside, "up")
        _run("ip", "-n", self.name, "link", "set", "lo", "up")

    def command(self, spark: Path, command: list[str]) -> list[str]:
        """What starts a program there. ``spark``: the folder of Spark on this machine, which it has as ``SPARK_HOME``."""
        hidden = Path(*REPOSITORY.parts[:2])  # all of the disk where the repository is
        script = [
            f"mkdir -p {SPARK_HOME} && mount --bind {shlex.quote(str(spark))} {SPARK_HOME}",
            f"mount -t tmpfs none {hidden} && mount -t tmpfs none /root && chmod 700 /root",
            f"mount -t tmpfs -o mode=1777 none /tmp && mkdir {WORK} && chown {_USER} {WORK} && cd {WORK}",
            f"exec setpriv --reuid={_USER} --regid=nogroup --clear-groups env HOME={WORK} {shlex.join(command)}",
        ]
        return ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-euc", "\n".join(script)]
