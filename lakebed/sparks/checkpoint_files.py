"""Checkpoints of streaming queries: a quick way to write them, and reading a file of one.

**Writing.** Spark writes the checkpoint by `CheckpointFiles.java`, which starts no process for a file.

1. The class is compiled once and kept (``compiled``).
2. Spark looks a manager of checkpoint files up by name, with the class loader of the driver. The folder is added to that one.
3. The name is a setting of the session while a query starts: the query keeps it, and other queries of the session do not get it.

Only a checkpoint on a local disk is written so. A setting of the user's stays.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lakebed.failures import spark_job
from lakebed.sparks.compiled import class_loader, folder_of_classes
from lakebed.sparks.jvm import default_file_system, java_session, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        loader = class_loader(spark)
        try:
            loader.loadClass(CLASS)
        except Exception:  # ClassNotFoundException, as py4j tells it
            folder = str(folder_of_classes(spark, CLASS.rpartition(".")[2]))
            loader.addURL(jvm_of(spark).java.io.File(folder).toURI().toURL())
            loader.loadClass(CLASS)
            loader.loadClass(f"{CLASS}$Output")  # now, because the folder may be gone when it is first used
    except Exception as error:
        _logger.warning("checkpoints are written by Hadoop, which costs more: %s", str(error).splitlines()[0])
        return False
    return True
