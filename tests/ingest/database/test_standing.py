"""What failures of tables mean: who waits, who is parked, and when all have one trouble."""

from __future__ import annotations

import pytest

from lakebed.errors import (
    Corrupt,
    DataLoss,
    InvalidInput,
    InvalidSchema,
    LakebedError,
    MissingPrerequisite,
    QuarantineRefused,
    Retry,
    StoreUnavailable,
    TableNotFound,
    Unexpected,
)
from lakebed.ingest.database_member import DOWN_FAILURES_MAX, FAILURES_MAX, Failing, Ruling, outage, ruling

OWN = [DataLoss, InvalidSchema, QuarantineRefused, Corrupt, TableNotFound]
OTHERS = [InvalidInput, MissingPrerequisite]
PASSING = [Retry, StoreUnavailable, Unexpected]


def batches(*outcomes: dict[str, LakebedError | None], second: float = 100.0) -> Ruling:
    """The ruling after several batches, each some seconds after the one before."""
    found = Ruling(0, {}, {})
    for number, one in enumerate(outcomes):
        found = ruling(found.failing, one, found.worked, number * second)
    return found


@pytest.mark.parametrize("kind", OWN)
def test_an_error_of_the_table_itself_parks_it_at_once_and_no_other(kind: type[LakebedError]) -> None:
    alone = batches({"a": kind("no")})
    beside = batches({"a": kind("no"), "b": None, "c": Retry("no")})
    assert list(alone.park) == ["a"] and not alone.failing
    assert list(beside.park) == ["a"] and list(beside.failing) == ["c"]


@pytest.mark.parametrize("kind", [*OWN, *OTHERS, *PASSING])
def test_what_all_tables_fail_with_parks_nobody_however_often(kind: type[LakebedError]) -> None:
    found = batches(*[{"a": kind("no"), "b": kind("no")}] * 3 * FAILURES_MAX)
    assert not found.park and list(found.failing) == ["a", "b"]
    assert isinstance(outage(found.failing, found.worked, ["a", "b"]), kind)


@pytest.mark.parametrize("kind", OTHERS)
def test_any_other_error_parks_a_table_once_another_has_worked(kind: type[LakebedError]) -> None:
    failed: dict[str, LakebedError | None] = {"a": kind("no")}
    assert not batches(*[failed] * 20).park
    assert list(batches(failed, {"b": None}, failed).park) == ["a"]
    assert list(batches({"a": kind("no"), "b": None}).park) == ["a"]
    assert not batches({"b": None}, failed, failed).park  # it worked before: that shows nothing of now


@pytest.mark.parametrize("kind", [Retry, Unexpected])
def test_what_may_pass_parks_a_table_after_many_failures_while_others_work(kind: type[LakebedError]) -> None:
    both: dict[str, LakebedError | None] = {"a": kind("no"), "b": None}
    assert not batches(*[both] * (FAILURES_MAX - 1)).park
    assert list(batches(*[both] * FAILURES_MAX).park) == ["a"]
    assert batches(*[both] * FAILURES_MAX).park["a"].failures == FAILURES_MAX
    assert not batches(*[{"a": kind("no")}] * 100).park


def test_a_store_that_does_not_answer_for_one_table_never_parks_it() -> None:
    found = batches(*[{"a": StoreUnavailable("no"), "b": None}] * 10 * FAILURES_MAX)
    assert not found.park and list(found.failing) == ["a"]


@pytest.mark.parametrize("kind", PASSING)
def test_a_table_that_alone_needs_what_is_down_is_not_parked_however_long_that_takes(kind: type[LakebedError]) -> None:
    found = Ruling(0, {}, {})
    for number in range(10 * FAILURES_MAX):
        found = ruling(found.failing, {"a": kind("no"), "b": None}, found.worked, 10.0 * number, is_down=True)
        assert not found.park
    assert ruling(found.failing, {"a": Corrupt("no"), "b": None}, found.worked, 0.0, is_down=True).park
    up = found
    for _ in range(FAILURES_MAX - DOWN_FAILURES_MAX):
        assert not up.park
        up = ruling(up.failing, {"a": kind("no"), "b": None}, up.worked, 0.0)
    assert bool(up.park) is (kind is not StoreUnavailable)


def test_a_table_that_works_again_has_never_failed() -> None:
    both: dict[str, LakebedError | None] = {"a": Retry("no"), "b": None}
    found = batches(*[both] * (FAILURES_MAX - 1), {"a": None}, *[both] * (FAILURES_MAX - 1))
    assert not found.park and found.failing["a"].failures == FAILURES_MAX - 1


def test_pauses_grow_and_are_bounded() -> None:
    pauses = []
    found = Ruling(0, {}, {})
    for _ in range(8):
        found = ruling(found.failing, {"a": Retry("no")}, found.worked, 0.0)
        pauses.append(found.failing["a"].due)
    assert pauses == [1, 2, 4, 8, 10, 10, 10, 10]


def test_when_the_first_works_again_those_that_waited_for_the_same_are_tried_soon_and_a_sick_one_is_not() -> None:
    late = Failing(Retry("no"), 7, due=130.0, worked_before=5)
    sick = Failing(Retry("no"), 7, due=130.0, worked_before=3)
    found = ruling({"late": late, "sick": sick}, {"a": None}, 5, now=100.0)
    assert found.failing["late"].due == 101.0 and found.failing["sick"].due == 130.0
    again = ruling(found.failing, {"a": None}, found.worked, now=100.5)
    assert again.failing["late"].due == 101.0


def test_tables_that_were_not_read_stay_as_they_were() -> None:
    waiting = {"z": Failing(Retry("no"), 3, 50.0, 1)}
    assert ruling(waiting, {"a": Retry("no")}, 1, 0.0).failing["z"] == waiting["z"]
    assert ruling(waiting, {}, 1, 0.0).failing == waiting


def failing(*errors: LakebedError) -> dict[str, Failing]:
    """Tables that failed, and since whose failure nothing has worked."""
    return {f"t{number}": Failing(error, 1, 0.0, 7) for number, error in enumerate(errors)}


TABLES = [f"t{number}" for number in range(20)]


@pytest.mark.parametrize("kind", [*OWN, *OTHERS])
def test_three_bad_tables_are_no_outage(kind: type[LakebedError]) -> None:
    assert outage(failing(kind("no"), kind("no"), kind("no")), 7, TABLES) is None


def test_tables_that_all_share_a_trouble_are_an_outage_until_one_works() -> None:
    found = failing(StoreUnavailable("no"), StoreUnavailable("no"))
    assert isinstance(outage(found, 7, TABLES), StoreUnavailable)
    assert outage(found, 8, TABLES) is None
    assert outage(failing(StoreUnavailable("no")), 7, TABLES) is None
    assert isinstance(outage(failing(StoreUnavailable("no")), 7, TABLES[:1]), StoreUnavailable)
    assert outage({}, 7, []) is None


def test_topics_that_never_became_tables_are_no_outage() -> None:
    assert outage(failing(Retry("no"), Retry("no"), Retry("no")), 7, ["t8", "t9"]) is None
