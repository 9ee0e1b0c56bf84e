"""JSON documents whose schema is known: JSON Schema as Arrow types, and a reader of documents."""
