"""What a user asks of a table by a verb: create, delete, update, partitions, holds, sort keys, cleanup."""
