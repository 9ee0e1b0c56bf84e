"""Writes pictures, for which matplotlib must be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.errors import InvalidInput, MissingPrerequisite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
