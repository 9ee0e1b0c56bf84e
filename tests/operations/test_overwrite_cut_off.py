"""An overwrite by a condition on rows, cut off after each write to the store: it was done or was not, and can be run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakebed
from lakebed.errors import StoreUnavailable
from lakebed.log.stores import LocalLogStore
from lakebed.storage.data_files import LocalPartStorage
from tests.operations.overwriting import overwrite_by_tasks
from tests.operations.test_mutations import batch, make, row, values

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_cache")]

WRITES: list[tuple[type, str]] = [
    (LocalLogStore, "put_if_absent"),
    (LocalLogStore, "put"),
    (LocalPartStorage, "write_file"),
    (LocalPartStorage, "write_bytes"),
    (LocalPartStorage, "delete"),
    (LocalPartStorage, "delete_many"),
]
READS = [(LocalLogStore, "read"), (LocalLogStore, "list_from"), (LocalPartStorage, "read_bytes")]
WHERE = "value >= 4"


class Killed(BaseException):
    """The end of a process."""


def cut_off(patched: pytest.MonkeyPatch, how: type[BaseException], after: int) -> list[str]:
    """Raise this when so many writes were made, so that nobody knows of the last one, and at all that comes then.

    Returns the writes that are made.
    """
    made = list[str]()

    def cut(name: str, call: Callable[..., Any], writes: bool) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if len(made) >= after:
                raise how("no answer")
            result = call(*arguments, **named)
            if writes:
                made.append(name)
            if len(made) == after:
                raise how("no answer")
            return result

        return called

    for owner, name in [*WRITES, *READS]:
        patched.setattr(owner, name, cut(name, getattr(owner, name), (owner, name) in WRITES))
    return made


@pytest.mark.parametrize("how", [Killed, pytest.param(StoreUnavailable, marks=pytest.mark.long)])
def test_it_was_done_or_not_and_is_done_when_it_is_run_again(
    how: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = batch([row(4, 4, "us", 9), row(7, 7, "eu", 9), row(8, 5, None, 9)], keyed=False)
    before, done = {1: 1, 2: 2, 3: 3, 4: 4, 6: 60}, {1: 1, 2: 2, 3: 3, 4: 4, 7: 7, 8: 5}
    options = {"sequence_by": "seq", "partition_by": ["region"], "properties": {"lakebed.checkpoint_interval": "2"}}
    after, made = 0, [""]
    while len(made) >= after:
        after += 1
        table = make(tmp_path / str(after), [row(id, id, ["eu", "us", None][id % 3]) for id in range(1, 5)], **options)
        table.settle()
        table.apply(batch([row(6, 60, "us", 2)]))
        with monkeypatch.context() as patched:
            made = cut_off(patched, how, after)
            try:
                overwrite_by_tasks(lakebed.open(table.path), rows, WHERE)
            except how as error:
                said = str(error)
            else:
                said = "done"
        found = values(lakebed.open(table.path))
        assert found == done or (found == before and said != "done"), (after, made)
        assert found == before or how is Killed or said == "done" or "look in the timeline" in said, (after, made)
        table = lakebed.open(table.path)
        table.overwrite(rows, WHERE)
        assert values(table) == done, (after, made)
        assert table.doctor(deep=True).findings == (), (after, made)
        table.maintenance.remove_orphan_files("0 seconds", dry_run=False, allow_short_retention=True)
        assert values(lakebed.open(table.path)) == done, (after, made)
    assert {"put_if_absent", "write_file"} <= set(made) and after > 5, made
