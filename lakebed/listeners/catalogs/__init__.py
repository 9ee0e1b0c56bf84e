"""Catalogs of other programs, whose entries of tables follow what the tables are."""
