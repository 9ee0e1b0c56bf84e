"""Proof that tables are equal to their source: ``lakebed verify``.

    Source ──tallies of buckets──┐
       │                         ├─> those that differ ──> keys ──> rounds ──> differences ──> report
    Lake ────tallies of spans────┘

A *rule* says how a value of a type is written as text, in the SQL of both sides (``canonical``, and for each source
``types_of_…``). A *span* is a range of keys, a *tally* is the count of its rows and the sum of their checksums, a *round*
compares some keys once (``comparing``). ``proof`` is the flow. ``postgres``, ``mariadb`` and ``stored_offsets`` touch databases
and brokers, ``lake`` the table; ``databases`` and ``tables`` put both together, ``repair`` mends what differs, and ``continuous``
begins again.
"""
