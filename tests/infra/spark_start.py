"""How Spark's Java processes start in the tests: with half the work of a usual start.

1. Only the first compiler and the serial collector: no test runs long enough for what the others are better at.
2. Classes come from an archive that one session wrote when it ended (class data sharing), and are not read out of hundreds of
   jars again. ``make test`` has it made once. Where there is none, or it fits another Java or other jars, Java goes without.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from tests.infra.downloads import REPOSITORY, _run, fetch_once, folder_of

_QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_QUIET = "-Xshare:auto -Xlog:disable"


def spark_options() -> str:
    """Options of Java for a driver, an executor or a daemon of Spark."""
    archive = folder_of(*_identity()) / "spark.jsa"
    return f"{_QUICK} {_QUIET}" + (f" -XX:SharedArchiveFile={archive}" if archive.exists() else "")


def spark_environment() -> dict[str, str]:
    """What makes each Spark driver below a process start with these options, unless it has options of its own."""
    ours = {"SPARK_SUBMIT_OPTS": spark_options(), "SPARK_LAUNCHER_OPTS": f"{_QUICK} {_QUIET}"}
    return ours | {name: os.environ[name] for name in ours if name in os.environ}


def class_archive() -> Path:
    """The folder of the archive, which a session writes if it is not there."""

    def write(staging: Path) -> None:
        options = f"{_QUICK} -XX:ArchiveClassesAtExit={staging / 'spark.jsa'} -Xlog:disable"
        # A Java that cannot write one leaves the folder empty: then nothing is gained, and nothing is lost.
        with tempfile.TemporaryDirectory() as folder:
            environment = {"SPARK_SUBMIT_OPTS": options, "LAKEBED_CACHE_DIR": folder, "PYTHONPATH": str(REPOSITORY)}
            _run([sys.executable, "-m", "tests.infra.spark_start", folder], environment)

    return fetch_once(*_identity(), write)


def _identity() -> tuple[str, bytes]:
    """What the archive fits: a Java and the jars of a Spark."""
    java = os.environ.get("JAVA_HOME") or os.path.realpath(shutil.which("java") or "")
    pyspark = find_spec("pyspark")
    assert pyspark is not None and pyspark.origin is not None
    return "spark-classes", f"{java} {version('pyspark')} {Path(pyspark.origin).resolve()}".encode()


def _use_classes(folder: str) -> None:
    """What most tests do with Spark: a stream into a table, its maintenance, a view, and Delta's own reader."""
    import pyarrow as pa

    import lakebed

    spark = lakebed.spark("classes", "local[2]", s3=True)
    table = lakebed.create(Path(folder, "table"), pa.schema([pa.field("id", pa.int64(), nullable=False)]), keys=["id"])
    rows = spark.range(100)
    rows.write.parquet(f"{folder}/arriving")
    arriving = spark.readStream.schema(rows.schema).parquet(f"{folder}/arriving")
    maintenance = table.maintain(spark)
    table.ingest(arriving, trigger={"availableNow": True}).awaitTermination()
    maintenance.stop()
    table.settle()
    assert (
        table.read(spark).count()
        == spark.read.format("delta").load(table.path).toArrow().num_rows
        == len(table.to_arrow())
    )
    jvm = spark.sparkContext._gateway
    spark.stop()
    jvm.shutdown()
    jvm.proc.stdin.close()
    jvm.proc.wait()


if __name__ == "__main__":
    _use_classes(sys.argv[1])
