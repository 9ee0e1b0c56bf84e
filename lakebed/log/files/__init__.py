"""The files of a log: commits and checkpoints, as Delta's readers expect them."""
