"""The one loop that commits: it builds on the newest snapshot until a commit stands, or says why it gave up."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakebed import events
from lakebed.errors import Contention, InvalidInput, Retry, StoreUnavailable
from lakebed.log.actions import CommitInfo, Domain, Transaction
from lakebed.log.commit_loop import ATTEMPTS_MAX, Finished, NotYet, Proposal, commit_loop
from lakebed.log.conflicts import BLIND, ReadWriteSet
from lakebed.log.entries import Operation
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog
from tests.log.test_table_log import SilentStore, change_part, committed, new_log

ENTRY = Domain("lakebed.tried", "{}")


class Files:
    """Counts how often the operation deleted what it had written."""

    discarded = 0

    def discard(self) -> None:
        self.discarded += 1


def proposal(access: ReadWriteSet | None = None) -> Proposal[int]:
    """It rests on the entry that it sets, unless it says otherwise."""
    return Proposal(actions=[ENTRY], access=access, result=lambda committed: committed.version)


def losing_to_others(log: TableLog, times: int) -> Callable[[Snapshot], Proposal[int]]:
    """A builder before whose commit another one comes that stands in the way, so many times."""
    left = [TableLog(log.store)] * times

    def build(snapshot: Snapshot) -> Proposal[int]:
        if left:
            other = left.pop()
            committed(other.commit(other.refresh(), [ENTRY], CommitInfo(operation="OTHER", commit_id=""), BLIND))
        return proposal()

    return build


def test_a_commit_that_stands_ends_with_the_proposals_result() -> None:
    log = new_log()
    assert commit_loop(log, Operation.SETTLE, lambda snapshot: proposal()) == 1
    commit = log.read_commit(1)
    assert commit is not None and commit.info is not None and commit.info.operation == "SETTLE"


def test_where_nothing_is_to_be_done_nothing_is_committed() -> None:
    log = new_log()
    assert commit_loop(log, Operation.SETTLE, lambda snapshot: Finished(snapshot.version + 40)) == 40
    assert log.refresh().version == 0


def test_an_operation_that_lost_is_built_again_on_the_newest_snapshot() -> None:
    log, seen = new_log(), []
    build = losing_to_others(log, 2)

    def watched(snapshot: Snapshot) -> Proposal[int]:
        seen.append(snapshot.version)
        return build(snapshot)

    assert commit_loop(log, Operation.CLAIM, watched, first=log.refresh()) == 3
    assert seen == [0, 1, 2]


def test_what_is_not_ready_is_asked_again_with_the_newest_snapshot() -> None:
    log, asked = new_log(), []

    def build(snapshot: Snapshot) -> Proposal[int] | NotYet:
        asked.append(snapshot.version)
        if len(asked) < 3:
            committed(
                log.commit(snapshot, [change_part(str(len(asked)))], CommitInfo(operation="OTHER", commit_id=""), BLIND)
            )
            return NotYet("changes came in")
        return proposal()

    assert commit_loop(log, Operation.TRUNCATE, build) == 3 and asked == [0, 1, 2]


def test_an_operation_that_always_loses_gives_up_and_says_to_what() -> None:
    log, files, heard = new_log(), Files(), []
    stop = events.listen(heard.append)
    try:
        with pytest.raises(Contention) as raised:
            commit_loop(log, Operation.CLAIM, losing_to_others(log, 1000), discard=files.discard)
    finally:
        stop()
    assert f"CLAIM on memory gave up after {ATTEMPTS_MAX} attempts" in str(raised.value)
    assert f"version {ATTEMPTS_MAX} came first (claim: {ENTRY.domain})" in str(raised.value)
    assert raised.value.data() == {"table": "memory", "operation": "CLAIM", "attempts": ATTEMPTS_MAX}
    assert files.discarded == 1, "each of its commits was refused: what it wrote is nobody's"
    [given_up] = [event for event in heard if isinstance(event, events.CommitGivenUp)]
    assert (given_up.operation, given_up.attempts) == ("CLAIM", ATTEMPTS_MAX)
    assert log.refresh().version == ATTEMPTS_MAX, "none of its commits stands"


def test_an_operation_that_is_never_ready_gives_up_too() -> None:
    with pytest.raises(Contention, match=r"DETACH PARTITION .* the last because changes kept coming in"):
        commit_loop(new_log(), Operation.DETACH_PARTITION, lambda snapshot: NotYet("changes kept coming in"))


def test_the_first_attempts_come_at_once_and_later_ones_wait_longer_and_longer() -> None:
    pauses: list[float] = []
    log = new_log()
    log.sleep = pauses.append
    commit_loop(log, Operation.CLAIM, losing_to_others(log, 12))
    assert pauses == [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("repeatable", "advice"),
    [(True, "nothing is done twice"), (False, "look in the timeline whether version 1 is this UPDATE")],
)
def test_a_silent_store_ends_it_and_the_error_says_whether_to_repeat_it(repeatable: bool, advice: str) -> None:
    store, files = SilentStore(), Files()
    log = new_log(store=store)
    store.plan = ["lost answer"] + ["lost request"] * 20
    store.read = _unanswered  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable, match=advice):
        commit_loop(
            log,
            Operation.UPDATE,
            lambda snapshot: proposal(),
            first=log._newest,
            discard=files.discard,
            repeatable=repeatable,
        )
    assert files.discarded == 0, "the commit may stand, so its files may be the table's"


def _unanswered(name: str) -> bytes:
    raise StoreUnavailable(f"no answer for {name}")


@pytest.mark.parametrize(("error", "discarded"), [(InvalidInput("a key twice"), 1), (Retry("the store is slow"), 0)])
def test_a_builder_that_refuses_leaves_no_files_and_one_whose_store_fails_leaves_them_to_the_cleanup(
    error: Exception, discarded: int
) -> None:
    files = Files()

    def build(snapshot: Snapshot) -> Proposal[int]:
        raise error

    with pytest.raises(type(error), match=str(error)):
        commit_loop(new_log(), Operation.REPLACE_PARTITION, build, discard=files.discard)
    assert files.discarded == discarded


@pytest.mark.parametrize(
    ("actions", "access", "is_blind"),
    [
        ([change_part("a")], BLIND, True),
        ([change_part("a"), Domain("query", "{}")], BLIND, True),
        ([change_part("a")], ReadWriteSet(read_changes=True), False),
        ([change_part("a"), ENTRY], BLIND, False),
        ([ENTRY], BLIND, False),
    ],
)
def test_a_commit_calls_itself_a_blind_append_if_it_read_nothing_and_only_brings_changes(
    actions: list[object], access: ReadWriteSet, is_blind: bool
) -> None:
    log = new_log()
    batch = Transaction("query", 1)
    commit_loop(
        log,
        Operation.APPLY,
        lambda snapshot: Proposal(actions=actions, access=access, result=lambda committed: None, batch=batch),
    )  # type: ignore[arg-type]
    commit = log.read_commit(1)
    assert commit is not None and commit.info is not None and commit.info.blind_append is is_blind
