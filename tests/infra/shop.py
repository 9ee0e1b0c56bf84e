"""A shop that is open: ``python -m tests.infra.shop`` runs a database, Debezium, Kafka, and lakebed, which keeps a copy.

1.  PostgreSQL gets the tables of ``shop.sql``, and pgbench's clients, who order, pay and cancel until the end.
2.  Debezium captures every table into Kafka, also those that are made later: after a while the shop gets a new table and new
    columns, and the copy gets them too.
3.  ``lakebed run examples/shop.yml`` keeps the copy in ``lake/shop``, which is made anew each time. Ctrl-C ends all.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.infra.connect import JSON_CONVERTER
from tests.infra.debezium import DebeziumServer
from tests.infra.downloads import MissingPrerequisite
from tests.infra.kafka import KafkaServer
from tests.infra.postgres import PostgresServer
from tests.infra.server import ServerFailed

DATABASE = PREFIX = "shop"
TRANSACTIONS = f"{PREFIX}.transaction"
SIGNALS, NOTIFICATIONS = f"{PREFIX}-signals", f"{PREFIX}-notifications"
LAKE = Path("lake/shop")
ROOT = Path(__file__).parents[2]
PIPELINE = ROOT / "examples/shop.yml"
CLIENTS = 2
SCRIPTS = {
    "place": (
        6,
        "\\set customer random_zipfian(1, 1000, 1.1)\n\\set product random(1, 200)\n\\set pieces random(1, 5)\n"
        "call place_order(:customer, :product, :pieces);\n",
    ),
    "pay": (4, "call pay_order();\n"),
    "cancel": (1, "call cancel_order();\n"),
}
"""What clients do, and how often in relation."""
LATER = (
    "create table reviews (id bigint generated always as identity primary key, product_id int, stars int, said text);"
    " insert into reviews (product_id, stars, said) select id, 1 + id % 5, 'as expected' from products",
    "alter table customers add column email text;"
    " update customers set email = 'customer' || id || '@example.com' where id % 3 = 0",
    "alter table stock alter column pieces type bigint",
)
"""What happens to the database while the shop is open, one after the other."""
CONNECTOR = {
    "publication.autocreate.mode": "all_tables",
    "provide.transaction.metadata": "true",
    "skipped.operations": "none",
    "tombstones.on.delete": "false",
    "signal.enabled.channels": "source,kafka",
    "signal.data.collection": "public.debezium_signal",
    "signal.kafka.topic": SIGNALS,
    "notification.enabled.channels": "sink",
    "notification.sink.topic.name": NOTIFICATIONS,
    **{
        f"{part}.converter{option}": value
        for part in ("key", "value")
        for option, value in {
            "": JSON_CONVERTER,
            ".schemas.enable": "true",
            ".replace.null.with.default": "false",
        }.items()
    },
}


class Shop:
    """The database and all that brings its changes to Kafka, from ``open`` until the stack is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self.kafka = stack.enter_context(KafkaServer())
        self.postgres = stack.enter_context(PostgresServer())
        self._debezium = stack.enter_context(DebeziumServer(self.kafka, self.postgres))
        self._closed = threading.Event()
        self._stack = stack

    def open(self, transactions_per_second: float, pause_seconds: float) -> None:
        self.postgres.create_database(DATABASE)
        self.postgres.sql(Path(__file__).with_name("shop.sql").read_text(), DATABASE)
        self.kafka.create_topic(TRANSACTIONS)  # in one partition: it says in which order transactions ended
        for topic in (SIGNALS, NOTIFICATIONS):
            self.kafka.create_topic(topic)
        connector = CONNECTOR | {"signal.kafka.bootstrap.servers": self.kafka.bootstrap}
        self._debezium.capture(DATABASE, ["public\\..*"], PREFIX, connector)
        for work in (lambda: self._trade(transactions_per_second), lambda: self._change(pause_seconds)):
            thread = threading.Thread(target=work, name="shop", daemon=True)
            thread.start()
            self._stack.callback(thread.join)
        self._stack.callback(self._closed.set)

    def _trade(self, transactions_per_second: float) -> None:
        folder = self.postgres.run_folder
        scripts = []
        for name, (weight, text) in SCRIPTS.items():
            (folder / f"{name}.sql").write_text(text)
            scripts += ["-f", f"{folder / name}.sql@{weight}"]
        while not self._closed.is_set():
            rate = ["-R", str(transactions_per_second), "-c", str(CLIENTS), "-T", "3"]
            with suppress(ServerFailed):  # a change of the schema ended a transaction
                self.postgres.pgbench(DATABASE, "-n", *rate, *scripts)

    def _change(self, pause_seconds: float) -> None:
        for statements in LATER:
            if self._closed.wait(pause_seconds):
                return
            self.postgres.sql(statements, DATABASE)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.infra.shop", description="a busy shop, and lakebed beside it"
    )
    parser.add_argument("--rate", type=float, default=50, help="transactions a second (default: 50)")
    parser.add_argument("--pause", type=float, default=20, help="seconds until the next change of the schema")
    parser.add_argument("--duration", type=float, help="end after running for so many seconds")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for lakebed: when it has ended, so does the rest
    shutil.rmtree(LAKE, ignore_errors=True)
    try:
        with ExitStack() as stack:
            print("the shop opens: PostgreSQL, Kafka, Debezium …", file=sys.stderr, flush=True)
            shop = Shop(stack)
            shop.open(options.rate, options.pause)
            print(_to_try(shop), file=sys.stderr, flush=True)
            duration = [] if options.duration is None else ["--duration", str(options.duration)]
            return _lakebed(["run", str(PIPELINE), "--metrics-port", "0", *duration], {"KAFKA": shop.kafka.bootstrap})
    except (MissingPrerequisite, ServerFailed) as failed:
        sys.exit(str(failed))


def _lakebed(arguments: list[str], environment: dict[str, str]) -> int:
    command = [str(Path(sys.executable).with_name("lakebed")), *arguments]
    return subprocess.run(
        command, env={**os.environ, **environment}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    ).returncode


def _to_try(shop: Shop) -> str:
    url = f"postgresql://postgres@127.0.0.1:{shop.postgres.port}/{DATABASE}"
    verify = f"SHOP_URL={url} KAFKA={shop.kafka.bootstrap} lakebed verify {PIPELINE.relative_to(ROOT)}"
    query = f'lakebed query {LAKE}/public/orders "select state, count(*) from orders group by state"'
    return f"the database: psql {url}\nto try in another terminal:\n  {query}\n  lakebed status {LAKE}\n  {verify}\n"


if __name__ == "__main__":
    sys.exit(main())
