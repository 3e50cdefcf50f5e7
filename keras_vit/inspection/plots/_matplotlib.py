"""Drawing and saving with matplotlib. Only this module imports matplotlib, and only when a figure is drawn."""

import functools
import importlib
import io
import itertools
import os
import unicodedata
import warnings
from collections.abc import Callable
from typing import Any

from keras_vit.util import extras, file_io, formatting

BLUE, VERMILION = "#0072B2", "#D55E00"
SEQUENTIAL, HEAT = "viridis", "inferno"  # readable in grayscale and by color-blind readers

_STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "text.parse_math": False,  # a "$" in the name of a class or file must not start a formula
    "svg.fonttype": "none",  # keep text searchable and in the reader's font
    "svg.hashsalt": "keras_vit",  # write equal files for equal figures
    "pdf.fonttype": 42,
    "savefig.dpi": 150,
}


def require_matplotlib() -> Any:
    """Return the module `matplotlib.figure`. Unlike `pyplot`, a `Figure` has no global state."""
    with extras.needed("plots", "Figures need matplotlib"):
        return importlib.import_module("matplotlib.figure")


def styled() -> Any:
    """Return a context manager for drawing and saving in this package's style."""
    require_matplotlib()
    return importlib.import_module("matplotlib").rc_context(_STYLE)


def in_style(draw: Callable) -> Callable:
    """Decorate a function to draw in this package's style."""

    @functools.wraps(draw)
    def wrapper(*args, **kwargs):
        with styled():
            return draw(*args, **kwargs)

    return wrapper


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure. Width and height are in inches."""
    return require_matplotlib().Figure(figsize=(width, height), layout="constrained")


def heat_colors() -> list[list[int]]:
    """Return the 256 colors of overlays as [red, green, blue] in 0..255."""
    require_matplotlib()
    return importlib.import_module("matplotlib").colormaps[HEAT](range(256), bytes=True)[:, :3].tolist()


def encode(image: Any, kind: str) -> bytes:
    """Encode a uint8 image `[height, width, 3]`; `kind` is "png" or "jpeg"."""
    require_matplotlib()
    buffer = io.BytesIO()
    options = {"pil_kwargs": {"quality": 88}} if kind == "jpeg" else {}
    importlib.import_module("matplotlib.image").imsave(buffer, image, format=kind, **options)
    return buffer.getvalue()


def fit(text: str, width: int) -> str:
    """Return a text as one line, shortened with an ellipsis if it does not fit.

    `width` is in units of the letter "x". East Asian characters and emoji are two units wide.
    """
    text = formatting.one_line(text)
    widths = list(itertools.accumulate(map(_width, text)))
    if not text or widths[-1] <= width:
        return text
    return text[: max(sum(end <= width - 1 for end in widths), 1)] + "…"


def _width(character: str) -> float:
    if unicodedata.east_asian_width(character) in "WF":
        return 2.0
    return 1.7 if character in "MWmw@%" else 1.35 if character.isupper() else 1.0


def save(figure: Any, path: str) -> None:
    """Write a figure to a file. The file appears atomically.

    Args:
        figure: Result of a function of `plots`.
        path: File to write. The extension sets the format: `.svg` and `.pdf` are vector graphics, `.png` is not.

    Example:
    >>> save(training_curve([{"step": 1, "loss": 2.3}], CLASSIFICATION[0]), "loss.svg")
    """
    with file_io.atomic_file(path) as temporary:
        _write(figure, temporary, os.path.splitext(path)[1].removeprefix("."))


def svg(figure: Any) -> bytes:
    """Return a figure as the bytes of an SVG file."""
    buffer = io.BytesIO()
    _write(figure, buffer, "svg")
    return buffer.getvalue()


def _write(figure: Any, target: Any, kind: str) -> None:
    with styled(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # in SVG, the reader's fonts supply the glyph
        figure.savefig(target, format=kind, metadata={"Date": None} if kind == "svg" else None)
