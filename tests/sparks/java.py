"""Compiles lakebed's Java for each Spark that is here, as a user's session does it: `make check` runs it.

The compiler is Janino, out of the jars of each Spark. It is the one that users have, and knows less of Java than javac does.

1. The installed Spark, and those that the tests have fetched (``tests.infra.downloads``), are here. Others are named.
2. A Spark whose classes were compiled from the same files before is left out: a file in the virtual environment says so.
3. Without Java, which `make check` does not need else, nothing is compiled, and this is said.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JJavaError

from lakebed.errors import MissingPrerequisite
from lakebed.sparks import compiled, names
from lakebed.sparks.session import require_java
from lakebed.sparks.versions import spark_version
from tests.infra.downloads import SPARKS, folder_of

ROOM = Path(names.__file__).parent
DONE = Path(sys.prefix) / ".java"
AT_ONCE = 2
QUICK = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]


def here() -> dict[str, Path]:
    """The Sparks that are here, a release of each minor version, with their jars."""
    found = {version: folder_of(f"pyspark-{version}", version.encode()) / "pyspark" for version in SPARKS}
    there = {version: folder / "jars" for version, folder in found.items() if folder.is_dir()}
    installed = spark_version()
    others = {version: jars for version, jars in there.items() if minor(version) != minor(installed)}
    return {installed: Path(pyspark.__file__).parent / "jars", **others}


def minor(version: str) -> str:
    """The first two numbers."""
    return version.rpartition(".")[0]


def state_of(version: str) -> str:
    """What stands in the file of a Spark whose classes were compiled from what there is now."""
    sources = sorted([*ROOM.rglob("*.java"), Path(names.__file__), Path(compiled.__file__)])
    return f"{version} {hashlib.sha256(b''.join(path.read_bytes() for path in sources)).hexdigest()}"


def is_done(version: str) -> bool:
    """Whether this was compiled before."""
    file = DONE / version
    return file.exists() and file.read_text() == state_of(version)


def wrong_with(version: str, jars: Path) -> str:
    """Compile all for a Spark; returns what went wrong, nothing if all is well."""
    port, secret = launch_gateway(
        classpath=f"{jars}/*", javaopts=QUICK, die_on_exit=True, enable_auth=True, redirect_stderr=sys.stderr
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=secret, auto_convert=True))
    try:
        names.jar(gateway.jvm, version)
        for name in sorted(path.stem for path in ROOM.glob("*.java")):
            gateway.jvm.org.codehaus.janino.SimpleCompiler().cook(compiled.source_of(version, name))
    except Py4JJavaError as error:
        return f"java: does not compile for Spark {version}: {error.java_exception.getMessage()}"
    finally:
        gateway.shutdown()
    DONE.mkdir(exist_ok=True)
    (DONE / version).write_text(state_of(version))
    return ""


def main() -> int:
    try:
        require_java()
    except MissingPrerequisite as error:
        print(f"java: not compiled: {error}")
        return 0
    due = {version: jars for version, jars in here().items() if not is_done(version)}
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(AT_ONCE) as threads:
        os.environ["LAKEBED_CACHE_DIR"] = cache
        errors = [error for error in threads.map(wrong_with, due, due.values()) if error]
    for error in errors:
        print(error)
    if errors:
        return 1
    missing = [version for version in SPARKS if minor(version) not in map(minor, here())]
    more = f"; not for {', '.join(missing)}: not fetched yet" if missing else ""
    print(f"java: compiled for Spark {', '.join(here())}{more}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
