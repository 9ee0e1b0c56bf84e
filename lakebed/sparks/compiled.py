"""Classes of ours in the driver's JVM: compiled there by Janino, the compiler that Spark generates its own code with.

No jar is added, and no executor needs the classes.

**The files of a scan** are in the JVM (``view.spark_scan``): here is `PartIndex.java` as Python sees it.

**Checkpoints of streaming queries** are written by `CheckpointFiles.java`, which starts no process for a file.

1. The class is compiled once and kept.
2. Spark looks a manager of checkpoint files up by name, with the class loader of the driver. The folder is added to that one.
3. The name is a setting of the session while a query starts: the query keeps it, and other queries of the session do not get it.

Only a checkpoint on a local disk is written so. A setting of the user's stays.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lakebed.failures import spark_job
from lakebed.sparks.jvm import default_file_system, gateway_of, java_list, java_session, jvm_of
from lakebed.sparks.versions import NEWEST, RELEASES, release_of
from lakebed.storage.local_folders import cache_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _class_loader(session: SparkSession) -> Any:
    """The class loader of the driver, where Spark looks classes up by name."""
    return jvm_of(session).org.apache.spark.util.Utils.getContextOrSparkClassLoader()


def _compiled_class(session: SparkSession, name: str) -> Any:
    """The ``java.lang.Class`` of a source file of this room. Py4J can't reach it by name: see ``_static_method``."""
    return _compiler(session, source_of(session.version, name)).getClassLoader().loadClass(name)


def _static_method(java_class: Any, name: str) -> Any:
    """A ``java.lang.reflect.Method`` of a class that ``_compiled_class`` returned."""
    return next(method for method in java_class.getMethods() if method.getName() == name)


def _folder_of_classes(session: SparkSession, name: str) -> Path:
    """The folder with the bytecode of a source file of this room. It is kept, so a later start only loads it."""
    source = source_of(session.version, name)
    folder = cache_folder() / "java" / hashlib.sha256(f"{session.version}\0{source}".encode()).hexdigest()[:16]
    if not folder.is_dir():
        compiler = _compiler(session, source)
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for kind, code in dict(compiler.getBytecodes()).items():
            file = made / f"{kind.replace('.', '/')}.class"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(bytes(code))
        try:
            os.rename(made, folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return folder


def source_of(version: str, name: str) -> str:
    """The text of a source file for a Spark. It is written for the newest one; in others some classes are in another package."""
    text = package_files("lakebed.sparks").joinpath(f"{name}.java").read_text()
    return text.replace(RELEASES[NEWEST].checkpoints, release_of(version).checkpoints)


def _compiler(session: SparkSession, source: str) -> Any:
    compiler = jvm_of(session).org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(_class_loader(session))
    compiler.cook(source)
    return compiler


# -- The files of a scan -----------------------------------------------------------------------------------------------


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

    def dataframe(self, session: SparkSession, verifies: bool, places: bool) -> DataFrame:
        """The rows of its files. ``verifies``: Spark compares the checksums of the pages that it reads. ``places``: with the path
        of the part of each row as ``_lakebed_part``, and its number in the file as ``_lakebed_row``.
        """
        from pyspark.sql import DataFrame

        return DataFrame(self._java.dataset(java_session(session), verifies, places), session)


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
        self._class = _compiled_class(session, "PartIndex")

    def empty(self, *arguments: object) -> PartIndex:
        """`PartIndex.empty`."""
        values = [java_list(self._jvm, value) if isinstance(value, list) else value for value in arguments]
        return PartIndex(_static_method(self._class, "empty").invoke(None, java_list(self._jvm, values).toArray()))

    def reads(self) -> ReadsInJvm:
        """New counts of reads, all zero."""
        return ReadsInJvm(self._jvm, _static_method(self._class, "take"))


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


# -- Checkpoints of streaming queries ----------------------------------------------------------------------------------


SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CLASS = "lakebed.CheckpointFiles"
_logger = logging.getLogger("lakebed.ingest")


@contextmanager
def quick_checkpoint(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """A query that starts in the block writes ``checkpoint``, if it is local, without starting processes."""
    chosen = is_local(spark, checkpoint) and spark.conf.get(SETTING, None) is None and _loaded(spark)
    if chosen:
        spark.conf.set(SETTING, CLASS)
    try:
        yield
    finally:
        if chosen:
            spark.conf.unset(SETTING)


def is_local(spark: SparkSession, checkpoint: str) -> bool:
    """Whether Spark writes the checkpoint to a local disk."""
    return is_local_where(default_file_system(spark), checkpoint)


def is_local_where(default: str, checkpoint: str) -> bool:
    """The same for a session with this file system for paths without a scheme."""
    has_scheme = ":" in checkpoint.partition("/")[0]
    return (checkpoint if has_scheme else default).startswith("file:")


def read_with_spark(spark: SparkSession, url: str) -> str:
    """The text of a file that Hadoop reads."""
    jvm = jvm_of(spark)
    with spark_job():
        path = jvm.org.apache.hadoop.fs.Path(url)
        stream = path.getFileSystem(java_session(spark).sessionState().newHadoopConf()).open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()


def _loaded(spark: SparkSession) -> bool:
    """Whether the driver has the class; it is brought there if need be."""
    try:
        loader = _class_loader(spark)
        try:
            loader.loadClass(CLASS)
        except Exception:  # ClassNotFoundException, as py4j tells it
            folder = str(_folder_of_classes(spark, CLASS.rpartition(".")[2]))
            loader.addURL(jvm_of(spark).java.io.File(folder).toURI().toURL())
            loader.loadClass(CLASS)
            loader.loadClass(f"{CLASS}$Output")  # now, because the folder may be gone when it is first used
    except Exception as error:
        _logger.warning("checkpoints are written by Hadoop, which costs more: %s", str(error).splitlines()[0])
        return False
    return True
