"""The checkpoint of a streaming query: the offset documents in it, and a quick way to write it.

**Reading.** The offset documents say what a batch reads, as Spark planned it.

Spark writes the source's offset document of a batch into ``offsets/<batch id>`` before the batch runs. A batch reads what lies
between the document of the batch before and its own; the first one begins at ``{}``. So the driver knows the ranges of a batch
without a task that reads them from the stream.

**Writing.** Spark writes the checkpoint by `CheckpointFiles.java`, which starts no process for a file.

1. The class is compiled by Janino, the compiler that Spark generates its own code with. Its bytecode stays in the cache folder,
   so a later start only loads it.
2. Spark looks a manager of checkpoint files up by name, with the class loader of the driver. The folder is added to that one.
3. The name is a setting of the session while a query starts: the query keeps it, and other queries of the session do not get it.

Only a checkpoint on a local disk is written so. A setting of the user's stays.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.error_transport import from_spark
from lakebed.errors import Unexpected
from lakebed.storage.local_folders import cache_folder
from lakebed.storage.roots import LocalRoot, parse_root

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SETTING = "spark.sql.streaming.checkpointFileManagerClass"
CLASS = "lakebed.CheckpointFiles"
_SOURCE = "CheckpointFiles.java"
_logger = logging.getLogger("lakebed.ingest")


@contextmanager
def quick_checkpoint(spark: SparkSession, checkpoint: str) -> Iterator[None]:
    """A query that starts in the block writes ``checkpoint``, if it is local, without starting processes."""
    chosen = _is_local(spark, checkpoint) and spark.conf.get(SETTING, None) is None and _loaded(spark)
    if chosen:
        spark.conf.set(SETTING, CLASS)
    try:
        yield
    finally:
        if chosen:
            spark.conf.unset(SETTING)


def _is_local(spark: SparkSession, checkpoint: str) -> bool:
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


_VERSION = "v1"
_Document = dict[str, Any]


class OffsetDocuments:
    """The offset documents of one query with one source."""

    def __init__(self, checkpoint: str, read: Callable[[str], str]) -> None:
        """``checkpoint``: a path or URL, for messages; ``read`` returns the text of a file below it."""
        self._checkpoint = checkpoint
        self._read = read

    @staticmethod
    def of(spark: SparkSession, checkpoint: str) -> OffsetDocuments:
        """Those of a checkpoint as Spark spells its path. A local one is read here, any other by Hadoop."""
        root = parse_root(checkpoint) if _is_local(spark, checkpoint) else None
        if isinstance(root, LocalRoot):
            folder = Path(root.path)
            return OffsetDocuments(checkpoint, lambda name: Path(folder, name).read_text())
        return OffsetDocuments(checkpoint, lambda name: _read_with_spark(spark, f"{checkpoint}/{name}"))

    def read(self, name: str) -> str:
        """The text of a file of the checkpoint."""
        return self._read(name)

    def of_batch(self, batch_id: int) -> tuple[_Document, _Document]:
        """The documents between which a batch reads. Raises Unexpected if the checkpoint has not what Spark writes."""
        return {} if batch_id == 0 else self._document(batch_id - 1), self._document(batch_id)

    def _document(self, batch_id: int) -> _Document:
        name = f"offsets/{batch_id}"
        try:
            version, _, *sources = self._read(name).splitlines()
            document = json.loads(sources[0])
        except (OSError, ValueError, IndexError) as error:
            raise self._unreadable(name, str(error)) from None
        if version != _VERSION or len(sources) != 1 or not isinstance(document, dict):
            raise self._unreadable(name, f"it is of version {version}, with {len(sources)} sources")
        return document

    def _unreadable(self, name: str, why: str) -> Unexpected:
        return Unexpected(
            f"the checkpoint {self._checkpoint} has no plan that can be read in {name}: {why}. Set 'checkpoint' to a new folder: "
            "what was read is in the table, so nothing is lost or doubled"
        )


def _read_with_spark(spark: SparkSession, url: str) -> str:
    jvm: Any = spark._jvm
    with from_spark():
        path = jvm.org.apache.hadoop.fs.Path(url)
        stream = path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).open(path)
        try:
            return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
