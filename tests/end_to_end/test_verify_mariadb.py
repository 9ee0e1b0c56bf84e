"""``lakebed verify`` with a real MariaDB, Debezium and Kafka: equal while both go on, and what is planted is found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

import lakebed
from lakebed.cli import main
from tests.end_to_end.test_verify import CONVERTERS, Followed, plant
from tests.infra.debezium_mariadb import DistributedMariaDb
from tests.infra.kafka import KafkaServer
from tests.infra.mariadb import MariaDbServer
from tests.infra.server import HOST

NAME = "provenmaria"
SETTINGS: Mapping[str, object] = {
    **CONVERTERS,
    "bigint.unsigned.handling.mode": "precise",
    "connect.keep.alive.interval.ms": 1000,  # how soon MariaDB writes to a reader of a quiet log
}
TABLES = """
create table plain (id bigint unsigned primary key, note text, other text, amount decimal(10, 2), at datetime(6), f double);
insert into plain select seq, concat('note ', seq), concat('other ', seq), seq / 4, '2024-01-01' + interval seq second, seq / 7
    from seq_1_to_2000;
create table order_lines (shop varchar(20) collate utf8mb4_nopad_bin, line int, what text, primary key (shop, line));
insert into order_lines select concat('shop ', seq % 7), seq, md5(seq) from seq_1_to_500;
create table people (name varchar(20) collate utf8mb4_general_ci primary key, city text);
insert into people select concat(if(seq % 2 = 0, 'a', 'B'), seq), concat('city ', seq) from seq_1_to_300;
create table heap (what text);
insert into heap values ('no key');
"""
NAMES = tuple(f"{NAME}.{name}" for name in ("plain", "order_lines", "people", "heap"))
FILE = """
database:
  path: '%s'
  verify: {url: 'mariadb://root@%s:%d/', offsets_topic: %s, wait_seconds: %d}
source: {kind: kafka, topic_pattern: '%s\\..*', config: {bootstrap.servers: '%s'}}
format: debezium-json
"""


@pytest.mark.long
def test_tables_are_proved_equal_and_planted_differences_are_found(
    kafka: KafkaServer,
    mariadb: MariaDbServer,
    debezium_mariadb: DistributedMariaDb,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    mariadb.sql(f"create database {NAME} character set utf8mb4; use {NAME}; {TABLES}")
    connector = debezium_mariadb.capture(NAME, NAMES, NAME, SETTINGS)
    address = HOST, mariadb.port, debezium_mariadb.offsets_topic
    file, impatient = tmp_path / "shop.yml", tmp_path / "impatient.yml"
    for path, seconds in ((file, 60), (impatient, 1)):
        path.write_text(FILE % (tmp_path / "lake", *address, seconds, NAME, kafka.bootstrap))
    followed = Followed(NAME, NAMES, kafka, tmp_path)

    def change(number: int) -> None:
        mariadb.sql(
            f"begin; update plain set note = 'changed {number}', amount = amount + 1 where id % 50 = {20 + number % 30}; "
            f"delete from plain where id = {1500 + number}; insert ignore into plain (id, note) values ({9000 + number}, 'new'); "
            f"commit; update order_lines set what = '{number}' where line % 9 = {number % 9}; "
            f"update people set city = '{number}' where name like '%{number % 10}'",
            NAME,
        )

    try:
        followed.catch_up()
        for more, at in ((), "at "), (("--snapshot",), "as it was at "):
            with followed.while_busy(change):
                code = main(["verify", str(file), *more])
            said = capsys.readouterr()
            assert code == 0, said.out + said.err
            assert said.out.count(f": equal to the source {at}binlog.0") == 3
            assert f"{NAME}.heap: not compared: it has no keys" in said.out

        table = lakebed.open(tmp_path / f"lake/{NAME}/plain")
        planted = plant(table, {"f": "nextafter(f, 100.0)"}, "source.pos")
        with followed.while_busy(change):
            assert main(["verify", str(file), "--snapshot", "--format", "json"]) == 1
        found = {one["table"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
        shown = found[f"{NAME}.plain"]["shown"]
        assert {one["key"]["id"]: (one["kind"], one["column"]) for one in shown} == planted
        assert sorted(one["outcome"] for one in found.values()) == ["differs", "equal", "equal", "left out"]
        assert main(["verify", str(file), f"{NAME}.plain", f"{NAME}.people", "--format", "json"]) == 1
        found = {one["table"]: one for one in map(json.loads, capsys.readouterr().out.splitlines())}
        shown = found[f"{NAME}.plain"]["shown"]
        assert {one["key"]["id"]: (one["kind"], one["column"]) for one in shown} == planted
        assert found[f"{NAME}.plain"]["differences"] == len(planted)
        assert found[f"{NAME}.people"]["outcome"] == "equal"
        assert [one["looks_like"] for one in shown if one["key"]["id"] == "5"] == ["+2 h: a time zone"]

        debezium_mariadb.pause(connector)
        mariadb.sql("update people set city = 'later'", NAME)
        assert main(["verify", str(impatient), f"{NAME}.people"]) == 4
        assert "is needed: does it run?" in capsys.readouterr().err
        debezium_mariadb.resume(connector)
        debezium_mariadb.wait_until_sent(connector)
        assert main(["verify", str(impatient), f"{NAME}.people"]) == 4
        assert f"has read partition 0 of {NAME}.{NAME}.people up to offset" in capsys.readouterr().err
        followed.catch_up()
        assert main(["verify", str(file), f"{NAME}.people"]) == 0
    finally:
        debezium_mariadb.release(connector)
