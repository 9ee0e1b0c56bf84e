"""Tests by a race whether only one writer can take a name in a store, once, before a table relies on the store.

Some servers that speak S3 ignore ``If-None-Match``, and some check it and then write, with a gap between: a second put
reveals the first kind, only a race the second. A store that passes is not proven atomic; one that fails is proven not.

1. Put a name, then put it again with other bytes: the second must be refused and the first bytes must stay.
2. In each race, ``contestants`` threads wait for each other and put one new name, each with bytes of its own and of
   its own length. Exactly one may win, and the name must hold the winner's bytes.
3. A contestant whose outcome nobody knows (the store was unavailable) is neither a winner nor a loser: the name may
   hold its bytes if there is no other winner.
4. Remove every name, also after a failure.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

from lakebed.errors import Retry, StoreUnavailable, UnsafeStore
from lakebed.log.stores.log_store import LogStore

PROBE_FOLDER = "_lakebed/probe"
_RACE_TIMEOUT_SECONDS = 60


def probe(store: LogStore, contestants: int = 8, rounds: int = 4) -> None:
    """Race the store's ``put_if_absent``. Raises UnsafeStore if it is not atomic, StoreUnavailable if it is silent."""
    folder = f"{PROBE_FOLDER}/{uuid.uuid4().hex}"
    names = [f"{folder}-{number}" for number in range(rounds + 1)]
    try:
        _refuses_a_second_put(store, names[0])
        with ThreadPoolExecutor(contestants) as pool:
            for name in names[1:]:
                _one_winner(store, name, contestants, pool)
    finally:
        for name in names:
            try:
                store.delete(name)
            except Retry:
                break  # a leftover of a few bytes under _lakebed/ is harmless


def _refuses_a_second_put(store: LogStore, name: str) -> None:
    first, second = _body(1), _body(2)
    if not store.put_if_absent(name, first):
        raise UnsafeStore(
            f"{_root(store)}: a name that nobody uses, {name}, was refused as taken; use another store",
            table=_root(store),
        )
    if store.put_if_absent(name, second) or store.read(name) != first:
        raise UnsafeStore(
            f"{_root(store)} let a second put-if-absent replace an object (it ignores If-None-Match): two writers would"
            " overwrite each other's commits; use a store with conditional writes",
            table=_root(store),
        )


def _one_winner(store: LogStore, name: str, contestants: int, pool: ThreadPoolExecutor) -> None:
    start = threading.Barrier(contestants, timeout=_RACE_TIMEOUT_SECONDS)

    def run(number: int) -> bool | None:
        body = _body(number)
        start.wait()
        try:
            return store.put_if_absent(name, body)
        except StoreUnavailable:
            return None

    outcomes = list(pool.map(run, range(contestants)))
    winners = [number for number, won in enumerate(outcomes) if won]
    unknown = [number for number, won in enumerate(outcomes) if won is None]
    if len(winners) > 1:
        raise UnsafeStore(
            f"{_root(store)}: {len(winners)} of {contestants} writers that put one name at once were all answered that"
            " they won (its put-if-absent checks first and writes later); use a store with atomic conditional writes",
            table=_root(store),
        )
    if not winners and not unknown:
        raise UnsafeStore(
            f"{_root(store)}: {contestants} writers put one new name at once and all were refused; use another store",
            table=_root(store),
        )
    if len(unknown) == contestants:
        raise StoreUnavailable(
            f"{_root(store)} did not answer any of {contestants} puts; try again", table=_root(store)
        )
    try:
        held = store.read(name)
    except FileNotFoundError:
        if not winners:
            raise StoreUnavailable(
                f"{_root(store)} did not take any of {contestants} puts; try again", table=_root(store)
            ) from None
        held = b""
    allowed = winners or unknown
    if held not in [_body(number) for number in allowed]:
        raise UnsafeStore(
            f"{_root(store)}: after a race the object does not hold the bytes of the writer that won; use"
            " another store",
            table=_root(store),
        )


def _body(number: int) -> bytes:
    return b"%d " % number * (600 + 37 * number)


def _root(store: LogStore) -> str:
    return str(getattr(store, "root", store))
