"""What a topic wants: each record that was planned and not read, from its first one on."""

from __future__ import annotations

from pathlib import Path

import lakebed
from lakebed.ingest.database_member import Member
from lakebed.sources.source import Range
from tests.sources.memory_source import COLUMNS, MemorySource, Process, row


def test_an_id_that_was_not_known_before_is_no_other_topic() -> None:
    member = Member("a")
    member.want(Range("a", 0, 100, 150, topic_id=None, is_first=True))
    member.want(Range("a", 0, 150, 180, topic_id="x"))
    assert member.wanted[0] == Range("a", 0, 100, 180, topic_id="x", is_first=True)
    member.want(Range("a", 0, 180, 190, topic_id=None))
    assert member.wanted[0] == Range("a", 0, 100, 190, topic_id="x", is_first=True)


def test_records_of_a_topic_that_was_made_anew_replace_those_that_are_gone() -> None:
    member = Member("a")
    member.want(Range("a", 0, 100, 150, topic_id="x"))
    member.want(Range("a", 0, 0, 7, topic_id="y", is_first=True))
    assert member.wanted[0] == Range("a", 0, 0, 7, topic_id="y", is_first=True)


def test_a_partition_that_is_gone_is_wanted_no_longer(tmp_path: Path) -> None:
    """Else it would be asked for with every tick."""
    source = MemorySource()
    source.add("a", 0, row(1))
    process = Process(lakebed.create(tmp_path / "t", COLUMNS).path, source)
    member = Member("a")
    for one in (Range("a", 0, 0, 1, is_first=True), Range("a", 1, 0, 7)):
        member.want(one)
    member.has_read(process.run(sorted(member.wanted.values(), key=lambda one: one.partition)))
    assert not member.wanted
