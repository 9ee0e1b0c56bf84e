"""Which files of a folder are of the source, by the rules of Spark's file source.

- Hidden files and folders are none (``names.is_hidden``), nor are files that a pattern leaves out, or without a byte: these are
  still being made.
- Folders below are looked into if the source is recursive, or if they are named like partitions.
- The path of the source may have patterns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lakebed.errors import InvalidInput, StoreUnavailable
from lakebed.sources.files.folder import Child, Folder, State, open_folder
from lakebed.sources.files.names import has_pattern, is_hidden, is_partition, pattern_of, quoted
from lakebed.sources.files.settings import FilesSettings, Options, base_of

DEPTH_MAX = 64
"""Of folders in folders: a link that leads back would have no end."""


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the source. ``path``: from the folder on."""

    path: str
    state: State


class Looker:
    """Looks into the folder of a source."""

    def __init__(self, settings: FilesSettings) -> None:
        options = Options.of(settings)
        base, self._patterns = base_of(settings.folder)
        self.folder: Folder = open_folder(base)
        self._name = pattern_of(options.name_pattern) if options.name_pattern else None
        self._options = options
        self._shown = settings.folder

    def url(self, path: str) -> str:
        """The URL of a file, which tells it from all others."""
        return f"{self.folder.url}/{quoted(path)}"

    def files(self, is_wanted: Callable[[str], bool] = lambda path: True) -> Iterator[Found]:
        """The files that are there now, in no order. Only those of wanted paths are asked for their states.

        Raises StoreUnavailable if the folder is not there, or does not answer; InvalidInput if it can't be read.
        """
        for path, child in self._paths():
            if is_wanted(path):
                try:
                    state = child.state()
                except FileNotFoundError:
                    continue
                if state.size and self._is_of_time(state):
                    yield Found(path, state)

    def paths(self) -> Iterator[str]:
        """The paths of all files, also of empty ones."""
        return (path for path, _ in self._paths())

    def _is_of_time(self, state: State) -> bool:
        before, after = self._options.modified_before_ns, self._options.modified_after_ns
        return (before is None or state.modified_ns < before) and (after is None or state.modified_ns > after)

    def _paths(self) -> Iterator[tuple[str, Child]]:
        for path, child in self._places("", self._patterns):
            if child is None or child.is_folder:
                yield from self._below(path, 0)
            elif self._selects(child.name):
                yield path, child

    def _places(self, path: str, names: tuple[str, ...]) -> Iterator[tuple[str, Child | None]]:
        """Where to look: what the patterns of the source's path match."""
        if not names:
            yield path, None
            return
        pattern, rest = pattern_of(names[0]), names[1:]
        for child in self._children(path):
            if pattern.fullmatch(child.name) and not (has_pattern(names[0]) and is_hidden(child.name)):
                inside = _joined(path, child.name)
                if not rest:
                    yield inside, child
                elif child.is_folder:
                    yield from self._places(inside, rest)

    def _below(self, path: str, depth: int) -> Iterator[tuple[str, Child]]:
        if depth > DEPTH_MAX:
            raise InvalidInput(f"{self._shown} has folders without end, below {path}; is there a link that leads back?")
        for child in self._children(path):
            if child.is_folder:
                if not is_hidden(child.name) and (self._options.recursive or is_partition(child.name)):
                    yield from self._below(_joined(path, child.name), depth + 1)
            elif self._selects(child.name):
                yield _joined(path, child.name), child

    def _selects(self, name: str) -> bool:
        return not is_hidden(name) and (self._name is None or self._name.fullmatch(name) is not None)

    def _children(self, path: str) -> Iterator[Child]:
        try:
            yield from self.folder.children(path)
        except FileNotFoundError:
            if not path:
                raise StoreUnavailable(
                    f"the folder {self._shown} is not there; is it mounted?", path=self._shown
                ) from None
        except NotADirectoryError:
            pass


def _joined(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name
