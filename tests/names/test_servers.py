"""Spark's Thrift server, its Connect server, and a server that Python starts, asked by other programs.

    python -m tests.names.test_servers URL STATEMENT…

asks a Connect server, and prints the rows of each statement, or its error, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.sparks.versions import release_of, spark_version
from tests.guides.follow import LAKEBED
from tests.infra.server import HOST
from tests.infra.spark_servers import ConnectServer, PythonServer, ThriftServer, by_jdbc
from tests.waiting import ran

pytestmark = [pytest.mark.slow, pytest.mark.long]
REPOSITORY = Path(__file__).parents[2]
HAS_DELTA = release_of(spark_version()).has_delta
of_delta = pytest.mark.skipif(not HAS_DELTA, reason="Delta has no release for this Spark")
REFUSED = "lake.shop.orders: the driver of this session runs no lakebed"
DESCRIBED = "describe extended lake.shop.orders"
INSERT = "insert into lake.shop.orders values (9, 'q', 9)"


@pytest.fixture(scope="module")
def jars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``lakebed export spark-jar`` writes."""
    folder = tmp_path_factory.mktemp("jars")
    done = ran([*LAKEBED, "export", "spark-jar", f"{folder}/"])
    assert done.returncode == 0, done.stderr[-2000:]
    assert (folder / "lakebed-spark.jar").exists()
    assert bool([*folder.glob("io.delta_*.jar")]) == HAS_DELTA
    return folder


def by_connect(port: int, statements: Sequence[str]) -> list[Any]:
    """The rows of each statement, or the first line of its error, as a client of Spark Connect gets them."""
    command = [sys.executable, "-m", "tests.names.test_servers", f"sc://{HOST}:{port}", *statements]
    done = ran(command, cwd=REPOSITORY, env={**os.environ, "PYTHONWARNINGS": "ignore"})
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@of_delta
def test_the_thrift_server_reads_what_is_settled_and_refuses_to_write(
    sold: lakebed.Table, tmp_path: Path, jars: Path
) -> None:
    with ThriftServer(tmp_path, jars) as server:
        [port] = server.ports
        assert by_jdbc(port, ["show tables", "select * from orders order by id"], "lake.shop") == [
            "shop,orders,false",
            "1,a,10",
            "3,c,30",
        ]
        said = by_jdbc(
            port,
            [
                "create view default.orders with schema evolution as select * from lake.shop.orders",
                "!tables",
                INSERT,
                "select count(*) from lake.shop.orders version as of 2",
                DESCRIBED,
            ],
        )
    assert any(line.startswith(",default,orders,VIEW") for line in said), said
    assert any(line.startswith("Error:") and REFUSED in line for line in said), said
    assert "3" in said
    assert any("lakebed.reads=settled" in line for line in said), said
    assert len(sold.to_arrow()) == 3


@of_delta
def test_the_connect_server_reads_what_is_settled_and_refuses_to_write(
    sold: lakebed.Table, tmp_path: Path, jars: Path
) -> None:
    with ConnectServer(tmp_path, jars) as server:
        tables, rows, inserted, older, described = by_connect(
            server.ports[0],
            [
                "show tables in lake.shop",
                "select * from lake.shop.orders order by id",
                INSERT,
                "select count(*) from lake.shop.orders version as of 2",
                DESCRIBED,
            ],
        )
    assert tables == [["shop", "orders", False]]
    assert rows == [[1, "a", 10], [3, "c", 30]]
    assert inserted.startswith(REFUSED)
    assert older == [[3]]
    assert "lakebed.reads=settled" in str(described)
    assert len(sold.to_arrow()) == 3


def test_a_server_that_python_starts_reads_what_is_fresh_and_writes(
    sold: lakebed.Table, tmp_path: Path, jars: Path
) -> None:
    select = "select * from lake.shop.orders order by id"
    with PythonServer(tmp_path, jars) as server:
        for_jdbc, for_connect = server.ports
        said = by_jdbc(for_jdbc, [select, INSERT, DESCRIBED, "select count(*) from orders.parts"], "lake.shop")
        assert said[:4] == ["1,z,11", "3,c,30", "4,d,40", "1,0,0,1,0"]
        assert any("lakebed.reads=fresh" in line for line in said), said
        updated, merged, called, rows = by_connect(
            for_connect,
            [
                "update lake.shop.orders set n = n + 1 where id = 9",
                "merge into lake.shop.orders t using (select 3L as id) s on t.id = s.id when matched then delete",
                "call lake.system.settle('shop.orders')",
                select,
            ],
        )
    assert (updated[0][:2], merged[0][:3], len(called)) == ([1, 1], [1, 0, 1], 1)
    assert rows == [[1, "z", 11], [4, "d", 40], [9, "q", 10]]
    assert sold.to_arrow().num_rows == 3


def main(url: str, statements: Sequence[str]) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(url).getOrCreate()
    for statement in statements:
        try:
            print(json.dumps([list(row) for row in spark.sql(statement).collect()], default=str))
        except PySparkException as error:
            print(json.dumps(str(error).splitlines()[0]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
