"""The settings of a source of files, and what the options of Spark's reader mean here.

Options are those of Spark's reader of files, by the names that it has for them, whatever their case. Which files are read, and
how bytes become lines, is lakebed's own work; how a line of CSV becomes values is left to Spark (``rows_of_files.Csv``).

**Names of files.** A file has a URL, in the spelling of Spark: ``file:///in/a%20b.json``, ``s3a://bucket/in/a%20b.json``. The log
of a table knows files by it (``files_read``), and records have it as their topic. It is valid text, whatever bytes the name has.
"""

from __future__ import annotations

import codecs
import datetime
import json
import os
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Literal
from urllib.parse import quote, unquote_to_bytes

from lakebed.errors import InvalidInput
from lakebed.settings import suggest

_PLAIN = re.compile(r"[A-Za-z0-9_\-.!~'()*:@&=+$,;/]+")
_GLOB = frozenset("*?[{")
_NULL = "__HIVE_DEFAULT_PARTITION__"


def quoted(path: str) -> str:
    """A path as it stands in a URL, in Spark's spelling: the log has digests of it. Letters of all scripts stay as they are."""
    if _PLAIN.fullmatch(path):
        return path
    return "".join(map(_quoted_character, path))


def unquoted(text: str) -> str:
    """The reverse of ``quoted``; bytes that are no UTF-8 become what the system's file names have in their place."""
    return unquote_to_bytes(text).decode("utf-8", "surrogateescape") if "%" in text else text


def _quoted_character(character: str) -> str:
    if character < "\x80":
        return character if _PLAIN.fullmatch(character) else f"%{ord(character):02X}"
    is_space_or_control = unicodedata.category(character) in ("Zs", "Zl", "Zp", "Cc", "Cs")
    return quote(character.encode("utf-8", "surrogateescape")) if is_space_or_control else character


def shown(url: str) -> str:
    """A URL as people write the path, in messages."""
    path = unquoted(url).encode("utf-8", "backslashreplace").decode()
    return (
        "/" + path.removeprefix("file:").lstrip("/") if path.startswith("file:") else path.replace("s3a://", "s3://", 1)
    )


def is_hidden(name: str) -> bool:
    """Whether Spark takes a file or a folder for one of another program: hidden, temporary, or about other files."""
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def has_pattern(text: str) -> bool:
    """Whether a text has a character that patterns have."""
    return not _GLOB.isdisjoint(text)


def pattern_of(glob: str) -> re.Pattern[str]:
    """A pattern of Hadoop's for names: ``*``, ``?``, ``[a-c]``, ``[^a]``, ``{one,other}``; a backslash before a character.

    Raises InvalidInput for a pattern that does not end what it begins.
    """
    out, depth, at = [], 0, 0
    while at < len(glob):
        character = glob[at]
        at += 1
        if character == "\\" and at < len(glob):
            out.append(re.escape(glob[at]))
            at += 1
        elif character in "*?":
            out.append(".*" if character == "*" else ".")
        elif character == "[":
            end = glob.find("]", at + 1 + (glob[at : at + 1] in ("^", "!")))
            if end < 0:
                raise InvalidInput(f"the pattern {glob!r} has a '[' without its ']'; write '\\[' for the character")
            inside = glob[at:end].replace("\\", "\\\\").replace("[", "\\[")
            out.append(f"[^{inside[1:]}]" if inside[0] in "^!" else f"[{inside}]")
            at = end + 1
        elif character == "{":
            out.append("(?:")
            depth += 1
        elif character == "}" and depth:
            out.append(")")
            depth -= 1
        else:
            out.append("|" if character == "," and depth else re.escape(character))
    if depth:
        raise InvalidInput(f"the pattern {glob!r} has a '{{' without its '}}'; write '\\{{' for the character")
    try:
        return re.compile("".join(out), re.DOTALL)
    except re.error as error:
        raise InvalidInput(f"the pattern {glob!r} can't be used: {error}") from None


def is_partition(name: str) -> bool:
    """Whether a folder is named like a partition: ``day=2026-01-31``."""
    column, sign, _ = name.partition("=")
    return bool(column and sign)


def partition_values(path: str) -> Mapping[str, str | None]:
    """What the folders of a path say, by column; ``path``: from the folder of the source on."""
    pairs = (unquoted(each).split("=", 1) for each in path.split("/")[:-1] if is_partition(each))
    return {column: None if value == _NULL else value for column, value in pairs}


_FileFormat = Literal["json", "debezium-json", "csv", "parquet"]
_FORMATS: tuple[_FileFormat, ...] = ("json", "debezium-json", "csv", "parquet")

_OF_FILES = (
    "pathGlobFilter", "recursiveFileLookup", "modifiedBefore", "modifiedAfter", "timeZone", "ignoreMissingFiles",
    "ignoreCorruptFiles", "maxFilesPerTrigger", "maxBytesPerTrigger",
)  # fmt: skip
_OF_LINES = ("lineSep", "encoding", "charset")
_OF_CSV = (
    "sep", "delimiter", "quote", "escape", "comment", "header", "enforceSchema", "mode", "multiLine",
    "columnNameOfCorruptRecord", "ignoreLeadingWhiteSpace", "ignoreTrailingWhiteSpace", "nullValue", "nanValue", "positiveInf",
    "negativeInf", "emptyValue", "dateFormat", "timestampFormat", "timestampNTZFormat", "locale",
    "maxColumns", "maxCharsPerColumn", "charToEscapeQuoteEscaping", "unescapedQuoteHandling", "preferDate",
)  # fmt: skip
_WITHOUT_EFFECT: Mapping[str, str] = {
    "maxFileAge": "files of every age are read",
    "maxCachedFiles": "no list of files is kept",
    "discardCachedInputRatio": "no list of files is kept",
    "inferSchema": "the columns are those of the table",
    "samplingRatio": "the columns are those of the table",
    "mergeSchema": "the columns are those of the table",
    "enableDateTimeParsingFallback": "a date or timestamp that has another format than the options say does not fit",
    "compression": "the ending of a file's name says how it is compressed: .gz, .bz2, .zst, .deflate, .lz4 or .snappy",
    "datetimeRebaseMode": "a file with dates of the old calendar is refused",
    "int96RebaseMode": "a file with dates of the old calendar is refused",
}
_REFUSED: Mapping[str, tuple[str, str]] = {
    "latestFirst": ("false", "files are read in the order of their times, so that newer rows replace older ones"),
    "fileNameOnly": ("false", "files of one name in two folders are two files"),
    "cleanSource": ("off", "lakebed does not move or delete files that it has read; remove them by other means"),
    "wholetext": ("false", "a file has one document a line"),
}
_TRUE_OR_FALSE = (
    "recursiveFileLookup",
    "ignoreMissingFiles",
    "ignoreCorruptFiles",
    "header",
    "enforceSchema",
    "multiLine",
)
_MODES = ("FAILFAST", "PERMISSIVE", "DROPMALFORMED")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSettings:
    """``folder``: a path or URL, which may have patterns; ``table``: that what is read goes to, whose log says what was read.

    ``options``: of Spark's reader. Raises InvalidInput for a value that can't be.
    """

    folder: str
    format: _FileFormat
    table: str | None = None
    files_per_batch_max: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.format not in _FORMATS:
            raise InvalidInput(f"files: format is {self.format!r}; use one of {', '.join(_FORMATS)}")
        if self.files_per_batch_max is not None and self.files_per_batch_max < 1:
            raise InvalidInput(f"files_per_batch_max is {self.files_per_batch_max}; it must be 1 or more")
        _ = Options.of(self)

    @property
    def has_lines(self) -> bool:
        """Whether files have lines, not rows in a format of their own."""
        return self.format != "parquet"

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> FilesSettings:
        return FilesSettings(**json.loads(text))


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of Spark's reader, read. Times are nanoseconds since the epoch; ``csv``: what Spark's parser of lines gets."""

    name_pattern: str | None = None
    recursive: bool = False
    modified_before_ns: int | None = None
    modified_after_ns: int | None = None
    skips_missing: bool = False
    skips_damaged: bool = False
    files_max: int | None = None
    bytes_max: int | None = None
    line_separator: bytes | None = None
    encoding: str = "utf-8"
    has_header: bool = True
    checks_header: bool = True
    multi_line: bool = False
    mode: str = "FAILFAST"
    csv: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(settings: FilesSettings) -> Options:
        """Raises InvalidInput."""
        given = _by_name(settings.options)
        known = {name.lower(): name for name in (*_OF_FILES, *_of_format(settings.format))}
        own = {known[name]: value for name, value in given.items() if name in known}
        refused = {name.lower(): name for name in _REFUSED}
        for name, value in given.items():
            if name in refused and value.lower() != _REFUSED[refused[name]][0]:
                raise InvalidInput(f"options: {refused[name]} can't be {value!r}: {_REFUSED[refused[name]][1]}")
        flags = {name: _flag(name, own[name]) for name in _TRUE_OR_FALSE if name in own}
        if own.get("pathGlobFilter"):
            pattern_of(own["pathGlobFilter"])
        mode = own.get("mode", "FAILFAST").upper()
        if mode not in _MODES:
            raise InvalidInput(f"options: mode is {own['mode']!r}; use {', '.join(_MODES)}")
        zone = own.get("timeZone", "UTC")
        separator = own.get("lineSep")
        encoding = _encoding(own.get("encoding", own.get("charset", "utf-8")))
        return Options(
            name_pattern=own.get("pathGlobFilter"),
            recursive=flags.get("recursiveFileLookup", False),
            modified_before_ns=_time(own, "modifiedBefore", zone),
            modified_after_ns=_time(own, "modifiedAfter", zone),
            skips_missing=flags.get("ignoreMissingFiles", False),
            skips_damaged=flags.get("ignoreCorruptFiles", False),
            files_max=settings.files_per_batch_max or _number(own, "maxFilesPerTrigger"),
            bytes_max=_number(own, "maxBytesPerTrigger"),
            line_separator=separator.encode() if separator else None,
            encoding=encoding,
            has_header=flags.get("header", True),
            checks_header=not flags.get("enforceSchema", False),
            multi_line=flags.get("multiLine", False),
            mode=mode,
            csv={name: own[name] for name in (*_OF_CSV, "timeZone") if name in own and name not in _LAKEBEDS_OWN},
        )

    @cached_property
    def separator(self) -> str:
        """Between the values of a line of CSV."""
        return self.csv.get("sep", self.csv.get("delimiter", ","))

    @property
    def quote(self) -> str:
        return self.csv.get("quote", '"')

    @property
    def escape(self) -> str:
        return self.csv.get("escape", "\\")

    @property
    def ignores_leading_blanks(self) -> bool:
        return self.csv.get("ignoreLeadingWhiteSpace", "false").lower() == "true"

    @property
    def comment(self) -> str:
        """How a line begins that is a comment; empty if none is."""
        return self.csv.get("comment", "").strip("\0")


_LAKEBEDS_OWN = ("header", "enforceSchema", "mode", "multiLine")
"""What is done before a line of CSV goes to Spark's parser."""


def notes_on(settings: FilesSettings) -> list[str]:
    """Sentences on options that have no effect."""
    known = (*_OF_FILES, *_of_format(settings.format), *_REFUSED)
    names = {name.lower() for name in known}
    without = {name.lower(): (name, why) for name, why in _WITHOUT_EFFECT.items()}
    notes = []
    for name in settings.options:
        if name.lower() in without:
            notes.append("the option {} has no effect: {}".format(*without[name.lower()]))
        elif name.lower() not in names:
            notes.append(
                f"the option {name} is not known for {settings.format}{suggest(name, known)}; it has no effect"
            )
    return notes


def _by_name(options: Mapping[str, str]) -> dict[str, str]:
    """Options by their names in small letters."""
    return {name.lower(): value for name, value in options.items()}


def base_of(folder: str) -> tuple[str, tuple[str, ...]]:
    """The part of a path before its first pattern, and the names or patterns behind it.

    A folder that is there has no patterns. Of a file, its folder is the first part, and its name the second.
    """
    if os.path.isfile(folder):
        above, name = os.path.split(folder)
        return above or ".", (re.sub(r"([\\*?\[\]{}^,])", r"\\\1", name),)
    if not has_pattern(folder) or os.path.exists(folder):
        return folder, ()
    names = folder.split("/")
    first = next(at for at, name in enumerate(names) if has_pattern(name))
    return "/".join(names[:first]) or ("/" if folder.startswith("/") else "."), tuple(filter(None, names[first:]))


def _of_format(kind: str) -> tuple[str, ...]:
    return {"csv": (*_OF_LINES, *_OF_CSV), "parquet": ()}.get(kind, _OF_LINES)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidInput(f"options: {name} is {value!r}; use 'true' or 'false'")
    return value.lower() == "true"


def _number(own: Mapping[str, str], name: str) -> int | None:
    value = own.get(name)
    if value is None:
        return None
    if not value.isdecimal() or int(value) < 1:
        raise InvalidInput(f"options: {name} is {value!r}; it must be a whole number of 1 or more")
    return int(value)


def _encoding(name: str) -> str:
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise InvalidInput(f"options: encoding {name!r} is not known; use one such as UTF-8 or ISO-8859-1") from None


def _time(own: Mapping[str, str], name: str, zone: str) -> int | None:
    text = own.get(name)
    if text is None:
        return None
    try:
        moment = datetime.datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=_zone(zone))
        since = moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    except (ValueError, OverflowError):
        raise InvalidInput(f"options: {name} is {text!r}; write it like 2026-01-31T12:00:00") from None
    return (since // datetime.timedelta(microseconds=1)) * 1000


def _zone(name: str) -> Any:
    import zoneinfo

    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, zoneinfo.ZoneInfoNotFoundError):
        raise InvalidInput(f"options: timeZone {name!r} is not known; use one such as Europe/Berlin") from None
