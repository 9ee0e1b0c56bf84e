"""The log of a table: what stands in it, how it is read, and how a commit gets into it. No engine."""
