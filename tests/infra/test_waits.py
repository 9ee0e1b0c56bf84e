"""What counts as a wait, and that whoever waits without a reason is found."""

from __future__ import annotations

import pytest

from tests.waits import problems, waits_in


@pytest.mark.parametrize(
    ("code", "kinds"),
    [
        ("time.sleep(0.1)", ["time.sleep"]),
        ("wait_until(lambda: done)", ["wait_until"]),
        ("while time.monotonic() < end: look()", ["while"]),
        ("stopped.wait(0.1)", ["wait(timeout)"]),
        ("assert not begun.acquire(timeout=0.05)", ["acquire(timeout)"]),
        ("while not stopped.wait(0.1): look()", ["wait(timeout)"]),
        ("assert begun.wait(60) and ended.acquire(timeout=60)", []),
        ("barrier.wait()", []),
        ("while queue: queue.pop()", []),
    ],
)
def test_a_wait_is_a_sleep_a_polling_loop_or_a_timeout_that_is_meant_to_pass(code: str, kinds: list[str]) -> None:
    assert [each.kind for each in waits_in(code)] == kinds


def test_a_wait_needs_a_reason_unless_it_is_for_a_server() -> None:
    in_process, of_a_server = "def test_x(table):\n    time.sleep(1)", "def test_x(kafka):\n    time.sleep(1)"
    said = [each for each in problems({"tests/new.py": waits_in(in_process)}) if "tests/new.py" in each]
    assert said == ["tests/new.py waits 1 times in this process, 0 have a reason: lines 2 (time.sleep)"]
    assert not any("tests/new.py" in each for each in problems({"tests/new.py": waits_in(of_a_server)}))
