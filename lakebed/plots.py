"""Pictures, for which matplotlib must be installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lakebed.errors import MissingPrerequisite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches that needs no screen; ``savefig`` it. Raises MissingPrerequisite."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPrerequisite("drawing needs matplotlib: pip install 'lakebed[plots]'") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
