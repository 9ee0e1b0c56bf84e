"""The commands. Each module adds its own to the parser (``add_to``), with their options and an example.

What a command needs is imported when it runs: a parser must not wait for Arrow, DuckDB or Spark.
"""
