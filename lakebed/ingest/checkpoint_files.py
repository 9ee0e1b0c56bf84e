"""Have Spark write the checkpoint of a query by `CheckpointFiles.java`, which starts no process for a file.

1. The class is compiled by Janino, the compiler that Spark generates its own code with. Its bytecode stays in the cache folder,
   so a later start only loads it.
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
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.storage.local_folders import cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CLASS = "lakebed.CheckpointFiles"
_SOURCE = "CheckpointFiles.java"
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
    configuration: Any = spark.sparkContext._jsc.hadoopConfiguration()
    return is_local_where(str(configuration.get("fs.defaultFS")), checkpoint)


def is_local_where(default_file_system: str, checkpoint: str) -> bool:
    """The same for a session with this file system for paths without a scheme."""
    has_scheme = ":" in checkpoint.partition("/")[0]
    return (checkpoint if has_scheme else default_file_system).startswith("file:")


def _loaded(spark: SparkSession) -> bool:
    """Whether the driver has the class; it is brought there if need be."""
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    try:
        try:
            loader.loadClass(CLASS)
        except Exception:  # ClassNotFoundException, as py4j tells it
            loader.addURL(jvm.java.io.File(str(_compiled(jvm, loader, spark.version))).toURI().toURL())
            loader.loadClass(CLASS)
            loader.loadClass(f"{CLASS}$Output")  # now, because the folder may be gone when it is first used
    except Exception as error:
        _logger.warning("checkpoints are written by Hadoop, which costs more: %s", str(error).splitlines()[0])
        return False
    return True


def _compiled(jvm: Any, loader: Any, version: str) -> Path:
    """The folder of the classes."""
    source = package_files("lakebed.ingest").joinpath(_SOURCE).read_text()
    name = hashlib.sha256(f"{version}\0{source}".encode()).hexdigest()[:16]
    folder = cache_folder() / "java" / name
    if not folder.is_dir():
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(loader)
        compiler.cook(source)
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
