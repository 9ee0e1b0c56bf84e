"""Tables by name in Spark SQL: what the classes of ``sparks/catalog`` ask is answered here."""
