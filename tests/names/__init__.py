"""Tables by name in Spark SQL."""
