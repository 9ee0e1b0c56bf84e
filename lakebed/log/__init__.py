"""The log of a table: what it holds, how it is read, and how a commit is added to it. No engine."""
