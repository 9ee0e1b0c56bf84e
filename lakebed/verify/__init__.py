"""Proof that tables are equal to their source: ``lakebed verify``.

    Source ──tallies of buckets──┐
       │                         ├─> those that differ ──> keys ──> rounds ──> differences ──> report
    Lake ────tallies of spans────┘

A *rule* says how a value of a type is written as text, in the SQL of both sides (``canonical``, ``types_of_postgres`` and
others). A *span* is a range of keys, a *tally* is the count of its rows and the sum of their checksums, a *round* compares some
keys once (``comparing``). ``proof`` is the flow; ``postgres``, ``mariadb``, ``lake``, ``reaching`` and ``stored_offsets`` touch
databases, tables and brokers.
"""
