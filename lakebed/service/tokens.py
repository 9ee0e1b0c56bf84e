"""Who may do what: bearer tokens with a role, from a file that has only their hashes.

    # role  sha256 of the token, in hexadecimal                                  name
    reader  3c9909afec25354d551dae21590bb26e38d53f2173b8d3dc3eee4c047e7ab1c1  dashboards
    operator 1f40fc92da241694750979ee6cf582f2d5d7d28e18335de05abc54d0560e0f53  alice

A token is 32 random bytes (``new_token``), so a plain hash is enough: nobody can try them all. The file is read again when it
changes, so a token can be taken back while the service runs. All hashes are compared, each in constant time, so that an answer
does not depend on how much of a token is right.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from lakebed.errors import InvalidInput

_logger = logging.getLogger("lakebed.service")
_LINE = re.compile(r"(reader|operator)\s+([0-9a-fA-F]{64})\s+(\S+)")


class Role(IntEnum):
    """What a caller may do. An operator may do what a reader may."""

    NOBODY = 0
    READER = 1
    OPERATOR = 2


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. ``name``: as the file has it; "" for a caller without a token."""

    name: str
    role: Role


@dataclass(frozen=True, slots=True)
class Token:
    """A token's hash, its role, and its name."""

    role: Role
    digest: str
    name: str


class Tokens:
    """The tokens of a service. ``nobody``: what a caller without a token may do."""

    def __init__(self, read: Callable[[], tuple[Token, ...]], nobody: Role = Role.NOBODY) -> None:
        self._read = read
        self.nobody = nobody

    def caller(self, authorization: str | None) -> Caller | None:
        """Who sends this header; None for a token that is none."""
        if authorization is None:
            return Caller("", self.nobody)
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            return None
        digest, found = digest_of(token.strip()), None
        for each in self._read():
            if hmac.compare_digest(each.digest, digest):
                found = Caller(each.name, each.role)
        return found


class TokenFile:
    """The tokens of a file, read again when it changes. Raises InvalidInput at the first reading.

    A file that is gone or wrong later has no tokens until it is right again: so deleting it takes all of them back.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._seen = self._stamp()
        self._tokens = _parse_tokens(self._text(), path)

    def __call__(self) -> tuple[Token, ...]:
        try:
            stamp = self._stamp()
            if stamp != self._seen:
                self._tokens, self._seen = _parse_tokens(self._text(), str(self._path)), stamp
        except InvalidInput as error:
            if self._tokens:
                _logger.warning("no token is accepted any more: %s", error)
            self._tokens, self._seen = (), (0, 0, 0)
        return self._tokens

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = os.stat(self._path)
        except OSError as error:
            raise InvalidInput(f"the tokens can't be read from {self._path}: {error.strerror}") from None
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _text(self) -> str:
        try:
            return self._path.read_text()
        except (OSError, ValueError) as error:
            raise InvalidInput(f"the tokens can't be read from {self._path}: {error}") from None


def _parse_tokens(text: str, path: str) -> tuple[Token, ...]:
    """The tokens in the text of a file. Raises InvalidInput with the number of a line that is wrong."""
    out = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise InvalidInput(
                f"{path} line {number}: write reader or operator, the SHA-256 of a token in hexadecimal, and a name without "
                "spaces; lakebed serve token makes such a line"
            )
        out.append(Token(Role[match[1].upper()], match[2].lower(), match[3]))
    return tuple(out)


def new_token() -> str:
    """A token that nobody can guess."""
    return secrets.token_urlsafe(32)


def digest_of(token: str) -> str:
    """The hash of a token, as the file has it."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def line_of(token: str, role: Role, name: str) -> str:
    """The line of the file for a token. Raises InvalidInput for a name that it can't have."""
    line = f"{role.name.lower()} {digest_of(token)} {name}"
    if not _LINE.fullmatch(line):
        raise InvalidInput(f"the name of a token is {name!r}; it must be a word without spaces")
    return line
