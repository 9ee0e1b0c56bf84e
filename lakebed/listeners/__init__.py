"""Who is sent the events of tables: a feed of them, cursors, webhooks, Kafka topics, functions."""
