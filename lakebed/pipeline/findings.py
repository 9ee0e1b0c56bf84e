"""All that is wrong with a pipeline file, gathered so that it is reported at once, each with its line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields

from lakebed.errors import InvalidInput, LakebedError
from lakebed.pipeline.file.document import Document


class Findings:
    """Collects errors and notes about a file."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.errors: list[LakebedError] = []
        self.notes: list[str] = []
        self._places: set[tuple[str | int, ...]] = set()

    def wrong(self, text: str, *place: str | int) -> None:
        """Something is wrong with the value at a place of the file."""
        self.add(InvalidInput(text), *place)

    def add(self, error: LakebedError, *place: str | int) -> None:
        """An error about the value at a place of the file; its class stays."""
        self._places.add(place)
        self.errors.append(error.with_text(str(self._document.error(self._document.at(*place), str(error)))))

    def has(self, *place: str | int) -> bool:
        """Whether something is wrong with the value at exactly this place."""
        return place in self._places

    def note(self, text: str) -> None:
        """Something that is not wrong, but that its reader should know."""
        self.notes.append(self._document.redact(text))

    @contextmanager
    def at(self, *place: str | int) -> Iterator[None]:
        """Collects an error that is raised within, as one about the value at a place."""
        try:
            yield
        except LakebedError as error:
            self.add(error, *place)

    @contextmanager
    def within(self, section: str, settings: object) -> Iterator[None]:
        """Collects an error about a section; the place is that of the first setting that its text names."""
        try:
            yield
        except LakebedError as error:
            members, said = self._document.at(section).value, str(error)
            names = [item.name for item in fields(settings)]  # type: ignore[arg-type]
            named = [name for name in names if name in said and isinstance(members, Mapping) and name in members]
            self.add(error, section, *named[:1])

    def raise_if_any(self) -> None:
        """Raises all errors as one: InvalidInput, if one of them is."""
        if self.errors:
            raise self._document.all_of(self.errors)
