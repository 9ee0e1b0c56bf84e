"""A Kafka broker that lets clients in over TLS with a password only, beside the plain listener of the tests' own tools."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.infra.downloads import program
from tests.infra.kafka import KafkaServer
from tests.infra.server import HOST, ServerFailed

USER, PASSWORD = "loader", "Gr0und-water"
STORE_PASSWORD = "of-the-key-store"


class SecuredKafkaServer(KafkaServer):
    """``secured_bootstrap`` asks for TLS and for ``USER`` and ``PASSWORD`` by SASL/PLAIN; ``ca_file`` vouches for it."""

    name = "secured-kafka"
    ports_needed = 3

    @property
    def secured_bootstrap(self) -> str:
        return f"{HOST}:{self.ports[2]}"

    @property
    def ca_file(self) -> Path:
        return self.run_folder / "ca.pem"

    def prepare(self) -> None:
        if not self.ca_file.exists():
            self._make_certificate()
        super().prepare()

    def _make_certificate(self) -> None:
        store = ("-keystore", str(self.run_folder / "broker.p12"), "-storepass", STORE_PASSWORD, "-alias", "broker")
        keytool = program("keytool", "install Java 17 or newer (Debian: apt-get install openjdk-17-jre-headless)")
        kind = (
            "-keyalg",
            "EC",
            "-storetype",
            "PKCS12",
            "-dname",
            f"CN={HOST}",
            "-ext",
            f"SAN=ip:{HOST}",
            "-validity",
            "2",
        )
        for command in (("-genkeypair", *store, *kind), ("-exportcert", "-rfc", "-file", str(self.ca_file), *store)):
            done = subprocess.run([keytool, *command], capture_output=True, text=True, timeout=60)
            if done.returncode:
                raise ServerFailed(f"keytool {command[0]} failed:\n{done.stdout}{done.stderr}")

    def _configuration(self, data: Path) -> dict[str, object]:
        plain = super()._configuration(data)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            **plain,
            "listeners": f"{plain['listeners']},SECURED://{self.secured_bootstrap}",
            "advertised.listeners": f"{plain['advertised.listeners']},SECURED://{self.secured_bootstrap}",
            "listener.security.protocol.map": f"{plain['listener.security.protocol.map']},SECURED:SASL_SSL",
            "ssl.keystore.location": self.run_folder / "broker.p12",
            "ssl.keystore.password": STORE_PASSWORD,
            "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f'{module} required user_{USER}="{PASSWORD}";',
        }
