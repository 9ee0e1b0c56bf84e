"""A SQL query between the records of a source and the rows of a table."""
