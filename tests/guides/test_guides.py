"""What README and docs tell a reader to do works, command by command, from top to bottom of each page.

``follow`` says how; here stands what each page takes for granted, what comes of it, and which commands can't be run.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import botocore
import certifi
import numpy as np
import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

import lakebed
from lakebed.compaction.maintenance import Maintenance
from lakebed.coordination.failing import park_merge
from lakebed.errors import StoreUnavailable, TableNotFound, VersionNotFound
from lakebed.fleet.membership import listed_workers
from lakebed.operations.purge import files as purge_files
from lakebed.service.tokens import Role, line_of, new_token
from lakebed.storage.s3_client import s3_client
from tests.database.bank import Bank, Copy
from tests.guides.follow import LAKEBED, Circumstances, Reader
from tests.guides.orders import orders_table
from tests.guides.pages import ROOT, Block, Command, blocks_of, commands_of
from tests.iceberg.readers import pyiceberg
from tests.infra.debezium import DebeziumServer
from tests.infra.downloads import lakebed_wheel
from tests.infra.foreign_duckdb import ICEBERG_REST, ForeignDuckDB
from tests.infra.kafka import KafkaServer
from tests.infra.metastore import MetastoreServer
from tests.infra.postgres import PostgresServer
from tests.infra.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.infra.server import free_ports
from tests.internals import log_of
from tests.listeners.catalogs.metastore import table_in
from tests.listeners.receiver import receiver
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGES = ["README.md", *(f"docs/{name}.md" for name in ("pipeline", "operations", "runbook", "service"))]
PAGES += sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs/guides").glob("*.md"))
NOT_RUN = {
    r"make \w+": "sets up the environment that the tests run in, or runs the tests",
    r"(\.venv/bin/)?pip install": "changes that environment",
    r"lakebed run pipeline\.yml$": "as it is run in docs/guides/getting-started.md",
    r"(docker|helm|sudo) ": "needs a container engine, a cluster or root; tests/deploy checks the files",
    r"(conda(-pack)?|export PYSPARK_DRIVER_PYTHON|spark-submit)\b": "needs a cluster; tests/cluster does it",
    r"(lakebed export spark-jar jars/|python (server|client)\.py|beeline|spark-sql) ?": "tests/names/test_servers.py does it",
    r"prometheus ": "never ends; tests/monitoring/test_alerts_for_real.py runs it with these files",
}
"""Commands that no test runs, and why."""


def not_run(command: Command) -> bool:
    return any(re.match(pattern, command.text) for pattern in NOT_RUN)


def follow(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch, around: Circumstances | None = None) -> None:
    around = around or Circumstances()
    around.skips = not_run
    Reader(folder, around, monkeypatch).follow(page)


def is_settled(table: lakebed.Table) -> bool:
    return bool(table.inspect.detail()["tail_parts"].to_pylist() == [0])


def test_every_page_is_followed_by_a_test() -> None:
    followed = re.findall(r'follow\(\s*"([\w./-]+)"', Path(__file__).read_text())
    assert sorted(followed) == sorted(PAGES)


def test_no_exception_is_left_that_no_page_needs() -> None:
    commands = [command for page in PAGES for block in blocks_of(page) for command in shown(block)]
    for pattern in NOT_RUN:
        assert any(re.match(pattern, command.text) for command in commands), pattern


def shown(block: Block) -> list[Command]:
    return commands_of(block) if block.language == "console" else []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in link:
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / page).parent / file if file else ROOT / page
        assert target.exists(), link
        if anchor:
            headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in [anchor_of(heading) for heading in headings], link


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def installed(folder: Path) -> Path:
    """lakebed's wheel in an environment of its own, beside the packages that it needs; returns its folder of commands."""
    venv.create(folder, with_pip=False)
    python, wheel = folder / "bin/python", lakebed_wheel()
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", str(wheel)]
    subprocess.run(pip, check=True)
    [packages] = folder.glob("lib/*/site-packages")
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    origin = [python, "-P", "-c", "import lakebed; print(lakebed.__file__)"]
    where = subprocess.run(origin, check=True, capture_output=True, text=True, env={}).stdout
    assert where.startswith(str(packages)), "it is the wheel that runs"
    return python.parent


@pytest.mark.slow
def test_getting_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    def is_tuesday() -> bool:
        table = lakebed.open(tmp_path / "lake/products")
        return table.to_arrow(where="price = 24.90").num_rows == 1 and is_settled(table)

    query, status = 'lakebed query lake/products "select * from products order by sku"', "lakebed status lake/products"
    with ForeignDuckDB() as duckdb:
        around = Circumstances(
            sql=lambda text: duckdb.query(text.replace("lake/products", str(tmp_path / "lake/products")).rstrip(";\n")),
            before={query: lambda: wait_until(is_tuesday)},
            codes={status: 1},
            installed=installed(tmp_path / "environment"),
        )
        follow("docs/guides/getting-started.md", tmp_path, monkeypatch, around)
    table = lakebed.open(tmp_path / "lake/products")
    assert table.to_arrow(["sku", "price"]).to_pylist() == [
        {"sku": "A-3", "price": pa.scalar("162.00").cast(pa.decimal128(10, 2)).as_py()}
    ]


def test_bi_and_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its files and its view, tests/names/test_servers.py asks servers."""
    follow("docs/guides/bi-and-connect.md", tmp_path, monkeypatch, Circumstances(sql=lambda view: None))
    assert {file.name for file in tmp_path.iterdir()} >= {"server.py", "client.py", "lake.conf"}


@pytest.mark.long
@pytest.mark.slow
def test_sql(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    def run(text: str) -> None:
        for statement in filter(str.strip, text.split(";\n")):
            found = spark.sql(statement.rstrip().rstrip(";")).collect()
            if "ORDER BY id" in statement:
                rows.extend(map(tuple, found))

    rows: list[tuple[Any, ...]] = []
    (tmp_path / "arriving").mkdir()
    around = Circumstances(sql=run, instead={"/srv/": f"{tmp_path}/"})
    follow("docs/guides/sql.md", tmp_path, monkeypatch, around)
    for query in spark.streams.active:
        query.stop()
    assert [(row[0], row[1], str(row[2]), row[3]) for row in rows] == [
        (3, "EU", "33.00", "raised"),
        (9, "AF", "9.00", None),
    ]


def test_schema_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("docs/guides/schema-changes.md", tmp_path, monkeypatch)
    rows = lakebed.open(tmp_path / "lake/orders").to_arrow(["id", "qty", "comment", "coupon", "address"]).to_pylist()
    assert rows == [{"id": 1, "qty": 2, "comment": "gift", "coupon": None, "address": None}]


def test_schemas_in_a_registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "price.proto").write_text(
        'syntax = "proto3"; package shop; message Price { int64 id = 1; int64 cents = 2; }'
    )
    connectors: list[Any] = []
    around = Circumstances(
        environment={"REGISTRY_USER": "ann", "REGISTRY_PASSWORD": "secret"},
        instead={"/etc/ssl/ca.pem": certifi.where()},
        json=lambda _, connector: connectors.append(connector),
    )
    follow("docs/guides/schemas-in-a-registry.md", tmp_path, monkeypatch, around)
    assert connectors[0]["value.converter"].endswith("AvroConverter")


@pytest.mark.long
@pytest.mark.slow
def test_layers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders, copy, kept = (
        partial(lakebed.open, tmp_path / "lake" / name) for name in ("ods/orders", "dwd/orders", "dwd/kept_orders")
    )

    def has(layer: Callable[[], lakebed.Table], where: str) -> bool:
        with suppress(TableNotFound):
            return 0 < layer().to_arrow().num_rows == orders().to_arrow(where=where).num_rows
        return False

    query, all_rows, kept_rows = "select count(*) as orders, ", "true", "status <> 'returned'"
    around = Circumstances(
        instead={"--duration 10": "--duration 2", " --duration 8": " --metrics-port off"},  # until its rows are there
        before={
            f'lakebed query lake/dwd/orders "{query}sum(amount) as amount from orders where {kept_rows}"': lambda: (
                wait_until(lambda: has(copy, all_rows))
            ),
            f'lakebed query lake/dwd/kept_orders "{query}round(sum(amount), 2) as amount from kept_orders"': lambda: (
                wait_until(lambda: has(kept, kept_rows))
            ),
        },
    )
    follow("docs/guides/layers.md", tmp_path, monkeypatch, around)
    whole = sorted(orders().to_arrow(["order_id", "amount"]).to_pylist(), key=lambda row: row["order_id"])
    assert whole == sorted(copy().to_arrow(["order_id", "amount"]).to_pylist(), key=lambda row: row["order_id"])
    assert has(kept, kept_rows)


def test_deploying(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("docs/guides/deploying.md", tmp_path, monkeypatch)


@pytest.mark.slow
def test_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders_table(tmp_path / "lake/orders")
    follow("docs/guides/tuning.md", tmp_path, monkeypatch, Circumstances(instead={"--days 1 ": "--days 0.02 "}))
    assert lakebed.open(tmp_path / "lake/orders").properties["lakebed.read_budget"] == "4"


@pytest.mark.long
@pytest.mark.slow
def test_upgrade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    orders_table(tmp_path / "lake/orders")
    for first in range(0, 500, 100):
        write_deltalake(tmp_path / "lake/old", pa.table({"id": range(first, first + 100)}), mode="append")
    follow("docs/guides/upgrade.md", tmp_path, monkeypatch)
    plain = spark.read.format("delta").load(str(tmp_path / "lake/orders_plain"))
    kept = lakebed.open(tmp_path / "lake/orders").to_arrow(where="status <> 'returned'")
    assert plain.count() == kept.num_rows > 0
    assert lakebed.open(tmp_path / "lake/old").to_arrow().num_rows == 500


@pytest.mark.slow
def test_faq(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = orders_table(tmp_path / "lake/orders")
    gone = table.to_arrow(["customer_id"])["customer_id"][0].as_py()
    rows: list[Any] = []
    around = Circumstances(
        instead={"4711": str(gone)},
        before={
            'lakebed purge lake/orders --where "customer_id = 4711" --yes': lambda: rows.append(
                table.to_arrow().num_rows
            )
        },
    )
    monkeypatch.setattr(purge_files, "FOLLOW_SECONDS", 0.0)  # nobody else reads the table
    follow("docs/guides/faq.md", tmp_path, monkeypatch, around)
    table = lakebed.open(tmp_path / "lake/orders")
    assert table.to_arrow(where=f"customer_id = {gone}").num_rows == 0 < table.to_arrow().num_rows < rows[0]
    with pytest.raises(VersionNotFound):
        table.to_arrow(version=0)
    assert lakebed.open(tmp_path / "lake/people").to_arrow().num_rows == 2


@pytest.mark.long
@pytest.mark.slow
def test_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = orders_table(tmp_path / "lake/orders")
    deep = "lakebed verify lake/orders --self --deep"

    part = tmp_path / "lake/orders" / table.inspect.parts()["path"][0].as_py()

    def fall_behind() -> None:
        for number in range(table.inspect.parts().num_rows, 12):
            row = {"order_id": -number, "region": "af-south", "source.lsn": number}
            table.apply(pa.Table.from_pylist([row], pa.schema([*table.schema, ("source.lsn", pa.int64())])))
            table.settle()

    def merge() -> None:
        """As a longer run does."""
        fall_behind()
        command = (*LAKEBED, "compact", "lake/orders", "--log-format", "text", "--log-level", "debug")
        with (tmp_path / "log").open("a") as log:
            subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=log, check=True)

    (tmp_path / "examples").symlink_to(ROOT / "examples")
    lakebed.create(tmp_path / "lake/customers", pa.schema([("id", pa.int64())]))
    [port] = free_ports(1)
    around = Circumstances(
        instead={
            "--duration 45": "--duration 2 --metrics-port 0",
            "lake/orders s3://bucket/customers": f"lake/orders lake/customers --port {port}",
            "localhost:9466": f"localhost:{port}",
        },
        before={
            f"{deep} #2": lambda: part.rename(tmp_path / "part"),
            "grep -E 'event=(merge_began|merge_ended)' log | tail -2": merge,
        },
        after={f"{deep} #2": lambda: (tmp_path / "part").rename(part)},
        codes={f"{deep} #2": 1},
    )
    follow("docs/operations.md", tmp_path, monkeypatch, around)


@pytest.mark.slow
def test_kafka_and_debezium(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kafka: KafkaServer,
    postgres: PostgresServer,
    debezium: DebeziumServer,
) -> None:
    postgres.create_database("shop")
    connect = f"http://127.0.0.1:{debezium.ports[0]}"
    table = partial(lakebed.open, tmp_path / "lake/shop/public/orders")
    orders = 'lakebed query lake/shop/public/orders "select id, customer, note, amount from orders order by id"'
    reviews = 'lakebed query lake/shop/public/reviews "select * from reviews"'

    def connected() -> bool:
        told = json.loads(urllib.request.urlopen(f"{connect}/connectors/shop/status").read())
        assert told["connector"]["state"] != "FAILED", told
        return [task["state"] for task in told["tasks"]] == ["RUNNING"]

    def has_sent() -> bool:
        found = kafka.admin().list_topics(timeout=60).topics
        return {f"shop.public.{name}" for name in ("orders", "customers", "audit_log")} <= found.keys()

    def has(name: str = "orders", **wanted: Any) -> bool:
        with suppress(TableNotFound):
            there = lakebed.open(tmp_path / "lake/shop/public" / name)
            return bool(is_settled(there) and wanted in there.to_arrow(list(wanted)).to_pylist())
        return False

    def sql(text: str) -> None:
        if "debezium_signal values" in text:  # a row that is missing comes back
            assert table().delete("id = 2").rows == 1
        postgres.sql(text, "shop")
        if "debezium_signal values" in text:
            wait_until(lambda: has(id=2))

    around = Circumstances(
        environment={"KAFKA": kafka.bootstrap, "KAFKA_USER": "loader", "KAFKA_PASSWORD": "Gr0und-water"},
        instead={
            "http://connect:8083": connect,
            '"database.hostname": "postgres"': '"database.hostname": "127.0.0.1"',
            '"5432"': f'"{postgres.port}"',
            "/etc/ssl/certs/kafka-ca.pem": str(Path(botocore.__file__).with_name("cacert.pem")),
        },
        sql=sql,
        before={
            "curl -sS --fail-with-body http://connect:8083/connectors/shop/status": lambda: wait_until(connected),
            "lakebed validate --connect shop.yml": lambda: wait_until(has_sent),
            orders: lambda: wait_until(lambda: has(id=1, amount=Decimal("11.00")) and not has(id=3)),
            reviews: lambda: wait_until(lambda: has("reviews", stars=5)),
        },
    )
    try:
        follow("docs/guides/kafka-debezium.md", tmp_path, monkeypatch, around)
    finally:
        debezium.release("shop")
    assert sorted(table().to_arrow(["id"])["id"].to_pylist()) == [1, 2]
    assert not list((tmp_path / "lake/shop/public").glob("*_quarantine"))


def test_the_pipeline_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    around = Circumstances(environment={"KAFKA": "nowhere:1", "REGISTRY": "http://127.0.0.1:1"})
    follow("docs/pipeline.md", tmp_path, monkeypatch, around)


@contextmanager
def requests_to_s3() -> Iterator[set[str]]:
    """The permissions that the requests of this process's client to S3 need."""
    seen: set[str] = set()
    needed = {"HeadObject": "GetObject", "ListObjectsV2": "ListBucket", "DeleteObjects": "DeleteObject"}
    needed |= dict.fromkeys(("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), "PutObject")

    def see(model: Any, **rest: Any) -> None:
        seen.add("s3:" + needed.get(model.name, model.name))

    hooks = s3_client().meta.events
    hooks.register("before-call.s3", see)
    try:
        yield seen
    finally:
        hooks.unregister("before-call.s3", see)


@pytest.mark.long
def test_s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, s3: S3Server, spark: SparkSession) -> None:
    bucket, allowed = s3.create_bucket(), set[str]()
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()  # a session that runs already knows nothing of the variables
    for name, value in (("endpoint", s3.endpoint), ("path.style.access", "true"), ("connection.ssl.enabled", "false")):
        hadoop.set(f"fs.s3a.{name}", value)
    hadoop.set("fs.s3a.endpoint.region", "us-east-1")
    hadoop.set("fs.s3a.access.key", ACCESS_KEY)
    hadoop.set("fs.s3a.secret.key", SECRET_KEY)

    def policy(block: Block, document: Any) -> None:
        for statement in document["Statement"]:
            allowed.update(statement["Action"])

    here = {
        "my-key": ACCESS_KEY,
        "my-secret": SECRET_KEY,
        "http://s3.example.com": s3.endpoint,
        "s3://lake": f"s3://{bucket}",
    }
    with requests_to_s3() as seen:
        follow("docs/guides/s3.md", tmp_path, monkeypatch, Circumstances(instead=here, json=policy))
        table = lakebed.open(f"s3://{bucket}/people")
        noise = np.random.default_rng(1).bytes(36 << 20).hex()  # more than is put in one request
        table.apply(pa.table({"id": range(9), "city": [noise[number::9] for number in range(9)]}, schema=table.schema))
        table.maintenance.vacuum("7 days", dry_run=False)
    assert seen == allowed - {"s3:AbortMultipartUpload"}, "that one is needed when an upload fails"


def test_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for its SQL, which tests/names/test_tour.py runs."""
    orders_table(tmp_path / "lake/orders")
    follow("README.md", tmp_path, monkeypatch, Circumstances(sql=lambda statements: None))


def test_iceberg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders, token, [port] = orders_table(tmp_path / "lake/orders"), new_token(), free_ports(1)

    def one_that_is_known() -> None:
        with (tmp_path / "tokens").open("a") as file:
            file.write(line_of(token, Role.READER, "reader") + "\n")

    def run(text: str) -> None:
        rows.extend(duckdb.query(statement).num_rows for statement in filter(str.strip, text.split(";\n")))

    rows: list[int] = []
    around = Circumstances(
        given={"token": token},
        instead={
            "lake --tokens tokens": f"lake --tokens tokens --port {port}",
            "http://127.0.0.1:9467": f"http://127.0.0.1:{port}",
            "the token": token,
        },
        after={"TOKEN=$(lakebed serve token ann --tokens tokens)": one_that_is_known},
        sql=run,
    )
    with ForeignDuckDB(ICEBERG_REST) as duckdb:
        follow("docs/guides/iceberg.md", tmp_path, monkeypatch, around)
    assert rows[-1] == len(pyiceberg(orders)) == len(orders.to_arrow())


@pytest.mark.long
@pytest.mark.slow
def test_catalogs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, metastore: MetastoreServer) -> None:
    around = Circumstances(instead={"thrift://metastore.example.com:9083": metastore.url})
    follow("docs/guides/catalogs.md", tmp_path, monkeypatch, around)
    entry = table_in(metastore.url, "public", "orders")
    assert entry.parameters["lakebed.root"] == str(tmp_path / "lake/public/orders")
    assert '"name":"note"' in entry.parameters["spark.sql.sources.schema"]


def test_staying_compact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders_table(tmp_path / "lake/orders")
    follow("docs/guides/staying-compact.md", tmp_path, monkeypatch)


@pytest.mark.slow
def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    orders_table(tmp_path / "lake/orders")
    (tmp_path / "changes").mkdir()
    maintain, running = lakebed.Table.maintain, list[Maintenance]()

    def maintained(table: lakebed.Table, spark: SparkSession, **how: bool) -> Maintenance:
        running.append(maintain(table, spark, **how))
        return running[-1]

    monkeypatch.setattr(lakebed.Table, "maintain", maintained)
    try:
        follow("docs/guides/python.md", tmp_path, monkeypatch)
    finally:
        for query in (*spark.streams.active, *running):
            query.stop()
    people = lakebed.open(tmp_path / "lake/people")
    assert people.to_arrow().to_pylist() == [{"id": 1, "city": "BERGEN", "updated_at": 20}]
    assert sorted(lakebed.open(tmp_path / "lake/visits").to_arrow()["id"].to_pylist()) == [1, 10, 11, *range(16, 20)]


@pytest.mark.slow
def test_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spark: SparkSession) -> None:
    lakebed.create(tmp_path / "lake/orders", pa.schema([pa.field("id", pa.int64(), nullable=False)]), keys=["id"])
    follow("docs/guides/spark.md", tmp_path, monkeypatch)
    assert spark.table("orders").columns == ["id"]


def test_several_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow("docs/guides/several-streams.md", tmp_path, monkeypatch)
    assert lakebed.open(tmp_path / "lake/people").to_arrow().sort_by("id").to_pylist() == [
        {"id": 1, "name": "Ada L.", "mail": "al@example", "visits": 1},
        {"id": 2, "name": None, "mail": None, "visits": 1},
    ]


@pytest.mark.long
@pytest.mark.slow
def test_what_never_ends_in_the_runbook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What else it says, tests/monitoring/test_alerts.py does."""
    orders_table(tmp_path / "PATH")
    section = yaml.safe_load((ROOT / "examples/orders.yml").read_text())
    (tmp_path / "pipeline.yml").write_text(yaml.safe_dump({**section, "table": {"path": "PATH"}}))
    wanted = {"lakebed validate pipeline.yml", "lakebed maintain PATH"}
    seen: set[str] = set()

    def is_left_to_others(command: Command) -> bool:
        if command.text in wanted - seen:
            seen.add(command.text)
            return False
        return True

    reader = Reader(tmp_path, Circumstances(skips=is_left_to_others, given={"lakebed": lakebed}), monkeypatch)
    reader.follow("docs/runbook.md")
    assert seen == wanted


@pytest.mark.long
@pytest.mark.slow
def test_many_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, customers = (
        orders_table(tmp_path / "shop/public/orders"),
        pa.schema([("id", pa.int64()), ("name", pa.string())]),
    )
    deep = lakebed.create(
        tmp_path / "shop/public/customers", customers, ["id"], properties={"lakebed.read_budget": "2"}
    )
    for batch in range(6):
        deep.apply(pa.table({"id": range(batch, 500, 7), "name": [str(batch)] * len(range(batch, 500, 7))}, customers))
        deep.settle()

    def is_merged() -> bool:
        return len(log_of(deep).refresh().parts) == 1

    [port] = free_ports(1)
    around = Circumstances(
        given={"table": table},
        instead={
            "s3://lake/shop": str(tmp_path / "shop"),
            "--poke-port 9468": f"--poke-port {port}",
            "http://127.0.0.1:9468": f"http://127.0.0.1:{port}",
        },
        before={
            "lakebed simulate --idle-tables 10000": lambda: wait_until(is_merged),
            "lakebed resume s3://lake/shop": lambda: park_merge(
                log_of(table), list(log_of(table).refresh().parts)[:2], StoreUnavailable("no space left on device"), 4
            ),
        },
    )
    follow("docs/guides/many-tables.md", tmp_path, monkeypatch, around)
    assert table.properties["lakebed.freshness"] == "60 seconds"
    assert listed_workers(str(tmp_path / "shop")) == [], "the worker has left"


@pytest.mark.slow
def test_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table, token, [port] = orders_table(tmp_path / "shop/public/orders"), new_token(), free_ports(1)
    table.apply(table.to_arrow().slice(0, 1).append_column("source.lsn", pa.array([1 << 40])))
    assert not is_settled(table)

    def one_that_is_known() -> None:
        with (tmp_path / "tokens").open("a") as file:
            file.write(line_of(token, Role.OPERATOR, "reader") + "\n")

    around = Circumstances(
        given={"token": token},
        instead={
            "s3://lake/shop --tokens tokens": f"{tmp_path}/shop --tokens tokens --port {port}",
            "http://127.0.0.1:9467": f"http://127.0.0.1:{port}",
        },
        after={"lakebed serve token alice --role operator --tokens tokens": one_that_is_known},
    )
    follow("docs/service.md", tmp_path, monkeypatch, around)
    assert is_settled(table), "its client has asked for it"


def test_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank(random.Random(1))
    copy = Copy(tmp_path / "lake/shop", bank)
    for _ in range(3):
        bank.transfer()
        assert copy.batch() is not None
    around = Circumstances(environment={"KAFKA": "127.0.0.1:9092"})
    follow("docs/guides/points.md", tmp_path, monkeypatch, around)


def test_verify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of a database, tests/end_to_end/test_verify.py does."""
    for path in ("lake/shop/public/orders", "backup/orders"):
        columns = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("customer", pa.string())])
        table = lakebed.create(tmp_path / path, columns, keys=["id"])
        table.apply([{"id": 1, "customer": "Ada"}, {"id": 2, "customer": "Bob"}])
    around = Circumstances(environment={"SHOP_URL": "postgresql://reader:secret@postgres/shop", "KAFKA": "nowhere:1"})
    follow("docs/guides/verify.md", tmp_path, monkeypatch, around)


def test_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as received:
        around = Circumstances(
            environment={"LAKEBED_SECRET_SHOP": "0123456789abcdef0123456789abcdef"},
            instead={"https://hooks.example.com/lake": received.url},
        )
        follow("docs/guides/events.md", tmp_path, monkeypatch, around)
        assert [event["data"]["version"] for event in received.acknowledged] == [0, 1, 2]
