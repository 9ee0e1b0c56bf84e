"""What the exit codes of the command mean (docs/errors.md lists the code of each error).

  0   it did what was asked. Commands that run until they are stopped: also
      when Ctrl-C or SIGTERM stopped them
  1   it failed: lost records, a refused record, a corrupt table, a cause that
      lakebed does not know. status and verify: the table has a problem
  2   wrong input: the command line, the pipeline file, the path, the SQL
  3   something is missing: Java, a package, Spark's jars, a free port
  4   nothing is wrong: try again later (the store did not answer, others kept
      committing)
130   Ctrl-C ended it at once. Commands that run until they are stopped: the
      second Ctrl-C or SIGTERM did
"""

from __future__ import annotations

from lakebed.errors import (
    InvalidInput,
    LakebedError,
    MissingPrerequisite,
    Retry,
    TableExists,
    TableNotFound,
    Unsupported,
    VersionNotFound,
)

OK, FAILED, WRONG_INPUT, MISSING, TRY_AGAIN, INTERRUPTED = 0, 1, 2, 3, 4, 130


def exit_code_of(error: LakebedError) -> int:
    """The exit code for an error."""
    match error:
        case InvalidInput() | TableNotFound() | TableExists() | VersionNotFound() | Unsupported():
            return WRONG_INPUT
        case MissingPrerequisite():
            return MISSING
        case Retry():
            return TRY_AGAIN
        case _:
            return FAILED
