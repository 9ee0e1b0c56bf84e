"""Reading a table: merge-on-read for Spark and Arrow, change rows, metadata tables."""
