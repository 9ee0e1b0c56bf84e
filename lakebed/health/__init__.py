"""Whether a table is well: ``status`` from its log and a listing in seconds, ``examine`` by every check there is.

A package above compaction, view and ingest: it asks the planner, the cleanup and backpressure, which must not know each other.
"""
