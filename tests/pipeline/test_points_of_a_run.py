"""What a run of a database reads besides its tables, where it takes points."""

from __future__ import annotations

import pytest

from lakebed.pipeline.database.work import with_transactions
from lakebed.pipeline.database_section import PointsSection
from lakebed.sources.kafka.settings import KafkaSettings

TOPICS = {"shop.public.a", "shop.public.b", "shop.transaction", "shopXtransaction"}


@pytest.mark.parametrize(
    "selected",
    [
        {"topics": ("shop.public.a",)},
        {"topic_pattern": "shop\\.public\\.a"},
        {"topic_pattern": "(?i)x|SHOP\\.public\\.a"},
    ],
)
def test_the_topic_of_transactions_is_read_though_the_source_does_not_name_it(selected: dict[str, object]) -> None:
    settings = KafkaSettings(config={"bootstrap.servers": "127.0.0.1:1"}, **selected)  # type: ignore[arg-type]
    points = PointsSection(transaction_topic="shop.transaction")
    assert set(with_transactions(settings, points).chosen(TOPICS)) == {"shop.public.a", "shop.transaction"}
    assert with_transactions(settings, None) == settings
