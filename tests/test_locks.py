"""Every lock is known here with what it guards, and under most of them nothing is read, written or planned."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import lakebed

ROOT = Path(lakebed.__file__).parent
MAKERS = {"Lock", "RLock", "Condition", "Semaphore"}

QUICK = {
    ("sparks/cluster.py", "_free"): "which jobs run, how many merges are there, until when the cluster is away",
    ("compaction/merge_runner.py", "_lock"): "which merges run, which parts wait because they failed",
    ("compaction/scheduler.py", "_changed"): "which jobs wait, are ready, or run; which threads are idle",
    ("compaction/scheduler.py", "_clock_moved"): "the same lock: the thread that watches the clock waits with it",
    ("compaction/scheduler.py", "_called"): "the same lock: the other idle threads wait with it",
    ("compaction/scheduler.py", "_ran"): "the same lock: who removes jobs waits with it",
    ("compaction/volatile.py", "_lock"): "the materialized parts of this replica, and which are in use",
    ("failures.py", "_here_lock"): "the queries of this process",
    ("failures.py", "_lock"): "the state of a query",
    ("fleet/hints.py", "_changed"): "whether a hint has come, and whether the job runs",
    ("fleet/worker.py", "_room"): "which tables are active",
    ("ingest/database_batch.py", "_lock"): "what is known of the topics, and how they stand",
    ("sources/kafka/assignment.py", "_lock"): "which ranges of a client are not begun, and how many threads use it",
    ("sources/kafka/clients.py", "_lock"): "the clients that wait for a range; none is closed under it",
    ("names/answers.py", "_lock"): "the catalogs, and the versions that queries have named",
    ("names/catalog.py", "_lock"): "which tables are open",
    ("jobs.py", "_lock"): "the jobs that run in this process",
    ("coordination/log_cache.py", "_lock"): "the logs that are kept, and their bytes",
    ("log/log_reader.py", "_lock"): "the reference to the newest snapshot",
    ("log/stores.py", "_lock"): "the objects of a store in memory",
    ("monitoring/metrics.py", "_lock"): "meters",
    ("monitoring/progress.py", "_lock"): "figures",
    ("parts/deletion_vector_cache.py", "_lock"): "the vectors in memory",
    ("resolve/locate.py", "_lock"): "whether the thread that builds the key index runs",
    ("coordination/read_counts.py", "_lock"): "counts in memory",
    ("pipeline/database/introducer.py", "_lock"): "the names of the tables that are counted",
    ("service/catalog.py", "_lock"): "which tables were found, and which are open; the descriptions that are kept",
    ("service/iceberg_tables.py", "_lock"): "which tables have published something, and where they are",
    ("service/app.py", "_lock"): "how many requests each caller may still send",
    ("service/survey.py", "_lock"): "which tables are looked at before the next answer",
    ("waits.py", "_lock"): "which execution is under way, and which comes next",
    ("storage/counters.py", "_lock"): "counts of requests",
    ("storage/range_files.py", "_lock"): "the blocks in memory, and those that are being fetched",
    ("storage/data_files.py", "_lock"): "the readers of this process",
    ("ui/documents.py", "_lock"): "what this process knows of tables, for the page",
    ("ui/watch.py", "_lock"): "which tables are watched for their own pages",
    ("ui/watch.py", "_changed"): "what was seen last",
    ("view/merge_on_read.py", "_lock"): "which views there are, and what they show",
    ("view/pinned.py", "_lock"): "the version that was resolved last",
}

LONG = {
    ("sparks/cluster.py", "_beginning"): "one thread begins a session; only those that need it wait",
    (
        "health/run_report.py",
        "_putting",
    ): "one put of a report at a time; its removal waits for it, ten seconds at most",
    ("compaction/recluster_job.py", "_reporting"): "one report of a job at a time, by the caller's own function",
    (
        "compaction/maintenance.py",
        "_changing",
    ): "one table is added or removed at a time; what maintains them does not take it",
    ("compaction/maintenance_query.py", "_changing"): "one query starts or stops at a time; its batches do not take it",
    ("compaction/replicate.py", "_looking"): "one part is built at a time; readers do not take it",
    ("compaction/settler.py", "_alone"): "one settle of a table that others died of; who can't take it does not wait",
    ("compaction/settler.py", "_lock"): "one settle at a time: two would settle the same changes",
    ("keyindex/key_index.py", "_mutation"): "one change of the index at a time; look-ups do not take it",
    ("resolve/locators.py", "_opening"): "one thread opens the key index; readers do not wait for it",
    ("sortkey/statistics_cache.py", "_lock"): "texts are read once for a column or an order; others do not wait",
    ("storage/engine.py", "_guard"): "the databases of this process; opening one takes some 20 ms",
    ("storage/local_folders.py", "_guard"): "the folder of this process; making it is a few calls of the local disk",
    ("storage/s3_client.py", "_lock"): "one thread makes a client; who has one does not take it",
    (
        "view/merge_on_read.py",
        "_refreshing",
    ): "registered views are made anew in the order of versions; reads do not take it",
    ("sparks/compiled.py", "_guard"): "the class in the JVM, compiled once",
    ("view/spark_scan.py", "_guard"): "the slots and the counts of tables; making counts is a call of the JVM",
    ("view/spark_scan.py", "lock"): "the files of one table are sent to the JVM once; other tables have their own",
}

SLOW_CALLS = {
    "at_version", "commit", "connect", "cursor", "execute", "list_from", "load", "lookup", "open", "plan", "views", "put",
    "put_if_absent", "read", "read_bytes", "read_commit", "read_range", "refresh", "sample", "sleep", "sql", "sync",
    "unlink", "write", "write_bytes", "write_checkpoint", "_planner", "_plans", "_reads",
}  # fmt: skip


@cache
def modules() -> list[tuple[str, ast.Module]]:
    files = {file.relative_to(ROOT).as_posix(): file.read_text() for file in sorted(ROOT.rglob("*.py"))}
    locking = {path: text for path, text in files.items() if "import threading" in text or "Lock" in text}
    return [(path, ast.parse(text)) for path, text in locking.items()]


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def locks_made(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(name_of(inner) in MAKERS for inner in ast.walk(node.value) if isinstance(inner, ast.expr)):
                yield from map(name_of, targets)


@pytest.mark.slow
def test_every_lock_is_known() -> None:
    found = {(path, name) for path, tree in modules() for name in locks_made(tree)}
    assert found == QUICK.keys() | LONG.keys()


def test_nothing_slow_is_called_under_a_quick_lock() -> None:
    wrong, looked_at = [], 0
    for path, tree in modules():
        for block in ast.walk(tree):
            if not isinstance(block, ast.With):
                continue
            held = [name_of(item.context_expr) for item in block.items]
            if any((path, name) in QUICK for name in held):
                looked_at += 1
                calls = (node for inner in block.body for node in ast.walk(inner) if isinstance(node, ast.Call))
                wrong += [
                    f"{path}:{call.lineno} {name_of(call.func)}" for call in calls if name_of(call.func) in SLOW_CALLS
                ]
    assert looked_at >= 50 and not wrong
