"""Matplotlib figures as SVG that stands inside a page: text stays text, and takes the page's font and colours.

The tree of the SVG is parsed and written anew, so all text comes out escaped; ids get a prefix, for several plots share
one page; metadata, with the only addresses in it, is left out.
"""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"

# what plots draw with → the page's variable, which differs in dark mode
INK, GREY, RULE, PAPER = "#1b1b1f", "#6b6b75", "#e3e3e8", "#fdfdfe"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"  # of Okabe and Ito: colour-blind people tell them apart
_VARIABLES = {
    INK: "var(--ink)",
    GREY: "var(--muted)",
    RULE: "var(--rule)",
    PAPER: "var(--paper)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
}
STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",  # measures the text; the page's own font shows it
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.8,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "butt",
    "lines.markersize": 3.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.color": INK,
    "text.parse_math": False,  # a $ in a name is a $
    "xtick.color": GREY,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": GREY,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.5,
    "ytick.major.size": 0,
}


def to_svg(figure: Figure, prefix: str, label: str) -> str:
    """The `<svg>` element. `prefix`: of its ids, one of its own on the page; `label`: what the picture shows."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(file, format="svg", metadata=nothing)
    root = ElementTree.fromstring(file.getvalue())
    for name in ("width", "height"):
        del root.attrib[name]
    root.set("class", "plot")
    root.set("role", "img")
    root.set("aria-label", label)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{_SVG}}}metadata", f"{{{_SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for name, value in list(element.attrib.items()):
            element.set(name, _attribute(name, value, prefix))
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(name: str, value: str, prefix: str) -> str:
    if name == "id":
        return f"{prefix}-{value}"
    if name == f"{{{_XLINK}}}href":
        return value.replace("#", f"#{prefix}-", 1) if value.startswith("#") else value
    if name == "clip-path":
        return value.replace("url(#", f"url(#{prefix}-")
    if name == "style":
        return re.sub("#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), value)
    return value
