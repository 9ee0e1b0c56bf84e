"""A REST catalog of Iceberg: the one that Iceberg tests its own client with. Its port is open to other machines while it runs."""

from __future__ import annotations

from pathlib import Path

import pyspark

from tests.infra.downloads import iceberg_rest_jars
from tests.infra.jvm import java_options
from tests.infra.server import HOST, Server, can_connect

HEAP_MB_MAX = 192


class RestCatalogServer(Server):
    """One catalog. What was entered is there again after ``kill`` and ``start``."""

    name = "rest-catalog"

    @property
    def url(self) -> str:
        """Where its clients find it."""
        return f"http://{HOST}:{self.ports[0]}"

    def prepare(self) -> None:
        """Nothing: the file is made by the server."""

    def environment(self) -> dict[str, str]:
        return {
            "CATALOG_REST_PORT": str(self.ports[0]),
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": f"jdbc:sqlite:{self.run_folder / 'catalog.db'}",
            "CATALOG_WAREHOUSE": str(self.run_folder / "warehouse"),
        }

    def command(self) -> list[str]:
        hadoop = Path(pyspark.__file__).parent / "jars"
        return [
            *java_options(HEAP_MB_MAX),
            *("-cp", f"{iceberg_rest_jars()}/*:{hadoop}/*"),
            "org.apache.iceberg.rest.RESTCatalogServer",
        ]

    def is_ready(self) -> bool:
        return can_connect(self.ports[0])
