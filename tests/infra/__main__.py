"""Starts servers by hand, for a look around: ``python -m tests.infra kafka postgres registry s3 spark`` and others.

It prints the address of each, and stops them all on Ctrl-C. Debezium brings Kafka and its database with it.
"""

from __future__ import annotations

import argparse
import signal
import sys
from contextlib import ExitStack

from tests.infra.debezium import DebeziumServer
from tests.infra.debezium_mariadb import DebeziumMariaDb
from tests.infra.downloads import MissingPrerequisite
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import USER, MariaDbServer
from tests.infra.metastore import MetastoreServer
from tests.infra.postgres import SUPERUSER, PostgresServer
from tests.infra.registry import RegistryServer
from tests.infra.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server
from tests.infra.server import HOST, ServerFailed
from tests.infra.spark_cluster import SparkCluster

NAMES = ("kafka", "postgres", "debezium", "mariadb", "debezium-mariadb", "registry", "s3", "spark", "metastore")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.infra", description="start real servers on loopback")
    parser.add_argument("names", nargs="+", choices=NAMES, metavar="NAME", help=" | ".join(NAMES))
    wanted = set(parser.parse_args().names)
    if "debezium" in wanted:
        wanted |= {"kafka", "postgres"}
    if "debezium-mariadb" in wanted:
        wanted |= {"kafka", "mariadb"}
    try:
        with ExitStack() as running:
            start(wanted, running)
            print("Ctrl-C stops them", flush=True)
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except (MissingPrerequisite, ServerFailed) as failed:
        sys.exit(str(failed))


def start(wanted: set[str], running: ExitStack) -> None:
    """Starts what is wanted, in the order that each needs the other, and prints the addresses."""
    if "kafka" in wanted:
        kafka = running.enter_context(KafkaServer())
        print(f"kafka     {kafka.bootstrap}", flush=True)
    if "postgres" in wanted:
        postgres = running.enter_context(PostgresServer())
        print(f"postgres  postgresql://{SUPERUSER}@{HOST}:{postgres.port}/postgres", flush=True)
    if "debezium" in wanted:
        debezium = running.enter_context(DebeziumServer(kafka, postgres))
        print(f"debezium  http://{HOST}:{debezium.ports[0]}/connectors", flush=True)
    if "mariadb" in wanted:
        mariadb = running.enter_context(MariaDbServer())
        print(f"mariadb   mariadb -h {HOST} -P {mariadb.port} -u {USER}", flush=True)
    if "debezium-mariadb" in wanted:
        connect = running.enter_context(DebeziumMariaDb(kafka, mariadb))
        print(f"its Debezium  http://{HOST}:{connect.ports[0]}/connectors", flush=True)
    if "registry" in wanted:
        registry = running.enter_context(RegistryServer())
        print(f"registry  {registry.url}", flush=True)
    if "s3" in wanted:
        s3 = running.enter_context(S3Server())
        variables = f"AWS_ACCESS_KEY_ID={ACCESS_KEY} AWS_SECRET_ACCESS_KEY={SECRET_KEY} AWS_REGION={REGION}"
        print(f"s3        AWS_ENDPOINT_URL={s3.endpoint} {variables}", flush=True)
    if "metastore" in wanted:
        metastore = running.enter_context(MetastoreServer())
        print(f"metastore {metastore.url}", flush=True)
    if "spark" in wanted:
        cluster = running.enter_context(SparkCluster())
        print(f"spark     {cluster.url}", flush=True)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    main()
