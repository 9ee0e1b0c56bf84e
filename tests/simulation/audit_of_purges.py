"""What the auditor sees of purges: their entries in the log, and at their end whether their rows are gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.simulation.files import Row, decode
from tests.simulation.purge_stand_ins import matches_of

if TYPE_CHECKING:
    from tests.simulation.auditor import Auditor, State

PURGE = "lakebed.purge."
PURGED = "lakebed.purged"
FENCE = "lakebed.fence"


@dataclass
class Purges:
    """``version``: of the newest purge whose rows are out."""

    version: int = -1
    _where: dict[str, str] = field(default_factory=dict)  # by entry
    _gone: dict[str, tuple[int, frozenset[int]]] = field(
        default_factory=dict
    )  # by entry: a version, values of rows before
    _ended_ones: set[str] = field(default_factory=set)
    _begins: dict[str, int] = field(default_factory=dict)  # by entry: the version that the log is to begin with

    def without_purged(self, table: Mapping[int, Row]) -> dict[int, Row]:
        """Rows without those that a purge under way is about."""
        under_way = [matches_of(where) for name, where in self._where.items() if name not in self._ended_ones]
        return {key: row for key, row in table.items() if not any(matches(row) for matches in under_way)}

    def gone_before(self, version: int) -> frozenset[int]:
        """The values of rows that purges had taken out at a version."""
        return frozenset().union(*(values for at, values in self._gone.values() if at <= version))

    def look(self, before: State, after: State, auditor: Auditor) -> None:
        """Look at a commit that landed."""
        for name, text in after.domains.items():
            if name.startswith(PURGE) and text != before.domains.get(name):
                self._where[name] = json.loads(text).get("where", self._where.get(name, ""))
        if after.domains.get(PURGED) != before.domains.get(PURGED):
            said = json.loads(after.domains[PURGED])
            assert said["version"] == after.version, f"{after.version} says that it is the purge {said}"
            self.version = after.version
            name = PURGE + said["id"]
            if "where" in json.loads(after.domains[name]):  # what comes from now on stays
                self._gone[name] = after.version, self._values(name, auditor)
            else:
                self._begins[name] = after.version
        if after.domains.get(FENCE) != before.domains.get(FENCE):
            auditor.world.fenced()
        for name in before.domains.keys() - after.domains.keys():
            if name.startswith(PURGE):
                self._ended(name, auditor)

    def _values(self, name: str, auditor: Auditor) -> frozenset[int]:
        """The values of rows of any version until the rows were out; a value is never that of two rows."""
        matches = matches_of(self._where[name])
        rows = (row for path in auditor.committed() for row in decode(auditor.data(path)) if matches(row))
        return frozenset(row.value for row in rows if row.value is not None)

    def _ended(self, name: str, auditor: Auditor) -> None:
        version, values = self._gone[name]
        self._ended_ones.add(name)
        auditor.world.counts["purged rows"] += len(values)
        for path in auditor.objects.data:
            if path.endswith(".parquet") and auditor.written_at(path) < version:
                left = [row for row in decode(auditor.data(path)) if row.value in values]
                assert not left, f"purge: {path} still has {left} of {self._where[name]}"
        older = [each for each in (*auditor.commits_kept, *auditor.checkpoints_kept) if each < self._begins[name]]
        assert not older, f"purge: the log still has the versions {older} from before {self._begins[name]}"
