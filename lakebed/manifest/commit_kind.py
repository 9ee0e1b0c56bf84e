"""What a commit is, told by its actions alone.

``commitInfo`` is for people: another tool may rewrite or drop it, and checkpoints do not keep it. So nothing is decided by it.
What it says that counts is identity and time (see ``CommitInfo``): whose commit it is, what it follows, and when it was made.
"""

from __future__ import annotations

from collections.abc import Iterable

from lakebed.manifest.actions import Action, AddChangePart, AddPart, CommitInfo, Domain, Transaction


def is_append(actions: Iterable[Action], batch: Transaction | None = None) -> bool:
    """Whether the actions only bring new changes or rows, beside the batch's id and what is kept of the batch."""
    actions = (*actions, batch) if batch else tuple(actions)
    batches = {action.app_id for action in actions if isinstance(action, Transaction)}
    brings = False
    for action in actions:
        match action:
            case AddChangePart() | AddPart(data_change=True):
                brings = True
            case CommitInfo() | Transaction():
                pass
            case Domain(domain, _, False) if domain in batches:
                pass
            case _:
                return False
    return brings
