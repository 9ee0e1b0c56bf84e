"""A pipeline file and its run: a source, a format and a table, without a line of code."""
