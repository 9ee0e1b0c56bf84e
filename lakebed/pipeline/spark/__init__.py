"""Spark for one pipeline: its JVM, its jars, its workers."""
