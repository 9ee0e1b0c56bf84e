"""Operations that users call on a table: create, delete, update, partitions, holds, sort keys, cleanup."""
