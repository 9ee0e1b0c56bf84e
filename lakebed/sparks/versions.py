"""Which Spark this is, and what belongs to its version."""

from __future__ import annotations

import importlib.metadata
import re

from lakebed.errors import MissingPrerequisite

OLDEST = (4, 0)


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


def minor_of(version: str) -> tuple[int, int]:
    """The first two numbers of a version, whatever a platform adds to it."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise MissingPrerequisite(
            f"Spark says that its version is {version!r}, from which lakebed can't tell what it can"
        )
    return int(found[1]), int(found[2])


def require_supported(version: str) -> None:
    """Raises MissingPrerequisite if this version of Spark is too old."""
    if minor_of(version) < OLDEST:
        raise MissingPrerequisite(
            f"Spark {version} is too old: lakebed needs Spark 4.0 or newer. Without Spark, table.query(), table.to_arrow() "
            "and every reader of Delta tables read a table, and lakebed run writes it from an environment that has a newer one"
        )
