"""Two processes, one that ingests and one that maintains, over a broker that wants TLS and a password."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

import lakebed
from lakebed.errors import Retry, TableNotFound
from lakebed.sources.kafka.cluster import KafkaCluster
from lakebed.sources.kafka.settings import KafkaSettings
from tests.infra.secured_kafka import PASSWORD, USER, SecuredKafkaServer
from tests.waiting import outcome, wait_until, work_of

pytestmark = pytest.mark.slow

KEYS, ROUNDS = 50, 40
PIPELINE = """\
table:
  path: ./lake/prices
  keys: [id]
  sequence_by: kafka.offset
  schema: {id: long not null, note: string}
source:
  kind: kafka
  topics: [prices]
  config:
    bootstrap.servers: ${KAFKA}
    security.protocol: SASL_SSL
    sasl.mechanism: PLAIN
    sasl.username: ${KAFKA_USER}
    sasl.password: ${KAFKA_PASSWORD}
    ssl.ca.location: ${CA}
format: {kind: json}
"""


@pytest.fixture(scope="module")
def secured_kafka() -> Iterator[SecuredKafkaServer]:
    with SecuredKafkaServer() as server:
        server.create_topic("prices")
        yield server


def start(server: SecuredKafkaServer, folder: Path, password: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "prices.yml").write_text(PIPELINE)
    environment = {
        "KAFKA": server.secured_bootstrap,
        "KAFKA_USER": USER,
        "KAFKA_PASSWORD": password,
        "CA": str(server.ca_file),
    }
    code = "import sys; from lakebed.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "run", "prices.yml", "--metrics-port", "off", *arguments],
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        said, _ = outcome(process)
    finally:
        process.kill()
    return process.returncode, said


def is_settled(path: Path) -> bool:
    """Whether the table has the newest row of each key, and none in the tail."""
    try:
        table = lakebed.open(path)
    except TableNotFound:
        return False
    notes = table.to_arrow(["note"])["note"].to_pylist()
    return notes == [f"round {ROUNDS - 1}"] * KEYS and table.inspect.detail()["tail_parts"].to_pylist() == [0]


@pytest.mark.long
def test_ingest_and_maintenance_in_two_processes_read_a_secured_broker(
    secured_kafka: SecuredKafkaServer, tmp_path: Path
) -> None:
    producer = Producer({"bootstrap.servers": secured_kafka.bootstrap})
    for number in range(KEYS * ROUNDS):
        producer.produce("prices", json.dumps({"id": number % KEYS, "note": f"round {number // KEYS}"}))
    assert producer.flush(30) == 0
    running = [start(secured_kafka, tmp_path, PASSWORD, "--only", role) for role in ("ingest", "maintain")]
    try:
        work = [work_of(process.pid) for process in running]
        wait_until(
            lambda: is_settled(tmp_path / "lake" / "prices") or any(process.poll() is not None for process in running),
            moving=lambda: [each() for each in work],
        )
        for process in running:
            process.send_signal(signal.SIGTERM)
        outcomes = [ended(process) for process in running]
    finally:
        for process in running:
            process.kill()
    for code, said in outcomes:
        assert code == 0, said
        assert PASSWORD not in said
    table = lakebed.open(tmp_path / "lake" / "prices")
    rows = table.to_arrow(["id", "note"]).sort_by("id").to_pylist()
    assert rows == [{"id": key, "note": f"round {ROUNDS - 1}"} for key in range(KEYS)]
    assert is_settled(tmp_path / "lake" / "prices"), "the second process did not settle"


@pytest.mark.long
def test_a_wrong_password_is_reported_in_one_line_that_does_not_show_it(
    secured_kafka: SecuredKafkaServer, tmp_path: Path
) -> None:
    code, said = ended(start(secured_kafka, tmp_path, "Under-ground", "--duration", "60"))
    assert code == 2, said
    assert "kafka" in said and "credentials" in said
    assert "Under-ground" not in said and "Traceback" not in said


@pytest.mark.long
def test_a_certificate_that_nobody_vouches_for_is_reported(secured_kafka: SecuredKafkaServer) -> None:
    config = {"bootstrap.servers": secured_kafka.secured_bootstrap, "security.protocol": "SSL"}
    with pytest.raises(Retry, match="certificate"):
        KafkaCluster(KafkaSettings(config=config, topics=("prices",), timeout_seconds=1)).look()
