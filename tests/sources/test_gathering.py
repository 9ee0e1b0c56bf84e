"""Which topics of a database a batch reads, and how much of each."""

from __future__ import annotations

import random

from lakebed.sources.kafka.gathering import JOINS, PIECE_RECORDS, TOPICS_MAX, Control, Gathering, in_proportion, in_turn
from lakebed.sources.source import HOT_RECORDS, Range

TEN = Control(default_max_age_seconds=10.0)
MANY = 10**9


def quiet(*topics: str, now: float = 100.0) -> Gathering:
    """Topics of one partition, all read up to offset 0 at this time."""
    gathering = Gathering({(topic, 0): 0 for topic in topics})
    gathering.saw({(topic, 0): 0 for topic in topics}, now)
    return gathering


def test_what_is_unread_at_the_first_look_is_due_at_once() -> None:
    gathering = Gathering({("a", 0): 5, ("b", 0): 7})
    gathering.saw({("a", 0): 6, ("b", 0): 7}, 100.0)
    assert gathering.due(TEN, 100.0) == ["a"]
    assert gathering.take(["a"], TEN, MANY, 100.0) == ([Range("a", 0, 5, 6)], False)
    assert gathering.due(TEN, 1000.0) == []


def test_few_records_wait_for_their_maximal_age_and_many_do_not() -> None:
    gathering = quiet("a", "b")
    gathering.saw({("a", 0): 1, ("b", 0): HOT_RECORDS - 1}, 101.0)
    assert gathering.due(TEN, 109.9) == []
    assert gathering.due(TEN, 110.0) == ["a", "b"], "they came after the look at 100"
    gathering.saw({("a", 0): 1, ("b", 0): HOT_RECORDS}, 102.0)
    assert gathering.due(TEN, 102.0) == ["b"], "and a waits on"


def test_a_record_is_due_in_time_however_often_the_ends_are_asked_for() -> None:
    gathering = quiet("a")
    for second in range(1, 10):
        gathering.saw({("a", 0): second}, 100.0 + second)
        assert gathering.due(TEN, 100.0 + second) == []
    assert gathering.due(TEN, 110.0) == ["a"]


def test_a_topic_may_have_an_age_of_its_own() -> None:
    gathering = quiet("a", "b")
    gathering.saw({("a", 0): 1, ("b", 0): 1}, 100.5)
    control = Control(default_max_age_seconds=60.0, max_age_seconds={"b": 1.0})
    assert gathering.due(control, 101.0) == ["b"]


def test_a_topic_that_is_due_soon_joins_a_batch_that_is_made() -> None:
    gathering = quiet("early", "late", "hot")
    gathering.saw({("early", 0): 1, ("late", 0): 0, ("hot", 0): 0}, 101.0)
    gathering.saw({("early", 0): 1, ("late", 0): 1, ("hot", 0): 0}, 106.0)
    now = 100.0 + 10.0 * JOINS
    assert gathering.due(TEN, now) == []
    gathering.saw({("early", 0): 1, ("late", 0): 1, ("hot", 0): HOT_RECORDS}, now)
    assert sorted(gathering.due(TEN, now)) == ["early", "hot"]


def test_with_points_all_topics_are_due_together() -> None:
    gathering = quiet("a", "b")
    control = Control(default_max_age_seconds=60.0, together_seconds=2.0)
    gathering.saw({("a", 0): 1, ("b", 0): 1}, 101.0)
    due = gathering.due(control, 101.0)
    assert due == ["a", "b"]
    gathering.take(due, control, MANY, 101.0)
    gathering.saw({("a", 0): 2, ("b", 0): 1}, 102.0)
    assert gathering.due(control, 102.9) == []
    assert gathering.due(control, 103.0) == ["a"]


def test_a_topic_is_held_back_by_its_own_limit_alone() -> None:
    gathering = quiet("a", "b", "parked")
    gathering.saw({("a", 0): 90_000, ("b", 0): 90_000, ("parked", 0): 90_000}, 101.0)
    control = Control(limits={"a": 500, "parked": 0})
    assert gathering.due(control, 101.0) == ["a", "b"]
    ranges, left_some = gathering.take(["a", "b"], control, MANY, 101.0)
    assert ranges == [Range("a", 0, 0, 500), Range("b", 0, 0, 90_000)]
    assert not left_some, "so the next batch does not come at once"
    assert gathering.due(Control(), 101.0) == ["parked", "a"]


def test_a_large_backlog_leaves_room_for_the_others_and_is_read_in_turn() -> None:
    gathering = quiet("huge", "large", "small")
    gathering.saw({("huge", 0): 10**7, ("large", 0): 10**6, ("small", 0): 2_000}, 101.0)
    seen = []
    for _ in range(3):
        due = gathering.due(TEN, 101.0)
        ranges, left_some = gathering.take(due, TEN, 60_000, 101.0 + len(seen))
        assert left_some
        seen.append({each.topic: each.end - each.start for each in ranges})
    assert seen[0] == {"huge": PIECE_RECORDS, "large": 10_000}
    assert seen[1] == {"small": 2_000, "huge": PIECE_RECORDS, "large": 8_000}
    assert sum(seen[2].values()) == 60_000


def test_many_topics_that_are_due_at_once_are_read_by_batches_that_follow_each_other() -> None:
    topics = [f"t{number:02}" for number in range(2 * TOPICS_MAX + 3)]
    gathering = quiet(*topics)
    gathering.saw({(topic, 0): 1 for topic in topics}, 101.0)
    read: list[list[str]] = []
    while due := gathering.due(TEN, 110.0 + len(read)):
        _, left_some = gathering.take(due, TEN, MANY, 110.0 + len(read))
        assert left_some == (len(read) < 2)
        read.append(due)
    assert [len(due) for due in read] == [TOPICS_MAX, TOPICS_MAX, 3]
    assert sorted(topic for due in read for topic in due) == topics
    gathering.saw({(topic, 0): 2 for topic in topics}, 113.0)
    assert len(gathering.due(Control(together_seconds=1.0), 114.0)) == len(topics), "with points they are read together"


def test_the_partitions_of_a_topic_are_read_together() -> None:
    gathering = Gathering({("a", 0): 0, ("a", 1): 100})
    gathering.saw({("a", 0): 900, ("a", 1): 400}, 1.0)
    ranges, _ = gathering.take(["a"], TEN, 400, 1.0)
    assert ranges == [Range("a", 0, 0, 300), Range("a", 1, 100, 200)]


def test_a_partition_that_starts_over_is_due_again() -> None:
    gathering = quiet("a")
    gathering.positions["a", 0] = 500
    gathering.start_over({("a", 0): 3})
    gathering.saw({("a", 0): 4}, 101.0)
    assert gathering.due(TEN, 101.0) == ["a"]
    assert gathering.take(["a"], TEN, MANY, 101.0)[0] == [Range("a", 0, 3, 4)]


def test_shares_take_all_that_is_given_and_no_more_than_there_is() -> None:
    rng = random.Random(7)
    for _ in range(300):
        waiting = {
            ("t", n): rng.choice((0, 1, rng.randrange(50), rng.randrange(10**6))) for n in range(rng.randint(1, 20))
        }
        total, records = sum(waiting.values()), rng.randrange(1, 10**6)
        for shares in (in_proportion(waiting, records), in_turn(waiting, waiting, records, rng.randrange(1, 10**5))):
            assert sum(shares.values()) == min(total, records)
            assert all(0 <= count <= waiting[p] for p, count in shares.items())


def test_random_arrivals_are_each_planned_once_and_in_time() -> None:
    for seed in range(10):
        rng = random.Random(seed)
        topics = [f"t{n}" for n in range(8)]
        gathering = quiet(*topics, now=0.0)
        control = Control(default_max_age_seconds=10.0, max_age_seconds={"t0": 1.0})
        ends = {(topic, 0): 0 for topic in topics}
        arrived: dict[tuple[str, int], float] = {}
        read = dict.fromkeys(topics, 0)
        now = 0.0
        for _ in range(400):
            before, now = now, now + rng.uniform(0.05, 0.7)
            for topic in rng.sample(topics, rng.randint(0, 3)):
                for _ in range(rng.choice((1, 1, 5, 700))):
                    arrived[topic, ends[topic, 0]] = rng.uniform(before, now)
                    ends[topic, 0] += 1
            gathering.saw(ends, now)
            ranges, _ = gathering.take(gathering.due(control, now), control, MANY, now)
            for each in ranges:
                assert each.start == read[each.topic]
                read[each.topic] = each.end
            for topic in topics:
                if read[topic] < ends[topic, 0]:
                    assert now - arrived[topic, read[topic]] <= control.max_age_of(topic)
