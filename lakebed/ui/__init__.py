"""The web page: the state of tables, served read-only by one process.

``watch`` reads each table in its own thread and keeps the answers ready; ``server`` serves them; ``page`` holds the HTML,
CSS and ES modules that the browser loads as they are. docs/operations.md lists the answers.
"""
