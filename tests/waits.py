"""Lists where tests wait, and why each place may: `make check` runs it, and fails if a wait has no reason.

A wait is

- a sleep: `time.sleep`, `pause` of `tests/waiting.py`;
- a polling loop: `wait_until`, `Patience`, or a `while` that asks a clock;
- a timeout that is meant to pass: an `Event.wait`, `acquire` or `join` with a timeout whose answer nobody needs to be true.

`assert event.wait(60)` is none of them: it ends when the code under test sets the event, and fails otherwise.

Who waits for a real process or server has a reason: the test or helper takes a fixture of one, or its file is in a folder of them
(`REAL`). Any other file needs a line in `REASONS`, with the number of its waits. These numbers only shrink: a wait that goes must
leave the table too. Without threads of their own, most things can be stepped: `tests/stepping.py`, `tests/clock.py`.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

FIXTURES = frozenset(
    {
        *("kafka", "postgres", "debezium", "registry", "mariadb", "debezium_mariadb", "s3", "s3_server", "flaky_s3"),
        *("spark", "chromium", "cluster", "sqs"),
    }
)
"""Fixtures of real servers."""

REAL: dict[str, str] = {}
"""Folders and files of which every wait is for something real."""

REASONS: dict[str, tuple[int, str]] = {}
"""By file, how many waits are for something in this process, and why it can't be stepped."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A place where a test waits. ``kind``: the call, or ``while``; ``fixtures``: of the functions around it."""

    line: int
    kind: str
    fixtures: frozenset[str] = frozenset()


def waits_in(source: str) -> list[Wait]:
    """The waits of a module, by line."""
    return sorted(_waits(ast.parse(source), frozenset(), None), key=lambda each: each.line)


def _waits(node: ast.AST, fixtures: frozenset[str], above: ast.AST | None) -> Iterator[Wait]:
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        fixtures |= {each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)}
    if isinstance(node, ast.Call) and (kind := _kind(node, above)):
        yield Wait(node.lineno, kind, fixtures & FIXTURES)
    if isinstance(node, ast.While) and any(map(_asks_a_clock, ast.walk(node.test))):
        yield Wait(node.lineno, "while", fixtures & FIXTURES)
    for child in ast.iter_child_nodes(node):
        yield from _waits(child, fixtures, node)


def _kind(call: ast.Call, above: ast.AST | None) -> str | None:
    """What a call is if it waits. ``above``: the node that it is a part of."""
    name = ast.unparse(call.func)
    if name in ("time.sleep", "sleep", "pause", "wait_until", "Patience"):
        return name
    last, named = name.rpartition(".")[2], {each.arg for each in call.keywords}
    has_timeout = ("timeout" in named and last in ("wait", "acquire", "join")) or (
        last in ("wait", "join") and "." in name and _is_number(call)
    )
    return f"{last}(timeout)" if has_timeout and not isinstance(above, ast.Assert) else None


def _is_number(call: ast.Call) -> bool:
    """Whether the only argument is a number of seconds, by its value or its name."""
    if len(call.args) != 1:
        return False
    match call.args[0]:
        case ast.Constant(value=int() | float()):
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return "second" in name.lower() or name in ("timeout", "wait_s")
    return False


def _asks_a_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.monotonic", "time.time", "monotonic")


def waits_of_tests(root: Path = ROOT) -> dict[str, list[Wait]]:
    """The waits of all tests, by file; the ways to wait themselves are left out."""
    files = sorted(path for path in (root / "tests").rglob("*.py") if path.name not in ("waiting.py", "waits.py"))
    found = {path.relative_to(root).as_posix(): waits_in(path.read_text()) for path in files}
    return {name: waits for name, waits in found.items() if waits}


def reason_of(name: str) -> str | None:
    """Why all waits of a file are for something real, if they are."""
    return next((reason for place, reason in REAL.items() if name == place or name.startswith(f"{place}/")), None)


def problems(found: Mapping[str, list[Wait]]) -> list[str]:
    """What breaks the rule, a line each."""
    said = list[str]()
    for name in sorted({*found, *REASONS}):
        waits = [each for each in found.get(name, []) if not each.fixtures and reason_of(name) is None]
        allowed, _ = REASONS.get(name, (0, ""))
        if len(waits) > allowed:
            places = ", ".join(f"{each.line} ({each.kind})" for each in waits)
            said.append(f"{name} waits {len(waits)} times in this process, {allowed} have a reason: lines {places}")
        elif len(waits) < allowed:
            said.append(f"{name} waits {len(waits)} times in this process: lower its number in REASONS from {allowed}")
    said += [
        f"nothing waits in {name}: remove it from REAL" for name in REAL if not any(map(name.__eq__, _places(found)))
    ]
    return said


def _places(found: Mapping[str, list[Wait]]) -> set[str]:
    return {place for place in REAL for name in found if name == place or name.startswith(f"{place}/")}


def main() -> int:
    found = waits_of_tests()
    if "--list" in sys.argv:
        total = Counter[str]()
        for name, waits in found.items():
            real = reason_of(name)
            own = [each for each in waits if not each.fixtures and real is None]
            why = real or (REASONS.get(name, (0, "no reason"))[1] if own else "a server that the test starts")
            total["of real processes and servers"] += len(waits) - len(own)
            total["in the process of the test"] += len(own)
            print(f"{len(waits):4} {name}: {why}")
        print(", ".join(f"{count} {kind}" for kind, count in total.items()))
    said = problems(found)
    for each in said:
        print(each, file=sys.stderr)
    if said:
        print("step it (tests/stepping.py), or give tests/waits.py its reason", file=sys.stderr)
    return bool(said)


if __name__ == "__main__":
    sys.exit(main())
