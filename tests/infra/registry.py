"""A schema registry: Apicurio Registry, which has the API of Confluent's beside its own.

It is the newest line that runs with Java 17. What was registered is there again after ``kill`` and ``start``.
"""

from __future__ import annotations

import urllib.error
import urllib.request

from tests.infra.downloads import registry_folder
from tests.infra.jvm import java_options
from tests.infra.server import HOST, Server

HEAP_MB_MAX = 192


class RegistryServer(Server):
    """One registry; its schemas are in a file of its run folder."""

    name = "registry"

    @property
    def url(self) -> str:
        """Where clients of Confluent's registry find it."""
        return f"http://{HOST}:{self.ports[0]}/apis/ccompat/v7"

    @property
    def native_url(self) -> str:
        """Where Apicurio's own clients find it, such as its converters for Kafka Connect."""
        return f"http://{HOST}:{self.ports[0]}/apis/registry/v2"

    def prepare(self) -> None:
        """Nothing: the file is made by the server."""

    def command(self) -> list[str]:
        settings = {
            "quarkus.http.host": HOST,
            "quarkus.http.port": self.ports[0],
            # By default half a second passes before the file has what clients were told is there.
            "quarkus.datasource.jdbc.url": f"jdbc:h2:file:{self.run_folder / 'schemas'};WRITE_DELAY=0",
            "quarkus.banner.enabled": "false",
        }
        runner = next(registry_folder().glob("*-runner.jar"))
        defined = [f"-D{name}={value}" for name, value in settings.items()]
        return [*java_options(HEAP_MB_MAX), *defined, "-jar", str(runner)]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/subjects", timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False
