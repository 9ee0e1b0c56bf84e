"""How many random worlds a test tries: a few, the same each time. ``make soak-worlds`` tries many times as many."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

TIMES = int(os.environ.get("LAKEBED_WORLDS", "1"))


def worlds(count: int) -> range:
    """The seeds of a test that tries them in a loop; such a test has the mark ``worlds``."""
    return range(count * TIMES)


def seeds(count: int, *known: int, quick: int = 1) -> pytest.MarkDecorator:
    """Run the test once for each ``seed``. All but the first ``quick`` of them are slow.

    Args:
        count: How many seeds there are, from 0 on.
        known: More seeds, whose worlds have something rare.
        quick: How many of them the fast subset has.
    """
    return pytest.mark.parametrize(
        "seed",
        [
            pytest.param(seed, marks=[pytest.mark.worlds, *([pytest.mark.slow] if seed >= quick else [])])
            for seed in dict.fromkeys((*worlds(count), *known))
        ],
    )


def examples(count: int) -> settings:
    """Try so many examples of hypothesis in the test."""
    return settings(max_examples=count * TIMES)
