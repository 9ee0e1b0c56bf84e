"""A wait goes on while anything moves, and gives up when nothing does, however busy the machine is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import waiting
from tests.waiting import Patience, outcome, ran, wait_until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still while nobody sleeps, and a machine of two cores."""
    clock = SimpleNamespace(now=0.0, load=0.0)

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    monkeypatch.setattr(waiting, "os", SimpleNamespace(getloadavg=lambda: (clock.load, 0, 0), cpu_count=lambda: 2))
    return clock


def test_a_wait_ends_with_the_answer(clock: SimpleNamespace) -> None:
    assert wait_until(lambda: clock.now > 10 and "it is there") == "it is there"


def test_it_gives_up_when_nothing_moves(clock: SimpleNamespace) -> None:
    with pytest.raises(AssertionError, match="no batch came"):
        wait_until(lambda: False, "no batch came", still_seconds_max=60)
    assert 60 < clock.now < 61


def test_it_goes_on_while_something_moves(clock: SimpleNamespace) -> None:
    versions = [*range(10)]
    assert wait_until(lambda: clock.now > 400, moving=lambda: versions[min(9, int(clock.now // 50))])


def test_what_moves_for_ever_ends_too(clock: SimpleNamespace) -> None:
    with pytest.raises(AssertionError):
        wait_until(lambda: False, moving=lambda: clock.now)
    assert clock.now < waiting.SECONDS_MAX + 1


def test_on_a_busy_machine_time_counts_less(clock: SimpleNamespace) -> None:
    clock.load = 8
    assert wait_until(lambda: clock.now > 230, still_seconds_max=60)
    patience = Patience(still_seconds_max=60)
    clock.now += 250
    assert patience.is_over()


def test_a_costly_condition_is_looked_at_less_often(clock: SimpleNamespace) -> None:
    looks = []

    def is_late() -> bool:
        looks.append(clock.now)
        clock.now += 0.1
        return clock.now > 20

    wait_until(is_late)
    assert len(looks) == 21, "each takes 0.1 s, so 0.9 s pass between two"


def test_a_process_that_does_nothing_any_more_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]) as process:
        with pytest.raises(AssertionError, match="does nothing, and does not end"):
            outcome(process, still_seconds_max=0.5)
        assert process.wait() < 0


@pytest.mark.slow
def test_a_process_that_works_is_waited_for() -> None:
    works = "import time\nwhile time.process_time() < 2.5: pass\nprint('done')"
    with subprocess.Popen([sys.executable, "-c", works], stdout=subprocess.PIPE, text=True) as process:
        assert outcome(process, still_seconds_max=1.5) == ("done\n", None)
    assert ran([sys.executable, "-c", "import sys; sys.exit('no')"]).stderr == "no\n"


def test_nobody_else_has_a_deadline() -> None:
    tests = Path(__file__).resolve().parents[1]
    until_then = re.compile(r"(deadline|until) = time\.(time|monotonic)|awaitTermination\(\d\d")
    found = {str(file.relative_to(tests)) for file in tests.rglob("*.py") if until_then.search(file.read_text())}
    # How long a merge of replicas is looked for, and how long a process may take to end before it is killed.
    assert found == {"end_to_end/replicas.py", "infra/connect.py", "infra/server.py"}
