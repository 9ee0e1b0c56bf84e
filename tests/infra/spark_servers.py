"""Servers that answer Spark SQL of other programs: Spark's Thrift server (JDBC), its Connect server, and one that Python starts.

They are what ``docs/guides/bi-and-connect.md`` starts, with the files of that page: its settings and its program.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import STDOUT

from tests.guides.pages import blocks_of, commands_of
from tests.infra.server import HOST, Server, can_connect
from tests.infra.spark_cluster import spark_home
from tests.infra.spark_start import spark_environment
from tests.waiting import ran

GUIDE = "docs/guides/bi-and-connect.md"
_PROMPT = re.compile(r"^0: jdbc:hive2://\S+> ")


def file_of_guide(name: str) -> str:
    """A file that the page has a reader write."""
    commands = [command for block in blocks_of(GUIDE) if block.language == "console" for command in commands_of(block)]
    [text] = [command.text for command in commands if command.text.startswith(f"cat > {name} ")]
    return "\n".join(text.splitlines()[1:-1]) + "\n"


class SparkServer(Server):
    """A server in a folder with ``lake.conf`` and ``jars``, whose catalog ``lake`` is another folder."""

    file: str

    def __init__(self, warehouse: Path, jars: Path) -> None:
        super().__init__()
        self._warehouse = warehouse
        self._jars = jars

    def prepare(self) -> None:
        text = file_of_guide(self.file).replace("/srv/lake", str(self._warehouse)).replace("jars/*", f"{self._jars}/*")
        (self.run_folder / self.file).write_text(self.with_ports(text))

    def with_ports(self, text: str) -> str:
        """The file, with the ports of this server."""
        return text

    def environment(self) -> dict[str, str]:
        return {"SPARK_HOME": str(spark_home()), "SPARK_LOCAL_IP": HOST, **spark_environment()}

    def submitted(self, main: str, *settings: str) -> list[str]:
        """The command that starts a class of Spark's with the settings of the guide."""
        options = [
            "--properties-file",
            self.file,
            "--master",
            "local[2]",
            "--conf",
            "spark.ui.enabled=false",
            "--conf",
            "spark.driver.host=127.0.0.1",
        ]
        own = [part for setting in settings for part in ("--conf", setting)]
        return [str(spark_home() / "bin/spark-submit"), *options, *own, "--class", main, "spark-internal"]

    def is_ready(self) -> bool:
        return all(map(can_connect, self.ports))


class ThriftServer(SparkServer):
    name, file = "spark-thrift", "lake.conf"

    def command(self) -> list[str]:
        main = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
        return self.submitted(main, f"spark.hadoop.hive.server2.thrift.port={self.ports[0]}")


class ConnectServer(SparkServer):
    name, file = "spark-connect", "lake.conf"

    def command(self) -> list[str]:
        main = "org.apache.spark.sql.connect.service.SparkConnectServer"
        return self.submitted(main, f"spark.connect.grpc.binding.port={self.ports[0]}")


class PythonServer(SparkServer):
    """The program of the guide: JDBC at the first port, Connect at the second."""

    name, file = "python-server", "server.py"
    ports_needed = 2

    def with_ports(self, text: str) -> str:
        return text.replace('"10000"', f'"{self.ports[0]}"').replace('"15002"', f'"{self.ports[1]}"')

    def environment(self) -> dict[str, str]:
        return {**super().environment(), "LAKEBED_SPARK_MASTER": "local[2]", "PYSPARK_PYTHON": sys.executable}

    def command(self) -> list[str]:
        return [sys.executable, self.file]


def by_jdbc(port: int, statements: Sequence[str], database: str = "") -> list[str]:
    """What Beeline, a client of JDBC, prints of statements: rows with commas, and lines that begin with ``Error:``."""
    url = f"jdbc:hive2://{HOST}:{port}/{database}"
    options = ["--silent=true", "--outputformat=csv2", "--showHeader=false", "--force=true", "-n", "tests", "-u", url]
    asked = [part for statement in statements for part in ("-e", statement)]
    environment = {**os.environ, "SPARK_HOME": str(spark_home()), **spark_environment()}
    done = ran([str(spark_home() / "bin/beeline"), *options, *asked], stderr=STDOUT, env=environment)
    lines = [_PROMPT.sub("", line).strip() for line in done.stdout.splitlines()]
    return [line for line in lines if line and not line.startswith(("at ", "...", "WARNING", "Caused by"))]
