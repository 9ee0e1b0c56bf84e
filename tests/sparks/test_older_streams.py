"""A stream of ours on Spark 4.0 and 4.1: it is planned from where the batch before ended, and within its limit."""

from __future__ import annotations

from typing import Any

import pytest

from lakebed.sparks.older_streams import OlderStream, ReadAllAvailable, ReadMaxRows


class Stream:
    """Numbers up to ten."""

    def __init__(self, begins: int = 0) -> None:
        self.begins = begins

    def initialOffset(self) -> dict[str, Any]:
        self.begins += 1
        return {"at": self.begins - 1}

    def getDefaultReadLimit(self) -> ReadMaxRows:
        return ReadMaxRows(4)

    def latestOffset(self, start: dict[str, Any], limit: object) -> dict[str, Any]:
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else 10
        assert isinstance(limit, (ReadMaxRows, ReadAllAvailable))
        return {"at": min(10, start["at"] + rows)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return list(range(start["at"], end["at"]))


def test_each_batch_starts_where_the_one_before_ended_though_spark_never_asks_for_its_partitions() -> None:
    stream = OlderStream(Stream(), reads_all_at_first=False)
    assert [stream.latestOffset()["at"] for _ in range(4)] == [4, 8, 10, 10]


def test_a_query_that_goes_on_starts_at_the_newest_offset_of_its_checkpoint() -> None:
    stream = OlderStream(Stream(), reads_all_at_first=True)
    assert stream.partitions({"at": 5}, {"at": 5}) == []  # what Spark calls before it asks for the newest offset
    assert stream.latestOffset() == {"at": 9}


@pytest.mark.parametrize(("reads_all", "newest"), [(True, 10), (False, 4)])
def test_the_first_answer_is_all_there_is_if_it_may_be_the_only_one(reads_all: bool, newest: int) -> None:
    assert OlderStream(Stream(), reads_all_at_first=reads_all).latestOffset() == {"at": newest}


def test_the_first_batch_starts_at_the_offset_that_it_was_planned_from() -> None:
    stream = OlderStream(Stream(begins=3), reads_all_at_first=False)
    assert stream.latestOffset() == {"at": 7} and stream.initialOffset() == {"at": 3}
