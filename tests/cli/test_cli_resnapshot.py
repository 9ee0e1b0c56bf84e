"""``lakebed source resnapshot``: what it refuses before it asks a broker."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from lakebed.cli import main
from lakebed.pipeline.database.resnapshot import Asking

SHOP = r"""
database:
  path: lake/shop
  exclude: ["public\\.tmp_.*"]
  signal_topic: shop-signal
source: {kind: kafka, topic_pattern: "shop\\..*", timeout_seconds: 0.2, config: {bootstrap.servers: "127.0.0.1:1"}}
format: debezium-json
"""


@pytest.mark.parametrize(
    ("old", "new", "arguments", "said"),
    [
        ("  signal_topic: shop-signal\n", "", ["public.orders"], "signal_topic is missing; set it to the connector's"),
        ("lake", "lake", ["public.orders", "--wait"], "--wait needs notification_topic, where the connector"),
        ("lake", "lake", ["public.orders", "--mirror"], "mirror needs notification_topic, where the connector"),
        ("lake", "lake", ["public.orders", "--mirror", "--where", "id > 1"], "only some of the rows come, so --mirror"),
        ("  exclude", "  mirror: true\n  exclude", ["public.orders"], "it needs notification_topic"),
        ("lake", "lake", ["public.tmp_a"], "public.tmp_a is no table of the database: database.exclude has"),
        ("shop-signal", "shop.signal", ["signal"], "signal is no table of the database: it has the signals"),
        ("debezium-json", "avro\nregistry: {url: 'http://127.0.0.1:1'}", ["public.orders"], "not Debezium's events"),
        ("  exclude", "  topic_prefix: ''\n  exclude", ["public.orders"], "topic_prefix must be the connector's"),
    ],
)
def test_it_says_what_is_wrong_and_a_way_out(
    old: str, new: str, arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert old in SHOP
    (tmp_path / "shop.yml").write_text(SHOP.replace(old, new))
    assert main(["source", "resnapshot", str(tmp_path / "shop.yml"), *arguments]) == 2
    assert said in capsys.readouterr().err


def test_brokers_that_do_not_answer_may_be_asked_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "shop.yml").write_text(SHOP)
    assert main(["source", "resnapshot", str(tmp_path / "shop.yml"), "public.orders"]) == 4
    assert "did not answer" in capsys.readouterr().err


def test_a_file_of_one_table_has_no_tables_to_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "one.yml").write_text("table: {path: lake/one}\nsource: {kind: generator}\n")
    assert main(["source", "resnapshot", str(tmp_path / "one.yml"), "public.orders"]) == 2
    assert "describes one table" in capsys.readouterr().err


def test_a_terminated_command_ends_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``Asking.send`` then takes back what it wrote (``tests/verify/test_repair.py``)."""
    (tmp_path / "shop.yml").write_text(SHOP)
    monkeypatch.setattr(Asking, "send", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    signal.signal(signal.SIGTERM, lambda *_: None)  # so that it does not end the tests
    with pytest.raises(SystemExit) as ended:
        main(["source", "resnapshot", str(tmp_path / "shop.yml"), "public.orders"])
    assert ended.value.code == 143
