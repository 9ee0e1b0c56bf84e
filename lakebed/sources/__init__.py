"""Where records are: Kafka, folders of files, other tables; the ranges of a batch, and their records."""
