"""The optimum against all schedules there are."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest

from benchmarks.day import least_written_on_average, with_price
from lakebed.planning.candidates import binomial, least_written, least_written_up_to


@cache
def best_of_all(runs: tuple[int, ...], flushes: int, budget: int) -> int:
    """The least that merges write from here on, by trying every merge of newest runs after every flush."""
    if flushes == 0:
        return 0
    after = (*runs, 1)
    options = []
    if len(after) <= budget:
        options.append(best_of_all(after, flushes - 1, budget))
    for start in range(len(after) - 1):
        if start + 1 <= budget:
            merged = sum(after[start:])
            options.append(merged + best_of_all((*after[:start], merged), flushes - 1, budget))
    return min(options)


@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_the_optimum_is_the_best_of_all_schedules(budget: int) -> None:
    assert [least_written(flushes, budget) for flushes in range(13)] == [
        best_of_all((), flushes, budget) for flushes in range(13)
    ]


@cache
def bestwith_price(runs: tuple[int, ...], flushes: int, price: float) -> float:
    """The least that merges and runs cost from here on, by trying every merge of any runs after every flush."""
    if flushes == 0:
        return 0
    after = tuple(sorted((*runs, 1)))
    options = [bestwith_price(after, flushes - 1, price) + price * len(after)]
    for count in range(2, len(after) + 1):
        for chosen in set(combinations(after, count)):
            left = list(after)
            for size in chosen:
                left.remove(size)
            merged = (*left, sum(chosen))
            options.append(sum(chosen) + bestwith_price(merged, flushes - 1, price) + price * len(merged))
    return min(options)


@pytest.mark.parametrize("price", [0.1, 0.5, 1.0, 3.0])
def test_no_merge_of_any_runs_beats_the_bound_for_an_average(price: float) -> None:
    assert [with_price(flushes, price) for flushes in range(1, 9)] == pytest.approx(
        [bestwith_price((), flushes, price) for flushes in range(1, 9)]
    )


@pytest.mark.slow
def test_fewer_runs_on_average_cost_more() -> None:
    least = [least_written_on_average(300, runs) for runs in (2, 4, 8, 16, 300)]
    assert least == sorted(least, reverse=True) and least[-1] == 0
    assert least_written_on_average(300, 8) <= least_written(300, 8), "eight at most are fewer on average"


def by_definition(flushes: int, runs: int, first_write: int) -> list[int]:
    """The recurrence, every m tried."""
    last = np.full(flushes + 1, 1 << 60)
    last[0] = 0
    cost = np.arange(1, flushes + 1)
    cost[0] = first_write
    for _ in range(runs):
        now = np.zeros(flushes + 1, dtype=np.int64)
        for n in range(1, flushes + 1):
            now[n] = (now[:n] + cost[:n] + last[n - 1 :: -1][:n]).min()
        last = now
    return [int(value) for value in last]


@pytest.mark.parametrize("runs", [1, 2, 3, 5, 8, 16])
@pytest.mark.parametrize("first_write", [0, 1])
def test_looking_near_the_last_best_choice_finds_the_best(runs: int, first_write: int) -> None:
    assert least_written_up_to(700, runs, first_write).tolist() == by_definition(700, runs, first_write)


def test_within_the_budget_nothing_is_written() -> None:
    assert least_written(8, 8) == 0
    assert least_written(9, 8) == 2
    assert least_written(100, 1) == 100 * 101 // 2 - 1


@pytest.mark.parametrize("budget", [2, 4, 8, 16])
def test_the_binomial_policy_writes_nearly_the_least(budget: int) -> None:
    flushes = 3000
    runs: list[float] = []
    written = [0.0]
    for _ in range(flushes):
        runs.append(1.0)
        chosen = binomial(runs, budget, 1.0)
        cost = 0.0
        if chosen is not None:
            cost = sum(runs[chosen])
            runs[chosen] = [cost]
        assert len(runs) <= budget
        written.append(written[-1] + cost)
    ratios = np.array(written[200:]) / least_written_up_to(flushes, budget)[200:]
    published = np.array(written[200:]) / least_written_up_to(flushes, budget, first_write=1)[200:]
    assert ratios.mean() <= 1.12
    assert ratios[1440 - 200] <= 1.25
    assert published.max() <= 1.25
