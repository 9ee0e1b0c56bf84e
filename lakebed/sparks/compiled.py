"""Classes of ours in the driver's JVM: compiled there by Janino, the compiler that Spark generates its own code with.

No jar is added, and no executor needs the classes.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakebed.sparks.jvm import jvm_of
from lakebed.sparks.versions import NEWEST, RELEASES, release_of
from lakebed.storage.local_folders import cache_folder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def class_loader(session: SparkSession) -> Any:
    """The class loader of the driver, where Spark looks classes up by name."""
    return jvm_of(session).org.apache.spark.util.Utils.getContextOrSparkClassLoader()


def compiled_class(session: SparkSession, name: str) -> Any:
    """The ``java.lang.Class`` of a source file of this room. Py4J can't reach it by name: see ``static_method``."""
    return _compiler(session, _source(session, name)).getClassLoader().loadClass(name)


def static_method(java_class: Any, name: str) -> Any:
    """A ``java.lang.reflect.Method`` of a class that ``compiled_class`` returned."""
    return next(method for method in java_class.getMethods() if method.getName() == name)


def folder_of_classes(session: SparkSession, name: str) -> Path:
    """The folder with the bytecode of a source file of this room. It is kept, so a later start only loads it."""
    source = _source(session, name)
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


def _source(session: SparkSession, name: str) -> str:
    """The text of a source file, which is written for the newest Spark. In older ones some classes are in another package."""
    text = package_files("lakebed.sparks").joinpath(f"{name}.java").read_text()
    return text.replace(RELEASES[NEWEST].checkpoints, release_of(session.version).checkpoints)


def _compiler(session: SparkSession, source: str) -> Any:
    compiler = jvm_of(session).org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(class_loader(session))
    compiler.cook(source)
    return compiler
