"""Which modules a batch, a settle and a merge pass through, room by room, in the order in which each is first entered.

    python -m benchmarks.modules

A small table without Spark. A module is passed if one of its functions runs between the call of the verb and its return, on
any thread. What a process does only once, such as opening DuckDB, was done before. The way to the log is that of the calls from
the verb to the put of the commit's file, and "deepest" the most modules that call one another.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import lakebed
from benchmarks.workload import DELETES, KEYS, SCHEMA, SORT_KEY, Workload, table

WARM_UP = 12


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        work = Workload(50_000, 2_000)
        lake = lakebed.create(f"{folder}/orders", SCHEMA, KEYS, SORT_KEY)
        lake.apply(work.base())
        for _ in range(WARM_UP):
            lake.settle()
            lake.apply(work.batch(), apply_as_deletes=DELETES)
        lake.settle()
        compact(lake)
        for _ in range(WARM_UP):
            lake.apply(work.batch(), apply_as_deletes=DELETES)
            lake.settle()
        batch = work.batch()
        ways = {
            "batch": Way(lambda: lake.apply(batch, apply_as_deletes=DELETES)),
            "settle": Way(lake.settle),
            "merge": Way(lambda: compact(lake)),
        }
    rows: list[list[object]] = []
    for name, way in ways.items():
        rooms: dict[str, list[str]] = {}
        for module in way.modules:
            room, _, rest = module.partition(".")
            rooms.setdefault(room, []).append(rest or room)
        rows += [[name, room, len(found), ", ".join(found)] for room, found in rooms.items()]
    table("The way of a batch, a settle and a merge", ["way", "room", "modules", ""], rows)
    table(
        "The same, in sum",
        ["way", "rooms", "modules", "deepest", "to the log"],
        [
            [
                name,
                len({module.partition(".")[0] for module in way.modules}),
                len(way.modules),
                way.deepest,
                " → ".join(way.to_the_log),
            ]
            for name, way in ways.items()
        ],
    )


def compact(lake: Any) -> object:
    return lake.maintenance.compact()


class Way:
    """The modules of lakebed that run while ``act`` does, in the order in which each is first entered."""

    def __init__(self, act: Callable[[], object]) -> None:
        found: dict[str, None] = {}
        self.deepest = 0
        self.to_the_log: list[str] = []

        def enter(frame: FrameType, event: str, _: object) -> None:
            if event != "call" or not (module := module_of(frame)):
                return
            found.setdefault(module)
            calls = modules_that_call(frame)
            self.deepest = max(self.deepest, len(calls))
            if frame.f_code.co_name == "put_if_absent":
                self.to_the_log = calls

        threading.setprofile(enter)
        sys.setprofile(enter)
        try:
            act()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
        self.modules = list(found)


def module_of(frame: FrameType) -> str:
    name = str(frame.f_globals.get("__name__", ""))
    inside = name.startswith("lakebed.") and frame.f_code.co_name != "<module>"
    return name.removeprefix("lakebed.") if inside else ""


def modules_that_call(frame: FrameType | None) -> list[str]:
    """The modules from the verb down to a frame; calls within one count once."""
    modules: list[str] = []
    while frame is not None:
        module = module_of(frame)
        if module and (not modules or modules[-1] != module):
            modules.append(module)
        frame = frame.f_back
    return modules[::-1]


if __name__ == "__main__":
    main()
