"""Native code of ingest: JSON, Avro, Protobuf and Kafka's records straight into Arrow columns.

``build`` compiles the C files of this folder into one shared library, with any C compiler; it needs no header of Python.
``library`` loads it. Where there is none, ingest does the same with Arrow's JSON parser, Python and confluent-kafka alone, only
slower.
"""
