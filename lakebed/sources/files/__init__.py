"""Folders of files as a source: which files there are, in which order they are read, and what is read of them."""
