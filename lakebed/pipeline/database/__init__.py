"""Pipelines of a whole database: one query for all topics, a table for each."""
