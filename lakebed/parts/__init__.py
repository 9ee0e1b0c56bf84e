"""Rows of parts: checked, written, filtered, and read as change rows."""
