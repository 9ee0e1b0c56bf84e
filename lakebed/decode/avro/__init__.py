"""Avro records of a known schema into Arrow batches, each record by itself and by many at once.

    schema     the text of a schema becomes types, with names, namespaces and references resolved; a default value becomes Avro
               bytes, which the program reads like any others
    columns    a type becomes Arrow columns
    program    how bytes of the writer's type become columns of the reader's: a flat list of steps
    reader     runs it natively (``decode/native/avro_to_arrow.c``), or in Python where that is not built

Invariants
    A1  Both ways of running a program give the same rows and the same errors, for all bytes.
    A2  A record that is not exactly one value of the writer's schema is an error, and changes no other record.
    A3  What a record takes in memory is bounded by its bytes and the schema: a count or a length is never trusted, and values
        that take no bytes are counted.
"""

from lakebed.decode.avro.reader import AvroFormat

__all__ = ["AvroFormat"]
