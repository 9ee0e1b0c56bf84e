"""From Kafka to a table: lakebed beside its peers."""
