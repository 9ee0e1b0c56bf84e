"""From bytes to changes of a table: JSON, Debezium's events, Avro, Protobuf, JSON Schema. It reads no source and no log."""
