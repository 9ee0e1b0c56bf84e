"""What lakebed's values look like in a notebook: small HTML tables, and pictures, for which matplotlib must be installed.

Every text is escaped: a table's path and a finding may hold what a stranger wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from lakebed.errors import InvalidInput, MissingPrerequisite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# -- What a notebook shows of lakebed's values: ``_repr_html_`` of tables, results and status, as small HTML tables --------


def html_record(title: str, values: Mapping[str, object]) -> str:
    """A title, and below it one line for each value."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{_text(value)}</td></tr>"
        for name, value in values.items()
    )
    return f"<div><b>{escape(title)}</b><table>{lines}</table></div>"


def html_table(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a header."""
    head = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td style='text-align:left'>{_text(value)}</td>" for value in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


class HtmlResult:
    """Lets a notebook show a dataclass, one line for each field that is not at its default."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        values = {
            field.name.replace("_", " "): getattr(self, field.name)
            for field in dataclasses.fields(self)  # type: ignore[arg-type]
            if not _is_default(field, getattr(self, field.name))
        }
        return html_record(type(self).__name__, values)


def _is_default(field: dataclasses.Field[object], value: object) -> bool:
    if field.default_factory is not dataclasses.MISSING:
        return bool(value == field.default_factory())
    return bool(field.default is not dataclasses.MISSING and value == field.default)


def _text(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
        case Mapping():
            return escape(", ".join(f"{name}: {each}" for name, each in value.items()))
        case tuple() | list():
            return "<br>".join(escape(str(each)) for each in value)
        case _:
            return escape(str(value))


# -- Writes pictures, for which matplotlib must be installed ---------------------------------------------------------------


def save(figure: Figure, file: str) -> None:
    """Write the figure as a PNG. Raises InvalidInput."""
    try:
        figure.savefig(file, format="png", dpi=110)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"the picture can't be written to {file!r} ({error}); give a file in a folder that is there"
        ) from None


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, its size in inches, that needs no screen; ``savefig`` it. Raises MissingPrerequisite."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPrerequisite("drawing needs matplotlib: pip install 'lakebed[plots]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
