"""Tests of what touches Spark, with each version that lakebed supports.

    python -m tests.sparks [VERSION…] [-- OPTIONS OF PYTEST]

Another PySpark stands before the installed one on ``PYTHONPATH``; all else is shared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

from lakebed.sparks.versions import release_of
from tests.infra.downloads import REPOSITORY, SPARKS, pyspark

TESTS = (
    "tests/sparks/test_any_spark.py",
    "tests/sparks/test_spark_connect.py",
    "tests/cluster",
    "tests/compaction/test_maintenance_query.py",
    "tests/ingest/test_checkpoint_files.py",
    "tests/names",
    "--deselect=tests/ingest/test_checkpoint_files.py::test_a_checkpoint_of_hadoop_goes_on_and_a_setting_of_the_user_stays",
    "tests/view/test_spark_counts_reads.py",
    "tests/view/test_spark_reads_altered_tables.py",
    "tests/view/test_spark_scan.py",
)
OF_DELTA = "tests/view/test_spark_scan.py::test_a_delta_table_reads_as_delta_reads_it"


def environment_with(version: str) -> dict[str, str]:
    """What a process runs this Spark with."""
    return {**os.environ, "PYTHONPATH": str(pyspark(version)), "EXPECTED_SPARK": version}


def main(arguments: list[str]) -> int:
    at = arguments.index("--") if "--" in arguments else len(arguments)
    versions, options = arguments[:at], arguments[at + 1 :]
    failed = []
    for version in versions or SPARKS:
        environment, started = environment_with(version), time.monotonic()
        print(f"Spark {version}", flush=True)
        left_out = () if release_of(version).has_delta else (f"--deselect={OF_DELTA}",)
        command = [sys.executable, "-m", "pytest", "-q", *TESTS, *left_out, *options]
        if subprocess.run(command, cwd=REPOSITORY, env=environment).returncode:
            failed.append(version)
        print(f"Spark {version}: {time.monotonic() - started:.0f} s", flush=True)
    print(f"failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
