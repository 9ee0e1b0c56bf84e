"""A metastore of Hive, from the jars that PySpark brings. Its port is open to other machines while it runs."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.infra.jvm import java_command
from tests.infra.server import HOST, Server, can_connect

HEAP_MB_MAX = 256


class MetastoreServer(Server):
    """One metastore. What was entered is there again after ``kill`` and ``start``."""

    name = "metastore"

    @property
    def url(self) -> str:
        """Where its clients find it."""
        return f"thrift://{HOST}:{self.ports[0]}"

    def prepare(self) -> None:
        self.warehouse.mkdir(exist_ok=True)

    @property
    def warehouse(self) -> Path:
        """The folder in which it makes those of databases."""
        return self.run_folder / "warehouse"

    def command(self) -> list[str]:
        settings = {
            "javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={self.run_folder / 'database'};create=true",
            "datanucleus.schema.autoCreateAll": "true",
            "hive.metastore.schema.verification": "false",
            "hive.metastore.warehouse.dir": f"file:{self.warehouse}",
            "hive.metastore.server.min.threads": "2",
            "hive.async.log.enabled": "false",  # it needs a library that PySpark does not bring
        }
        given = [part for name, value in settings.items() for part in ("--hiveconf", f"{name}={value}")]
        jars = Path(pyspark.__file__).parent / "jars"
        main = "org.apache.hadoop.hive.metastore.HiveMetaStore"
        return java_command(jars, self.run_folder, HEAP_MB_MAX, main, "-p", str(self.ports[0]), *given)

    def is_ready(self) -> bool:
        return can_connect(self.ports[0])
