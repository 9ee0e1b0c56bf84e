"""All tables of a page: those of its command line, and those of its databases."""

from __future__ import annotations

import time
from collections.abc import Sequence

from lakebed.storage.open import open_part_storage
from lakebed.ui import looking
from lakebed.ui.live import Live
from lakebed.ui.members import Members
from lakebed.ui.texts import blotted, utf8
from lakebed.ui.watch import Answer, Watched
from lakebed.version import __version__


class Tables:
    """The tables by their names on the page."""

    def __init__(
        self, paths: Sequence[str], interval_seconds: float, live: Live | None = None, databases: Sequence[str] = ()
    ) -> None:
        """``databases``: paths with tables below. Raises InvalidInput for a path that can't be one."""
        self._watched: dict[str, Watched] = {}
        self._databases = [Members(path, interval_seconds, live) for path in dict.fromkeys(databases)]
        for root in dict.fromkeys(open_part_storage(path).root for path in paths):
            name = utf8(blotted(root))
            while name in self._watched:  # they differ only in credentials
                name += " (another)"
            self._watched[name] = Watched(root, name, interval_seconds, live)

    @property
    def _all(self) -> list[Watched | Members]:
        return [*self._watched.values(), *self._databases]

    def start(self) -> None:
        for each in self._all:
            each.start()

    def close(self) -> None:
        for each in self._all:
            each.close()

    def find(self, name: str) -> Watched | None:
        found = self._watched.get(name)
        return found or next((one for each in self._databases if (one := each.find(name)) is not None), None)

    def overview(self) -> Answer:
        """The summaries of all tables; a table without a look so far has no figures."""
        deadline = time.monotonic() + looking.WAIT_SECONDS
        for each in self._all:
            each.ask()
        summary = []
        for watched in self._watched.values():
            seen, is_late = watched.seen(deadline)
            summary.append({**(seen.summary if seen else watched.unseen()), "is_late": is_late})
        databases = []
        for database in self._databases:
            rows, whole = database.seen(deadline)
            summary += rows
            databases.append(whole)
        return Answer({"lakebed": __version__, "tables": summary, "databases": databases})
