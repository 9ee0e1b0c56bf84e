"""`PartIndex.java` as Python sees it: the files of a scan, in the JVM (``view.spark_scan``)."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import orjson

from lakebed.sparks.compiled import compiled_class, static_method
from lakebed.sparks.jvm import gateway_of, java_list, java_session, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class PartIndex:
    """Files of a table. Its methods are those of the Java class, which say what they do."""

    __slots__ = ("_java",)

    def __init__(self, java: Any) -> None:
        self._java = java

    def apply(self, change: bytes) -> PartIndex:
        """The index after a change."""
        return PartIndex(self._java.apply(change))

    def counting(self, reads: ReadsInJvm | None) -> PartIndex:
        """An index of the same files that counts the queries that read a file, or does not."""
        return PartIndex(self._java.counting(None if reads is None else reads.counts))

    def dataframe(self, session: SparkSession, verifies: bool) -> DataFrame:
        """The rows of its files. ``verifies``: Spark compares the checksums of the pages that it reads."""
        from pyspark.sql import DataFrame

        return DataFrame(self._java.dataset(java_session(session), verifies), session)


class ReadsInJvm:
    """How often queries were planned that read a part, by path."""

    def __init__(self, jvm: Any, take: Any) -> None:
        self.counts = jvm.java.util.HashMap()
        self._take = take
        self._arguments = java_list(jvm, [self.counts]).toArray()

    def take(self) -> dict[str, int]:
        """The counts since the last call."""
        counts: dict[str, int] = orjson.loads(self._take.invoke(None, self._arguments))
        return counts


class PartIndexes:
    """The class `PartIndex` in one JVM."""

    def __init__(self, session: SparkSession) -> None:
        self._jvm = jvm_of(session)
        self._class = compiled_class(session, "PartIndex")

    def empty(self, *arguments: object) -> PartIndex:
        """`PartIndex.empty`."""
        values = [java_list(self._jvm, value) if isinstance(value, list) else value for value in arguments]
        return PartIndex(static_method(self._class, "empty").invoke(None, java_list(self._jvm, values).toArray()))

    def reads(self) -> ReadsInJvm:
        """New counts of reads, all zero."""
        return ReadsInJvm(self._jvm, static_method(self._class, "take"))


_known: weakref.WeakKeyDictionary[Any, PartIndexes] = weakref.WeakKeyDictionary()
_guard = threading.Lock()


def part_indexes(session: SparkSession) -> PartIndexes:
    """The class in the JVM of a session, compiled when it is first asked for."""
    gateway = gateway_of(session)
    with _guard:
        found = _known.get(gateway)
        if found is None:
            found = _known[gateway] = PartIndexes(session)
        return found
