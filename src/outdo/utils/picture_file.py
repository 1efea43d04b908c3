"""Write matplotlib figures so that the same figure is the same file, byte for byte."""

import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from outdo.utils.errors import OutdoError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GENERATED_ID = re.compile(r'(?<=["#])([a-z])[0-9a-f]{10}(?=[")])')
"""The name of a clip path, a marker or a hatch in an SVG of matplotlib: a letter and a hash."""


def picture_mistakes(path: str | Path) -> list[str]:
    """Return a sentence if a picture cannot have this name."""
    return [] if Path(path).suffix in (".svg", ".png") else [f"{path}: the name of a picture ends in .svg or .png"]


def save_picture(figure: "Figure", path: str | Path) -> None:
    """Write a figure to an .svg or .png file. Raises `OutdoError` if the file cannot be written.

    matplotlib names the parts of an SVG by hashes. Here they are numbered instead, in the order in which they appear.
    """
    path = Path(path)
    _fix_positions(figure)
    try:
        _write(figure, path)
    except OSError as error:
        raise OutdoError(f"{path}: cannot be written: {os.strerror(error.errno or 0)}") from error


def _write(figure: "Figure", path: Path) -> None:
    if path.suffix != ".svg":
        figure.savefig(path, dpi=160)
        return
    text = io.StringIO()
    figure.savefig(text, format="svg", dpi=160, metadata={"Date": None, "Creator": None})
    names: dict[str, str] = {}
    numbered = GENERATED_ID.sub(
        lambda match: names.setdefault(match[0], f"{match[1]}{len(names) + 1}"), text.getvalue()
    )
    path.write_text(numbered, encoding="utf-8")


def _fix_positions(figure: "Figure") -> None:
    """Compute the layout of a figure once and round the positions.

    The solver of the constrained layout orders its terms by memory address, so the last digits of the positions differ
    from drawing to drawing.
    """
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for axes in figure.axes:
        left, bottom, width, height = (round(value, 5) for value in axes.get_position().bounds)
        axes.set_position((left, bottom, width, height))
    for text in figure.texts:
        x, y = text.get_position()
        text.set_position((round(x, 5), round(y, 5)))
