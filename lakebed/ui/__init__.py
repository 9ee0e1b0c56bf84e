"""The web page: what tables look like now, served read-only from one process to whoever sits at it.

``watch`` looks at each table in a thread of its own and keeps ready-made answers; ``server`` hands them out; ``page`` is what a
browser is given: HTML, CSS and ES modules as they are. docs/operations.md lists the answers.
"""
