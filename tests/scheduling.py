"""Which process runs which files of tests: one that has the servers and the Spark session already that they need.

Each process starts its own, and Spark needs a minute of CPU until it has seen what it reads and writes. So the last process takes
files that need none of them as long as there are some, and the others such that need them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SERVERS = (
    "spark",
    "kafka",
    "postgres",
    "debezium",
    "registry",
    "mariadb",
    "debezium_mariadb",
    "s3",
    "flaky_s3",
    "metastore",
)
_ARGUMENT = re.compile(rf"\b({'|'.join(SERVERS)}): ")


class NearItsServers(LoadFileScheduling):
    """Hands out whole files, in their order among those that suit a process equally well."""

    def __init__(self, config: pytest.Config, log: Any = None) -> None:
        super().__init__(config, log)
        self._root = config.rootpath
        self._started: dict[WorkerController, frozenset[str]] = {}

    def _assign_work_unit(self, node: WorkerController) -> None:
        started = self._started.get(node, frozenset())
        with_servers = len(self.nodes) == 1 or node is not self.nodes[-1]

        def cost(file: str) -> tuple[bool, int]:
            needed = servers_of(self._root / file)
            return bool(needed) is not with_servers, len(needed - started)

        best = min(self.workqueue, key=cost)
        self._started[node] = started | servers_of(self._root / best)
        self.workqueue.move_to_end(best, last=False)
        super()._assign_work_unit(node)


@cache
def servers_of(file: Path) -> frozenset[str]:
    """The fixtures of servers that a file or its folder's ``conftest.py`` takes."""
    texts = [each.read_text() for each in (file, file.with_name("conftest.py")) if each.is_file()]
    return frozenset(name for text in texts for name in _ARGUMENT.findall(text))
