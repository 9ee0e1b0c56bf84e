"""Spark's catalogs of lakebed's tables: their classes (the folder ``catalog``), and the way from these back to this process.

The classes come to the JVM before its session starts, because a session loads its extensions then. They are compiled by Janino,
once for each version of Spark, and kept in the cache. No executor needs them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from functools import cached_property
from importlib.resources import files as package_files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lakebed.errors import LakebedError, MissingPrerequisite
from lakebed.sparks.jvm import gateway_of, has_class, jvm_of
from lakebed.sparks.versions import require_supported, spark_version
from lakebed.storage.local_folders import cache_folder
from lakebed.storage.roots import parse_root

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CATALOG, EXTENSIONS = "lakebed.Catalog", "lakebed.Extensions"
_CLASSES = (
    "Python",
    "Catalog",
    "Extensions",
    "NamedTable",
    "NamedProcedure",
    "Changes",
    "Creations",
    "DefaultSource",
    "Dialect",
    "Parser",
    "Refusals",
    "Rules",
    "Settled",
    "SettledTable",
    "Statement",
    "Streamed",
)
OPERATION, OLD = "_lakebed_operation", "_lakebed_old_"
"""The columns of what a statement changes beside those of its rows (``Statement.java``): what is done, and what rows were."""
DELETED, UPDATED, INSERTED = 1, 2, 3
_TARGET = 8  # of Java, from which on interfaces have static methods
_ERROR, _NO_STAMP = "\0error\0", "no stamp"  # Python.java
_CANT = "lakebed's tables have no names in this session: "
_logger = logging.getLogger("lakebed.spark")

Answer = Callable[["SparkSession", str, Sequence[str | None], Any], Any]
"""What answers a question of the classes: a word, texts, perhaps an object of the JVM; it returns a text or such an object."""


def conf_of(catalogs: dict[str, str]) -> dict[str, str]:
    """The settings that name folders of tables. They may be set in a running session too."""
    out = {f"spark.sql.catalog.{name}": CATALOG for name in catalogs}
    return out | {f"spark.sql.catalog.{name}.warehouse": str(parse_root(at)) for name, at in catalogs.items()}


def jar(jvm: Any, version: str) -> Path:
    """The jar with the classes for this version of Spark. Unless the cache has it, a JVM that has Spark's own compiles it."""
    stamp = stamp_of(version)
    made = cache_folder() / "java" / f"lakebed-spark-{version}-{stamp}.jar"
    if not made.is_file():
        source = _source().replace(_NO_STAMP, stamp)
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setSourceVersion(_TARGET)
        compiler.setTargetVersion(_TARGET)
        compiler.setParentClassLoader(_class_loader(jvm))
        compiler.cook(source)
        made.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=made.parent, suffix=".part")
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, code in dict(compiler.getBytecodes()).items():
                archive.writestr(f"{name.replace('.', '/')}.class", bytes(code))
        os.replace(part, made)
    return made


def stamp_of(version: str) -> str:
    """What the classes say of themselves that this lakebed makes for a version of Spark."""
    minor = ".".join(version.split(".")[:2])  # releases of one minor version have the same classes
    return hashlib.sha256(f"{minor}\0{_source()}".encode()).hexdigest()[:16]


def write_jar(file: Path) -> str:
    """Write the jar for the Spark that is installed; returns its version. Raises MissingPrerequisite."""
    from pyspark import SparkContext

    version = spark_version()
    require_supported(version)
    SparkContext._ensure_initialized()
    shutil.copyfile(jar(SparkContext._jvm, version), file)
    return version


def add_to(jvm: Any, version: str) -> bool:
    """Bring the classes into a JVM whose session has not started yet; returns whether it takes them."""
    loader = _class_loader(jvm)
    if loader.getClass().getSimpleName() != "MutableURLClassLoader":  # not started by Spark's own scripts
        return False
    loader.addURL(jvm.java.io.File(str(jar(jvm, version))).toURI().toURL())
    return True


def answer_with(session: SparkSession, answer: Answer) -> None:
    """Let this process answer what the classes in the session's JVM ask. Does nothing if the session has no names.

    Raises MissingPrerequisite if the classes are not those of this lakebed.
    """
    if EXTENSIONS not in (session.conf.get("spark.sql.extensions", "") or ""):
        return
    _require_own_classes(session)
    from pyspark.java_gateway import ensure_callback_server_started

    ensure_callback_server_started(gateway_of(session))  # type: ignore[no-untyped-call]
    jvm_of(session).lakebed.Python.set(_PythonSide(session, answer))


def _require_own_classes(session: SparkSession) -> None:
    from py4j.protocol import Py4JError

    remedy = (
        "write it with `lakebed export spark-jar lakebed-spark.jar`, give it as spark.jars, and start the session again "
        "(docs/guides/sql.md)"
    )
    if not has_class(session, "lakebed.Python"):
        raise MissingPrerequisite(
            f"the session has spark.sql.extensions={EXTENSIONS}, but not the jar with this class: {remedy}"
        )
    try:
        stamp = jvm_of(session).lakebed.Python.stamp()
    except Py4JError:  # of a time when classes said nothing of themselves
        stamp = None
    if stamp != stamp_of(session.version):
        raise MissingPrerequisite(
            f"the lakebed-spark.jar of this session is of another lakebed, or for another Spark than {session.version}: {remedy}"
        )


def require_names(session: SparkSession) -> None:
    """Raises MissingPrerequisite unless the session can have catalogs of lakebed's tables."""
    if EXTENSIONS not in (session.conf.get("spark.sql.extensions", "") or ""):
        raise MissingPrerequisite(
            f"{_CANT}it was started without spark.sql.extensions={EXTENSIONS}, which can't be added later; let lakebed.spark() "
            "build the session, or give yours this setting and the jar of `lakebed export spark-jar` (docs/guides/sql.md)"
        )


def _source() -> str:
    """All classes as one compilation unit."""
    folder = package_files("lakebed.sparks").joinpath("catalog")
    lines = [line for name in _CLASSES for line in folder.joinpath(f"{name}.java").read_text().splitlines()]
    imports = sorted({line for line in lines if line.startswith("import ")})
    return "\n".join(
        ["package lakebed;", *imports, *(line for line in lines if not line.startswith(("import ", "package ")))]
    )


def _class_loader(jvm: Any) -> Any:
    return jvm.java.lang.Thread.currentThread().getContextClassLoader()


class _PythonSide:
    """What ``Python.java`` calls. An error is a text; nothing is raised into Py4J, which would lose its sentence."""

    def __init__(self, session: SparkSession, answer: Answer) -> None:
        self._session = session
        self._answer = answer

    def apply(self, question: str, given: Any) -> Any:
        from pyspark.errors import PySparkException

        what, *texts = orjson.loads(question)
        try:
            return self._answer(self._session, what, texts, given)
        except (LakebedError, PySparkException) as error:
            return f"{_ERROR}{error}"
        except Exception as error:
            _logger.exception("a question of Spark's catalog could not be answered: %s", what)
            return f"{_ERROR}{type(error).__name__}: {error}"

    class Java:
        implements = ("java.util.function.BiFunction",)


class StatementInJvm:
    """A ``Statement`` of the JVM: what a user's command changes, as Spark computes it."""

    def __init__(self, session: SparkSession, java: Any) -> None:
        self._known = session
        self._java = java

    @cached_property
    def session(self) -> SparkSession:
        """The session that runs it."""
        return session_of(self._known, self._java.session())

    @property
    def kind(self) -> str:
        """INSERT, DELETE, UPDATE, MERGE, OVERWRITE or OVERWRITE PARTITIONS."""
        return str(self._java.kind())

    @property
    def table(self) -> str:
        """The name of the table."""
        return str(self._java.table().name())

    @property
    def condition(self) -> str | None:
        """Spark's SQL of the condition; None if there is none."""
        found = self._java.condition()
        return None if found is None else str(found)

    @property
    def as_verb(self) -> tuple[str, dict[str, str]] | None:
        """The condition and the assignments of a DELETE or UPDATE as ``Table.update`` takes them; None if it can't."""
        found = self._java.asVerb()
        return None if found is None else (str(found[0]), dict(zip(found[1::2], found[2::2], strict=True)))

    @property
    def replaced(self) -> dict[str, str | None] | None:
        """What columns are in the rows that an OVERWRITE replaces: none if it is of all rows, None if it is said otherwise."""
        found = self._java.replaced()
        return None if found is None else {str(name): found[name] for name in found}

    @property
    def replaced_where(self) -> str | None:
        """The condition of an OVERWRITE as ``Table.overwrite`` takes it; None if it can't."""
        found = self._java.replacedWhere()
        return None if found is None else str(found)

    @property
    def concerns_all_rows(self) -> bool:
        """Whether it is a MERGE that says what becomes of rows that the source lacks."""
        return bool(self._java.concernsAllRows())

    def source(self, few: int) -> tuple[DataFrame, bool]:
        """The rows that are inserted, or a MERGE's source, which stay what they are, and whether they are at most so many."""
        return self._frame(self._java.source(few)), bool(self._java.isFew())

    def keys_of_source(self, source: DataFrame) -> DataFrame | None:
        """The keys of the rows that a MERGE may meet; None if its condition is not that all keys are equal."""
        found = self._java.keysOfSource(source._jdf)
        return None if found is None else self._frame(found)

    @property
    def columns_read(self) -> list[str]:
        """The columns of the table's rows that a MERGE needs: its keys, and what its conditions and values speak of."""
        return [str(name) for name in self._java.columnsRead()]

    def changes(self, rows: DataFrame, source: DataFrame | None) -> DataFrame:
        """What it changes (``Statement.java``), of these rows of the table."""
        return self._frame(self._java.changes(rows._jdf, None if source is None else source._jdf))

    def _frame(self, java: Any) -> DataFrame:
        from pyspark.sql import DataFrame

        return DataFrame(java, self.session)


def frame_of_jvm(session: SparkSession, java_rows: Any) -> DataFrame:
    """A DataFrame of the JVM, with its own session, in this process."""
    from pyspark.sql import DataFrame

    return DataFrame(java_rows, session_of(session, java_rows.sparkSession()))


def logical_plan(frame: DataFrame) -> Any:
    """The analyzed plan of a DataFrame, in the JVM."""
    return frame._jdf.queryExecution().analyzed()


def id_of(java_session: Any) -> str:
    """What tells a session of the JVM from others."""
    return str(java_session.sessionUUID())


def session_of(session: SparkSession, java_session: Any) -> SparkSession:
    """A session of the JVM, which may be a clone of the one that is known here."""
    from pyspark.sql import SparkSession as Session

    return Session(session.sparkContext, java_session)
