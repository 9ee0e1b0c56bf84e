"""The web page: the state of tables, served read-only by one process.

``watch`` reads each table in its own thread and keeps answers ready; ``server`` hands them out; ``page`` is what a
browser is given: HTML, CSS and ES modules as they are. docs/operations.md lists the answers.
"""
