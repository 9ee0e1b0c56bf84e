"""Writers that count, delete, apply, settle and merge, each between the reading of another and its commit: B6.

The steps of a world are drawn by hypothesis. What others do comes before a commit of a mutation, and may be a mutation itself,
before whose commit a third one acts. A dictionary says what the rows must be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import lakebed
from tests.operations.interrupted import before_its_commits
from tests.operations.test_mutations import SETS, WHERES, batch, make, row
from tests.oracle import Oracle, Row, in_order
from tests.worlds import examples

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]
COLUMNS = ("id", "region", "value", "seq")
COUNT = SETS[0]


@dataclass(frozen=True)
class Apply:
    """Changes: the key, the new value or None for a delete, how late it is, and whether it lacks its value."""

    changes: tuple[tuple[int, int | None, int, bool], ...]


@dataclass(frozen=True)
class Mutate:
    """``where`` and ``become`` are numbers in lists; -1 deletes. ``between``: what others do before each of its commits."""

    where: int
    become: int
    between: tuple[tuple[Any, ...], ...]


SETTLE, COMPACT, TRUNCATE = "settle", "compact", "truncate"
Step = Apply | Mutate | str

_CHANGE = st.tuples(
    st.integers(0, 5),
    st.none() | st.integers(0, 40),
    st.sampled_from([0, 0, 1, 9]),
    st.sampled_from([False, False, False, True]),
)
_APPLY = st.builds(Apply, st.lists(_CHANGE, min_size=1, max_size=4).map(tuple))
_PLAIN = st.one_of(_APPLY, _APPLY, st.sampled_from([SETTLE, COMPACT, TRUNCATE]))


def _mutates(inner: st.SearchStrategy[Step]) -> st.SearchStrategy[Step]:
    between = st.lists(st.lists(inner, min_size=1, max_size=2).map(tuple), max_size=3).map(tuple)
    become = st.sampled_from([-1, 0, 0, 0, *range(len(SETS))])
    return st.builds(Mutate, st.integers(0, len(WHERES) - 1), become, between)


_STEPS = st.lists(_mutates(_PLAIN | _mutates(_PLAIN | _mutates(_PLAIN))) | _PLAIN, min_size=2, max_size=6)


class World:
    def __init__(self, folder: Path, sequence: str | None) -> None:
        self.hidden = sequence == "lsn"
        self.table = make(folder, [], sequence_by=sequence, properties={"lakebed.checkpoint_interval": "5"})
        self.handles = [self.table]
        self.oracle = Oracle(("id",), COLUMNS, "seq" if sequence else None)
        self.clock = self.emptied = 0

    def handle(self, depth: int) -> lakebed.Table:
        """The one of a writer who acts before the commits of those of lower depth."""
        while len(self.handles) <= depth:
            self.handles.append(lakebed.open(self.table.path))
        return self.handles[depth]

    def step(self, step: Step, depth: int = 0) -> None:
        table = self.handle(depth)
        match step:
            case Apply(changes):
                rows = [self.change(*one) for one in changes]
                table.apply(batch(rows, hidden_sequence=self.hidden))
                self.oracle.apply(rows, unavailable="missing")
            case Mutate():
                self.mutate(step, table, depth)
            case "settle":
                table.settle()
            case "compact":
                table.maintenance.compact()
            case _:
                self.emptied += 1
                table.truncate()
                self.oracle.truncate()

    def change(self, id: int, value: int | None, late: int, lacks_value: bool) -> Row:
        self.clock += 1
        one = row(id, value, "eu" if self.clock % 2 else "us", self.clock - late, "d" if value is None else "u")
        return one | {"value": None, "missing": ["value"]} if lacks_value and value is not None else one

    def mutate(self, step: Mutate, table: lakebed.Table, depth: int) -> None:
        (where, matches), (assignments, become) = (
            WHERES[step.where],
            SETS[step.become] if step.become >= 0 else (None, None),
        )
        chosen = self.matching(matches)

        def meanwhile(steps: Sequence[Step]) -> None:
            emptied = self.emptied
            for one in steps:
                self.step(one, depth + 1)
            if self.emptied > emptied:
                chosen.update(self.matching(matches))
            chosen.intersection_update(self.matching(matches))

        actions: list[Callable[[], None]] = [lambda steps=steps: meanwhile(steps) for steps in step.between]  # type: ignore[misc]
        with before_its_commits(table, *actions, all_of_them=False):
            result = table.delete(where) if assignments is None else table.update(assignments, where)
        assert result.rows == len(chosen)
        for key in chosen:
            sequence, known = self.oracle.newest[key]
            assert known is not None
            self.oracle.newest[key] = (sequence, known | become(known) if become else None)

    def matching(self, matches: Callable[[Row], bool]) -> set[tuple[Any, ...]]:
        return {key for key, (_, known) in self.oracle.newest.items() if known is not None and matches(known)}

    def check(self) -> None:
        found = lakebed.open(self.table.path).to_arrow().to_pylist()
        assert in_order(found) == self.oracle.rows()


@pytest.mark.few(1)
@pytest.mark.parametrize("sequence", [None, "seq", "lsn"])
@examples(6)
@given(steps=_STEPS)
def test_the_rows_are_those_of_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory, sequence: str | None, steps: list[Step]
) -> None:
    world = World(tmp_path_factory.mktemp("world"), sequence)
    world.step(Apply(tuple((id, id, 0, False) for id in range(5))))
    for step in steps:
        world.step(step)
        world.check()
    world.table.settle()
    world.check()
