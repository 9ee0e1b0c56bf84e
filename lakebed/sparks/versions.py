"""Which Spark this is, and what belongs to its version."""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass

from lakebed.errors import MissingPrerequisite


@dataclass(frozen=True, slots=True)
class _SparkRelease:
    """What belongs to a minor version of Spark. ``hadoop``: the version that it brings along; ``has_delta``: whether Delta has an
    artifact for it; ``checkpoints``: the package of the classes that write the checkpoint of a query.
    """

    hadoop: str
    has_delta: bool
    checkpoints: str = "org.apache.spark.sql.execution.streaming.checkpointing"


RELEASES = {
    (4, 0): _SparkRelease(hadoop="3.4.1", has_delta=True, checkpoints="org.apache.spark.sql.execution.streaming"),
    (4, 1): _SparkRelease(hadoop="3.4.2", has_delta=True),
    (4, 2): _SparkRelease(hadoop="3.5.0", has_delta=True),
    (4, 3): _SparkRelease(hadoop="3.5.0", has_delta=False),
}
OLDEST, NEWEST = min(RELEASES), max(RELEASES)


def spark_version() -> str:
    """The version of the PySpark that is installed. Raises MissingPrerequisite if there is none."""
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        from pyspark import __version__  # a platform may have it without what pip knows of it
    except ImportError:
        raise MissingPrerequisite("PySpark is not installed: pip install pyspark") from None
    return str(__version__)


def require_supported(version: str) -> None:
    """Raises MissingPrerequisite if this version of Spark is too old."""
    if _minor(version) < OLDEST:
        raise MissingPrerequisite(
            f"Spark {version} is too old: lakebed needs Spark 4.0 or newer. Without Spark, table.query(), table.to_arrow() and "
            "every reader of Delta tables read a table, and lakebed run writes it from an environment that has a newer one"
        )


def release_of(version: str) -> _SparkRelease:
    """What belongs to a version; to one that is newer than all that are known, what belongs to the newest."""
    require_supported(version)
    return RELEASES.get(_minor(version), RELEASES[NEWEST])


def delta_package(version: str) -> str | None:
    """The artifact of the installed delta-spark for this Spark; None if there is none, or delta-spark is not installed."""
    if not release_of(version).has_delta:
        return None
    try:
        delta = importlib.metadata.version("delta-spark")
    except importlib.metadata.PackageNotFoundError:
        return None
    return f"io.delta:delta-spark_{'.'.join(map(str, _minor(version)))}_2.13:{delta}"


def why_no_delta(version: str) -> str:
    """What a session without Delta's jars does not do, and what brings it."""
    remedy = (
        "install lakebed[delta], and let lakebed.spark() build the session or give it Delta's jars"
        if release_of(version).has_delta
        else f"Delta has no release for Spark {version} yet"
    )
    return f'format("delta") does not work in this session, and all of lakebed does: {remedy}'


def _minor(version: str) -> tuple[int, int]:
    """The first two numbers of a version, whatever a platform adds to it."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise MissingPrerequisite(f"this Spark calls its version {version!r}, which says nothing to lakebed")
    return int(found[1]), int(found[2])
