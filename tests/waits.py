"""Lists where tests wait, and why each place may: `make check` runs it, and fails if a wait has no reason.

A wait is

- a sleep: `time.sleep`, `pause` of `tests/waiting.py`;
- a polling loop: `wait_until`, `Patience`, or a `while` that asks a clock;
- a timeout that is meant to pass: a `wait` or `acquire` with a timeout that stands alone, or after `not`.

`assert event.wait(60)` is none of them: it ends when the code under test sets the event, and fails if that never comes.

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
        *("spark", "chromium", "cluster", "sqs", "metastore", "rest_catalog"),
    }
)
"""Fixtures of real servers."""

REAL = {
    "tests/cli/test_cli.py": "a command in a process of its own",
    "tests/cli/test_cli_interrupt.py": "a process that gets a signal",
    "tests/cluster": "a Spark cluster",
    "tests/compaction/merge_until_killed.py": "a process that is killed",
    "tests/compaction/settle_until_killed.py": "a process that is killed",
    "tests/end_to_end": "pipelines and databases in processes of their own",
    "tests/fleet/test_events_of_s3.py": "an S3 server",
    "tests/fleet/test_processes.py": "workers that are killed",
    "tests/guides": "what a page of the docs shows, as a reader runs it",
    "tests/infra": "the servers of the tests themselves",
    "tests/keyindex/test_key_index.py": "a second process with the same index",
    "tests/listeners/deliver_until_killed.py": "a process that is killed",
    "tests/listeners/test_kill.py": "a process that is killed",
    "tests/log/test_stores.py": "a process that is killed while it writes",
    "tests/monitoring/test_alerts_for_real.py": "Prometheus",
    "tests/monitoring/test_dashboards.py": "Prometheus",
    "tests/monitoring/truth_on_s3.py": "a worker in a process of its own",
    "tests/pipeline/test_start.py": "Java, which starts and makes an archive",
    "tests/service/test_processes.py": "a service that is killed",
    "tests/storage/test_engine.py": "a child that was forked",
    "tests/ui/live_page.py": "a browser",
    "tests/verify/test_snapshot.py": "databases that go on beside their snapshot",
}
"""Folders and files of which every wait is for something real."""

PAGE = "a page over HTTP, which a thread keeps"
DATABASE = "the thread that looks at the topics of a database"
REASONS = {
    "tests/cli/test_progress_bars.py": (4, "the thread that draws, on a terminal"),
    "tests/compaction/test_on_cluster.py": (6, "merges that run side by side while Spark is waited for"),
    "tests/compaction/test_replicate.py": (2, "Table.maintain, with its threads"),
    "tests/conftest.py": (1, "threads that a test left behind"),
    "tests/health/test_entries_that_cannot_be_read.py": (1, "the threads of a deliverer"),
    "tests/health/test_exporter.py": (3, "a port of metrics, and the thread that samples"),
    "tests/health/test_figures.py": (2, "the thread that lists a folder"),
    "tests/health/test_glance.py": (1, PAGE),
    "tests/health/test_run_report.py": (1, "a thread that reports while others write"),
    "tests/ingest/database/databases.py": (1, DATABASE),
    "tests/ingest/database/test_database_ingest.py": (8, DATABASE),
    "tests/ingest/database/test_points_of_a_database.py": (5, DATABASE),
    "tests/ingest/database/test_requests_to_the_planner.py": (3, DATABASE),
    "tests/listeners/test_listening.py": (5, "threads that deliver to a server"),
    "tests/log/unsafe_s3.py": (1, "a store that is late on purpose, so that writers meet"),
    "tests/monitoring/test_truth.py": (4, "a port of metrics, and the thread that samples"),
    "tests/operations/test_purge.py": (3, "threads that write and maintain beside a purge"),
    "tests/pipeline/test_page_beside_a_run.py": (2, PAGE),
    "tests/planning/hunt_endless.py": (1, "runs for as many seconds as it is told"),
    "tests/resolve/test_folders_that_change.py": (1, "a thread that makes and removes folders for a while"),
    "tests/service/test_jobs_of_a_service.py": (8, "the threads of a service that run jobs"),
    "tests/service/test_survey.py": (13, "the thread of a service that surveys tables"),
    "tests/sources/test_kafka_database_source.py": (1, "a planner that asks in a thread"),
    "tests/sources/test_kept_clients.py": (2, "threads that shall meet in the middle of a call"),
    "tests/storage/test_part_storage.py": (3, "requests that take a while, so that threads meet"),
    "tests/table/test_reads.py": (2, "the thread that publishes reads"),
    "tests/telemetry/test_task_cost.py": (1, "a thread that looks at the task beside it"),
    "tests/test_failures.py": (2, "Internals.follow, which is a loop of its own"),
    "tests/ui/test_api.py": (16, PAGE),
    "tests/ui/test_database.py": (11, PAGE),
    "tests/ui/test_warehouse.py": (1, PAGE),
}
"""By file, how many waits are for something in this process, and why."""


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
    has_timeout = "." in name and (
        (last == "wait" and call.args) or (last in ("wait", "acquire") and "timeout" in named)
    )
    return f"{last}(timeout)" if has_timeout and isinstance(above, (ast.Expr, ast.UnaryOp)) else None


def _asks_a_clock(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.monotonic", "time.time", "monotonic")


def waits_of_tests(root: Path = ROOT) -> dict[str, list[Wait]]:
    """The waits of all tests, by file; the ways to wait themselves are left out."""
    files = sorted(path for path in (root / "tests").rglob("*.py") if path.name not in ("waiting.py", "waits.py"))
    found = {path.relative_to(root).as_posix(): waits_in(path.read_text()) for path in files}
    return {name: waits for name, waits in found.items() if waits}


def reason_of(name: str) -> str | None:
    """Why all waits of a file are for something real, if they are."""
    return next((reason for place, reason in REAL.items() if is_in(name, place)), None)


def is_in(name: str, place: str) -> bool:
    """Whether a file is this place, or in this folder."""
    return name == place or name.startswith(f"{place}/")


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
    for place in REAL:
        if not any(is_in(name, place) for name in found):
            said.append(f"nothing waits in {place}: remove it from REAL")
    return said


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
