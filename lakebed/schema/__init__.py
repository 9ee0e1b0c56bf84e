"""Schemas of tables: Delta's and Arrow's, names of columns, and how a schema changes. It knows no log."""
