"""Kafka: its settings, the ranges of offsets of a batch, and the records of a range."""
