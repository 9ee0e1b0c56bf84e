"""Whether the topic that a table is read from is gone: the entry ``lakebed.topic_gone`` of its log, for people alone.

The pipeline of the table's database sets it, and removes it when the topic is there again. It decides nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import orjson

from lakebed.log.actions import Domain
from lakebed.log.commit_loop import Finished, Proposal, commit_loop
from lakebed.log.conflicts import ReadWriteSet
from lakebed.log.entries import TOPIC_GONE, Operation
from lakebed.log.entry_values import decoded, readable_or_none
from lakebed.log.snapshot import Snapshot
from lakebed.log.table_log import TableLog


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicGone:
    """``since_ms``: when that was noticed, in epoch milliseconds."""

    topic: str
    since_ms: int


def topic_gone_of(snapshot: Snapshot) -> TopicGone | None:
    """The topic that is gone; None if none is."""
    text = snapshot.domains.get(TOPIC_GONE)
    return readable_or_none(TOPIC_GONE, text, partial(decoded, TopicGone))


def note_topic(log: TableLog, topic: str, *, is_gone: bool) -> bool:
    """Say in the log of a table that its topic is gone, or that it is there again; returns whether that is news.

    Raises Contention, StoreUnavailable, TableNotFound.
    """

    def build(snapshot: Snapshot) -> Proposal[bool] | Finished[bool]:
        if (TOPIC_GONE in snapshot.domains) == is_gone:
            return Finished(False)
        text = orjson.dumps(asdict(TopicGone(topic=topic, since_ms=log.now_ms()))).decode()
        action = Domain(TOPIC_GONE, text) if is_gone else Domain(TOPIC_GONE, "", removed=True)
        access = ReadWriteSet(domains=frozenset([TOPIC_GONE]))
        return Proposal(actions=[action], access=access, result=lambda _: True)

    return commit_loop(log, Operation.TOPIC, build)
