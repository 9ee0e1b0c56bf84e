"""A pipeline that is killed again and again loses nothing and writes nothing twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.kills import kill_and_compare
from tests.infra.kafka import KafkaServer

KILLS, SEED, RECORDS_PER_SECOND = 1, 39, 500
"""Some moments after a commit the first process of the pipeline with keys is killed alone. The one without is not."""


@pytest.mark.parametrize("as_query", [False, pytest.param(True, marks=pytest.mark.long)], ids=["thread", "query"])
def test_killed_again_and_again_nothing_is_lost_and_nothing_comes_twice(
    kafka: KafkaServer, tmp_path: Path, as_query: bool
) -> None:
    outcome = kill_and_compare(kafka, tmp_path, KILLS, SEED, RECORDS_PER_SECOND, as_query=as_query)
    print(outcome)
    assert outcome.kills_of_the_first_process_alone == 1 and not outcome.kills_while_starting
    assert outcome.live_rows and outcome.unreadable, "the topic held nothing to compare"
