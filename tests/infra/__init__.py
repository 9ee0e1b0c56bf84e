"""Real servers for tests and benchmarks: Kafka, PostgreSQL, Debezium, S3, a Spark cluster, and faults on the way."""
