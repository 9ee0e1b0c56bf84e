"""A whole database: which topic is which table, and tables that are made when their topic appears."""
