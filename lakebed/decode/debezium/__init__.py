"""Debezium's change events: what they mean, whatever bytes they came in, and Kafka Connect's types."""
