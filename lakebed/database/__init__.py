"""A database as a whole: all its tables as of one moment."""
